"""What a service runs that is not specdash's own: its command, what its manager puts into it, and its environment.

Sources: systemd.service(5) "Command lines", systemd.exec(5) "Environment"; tried on systemd 252.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import psutil

from specdash.backend import settings
from specdash.backend.settings import SOURCE as EXTRA_ARGS
from specdash.control.services.units import split_words
from specdash.core.changes import Role
from specdash.core.envfile import decode, parse
from specdash.core.errors import Finding, InputError, Severity
from specdash.core.masking import flags_of
from specdash.core.parameter_catalogue import BY_FLAG, BY_KEY, BY_NAME, PASSED_ON
from specdash.core.parameters import ValueKind
from specdash.core.speculation import SPEC_TYPES
from specdash.core.target import local_port
from specdash.system.data import dataclass
from specdash.system.files import read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.control.services.services import ManagedService
    from specdash.core.changes import Change
    from specdash.core.parameters import Parameter
    from specdash.core.target import Target


_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_FORWARDERS = frozenset({"env", "nice", "ionice", "chrt", "numactl", "taskset", "setsid", "nohup", "stdbuf", "prlimit"})
"""Programs that start the rest of their command line and leave its environment to it."""
_SERVER = "llama-server"
_WHOLE = re.compile(r"\$([A-Za-z_]\w*)\Z")
_BRACED = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}")
_LONGEST_SCRIPT = 256 * 1024
_VARIABLES = ("LLAMA_ARG_", "CUDA_", "GGML_")


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """`words` are as the unit has them. `replaces` says that the manager puts variables into them; `env_files` are read
    in their order, over `environment`, and `unset` is taken out at last. `file` is where all of this is written."""

    words: tuple[str, ...]
    file: str
    env_files: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    unset: tuple[str, ...] = ()
    replaces: bool = True

    def loads(self, env_file: Path) -> bool:
        """Whether the manager reads this file into the environment."""
        return any(_same_file(path, env_file) for path in self.env_files)

    def variables(self, env_file: Path, values: Mapping[str, str]) -> dict[str, str]:
        """The environment with these values in the env file. Holds secrets."""
        found = dict(self.environment)
        for path in self.env_files:
            found |= values if _same_file(path, env_file) else _values(path)
        for entry in self.unset:
            key, equals, value = entry.partition("=")
            if not equals or found.get(key) == value:
                found.pop(key, None)
        return found

    def argv(self, variables: Mapping[str, str]) -> list[str]:
        """The words as the program gets them."""
        if not self.replaces:
            return list(self.words)
        made = list(self.words[:1])
        for word in self.words[1:]:
            whole = _WHOLE.match(word)
            if whole is not None:
                made += split_words(variables.get(whole[1], "")) or []
            else:
                made.append(_BRACED.sub(lambda found: variables.get(found[1], "") if found[1] else "$", word))
        return made


class Program(StrEnum):
    """What kind of program a command line starts."""

    SERVER = "llama-server"
    SCRIPT = "a shell script"
    OTHER = "another program"


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """The program, its own arguments, and the text of a shell script."""

    program: Program
    path: str = ""
    arguments: tuple[str, ...] = ()
    text: str = field(default="", repr=False)


def started(argv: Sequence[str]) -> StartedProgram:
    """What an expanded command line starts; a script is read, what cannot be read is another program."""
    words = list(argv)
    while words and PurePath(words[0]).name in _FORWARDERS:
        after = next((at for at, word in enumerate(words[1:], 1) if _is_program(word)), None)
        if after is None or any(word in ("-i", "-u", "-", "--ignore-environment") for word in words[1:after]):
            return StartedProgram(Program.OTHER, words[0])
        words = words[after:]
    if not words:
        return StartedProgram(Program.OTHER)
    name = PurePath(words[0]).name
    if name in _SHELLS:
        return _of_shell(words)
    text = _script(words[0])
    if text is not None:
        shell = PurePath(text.split("\n", 1)[0].removeprefix("#!").strip().split(" ")[-1]).name in _SHELLS
        return StartedProgram(
            Program.SCRIPT if shell else Program.OTHER, words[0], tuple(words[1:]), text if shell else ""
        )
    kind = Program.SERVER if name.startswith(_SERVER) else Program.OTHER
    return StartedProgram(kind, words[0], tuple(words[1:]))


def running_values(service: ManagedService, values: Mapping[str, str]) -> dict[str, str]:
    """The settings that a service runs with when its env file holds `values`, as an env file of ours would say it.

    A unit that starts llama-server by itself has them on its command line; any other reads the env file as ours do.
    """
    command = service.command
    if command is None:
        return dict(values)
    variables = command.variables(service.env_file, values)
    found = started(command.argv(variables))
    if found.program is not Program.SERVER:
        return dict(values)
    return _as_ours(found.path, found.arguments, variables) or dict(values)


def process_values(argv: Sequence[str], variables: Mapping[str, str]) -> dict[str, str] | None:
    """The settings that a running llama-server has, likewise; None where it is none, or they cannot be told."""
    if not argv or not PurePath(argv[0]).name.startswith(_SERVER):
        return None
    return _as_ours(argv[0], argv[1:], variables)


def adopted_values(argv: Sequence[str], variables: Mapping[str, str], target: Target) -> dict[str, str] | None:
    """The same with a key for each argument that has one, and with whole paths: an env file that people read. None
    likewise. Holds secrets."""
    whole = process_values(argv, variables)
    if whole is None:
        return None
    given = settings.parse(whole.pop(settings.SOURCE))
    known = {BY_NAME[name]: text for name, text in given.known.items()}
    named = {_operators_key(parameter): text for parameter, text in known.items() if parameter.keys}
    rest = [word for parameter, text in known.items() if not parameter.keys for word in _as_words(parameter, text)]
    extra = {settings.SOURCE: shlex.join([*rest, *given.rest])} if rest or given.rest else {}
    port = local_port(target.url)
    values = {**whole, **({"LLAMA_PORT": str(port)} if port is not None else {}), **named, **extra}
    try:
        cwd = Path(psutil.Process(target.pid).cwd())
    except (psutil.Error, OSError):
        return values
    files = {key for key in values if key in BY_KEY and BY_KEY[key].kind is ValueKind.PATH} | {"LLAMA_BIN"}
    return {
        key: str(cwd / value) if (key in files and "/" in value) or (cwd / value).is_file() else value
        for key, value in values.items()
    }


def _operators_key(parameter: Parameter) -> str:
    """The name that operators use, where it has one beside llama.cpp's own."""
    return next((key for key in parameter.keys if not key.startswith("LLAMA_ARG_")), parameter.keys[0])


