"""The texts of specdash's systemd user units, and what they are made of on this machine."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.system.processes import open_listening

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.parameters import Parameter

BACKEND_UNIT, PROXY_UNIT = "specdash-backend.service", "specdash-proxy.service"
PROXY_SOCKET, RECORD_UNIT = "specdash-proxy.socket", "specdash-record.service"
UNIT_OF = {Role.BACKEND: BACKEND_UNIT, Role.PROXY: PROXY_UNIT}
"""The main unit of each service."""
UNITS_OF = {Role.BACKEND: (BACKEND_UNIT,), Role.PROXY: (PROXY_SOCKET, PROXY_UNIT)}
"""All units of each service."""
MARKER = "# specdash unit, version "
"""How a unit begins that specdash wrote, in 0.1 too."""

_HEAD = (
    MARKER + "2.\n"
    "# Written by `specdash services install`, which replaces it; put changes into a drop-in (systemctl edit).\n"
)
_SERVICE = """\
[Unit]
Description=specdash: {title}
{order}StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
Type={type}
{prepare}{output}ExecStart={python} -m specdash {command}
{reload}Restart=on-failure
RestartSec=1
RestartPreventExitStatus={given_up}
SuccessExitStatus=130
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_s}
UMask=0077
{environment}NoNewPrivileges=yes
LockPersonality=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
{limits}
[Install]
{also}WantedBy=default.target
"""
_SOCKET = """\
[Unit]
Description=specdash: where the Anthropic proxy listens, also while the proxy restarts

[Socket]
# From PROXY_HOST and PROXY_PORT: run `specdash services install` again after changing them.
{listen}BindIPv6Only=ipv6-only
Backlog=1024
FileDescriptorName=specdash-proxy
Service=specdash-proxy.service

[Install]
WantedBy=sockets.target
"""
_PROXY_LIMITS = """\
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LimitNOFILE=65536
"""
_BACKEND_LIMITS = "LimitMEMLOCK=infinity\nLimitNOFILE=65536\n"
"""No device or memory is kept from it: GPU drivers and models may be anywhere."""
_PATIENCE = {Role.BACKEND: BACKEND_KEYS["LLAMA_STOP_TIMEOUT"], Role.PROXY: PROXY_KEYS["PROXY_DRAIN_TIMEOUT"]}
_STOP_SLACK_S = 16.0
"""On top of that: its second signal, its SIGKILL, and the reaping."""
# What the services find as the caller finds it: specdash's places, and the engine.
_PASSED_ON = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "LLAMA_BIN", "LLAMA_ENGINE")
_JOURNAL, _KEPT_JOURNAL = Path("/run/systemd/journal/stdout"), Path("/var/log/journal")
_ADDRESS = re.compile(r"[\d.]+\Z|[\da-fA-F:.%]*:")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+\Z")


def unit_directory(env: Mapping[str, str]) -> Path:
    """Where the user's own units are."""
    return paths.config_dir(env).parent / "systemd" / "user"


def log_dir(env: Mapping[str, str]) -> Path | None:
    """Where the services' output is appended to; None where the journal keeps it."""
    return None if _JOURNAL.exists() and _KEPT_JOURNAL.is_dir() else paths.state_dir(env) / "logs"


