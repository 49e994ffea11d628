"""The text of specdash's own systemd user units, from facts about this machine. Pure: reads and writes nothing."""

from __future__ import annotations

import math
import os
import re
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.changes import Role
from specdash.core.errors import ExitCode, InputError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# The syntax of systemd's unit files: words quoted as systemd reads them, and what a unit's files say.
#
# Sources: systemd.syntax(7), systemd.service(5) "Command lines", systemd.unit(5) "Specifiers".

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+\Z")
_NO_PROGRAM = re.compile(r"[\"'\\\x00-\x1f\x7f]")
_UNSAYABLE = re.compile(r"[\0\ud800-\udfff]")
"""No text can hold it, or no UTF-8: bytes of a path that were none (PEP 383)."""
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_WRITTEN = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}
_FILE_OUTPUT = ("append:", "truncate:", "file:")
_CODED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


def word(text: str, *, program: bool = False) -> str:
    """`text` as one word of a command line, so that systemd hands over exactly it.

    `program` marks the first word: `$` is nothing special there, and systemd takes no quotes, backslashes or control
    characters. Raises `InputError` for what cannot be written.
    """
    if not text or _UNSAYABLE.search(text):
        raise InputError(f"{text!r} cannot be a word of a unit file")
    if program and _NO_PROGRAM.search(text):
        raise InputError(f"systemd runs no program whose path has quotes or backslashes: {text!r}; move it")
    written = "".join(_written(char) for char in text)
    if not program:
        written = written.replace("$", "$$")
    return written if _PLAIN.match(text) else f'"{written}"'


def assignment(key: str, value: str) -> str:
    """`KEY=VALUE` as `Environment=` takes it. Raises `InputError` for a value that systemd leaves out."""
    if _UNSAYABLE.search(value) or any(_is_no_character(ord(char)) for char in value):
        raise InputError(f"{key}={value!r} cannot be given to a service: systemd takes no such characters; change it")
    text = f"{key}={value}"
    return text if _PLAIN.match(text) else '"' + "".join(_written(char) for char in text) + '"'


def _is_no_character(code: int) -> bool:
    """The code points that are none, which systemd's `unichar_is_valid` refuses (src/basic/utf8.c)."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def path_value(path: str) -> str:
    """A path that takes all of a line, as after `append:`. Raises `InputError` where the syntax cannot say it."""
    if path != path.strip() or path.endswith("\\") or not path.isprintable() or not path.startswith("/"):
        raise InputError(f"the path {path!r} cannot be written into a unit file; use a plainer one")
    return path.replace("%", "%%")


def directives(text: str) -> list[tuple[str, str, str]]:
    """Section, key and value of each assignment, lines joined as systemd joins them."""
    found: list[tuple[str, str, str]] = []
    section, pending = "", ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(("#", ";")):
            continue
        if stripped.endswith("\\"):
            pending += stripped[:-1] + " "
            continue
        whole, pending = (pending + stripped).strip(), ""
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
            continue
        key, equals, value = whole.partition("=")
        if equals:
            found.append((section, key.strip(), value.strip()))
    return found


def split_words(text: str) -> list[str] | None:
    """The words of a command line with quotes and escapes taken out; None when a quote is never closed."""
    words: list[str] = []
    word_so_far: str | None = None
    at, quote = 0, ""
    while at < len(text):
        char = text[at]
        if char == "\\":
            at, piece = _unescape(text, at)
            word_so_far = (word_so_far or "") + piece
            continue
        at += 1
        if quote == char:
            quote = ""
        elif not quote and char in "\"'":
            quote, word_so_far = char, word_so_far or ""
        elif quote or not char.isspace():
            word_so_far = (word_so_far or "") + char
        elif word_so_far is not None:
            words.append(word_so_far)
            word_so_far = None
    if quote:
        return None
    # Bytes that were written one by one are text together.
    return [os.fsdecode(os.fsencode(name)) for name in ([*words, word_so_far] if word_so_far is not None else words)]


def expand(text: str, env: Mapping[str, str] = os.environ) -> str | None:
    """`text` with its specifiers replaced; None where one is not known here."""
    home = env.get("HOME") or str(Path.home())
    known = {
        "%": "%",
        "h": home,
        "t": env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}",
        "S": env.get("XDG_STATE_HOME") or f"{home}/.local/state",
        "E": env.get("XDG_CONFIG_HOME") or f"{home}/.config",
        "C": env.get("XDG_CACHE_HOME") or f"{home}/.cache",
        "U": str(os.getuid()),
    }
    pieces = re.split(r"%(.)", text)
    replaced = [known.get(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
    return None if None in replaced else "".join(piece or "" for piece in replaced)


def read_directives(paths: Iterable[str]) -> list[tuple[str, str, str]]:
    """The assignments of a unit's files in their order: its own, then its drop-ins. What cannot be read is left out."""
    found: list[tuple[str, str, str]] = []
    for path in paths:
        try:
            found += directives(Path(path).read_text(encoding="utf-8", errors="replace") if path else "")
        except OSError:
            continue
    return found


def shown_words(paths: Iterable[str], env: Mapping[str, str] = os.environ) -> list[str] | None:
    """The words of ExecStart= as systemd shows them: without prefixes, variables and `$$` as they are written."""
    lines: list[str] = []
    for section, key, value in read_directives(paths):
        if (section, key) == ("Service", "ExecStart"):
            lines = [*lines, value] if value else []
    expanded = expand(lines[-1], env) if lines else None
    words = split_words(expanded) if expanded is not None else None
    return [words[0].lstrip("-:+!@|"), *words[1:]] if words else None


def output_file(paths: Iterable[str], env: Mapping[str, str] = os.environ) -> Path | None:
    """The file that the service's errors go to, else its output; None where they go elsewhere."""
    outputs = {"StandardOutput": "", "StandardError": ""}
    for section, key, value in read_directives(paths):
        if section == "Service" and key in outputs:
            outputs[key] = value
    errors, output = outputs["StandardError"], outputs["StandardOutput"]
    for value in (output if errors in ("", "inherit") else errors, output):
        kind = next((prefix for prefix in _FILE_OUTPUT if value.startswith(prefix)), None)
        path = expand(value.removeprefix(kind), env) if kind is not None else None
        if path is not None:
            return Path(path)
    return None


def _written(char: str) -> str:
    if char in _WRITTEN:
        return _WRITTEN[char]
    if "\udc80" <= char <= "\udcff" or not char.isprintable():
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
    return char


def _unescape(text: str, at: int) -> tuple[int, str]:
    found = _CODED.match(text, at)
    if found is None:
        return at + 1, "\\"
    two, octal, four, eight, plain = found.groups()
    if plain is not None:
        return found.end(), _ESCAPES.get(plain, plain if plain in "\\\"'" else f"\\{plain}")
    if four or eight:
        return found.end(), chr(int(four or eight, 16))
    return found.end(), os.fsdecode(bytes([int(two, 16) if octal is None else int(octal, 8) & 255]))


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
    return {BACKEND_UNIT: _backend(facts), PROXY_SOCKET: _socket(facts), PROXY_UNIT: _proxy(facts)}


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
            *(f"ListenStream={name}" for name in facts.listen),
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
    return [f"ExecStart={' '.join(run)}", f"ExecReload={word(facts.kill, program=True)} -{reload_signal} $MAINPID"]


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
