"""Whether a change of an env file reaches the server of a unit that is not specdash's own.

Before the change, from what the unit starts; after the restart, from the process that serves.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from specdash.backend.extra_args import SOURCE as EXTRA_ARGS
from specdash.control.service_command import Program, Started, started
from specdash.core.changes import Role
from specdash.core.command_flags import flags_of
from specdash.core.errors import InputError
from specdash.core.findings import Finding, Severity
from specdash.core.parameter_catalogue import BY_FLAG, BY_KEY, BY_NAME
from specdash.core.parameters import Kind
from specdash.core.passed_on_parameters import BY_KEY as PASSED_ON
from specdash.core.speculation import SPEC_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.control.service_command import ServiceCommand
    from specdash.control.services import ManagedService
    from specdash.core.changes import KeyChange
    from specdash.core.parameters import Parameter

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
    service: ManagedService, before: Mapping[str, str], after: Mapping[str, str], changes: Sequence[KeyChange]
) -> list[Finding]:
    """An error for each change that cannot have an effect, a note for each of which that is seen later only."""
    command = service.command
    if command is None:
        return []
    found = []
    for one in changes:
        told = _reach(service, command, before, after, one)
        if isinstance(told, _Unread):
            found.append(Finding(RULE, Severity.ERROR, f"{one.key}: {told.said}", one.key, told.fix))
        elif not told:
            said = f"{one.key}: whether {service.name} reads it is seen after the restart, and if not it is rolled back"
            found.append(Finding(RULE, Severity.INFO, said, one.key))
    return found


def _reach(
    service: ManagedService,
    command: ServiceCommand,
    before: Mapping[str, str],
    after: Mapping[str, str],
    change: KeyChange,
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
        return _script(service, program, key)
    return False


def _not_loaded(service: ManagedService, command: ServiceCommand, program: Started, key: str) -> bool | _Unread:
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
    later = next((one for one in reversed(command.env_files) if key in _of_file(command, one)), None)
    where = str(later) if later is not None else command.file
    return _Unread(f"{where} sets it too, and is read after {file}", f"set it there, or take it out of {where}")


def _of_file(command: ServiceCommand, path: object) -> Mapping[str, str]:
    from dataclasses import replace
    from pathlib import Path

    one = Path(str(path))
    return replace(command, env_files=(one,), environment={}, unset=()).variables(Path("/"), {})


def _server(
    service: ManagedService,
    command: ServiceCommand,
    program: Started,
    key: str,
    then: list[str],
    now: list[str],
) -> bool | _Unread:
    if now != then:
        return _argument(service, then, now)
    parameter = BY_KEY.get(key) or PASSED_ON.get(key)
    flags = flags_of(program.arguments)
    if parameter is None or key in _READ_ANYWHERE:
        # Other variables are the libraries' business: CUDA_VISIBLE_DEVICES.
        return not key.startswith("LLAMA_ARG_")
    if key in parameter.native_keys or key == parameter.environment:
        given = next((one for one in program.arguments if one in (*parameter.flags, *parameter.off_flags)), None)
        if given is None and not any(one in flags for one in parameter.flags):
            return True
        said = f"{service.name} gives {given or parameter.flags[0]} on its command line, which wins over it"
        return _Unread(said, f"take it out of ExecStart= in {command.file}, or change it there")
    said = f"nothing in what {service.name} runs uses it: {program.path} does not read it by itself"
    return _Unread(said, _line(command, key, parameter, flags))


def _argument(service: ManagedService, then: list[str], now: list[str]) -> bool | _Unread:
    """Whether the words that differ are not outdone by a later argument."""
    if flags_of(now[1:]) != flags_of(then[1:]) or len(now) != len(then):
        return True
    at = next(at for at, (one, other) in enumerate(zip(now, then, strict=True)) if one != other)
    flag = now[at].partition("=")[0] if now[at].startswith("--") else now[at - 1]
    if flag not in BY_FLAG:
        return True
    said = f"{service.name} gives {flag} again further on in its command line, and the last one counts"
    return _Unread(said, f"take the later {flag} out of ExecStart=")


def _line(command: ServiceCommand, key: str, parameter: Parameter, flags: Mapping[str, tuple[Parameter, str]]) -> str:
    """The line that would make the unit read the key."""
    moved = _moved(key, parameter, flags)
    ours = f"run `specdash backend run --env-file ...` in it, which reads every key ({command.file})"
    if not moved or not command.replaces:
        return ours
    flag = moved[0].flags[0]
    value = f"${key}" if key == EXTRA_ARGS else f"{flag} ${{{key}}}"
    native = next((one for one in moved[0].native_keys if flag not in flags), None)
    instead = f", or set {native}=..., which llama-server reads by itself" if native else ""
    return f"write `ExecStart={' '.join(command.words[:1])} ... {value}` in {command.file}{instead}; or {ours}"


def _moved(key: str, parameter: Parameter, flags: Mapping[str, tuple[Parameter, str]]) -> list[Parameter]:
    """The engine's parameters that a key stands for, those of the unit's spec types first."""
    chain = flags.get("--spec-type", (parameter, ""))[1].split(",")
    types = sorted(SPEC_TYPES, key=lambda one: (one.name not in chain, not one.reads_draft_model))
    knobs = [BY_NAME[name] for one in types if (name := one.knob(key)) is not None]
    return [one for one in dict.fromkeys((*knobs, parameter)) if one.flags]


def _script(service: ManagedService, program: Started, key: str) -> bool | _Unread:
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


def started_with(pid: int) -> tuple[list[str], dict[str, str]] | None:
    """Arguments and environment of a process; None where the system does not tell. Hold secrets."""
    try:
        process = psutil.Process(pid)
        return process.cmdline(), process.environ()
    except (psutil.Error, OSError):
        return None


def why_not_arrived(
    service: ManagedService, pid: int, argv: Sequence[str], variables: Mapping[str, str], changes: Sequence[KeyChange]
) -> str | None:
    """The change that the serving process does not run with, in words; None when it runs with all of them."""
    reads_variables = service.role is Role.PROXY
    for one in changes:
        if not (variables.get(one.key) == one.after if reads_variables else arrived(one, argv, variables)):
            shown = one.shown[1]
            what = f"{one.key}={shown}" if shown is not None else f"the removal of {one.key}"
            return (
                f"{what} did not reach process {pid} of {service.name}: neither its arguments nor what it reads changed"
            )
    return None


def arrived(change: KeyChange, argv: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether a server with these arguments and variables runs with the change."""
    key, wanted = change.key, change.after
    if key == EXTRA_ARGS:
        return wanted is None or _has_all(argv, wanted)
    parameter = BY_KEY.get(key) or PASSED_ON.get(key)
    flags = flags_of(argv)
    moved = _moved(key, parameter, flags) if parameter is not None else []
    given = [(one, flags[one.flags[0]][1]) for one in moved if one.flags[0] in flags]
    if given and wanted is not None:
        return any(_means(one, text, wanted) for one, text in given)
    if given:
        return not any(_means(one, text, change.before or "") for one, text in given)
    if wanted is None or (parameter is not None and parameter.kind is Kind.SWITCH and moved and _is_off(wanted)):
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
    text = text or ("on" if parameter.kind is Kind.SWITCH else text)
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