def _as_words(parameter: Parameter, text: str) -> tuple[str, ...]:
    if parameter.kind is not ValueKind.SWITCH:
        return (parameter.flags[0], text)
    return (parameter.flags[0] if text == "1" else parameter.off_flags[0],)


def _as_ours(path: str, arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, str] | None:
    text = shlex.join(part for word in arguments for part in _parted(word))
    try:
        settings.parse(text)
    except InputError:
        return None
    own = {key: value for key, value in variables.items() if key.startswith(_VARIABLES) or key == "LLAMA_API_KEY"}
    return {**own, "LLAMA_ENGINE": _SERVER, "LLAMA_BIN": path, settings.SOURCE: text}


def _of_shell(words: list[str]) -> StartedProgram:
    for at, word in enumerate(words[1:], 1):
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            text = words[at + 1] if at + 1 < len(words) else ""
            return StartedProgram(Program.SCRIPT, words[0], tuple(words[at + 2 :]), text)
        if not word.startswith("-"):
            read = _text(word)
            kind = Program.SCRIPT if read is not None else Program.OTHER
            return StartedProgram(kind, word, tuple(words[at + 1 :]), read or "")
    return StartedProgram(Program.OTHER, words[0])


def _is_program(word: str) -> bool:
    name = PurePath(word).name
    return (
        name in _SHELLS or name in _FORWARDERS or name.startswith(_SERVER) or (word[:1] == "/" and Path(word).is_file())
    )