def unit_texts(
    env: Mapping[str, str], env_files: Mapping[Role, Path], values: Mapping[Role, Mapping[str, str]]
) -> dict[str, str]:
    """File name to text of all units, from the env files and what they say. Raises `InputError` for what a unit cannot
    say."""
    backend = values.get(Role.BACKEND, {})
    # Without PYTHONSAFEPATH, a stray json.py in the home directory would be imported.
    passed = {"PYTHONSAFEPATH": "1", **{key: env[key] for key in _PASSED_ON if env.get(key) and key not in backend}}
    if "LLAMA_BIN" not in {**passed, **backend} and (binary := shutil.which("llama-server", path=env.get("PATH"))):
        # systemd's PATH is shorter: it might run another engine than the caller has seen at work, or none.
        passed["LLAMA_BIN"] = os.path.abspath(binary)  # noqa: PTH100 - links stay
    environment = "".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in passed.items())
    # CUDA's setuid helper makes its device nodes after a boot, and cannot under NoNewPrivileges: so it runs before.
    modprobe = shutil.which("nvidia-modprobe", path=env.get("PATH"))
    kill = shutil.which("kill", path=env.get("PATH")) or "/bin/kill"

    def service(unit: str, title: str, role: Role | None = None, signal: str = "", **parts: str) -> str:
        usual = {"order": "", "type": "simple", "given_up": "2 3", "prepare": "", "reload": "", "also": ""}
        if role is not None:
            parts["command"] = f"{role} run --env-file {_word(str(env_files[role]))}"
            parts["reload"] = f"ExecReload={_word(kill)} -{signal} $MAINPID\n"
            parts["stop_s"] = f"{_number(_PATIENCE[role], values.get(role, {})) + _STOP_SLACK_S:.0f}"
        python, output = _quoted(sys.executable), _output(env, unit)
        return _HEAD + _SERVICE.format(
            title=title, python=python, environment=environment, output=output, **{**usual, **parts}
        )

    listen = "".join(f"ListenStream={name}\n" for name in listen_streams(values.get(Role.PROXY, {})))
    return {
        BACKEND_UNIT: service(
            BACKEND_UNIT,
            "llama.cpp server with speculative decoding",
            Role.BACKEND,
            "USR1",
            given_up="2 3 5",
            prepare=f"ExecStartPre=-+{_word(modprobe)} -u -c=0\n" if modprobe else "",
            limits=_BACKEND_LIMITS,
        ),
        PROXY_SOCKET: _HEAD + _SOCKET.format(listen=listen),
        PROXY_UNIT: service(
            PROXY_UNIT,
            "Anthropic proxy in front of llama.cpp",
            Role.PROXY,
            "HUP",
            order=f"Requires={PROXY_SOCKET}\nAfter={PROXY_SOCKET} {BACKEND_UNIT}\n",
            type="notify",
            prepare="NotifyAccess=main\nTimeoutStartSec=60\n",
            limits=_PROXY_LIMITS,
            also=f"Also={PROXY_SOCKET}\n",
        ),
        RECORD_UNIT: service(
            RECORD_UNIT,
            "recorder of the llama.cpp server",
            command="record",
            order=f"After={BACKEND_UNIT} {PROXY_UNIT}\n",
            stop_s="15",
            limits="Nice=5\n",
        ),
    }


def proxy_place(values: Mapping[str, str]) -> tuple[str, int]:
    """Where PROXY_HOST and PROXY_PORT say that the proxy listens. Raises `InputError`."""
    host = values.get("PROXY_HOST", "").strip() or str(PROXY_KEYS["PROXY_HOST"].default)
    return host.strip("[]"), int(_number(PROXY_KEYS["PROXY_PORT"], values))


def listen_streams(values: Mapping[str, str]) -> list[str]:
    """The same as `ListenStream=` takes it, an address each. Raises `InputError`."""
    host, port = proxy_place(values)
    names = [host]
    if not _ADDRESS.match(host):
        try:
            # A name may stand for addresses that this machine has not: with one of them the whole unit would fail.
            sockets = open_listening(host, 0)
        except OSError as error:
            raise InputError(f"PROXY_HOST={host}: {error.strerror or error}") from None
        names = list(dict.fromkeys(item.getsockname()[0] for item in sockets))
        for item in sockets:
            item.close()
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names]


def _number(parameter: Parameter, values: Mapping[str, str]) -> float:
    text = values.get(parameter.key, "").strip()
    return float(str(parameter.parse(text, parameter.key) if text else parameter.default))


def _output(env: Mapping[str, str], unit: str) -> str:
    """Where there is no journal, the output goes to a file, which is moved away at a start when it is too long."""
    directory = log_dir(env)
    if directory is None:
        return ""
    path = str(directory / unit.replace(".service", ".log"))
    find = shutil.which("find", path=env.get("PATH")) or "/usr/bin/find"
    whole = path.replace("%", "%%")
    return (
        f"StandardOutput=append:{whole}\nStandardError=append:{whole}\n"
        f"ExecStartPre=-{_word(find)} {_word(path)} -size +16M -exec mv {{}} {_word(path + '.1')} \\;\n"
    )


def _word(text: str) -> str:
    """A word of a command line, so that systemd hands over exactly it (systemd.service(5))."""
    return _quoted(text).replace("$", "$$")


def _quoted(text: str) -> str:
    """`text` in systemd's quotes where it needs them. Raises `InputError` for characters that no unit file is safe
    with."""
    if not text.isprintable() or "\\" in text or '"' in text:
        raise InputError(f"{text!r} cannot be written into a systemd unit; use a plainer path")
    written = text.replace("%", "%%")
    return written if _PLAIN.match(text) else f'"{written}"'
