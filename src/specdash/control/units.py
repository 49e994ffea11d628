"""The text of specdash's own systemd user units, from facts about this machine. Pure: reads and writes nothing."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.control.unit_files import assignment, path_value, word
from specdash.core.changes import Role
from specdash.core.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKEND_UNIT = "specdash-backend.service"
PROXY_UNIT = "specdash-proxy.service"
PROXY_SOCKET = "specdash-proxy.socket"
RECORD_UNIT = "specdash-record.service"
UNIT_OF = {Role.BACKEND: BACKEND_UNIT, Role.PROXY: PROXY_UNIT}
"""The main unit of each service."""
UNITS_OF = {Role.BACKEND: (BACKEND_UNIT,), Role.PROXY: (PROXY_SOCKET, PROXY_UNIT)}
"""All units of each service, in the order in which they are started."""
VERSION = 1
"""Of the units' form; goes up when `install` should renew those already there."""
_MARKER = re.compile(r"# specdash unit, version (\d+):")
_LOG_LIMIT_MIB = 16
_STOP_SLACK_S = 16.0
"""On top of the service's own patience: its second signal, its SIGKILL, and the reaping."""


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What the units are made of. Paths are absolute, times in seconds.

    `listen` are the proxy's addresses, as `ListenStream=` takes them; `environment` goes into both services, and must
    hold no secret; `log_dir` is where output is appended to, None leaves it to the journal.
    """

    python: str
    backend_env: str
    proxy_env: str
    listen: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    backend_patience: float = 5.0
    """LLAMA_STOP_TIMEOUT: how long the runner lets the engine end by itself."""
    proxy_patience: float = 30.0
    """PROXY_DRAIN_TIMEOUT: how long the proxy lets its requests finish."""
    log_dir: str | None = None
    kill: str = "/bin/kill"
    find: str = "/usr/bin/find"
    modprobe: str | None = None
    """nvidia-modprobe, where it is installed."""


def unit_texts(facts: UnitFacts) -> dict[str, str]:
    """File name to text of all our units. Raises `InputError` for a path that a unit file cannot hold."""
    return {
        BACKEND_UNIT: _backend(facts),
        PROXY_SOCKET: _socket(facts),
        PROXY_UNIT: _proxy(facts),
    }


def record_unit(facts: UnitFacts) -> str:
    """The text of the recorder's unit. It waits for a server by itself, and needs neither of the others."""
    return _text(
        "the recorder",
        [
            "[Unit]",
            "Description=specdash: recorder of the llama.cpp server",
            f"After={BACKEND_UNIT} {PROXY_UNIT}",
            *_limits(),
            "",
            "[Service]",
            "Type=simple",
            *_output(facts, RECORD_UNIT),
            f"ExecStart={word(facts.python, program=True)} -m specdash record",
            *_restarts(2, _codes(ExitCode.USAGE, ExitCode.BAD_INPUT)),
            "KillMode=mixed",
            "TimeoutStopSec=15",
            *_environment(facts),
            "Nice=5",
            *_sandbox(),
            "",
            "[Install]",
            "WantedBy=default.target",
        ],
    )


def version_of(text: str) -> int | None:
    """The version of a unit that specdash wrote; None for anybody else's."""
    found = _MARKER.match(text)
    return int(found.group(1)) if found else None


def _backend(facts: UnitFacts) -> str:
    # CUDA's setuid helper makes its device nodes after a boot, and cannot under NoNewPrivileges: so it runs before.
    modprobe = [f"ExecStartPre=-+{word(facts.modprobe, program=True)} -u -c=0"] if facts.modprobe else []
    given_up = _codes(ExitCode.USAGE, ExitCode.BAD_INPUT, ExitCode.NO_ENGINE)
    return _text(
        "the llama.cpp backend",
        [
            "[Unit]",
            "Description=specdash: llama.cpp server with speculative decoding",
            *_limits(),
            "",
            "[Service]",
            "Type=simple",
            *modprobe,
            *_output(facts, BACKEND_UNIT),
            *_commands(facts, "backend", facts.backend_env, "USR1"),
            *_restarts(2, given_up),
            *_ending(facts.backend_patience),
            *_environment(facts),
            "# No device or memory is kept from it: GPU drivers and models may be anywhere.",
            *_sandbox(),
            "LimitMEMLOCK=infinity",
            "LimitNOFILE=65536",
            "",
            "[Install]",
            "WantedBy=default.target",
        ],
    )


