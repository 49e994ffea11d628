"""What the command line and environment of a running llama-server tell about it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from specdash.core.command_flags import added, flags_of, speculation
from specdash.core.parameter_catalogue import BY_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.parameters import Parameter

EMBEDDED_MODULE = "specdash.backend.embedded"

DEFAULT_PORT = 8080

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104 - named, not bound


@dataclass(frozen=True, slots=True)
class ServerArguments:
    """How a server was started, as far as arguments and `LLAMA_ARG_*` variables tell; None where they do not."""

    host: str | None = None
    port: int | None = None
    log: str | None = None
    needs_key: bool = False
    speculation: tuple[tuple[str, str], ...] = ()
    """(flag without dashes, value) of every speculation flag; a switch has an empty value."""

    def url(self, port: int | None = None) -> str | None:
        """Where it can be asked from this machine; None for a socket file."""
        host = self.host or ""
        if host.endswith(".sock") or "/" in host:
            return None
        host = _ANY_ADDRESS.get(host, host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port or self.port or DEFAULT_PORT}"


def is_llama_server(command: Sequence[str]) -> bool:
    """Whether an argument vector is a llama-server: the binary, or the embedded one of `specdash backend run`."""
    if not command:
        return False
    if PurePath(command[0]).name.startswith("llama-server"):
        return True
    return any(flag == "-m" and module == EMBEDDED_MODULE for flag, module in itertools.pairwise(command))


def server_arguments(
    command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: str | None = None
) -> ServerArguments:
    """What the arguments, and where they are silent the environment, say. A relative log path is taken from `cwd`."""
    given = {p.flags[0]: (p, value) for key, value in (environment or {}).items() if (p := _by_native_key(key))}
    for flag, (parameter, value) in flags_of(command[1:]).items():
        given[flag] = (parameter, added(parameter, given.get(flag), value))
    values = {flag: value for flag, (_, value) in given.items()}
    log = values.get("--log-file")
    return ServerArguments(
        host=values.get("--host"),
        port=_port(values.get("--port")),
        log=str(PurePath(cwd or "/", log)) if log else None,
        needs_key="--api-key" in values or "--api-key-file" in values or bool((environment or {}).get("LLAMA_API_KEY")),
        speculation=speculation(given),
    )


def _by_native_key(key: str) -> Parameter | None:
    parameter = BY_KEY.get(key) if key.startswith("LLAMA_ARG_") else None
    return parameter if parameter is not None and parameter.flags else None


def _port(text: str | None) -> int | None:
    if text is None or not text.isdecimal() or len(text) > 5:
        return None
    return int(text) or None