def _parted(word: str) -> tuple[str, ...]:
    flag, equals, value = word.partition("=")
    return (flag, value) if equals and word.startswith("--") else (word,)


def _script(path: str) -> str | None:
    """The text of a file that begins with `#!`; None for any other."""
    try:
        with Path(path).open("rb") as file:
            return _text(path) if file.read(2) == b"#!" else None
    except OSError:
        return None


def _text(path: str) -> str | None:
    try:
        data = read_bounded(Path(path), _LONGEST_SCRIPT)
    except OSError:
        return None
    return data.decode("utf-8", "replace") if b"\0" not in data else None


def _values(path: Path) -> dict[str, str]:
    try:
        return parse(decode(path.read_bytes())).values
    except OSError:
        return {}


def _same_file(path: Path, other: Path) -> bool:
    return path == other or path.resolve() == other.resolve()


# Whether a change of an env file reaches the server of a unit that is not specdash's own.
#
# Before the change, from what the unit starts; after the restart, from the process that serves.


RULE = "unit-key"
_READ_ANYWHERE = frozenset({"LLAMA_TRACE", "LLAMA_HYBRID_ROLLBACK_MODE"})
"""Variables of ours that builds of llama.cpp read from their environment."""
_INDIRECT = re.compile(
    r"\$\{!|(?:^|[\s;&|({`])(?:eval|env|printenv|source|\.|declare|typeset|set|export\s+-p|python3?|perl|exec\s+[^\s]*\$)(?=\s)"
    r"|\b(?:docker|podman|systemd-run|specdash)\b",
    re.MULTILINE,
)
"""Ways in which a script may use a variable that it does not name, or leave its work to another program."""
_OTHER_SCRIPT = re.compile(r"[\w./~-]+\.(?:sh|bash|py|pl)\b")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Unread:
    """Why a key has no effect, and what to write where."""

    said: str
    fix: str


def findings(
    service: ManagedService, before: Mapping[str, str], after: Mapping[str, str], changes: Sequence[Change]
) -> list[Finding]:
    """An error for each change that cannot have an effect, a note for each of which that is seen later only."""
    command = service.command
    if command is None:
        return []
    found = []
    for change in changes:
        told = _reach(service, command, before, after, change)
        if isinstance(told, _Unread):
            found.append(Finding(RULE, Severity.ERROR, f"{change.key}: {told.said}", change.key, told.fix))
        elif not told:
            said = (
                f"{change.key}: whether {service.name} reads it is seen after the restart, and if not it is rolled back"
            )
            found.append(Finding(RULE, Severity.INFO, said, change.key))
    return found


def _reach(
    service: ManagedService,
    command: ServiceCommand,
    before: Mapping[str, str],
    after: Mapping[str, str],
    change: Change,
) -> bool | _Unread:
    """True when it is sure that the program gets the change, False when it may be."""
    key, file = change.key, service.env_file
    without = {name: value for name, value in after.items() if name != key}
    if key in before:
        without[key] = before[key]
    new, old = command.variables(file, after), command.variables(file, without)
    now, then = command.argv(new), command.argv(old)
    program = started(now)
    if new.get(key) == old.get(key):
        return _not_loaded(service, command, program, key)
    if program.program is Program.SERVER:
        return _server(service, command, program, key, then, now)
    if program.program is Program.SCRIPT and now == then:
        return _key_reach_script(service, program, key)
    return False


def _not_loaded(service: ManagedService, command: ServiceCommand, program: StartedProgram, key: str) -> bool | _Unread:
    """What is to be said of a key whose new value does not come into the environment."""
    file = service.env_file
    words = " ".join((*command.words, program.text))
    if not command.loads(file):
        if file.name in words:
            # The program reads the file by itself.
            return False
        line = f"EnvironmentFile=-{file}"
        how = f"add `{line}` to {command.file}" if command.replaces else f"let the argv in {command.file} read it"
        return _Unread(f"{service.name} does not read {file}", how)
    if key in command.unset:
        return _Unread(f"{service.name} takes it out again", f"take {key} out of UnsetEnvironment= in {command.file}")
    later = next((env_file for env_file in reversed(command.env_files) if key in _of_file(command, env_file)), None)
    where = str(later) if later is not None else command.file
    return _Unread(f"{where} sets it too, and is read after {file}", f"set it there, or take it out of {where}")


