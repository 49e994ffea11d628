"""`specdash agent`: watches the server of this machine for a specdash on another one, over ssh (docs/remote.md).

It writes what it sees to standard output, a JSON object a line, and ends when its standard input does. It listens on no
port, and says no key.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from specdash import __version__
from specdash.cli.options import add_settings, find_targets, resolved_settings
from specdash.cli.signals import ended_by_signals
from specdash.core.config import REFRESH_S, SERVICE_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import ExitCode, UsageError
from specdash.system.files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from specdash.collect.agent import Outbox
    from specdash.collect.agent_wire import LogPlace
    from specdash.core.config import Resolved
    from specdash.core.flag import Flag
    from specdash.core.readings import Reading
    from specdash.core.target import Target

LOOK_S = 3.0
"""Seconds between two looks for a server, and between two words that there is none."""
NONE_YET = "no llama-server is found there yet; --url ssh://HOST/127.0.0.1:PORT names one"
DESERTED_S = 60.0
"""Whoever gave orders once gives them again and again. When they cease for so long, the connection is dead, though
nobody here was told: sshd itself would keep the agent for hours."""
_MOST_WORDS = 1 << 16


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*TARGET_SETTINGS, "refresh"))
    parser.add_argument("--log-after", metavar="PLACE", help="continue reading the log where another agent stopped")
    add_settings(parser, SERVICE_SETTINGS)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--changes", action="store_true", help="show and change the services here, instead of watching")
    way.add_argument("--carry-out", type=int, metavar="FD", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Watch until standard input ends, standard output is gone, or a signal comes."""
    if args.carry_out is not None:
        from specdash.cli.main import main
        from specdash.control.detached import carry_out

        return carry_out(args.carry_out, main)
    settings = resolved_settings(args)
    if args.changes:
        from specdash.cli.servers.agent_changes import serve

        return serve(settings, DESERTED_S)
    from specdash.collect.agent import Outbox
    from specdash.collect.agent_wire import PROTOCOL, AgentHello

    log_after = _place(args.log_after)
    outbox = Outbox(AgentHello(__version__, PROTOCOL, socket.gethostname()))
    with ended_by_signals() as stop, closing(outbox):
        threading.Thread(target=_write, args=(outbox, stop), name="specdash-agent", daemon=True).start()
        orders = AgentOrders(settings["refresh"].value)
        threading.Thread(target=orders.read, args=(stop,), name="specdash-orders", daemon=True).start()
        target = _target(settings, orders, outbox, stop)
        if target is not None:
            _watch(target, orders, outbox, stop, log_after)
        return ExitCode.OK


def _target(settings: Mapping[str, Resolved], orders: AgentOrders, outbox: Outbox, stop: Flag) -> Target | None:
    """The server to watch; waits until there is one. None when it is time to end."""
    while not (targets := find_targets(settings)):
        outbox.wait_for(NONE_YET)
        if stop.wait(LOOK_S) or orders.have_ceased:
            return None
    return targets[0]


def _watch(target: Target, orders: AgentOrders, outbox: Outbox, stop: Flag, log_after: LogPlace | None) -> None:
    from specdash.collect.hub import Hub
    from specdash.core.readings import Source

    def sink(reading: Reading[Any]) -> None:
        outbox.add(reading, hub.log_read if reading.source is Source.LOG else None)

    outbox.know(target)
    hub = Hub(target, [sink], interval_s=orders.interval_s, on_target=outbox.know, log_after=log_after)
    with hub:
        orders.on_interval = hub.set_interval
        hub.set_interval(orders.interval_s)
        while not stop.wait(LOOK_S) and not orders.have_ceased:
            continue


class AgentOrders:
    """What whoever started the agent says on its standard input: a JSON object a line. The end of it ends the agent."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self.interval_s = interval_s
        """Seconds between two looks."""
        self.on_interval: Callable[[float], None] = lambda _: None

    @property
    def have_ceased(self) -> bool:
        """Whether there were some, and none for long."""
        return self._last is not None and self._clock() - self._last > DESERTED_S

    def read(self, stop: Flag) -> None:
        """Take orders to their end; what is none is passed over."""
        try:
            while line := sys.stdin.buffer.readline(_MOST_WORDS):
                self.take(line)
        except (OSError, ValueError):
            pass
        stop.set()

    def take(self, line: bytes) -> None:
        """One order; what is none is passed over."""
        try:
            interval_s = float(json.loads(line)["interval"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        self._last = self._clock()
        if interval_s in REFRESH_S and interval_s != self.interval_s:
            self.interval_s = interval_s
            self.on_interval(interval_s)


def _write(outbox: Outbox, stop: Flag) -> None:
    """Write all lines; a reader that is gone ends the agent."""
    try:
        for line in outbox.lines():
            write_all(1, line)
    except OSError:
        pass
    finally:
        stop.set()


def _place(text: str | None) -> LogPlace | None:
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise UsageError(f"--log-after {text}: must be DEVICE:INODE:OFFSET, as an agent said it")
    device, inode, offset = map(int, parts)
    return device, inode, offset