def _proxy(facts: UnitFacts) -> str:
    given_up = _codes(ExitCode.USAGE, ExitCode.BAD_INPUT)
    return _text(
        "the Anthropic proxy",
        [
            "[Unit]",
            "Description=specdash: Anthropic proxy in front of llama.cpp",
            f"Requires={PROXY_SOCKET}",
            f"After={PROXY_SOCKET} {BACKEND_UNIT}",
            *_limits(),
            "",
            "[Service]",
            "Type=notify",
            "NotifyAccess=main",
            "TimeoutStartSec=60",
            *_output(facts, PROXY_UNIT),
            *_commands(facts, "proxy", facts.proxy_env, "HUP"),
            *_restarts(1, given_up),
            *_ending(facts.proxy_patience),
            *_environment(facts),
            *_sandbox(),
            "RestrictRealtime=yes",
            "RestrictNamespaces=yes",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
            "LimitNOFILE=65536",
            "",
            "[Install]",
            f"Also={PROXY_SOCKET}",
            "WantedBy=default.target",
        ],
    )


def _socket(facts: UnitFacts) -> str:
    if not facts.listen:
        raise InputError("the proxy has no address to listen on; set PROXY_HOST and PROXY_PORT")
    return _text(
        "the Anthropic proxy's socket; it outlives a restart of the proxy, so that no connection is refused",
        [
            "[Unit]",
            "Description=specdash: where the Anthropic proxy listens",
            "",
            "[Socket]",
            "# From PROXY_HOST and PROXY_PORT: run `specdash services install` again after changing them.",
            *(f"ListenStream={one}" for one in facts.listen),
            "BindIPv6Only=ipv6-only",
            "Backlog=1024",
            "FileDescriptorName=specdash-proxy",
            f"Service={PROXY_UNIT}",
            "",
            "[Install]",
            "WantedBy=sockets.target",
        ],
    )


def _text(what: str, lines: list[str]) -> str:
    marker = f"# specdash unit, version {VERSION}: {what}."
    note = "# Written by `specdash services install`, which replaces it; put changes into a drop-in (systemctl edit)."
    return "\n".join([marker, note, *lines, ""])


def _limits() -> list[str]:
    return ["StartLimitIntervalSec=600", "StartLimitBurst=5"]


def _commands(facts: UnitFacts, command: str, env_file: str, reload_signal: str) -> list[str]:
    run = [word(facts.python, program=True), "-m", "specdash", command, "run", "--env-file", word(env_file)]
    return [
        f"ExecStart={' '.join(run)}",
        f"ExecReload={word(facts.kill, program=True)} -{reload_signal} $MAINPID",
    ]


def _restarts(pause_s: int, given_up: str) -> list[str]:
    return [
        "Restart=on-failure",
        f"RestartSec={pause_s}",
        f"RestartPreventExitStatus={given_up}",
        f"SuccessExitStatus={int(ExitCode.INTERRUPTED)}",
    ]


def _ending(patience_s: float) -> list[str]:
    return ["KillMode=mixed", "KillSignal=SIGTERM", f"TimeoutStopSec={math.ceil(patience_s + _STOP_SLACK_S)}"]


def _environment(facts: UnitFacts) -> list[str]:
    # Without PYTHONSAFEPATH, a stray json.py in the home directory would be imported.
    given = {"PYTHONSAFEPATH": "1", **facts.environment}
    return ["UMask=0077", *(f"Environment={assignment(key, value)}" for key, value in given.items())]


def _sandbox() -> list[str]:
    return ["NoNewPrivileges=yes", "LockPersonality=yes", "RestrictSUIDSGID=yes", "SystemCallArchitectures=native"]


def _output(facts: UnitFacts, unit: str) -> list[str]:
    if facts.log_dir is None:
        return []
    path = f"{facts.log_dir}/{unit.removesuffix('.service')}.log"
    old = [word(facts.find, program=True), word(path), "-size", f"+{_LOG_LIMIT_MIB}M", "-exec", "mv"]
    return [
        f"StandardOutput=append:{path_value(path)}",
        f"StandardError=append:{path_value(path)}",
        f"ExecStartPre=-{' '.join(old)} {{}} {word(path + '.1')} \\;",
    ]


def _codes(*codes: ExitCode) -> str:
    return " ".join(str(int(code)) for code in codes)
