"""`specdash agent --changes`: shows and changes the services of this machine for a specdash on another one, over ssh.

A JSON object a line: a request in, its answer out. What changes something is a command in a session of its own
(`control.detached`): it goes on when the connection, and this agent with it, is gone.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from specdash import __version__
from specdash.collect.agent_wire import PROTOCOL, AgentHello, AgentLine, write_line
from specdash.control.console import Console
from specdash.control.detached import MOST_REQUEST_BYTES, DetachedCommands
from specdash.control.far import PlanOutline, read_wanted, written
from specdash.control.services.deployment import find_deployment
from specdash.core.errors import ExitCode, SpecdashError, UsageError
from specdash.core.masking import MASK
from specdash.system.files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdash.core.config import Resolved

WAIT_S = 0.5
"""So long a question how a command goes waits for something new."""


def serve(settings: Mapping[str, Resolved], deserted_s: float) -> int:
    """Answer until standard input ends, or nobody has asked anything for so long."""
    asked = ChangeRequests(settings)
    write_all(1, write_line(AgentLine(time.monotonic(), time.time(), AgentHello(__version__, PROTOCOL, _host()))))
    for line in _lines(deserted_s):
        try:
            reply = {"answer": asked.answer(line)}
        except SpecdashError as error:
            reply = {"error": str(error), "code": int(error.exit_code)}
        except OSError as error:
            reply = {"error": f"{error.strerror or error}", "code": int(ExitCode.FAILED)}
        try:
            write_all(1, json.dumps(reply).encode() + b"\n")
        except OSError:
            break
    return ExitCode.OK


class ChangeRequests:
    """What may be asked, and its answers."""

    def __init__(self, settings: Mapping[str, Resolved]) -> None:
        self._settings = settings
        self._console = Console(lambda: find_deployment(settings), drain_timeout_s=0, health_timeout_s=0)
        self._commands = DetachedCommands()
        self._by_name: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "ready": lambda _: None,
            "look": lambda _: self._look(),
            "unfinished": lambda _: self._console.unfinished(),
            "plan": lambda request: self._plan(request),
            "plan_rollback": lambda _: written(PlanOutline.of(self._console.plan_rollback())),
            "missing_values": lambda request: dict(
                self._console.missing_values(str(request["key"]), dict(request["values"]))
            ),
            "profiles": lambda _: [written(profile) for profile in self._console.profiles()],
            "begin": lambda request: self._begin(request),
            "answer": lambda request: self._commands.answer(str(request["id"]), str(request["text"])),
            "cancel": lambda request: self._commands.cancel(str(request["id"])),
            "follow": lambda request: self._commands.follow(str(request["id"]), int(request["after"]), WAIT_S),
        }

    def answer(self, line: bytes) -> Any:
        """Raises `SpecdashError` for what cannot be answered; its text repeats nothing of the request."""
        try:
            request = json.loads(line)
            work = self._by_name[request["ask"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UsageError("no request that is known here") from None
        try:
            return work(request)
        except (ValueError, TypeError, KeyError):
            raise UsageError(f"{request['ask']}: a field is missing, or not what it should be") from None

    def _begin(self, request: Mapping[str, Any]) -> None:
        read_only = self._settings["read_only"]
        if request.get("dashboard") and read_only.value:
            raise UsageError(f"read_only on {_host()} ({read_only.origin}): no dashboard changes anything there")
        self._commands.begin(str(request["id"]), request)

    def _look(self) -> Any:
        from dataclasses import replace

        services = self._console.look()
        return written(replace(services, services=tuple(service.masked for service in services.services)))

    def _plan(self, request: Mapping[str, Any]) -> Any:
        wanted = read_wanted(request["wanted"])
        masked = [key for values in wanted.values() for key, value in values.items() if MASK in (value or "")]
        if masked:
            raise UsageError(
                f"{masked[0]}: its value holds {MASK}, which stands for a secret that is not shown; change it on "
                f"{_host()} itself, or with `specdash apply --from-stdin`"
            )
        plan = self._console.plan(wanted, request.get("profile"))
        return written(PlanOutline.of(plan))


def _host() -> str:
    return socket.gethostname()


def _lines(deserted_s: float) -> Iterator[bytes]:
    rest = b""
    while select.select([0], [], [], deserted_s)[0]:
        data = os.read(0, 1 << 16)
        if not data or len(rest) > MOST_REQUEST_BYTES:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
