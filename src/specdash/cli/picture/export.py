"""`specdash export`: everything that is known of servers as Prometheus metrics, on a port or printed once."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from specdash.cli.options import (
    add_settings,
    alert_rules,
    await_answers,
    collecting,
    find_targets,
    no_server,
    one_target,
    resolved_settings,
    say,
)
from specdash.cli.signals import ended_by_signals
from specdash.core.config import RULE_SETTINGS, TARGET_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.core.target import host_and_port

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from specdash.core.config import Resolved
    from specdash.core.target import Target
    from specdash.export.prometheus import RequestTally
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule
    from specdash.insight.state import TargetState

LISTEN = "127.0.0.1:9538"
LOOK_S = 10.0
"""How often finished requests are taken in, and with --all servers are looked for."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*TARGET_SETTINGS, *RULE_SETTINGS, "refresh", "window"))
    parser.add_argument(
        "--all", action="store_true", help="every server on this machine, including those that start later"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--listen", metavar="HOST:PORT", help=f"address to serve /metrics on (default {LISTEN})")
    form.add_argument("--once", action="store_true", help="print the metrics once and exit")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal, or print once: 4 where nothing was found."""
    settings = resolved_settings(args)
    if args.all and settings["url"].value is not None:
        raise UsageError("--all and --url cannot be used together: --url names one server")
    host, port = _place(args.listen or LISTEN)
    rules = alert_rules(settings)
    with ExitStack() as stack:
        watched = ExportedServers(settings, rules, stack)
        if args.once:
            targets = find_targets(settings) if args.all else [one_target(settings)]
            if not targets:
                raise no_server()
            watched.add(targets)
            _print_page(watched)
            return ExitCode.OK
        return _serve(watched, settings, host, port, every=args.all)


def _place(text: str) -> tuple[str, int]:
    try:
        host, port = host_and_port(text)
    except ValueError:
        raise UsageError(f"--listen {text}: must be HOST:PORT, as {LISTEN}; [::]:PORT for all addresses") from None
    return host.strip("[]"), port


class ExportedServers:
    """The servers whose metrics are served; `stack` ends their collectors."""

    def __init__(self, settings: Mapping[str, Resolved], rules: Sequence[Rule], stack: ExitStack) -> None:
        self._rules = rules
        self._interval_s = settings["refresh"].value
        self._window_s = WINDOWS_S[settings["window"].value]
        self._stack = stack
        self._servers: dict[str, tuple[TargetState, RequestTally]] = {}

    def add(self, targets: Sequence[Target]) -> None:
        """Watch those of the targets that are not watched yet, and wait for their first answers."""
        from specdash.export.prometheus import RequestTally

        added = {
            target.url: self._stack.enter_context(collecting(target, self._rules, interval_s=self._interval_s))
            for target in targets
            if target.url not in self._servers
        }
        await_answers(list(added.values()))
        # One step, since scrapes come from another thread.
        self._servers = {**self._servers, **{url: (state, RequestTally()) for url, state in added.items()}}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._servers)

    def looks(self) -> list[tuple[Picture, RequestTally]]:
        """What is known of each now."""
        now, wall = time.monotonic(), time.time()
        return [
            (state.picture(now, wall, self._window_s), state.finished(tally.after))
            for state, tally in self._servers.values()
        ]


def _print_page(watched: ExportedServers) -> None:
    from prometheus_client.openmetrics.exposition import generate_latest

    from specdash.export.prometheus import registry_of

    page: bytes = generate_latest(registry_of(watched.looks))  # type: ignore[no-untyped-call]  # it has no types
    sys.stdout.write(page.decode())


def _serve(watched: ExportedServers, settings: Mapping[str, Resolved], host: str, port: int, *, every: bool) -> int:
    from prometheus_client.exposition import start_http_server

    from specdash.export.prometheus import registry_of

    with ended_by_signals() as stop:
        try:
            server, thread = start_http_server(port, host, registry_of(watched.looks))
        except OSError as error:
            raise InputError(f"--listen {host}:{port}: {error.strerror or error}; name another with --listen") from None
        try:
            where = f"[{host}]" if ":" in host else host
            say(f"metrics on http://{where}:{server.server_port}/metrics")
            waits = False
            while True:
                if every or not watched.count:
                    targets = find_targets(settings)
                    watched.add(targets if every else targets[:1])
                if not watched.count and not waits:
                    say("no llama-server found yet; waiting for one (or name it with --url http://HOST:PORT)")
                    waits = True
                watched.looks()
                if stop.wait(LOOK_S):
                    return ExitCode.OK
        finally:
            server.shutdown()
            server.server_close()
            thread.join(1.0)