def _of_file(command: ServiceCommand, file: Path) -> Mapping[str, str]:
    return replace(command, env_files=(file,), environment={}, unset=()).variables(Path("/"), {})


def _server(
    service: ManagedService, command: ServiceCommand, program: StartedProgram, key: str, then: list[str], now: list[str]
) -> bool | _Unread:
    if now != then:
        return _argument(service, then, now)
    parameter = BY_KEY.get(key) or PASSED_ON.get(key)
    flags = flags_of(program.arguments)
    if parameter is None or key in _READ_ANYWHERE:
        # Other variables are the libraries' business: CUDA_VISIBLE_DEVICES.
        return not key.startswith("LLAMA_ARG_")
    if key in parameter.native_keys or key == parameter.environment:
        given = next(
            (argument for argument in program.arguments if argument in (*parameter.flags, *parameter.off_flags)), None
        )
        if given is None and not any(flag in flags for flag in parameter.flags):
            return True
        said = f"{service.name} gives {given or parameter.flags[0]} on its command line, which wins over it"
        return _Unread(said, f"take it out of {_line_of(command)}, or change it there")
    said = f"nothing in what {service.name} runs uses it: {program.path} does not read it by itself"
    return _Unread(said, _line(command, key, parameter, flags))


def _argument(service: ManagedService, then: list[str], now: list[str]) -> bool | _Unread:
    """Whether the words that differ are not outdone by a later argument."""
    if flags_of(now[1:]) != flags_of(then[1:]) or len(now) != len(then):
        return True
    at = next(at for at, (index, other) in enumerate(zip(now, then, strict=True)) if index != other)
    flag = now[at].partition("=")[0] if now[at].startswith("--") else now[at - 1]
    if flag not in BY_FLAG:
        return True
    said = f"{service.name} gives {flag} again further on in its command line, and the last one counts"
    return _Unread(said, f"take the later {flag} out of the command line")


def _line_of(command: ServiceCommand) -> str:
    """Where the command line stands, in words."""
    return f"ExecStart= in {command.file}"


def _line(command: ServiceCommand, key: str, parameter: Parameter, flags: Mapping[str, tuple[Parameter, str]]) -> str:
    """The line that would make the unit read the key."""
    moved = _moved(key, parameter, flags)
    ours = f"run `specdash backend run --env-file ...` in it, which reads every key ({command.file})"
    if not moved or not command.replaces:
        return ours
    flag = moved[0].flags[0]
    value = f"${key}" if key == EXTRA_ARGS else f"{flag} ${{{key}}}"
    native = next((native_key for native_key in moved[0].native_keys if flag not in flags), None)
    instead = f", or set {native}=..., which llama-server reads by itself" if native else ""
    return f"write `ExecStart={' '.join(command.words[:1])} ... {value}` in {command.file}{instead}; or {ours}"


def _moved(key: str, parameter: Parameter, flags: Mapping[str, tuple[Parameter, str]]) -> list[Parameter]:
    """The engine's parameters that a key stands for, those of the unit's spec types first."""
    chain = flags.get("--spec-type", (parameter, ""))[1].split(",")
    types = sorted(SPEC_TYPES, key=lambda spec_type: (spec_type.name not in chain, not spec_type.reads_draft_model))
    knobs = [BY_NAME[name] for kind in types if (name := kind.knob(key)) is not None]
    return [knob for knob in dict.fromkeys((*knobs, parameter)) if knob.flags]


def _key_reach_script(service: ManagedService, program: StartedProgram, key: str) -> bool | _Unread:
    text = _COMMENT.sub("", program.text)
    parameter = BY_KEY.get(key) or PASSED_ON.get(key)
    by_itself = parameter is None or key in (*parameter.native_keys, parameter.environment, *_READ_ANYWHERE)
    named = re.search(rf"\b{re.escape(key)}\b", text) is not None
    if named or by_itself or _INDIRECT.search(text) or _OTHER_SCRIPT.search(text):
        return False
    moved = _moved(key, parameter, {}) if parameter is not None else []
    word = f'"${key}"' if not moved or key == EXTRA_ARGS else f'{moved[0].flags[0]} "${key}"'
    said = f"{program.path}, which {service.name} runs, does not use it"
    return _Unread(said, f"write `{word}` into its call of llama-server")


def option_of(words: Sequence[str], option: str) -> str | None:
    """The value of an option of a command line; None where it is not given."""
    for word, after in pairwise([*words, ""]):
        if word == option:
            return after or None
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def is_ours(words: Sequence[str], role: Role) -> bool:
    """Whether the command is `specdash backend run` or `specdash proxy run`, by whichever way."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[1:]
    if rest[:2] == ["-m", "specdash"]:
        rest = rest[2:]
    elif not words or Path(words[0]).name != "specdash":
        return False
    return rest[:2] == [str(role), "run"]


def started_with(pid: int) -> tuple[list[str], dict[str, str]] | None:
    """Arguments and environment of a process; None where the system does not tell. Hold secrets."""
    try:
        process = psutil.Process(pid)
        return process.cmdline(), process.environ()
    except (psutil.Error, OSError):
        return None


def why_not_arrived(
    service: ManagedService, process: str, argv: Sequence[str], variables: Mapping[str, str], changes: Sequence[Change]
) -> str | None:
    """The change that the serving process does not run with, in words; None when it runs with all of them. `process` is
    what it is called."""
    reads_variables = service.role is Role.PROXY
    for change in changes:
        if not (variables.get(change.key) == change.after if reads_variables else arrived(change, argv, variables)):
            shown = change.masked.after
            what = f"{change.key}={shown}" if shown is not None else f"the removal of {change.key}"
            return f"{what} did not reach {process} of {service.name}: neither its arguments nor what it reads changed"
    return None


def arrived(change: Change, argv: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether a server with these arguments and variables runs with the change."""
    key, wanted = change.key, change.after
    if key == EXTRA_ARGS:
        return wanted is None or _has_all(argv, wanted)
    parameter = BY_KEY.get(key) or PASSED_ON.get(key)
    flags = flags_of(argv)
    moved = _moved(key, parameter, flags) if parameter is not None else []
    given = [(parameter, flags[parameter.flags[0]][1]) for parameter in moved if parameter.flags[0] in flags]
    if given and wanted is not None:
        return any(_means(parameter, text, wanted) for parameter, text in given)
    if given:
        return not any(_means(parameter, text, change.before or "") for parameter, text in given)
    if wanted is None or (parameter is not None and parameter.kind is ValueKind.SWITCH and moved and _is_off(wanted)):
        return variables.get(key) in (None, wanted)
    if any(wanted in (word, word.partition("=")[2]) for word in argv):
        return True
    unnamed = parameter is None or not moved
    by_itself = parameter is not None and (key in parameter.native_keys or key == parameter.environment)
    return (unnamed or by_itself) and variables.get(key) == wanted


def _is_off(text: str) -> bool:
    return text.strip().lower() in ("0", "false", "off", "no", "disabled", "")


def _means(parameter: Parameter, text: str, wanted: str) -> bool:
    """Whether the value of a flag is the wanted one; a switch that is on has none."""
    text = text or ("on" if parameter.kind is ValueKind.SWITCH else text)
    try:
        return parameter.parse(text, parameter.name) == parameter.parse(wanted, parameter.name)
    except InputError:
        return text == wanted


def _has_all(argv: Sequence[str], wanted: str) -> bool:
    try:
        words = shlex.split(wanted)
    except ValueError:
        return False
    return all(word in argv for word in words)
