"""Changing keys of an env file's text, and nothing else in it; and showing the difference without its secrets."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core import parameter_catalogue as backend
from specdash.core import proxy_parameters as proxy
from specdash.core.changes import Role, is_secret, shown_value
from specdash.core.envfile import EnvFile, EnvFileError, name_problem, parse, quote, value_problem
from specdash.core.errors import InputError, Problem
from specdash.core.masking import MASK, without_secrets
from specdash.core.parameters import Parameter, ValueKind
from specdash.core.speculation import AUTO, KNOBS, NO_SPECULATION, SPEC_TYPES, is_auto, parse_chain, readers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CONTEXT_LINES = 2
# What systemd before 246 drops a variable for.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*[=:]\s*|([A-Z_][A-Z0-9_]+)\s+")
# Between a masked text and what distinguishes it from another one with the same mask; no text file has it.
_MARK = "\0"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def with_changes(file: EnvFile, changes: Mapping[str, str | None]) -> str:
    """The file's text with each key of `changes` set to its value, or removed where that is None.

    Setting a key rewrites the value of its last assignment, the one that counts, or appends a line; removing it takes
    out all its assignments; a key that is as wanted stays as it is written. Every other character is kept. Raises
    `EnvFileError` for a file with an unreadable line, for a name or value that systemd would not take, and for a
    comment that ends in a backslash, which goes on in the next line before systemd 254.
    """
    for entry in file.entries:
        if (problem := entry.problem or entry.trap) is not None:
            raise EnvFileError(f"line {entry.line}: {problem}")
    before = file.values
    wanted = {key: value for key, value in changes.items() if before.get(key) != value}
    last = {entry.key: at for at, entry in enumerate(file.entries)}
    out: list[str] = []
    for at, entry in enumerate(file.entries):
        value = wanted.get(entry.key, "") if entry.key is not None else ""
        if entry.key in wanted and value is not None and last[entry.key] == at:
            start, stop = entry.span
            out += [entry.raw[:start], quote(value), entry.raw[stop:]]
        elif value is not None:
            out.append(entry.raw)
    for key, value in wanted.items():
        if value is not None:
            _check(key, value)
    text = "".join(out)
    if new := {key: value for key, value in wanted.items() if value is not None and key not in before}:
        entries = parse(text).entries
        newline = next((entry.newline for entry in reversed(entries) if entry.newline), "\n")
        if entries and not entries[-1].newline:
            text += 2 * newline if text.endswith("\\") else newline  # a backslash joins the next line
        text += "".join(f"{key}={quote(value)}{newline}" for key, value in new.items())
    return text


def masked_diff(before: str, after: str, name: str) -> list[str]:
    """The lines of a unified diff of two texts of the env file `name`, without line ends. Secrets are masked, also in
    comments and unreadable lines; a changed secret still shows as a change."""
    old, new = _masked_lines(before), _masked_lines(after)
    import difflib

    lines = difflib.unified_diff(old, new, name, name, "before", "after", n=_CONTEXT_LINES, lineterm="")
    return [printable(line.split(_MARK)[0]) for line in lines]


def printable(text: str, *, newlines: bool = False) -> str:
    """`text` with control characters written out, so that none reaches the terminal; `newlines` may stay."""

    def written(found: re.Match[str]) -> str:
        return found[0] if newlines and found[0] == "\n" else f"\\x{ord(found[0]):02x}"

    return _UNPRINTABLE.sub(written, text)


def _check(key: str, value: str) -> None:
    problem = name_problem(key) or value_problem(key, value)
    if problem is None and (found := _CONTROL.search(value)):
        what = f"the control character U+{ord(found[0]):04X} in the value of {key}"
        problem = Problem(what, "only tab and newline can be meant")
    if problem is not None:
        raise EnvFileError(problem)


def _masked_lines(text: str) -> list[str]:
    """The text's lines with their secrets masked; one that differs ends in a mark of its own."""
    lines: list[str] = []
    for entry in parse(text).entries:
        written = entry.raw.removesuffix(entry.newline)
        shown = written
        if entry.key is None:
            shown = _masked_words(written)
        elif (value := shown_value(entry.key, entry.value) or "") != entry.value:
            start, stop = entry.span
            shown = f"{written[:start]}{value if value == MASK else quote(value)}{written[stop:]}"
        mark = "" if shown == written else _MARK + hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()
        lines += [line + mark for line in shown.split("\n")]
    return lines


def _masked_words(text: str) -> str:
    """A comment or an unreadable stretch, masked from the value of the first secret that it names."""
    for found in _NAMED.finditer(text):
        if is_secret((found[1] or found[2]).upper()) and found.end() < len(text):
            return text[: found.end()] + MASK
    return without_secrets(text)


_PREFIX = {Role.BACKEND: "LLAMA_", Role.PROXY: "PROXY_"}
_ALIKE = 0.85
_ALIKE_OURS = 0.75
_CHAIN_KEY = "LLAMA_SPEC_TYPE"


def check_value(role: Role, key: str, value: str) -> None:
    """Raise `InputError` when the value of a known key is not valid, a spec type excepted that only the engine may
    know. The message holds no secret."""
    if key in backend.REMOVED_KEYS and role is Role.BACKEND:
        raise InputError(f"{key}: llama.cpp removed this variable", f"use {backend.REMOVED_KEYS[key]}", key=key)
    declared = parameter_of(role, key)
    if declared is None or value == "" or key not in declared.keys:
        return  # of a LLAMA_ARG_NO_... it only counts that it is there
    try:
        declared.parse(value, key)
        if declared.key == _CHAIN_KEY and not is_auto(value):
            parse_chain(value, key, lambda _: True)
    except InputError as error:
        hidden = f"{key}: the value cannot be read; it must be: {declared.allowed}"
        raise InputError(hidden if declared.secret else without_secrets(str(error)), key=key) from None


def listed_values(role: Role, key: str, present: str = "") -> Mapping[str, str]:
    """The values to choose from, each with what it does, in the order of their declaration; none for a key whose value
    is typed. `present` says how on and off are written now."""
    declared = parameter_of(role, key)
    if declared is None or key not in declared.keys:
        return {}
    if declared.key == _CHAIN_KEY:
        alone = {NO_SPECULATION: "no speculation", AUTO: "chosen by the model, its draft and the machine"}
        return alone | {spec_type.name: spec_type.meaning for spec_type in SPEC_TYPES}
    return declared.listed(present)


def parameter_of(role: Role, key: str) -> Parameter | None:
    """What the service's catalogue declares of the key, None when it is in none."""
    if role is Role.PROXY:
        return proxy.BY_KEY.get(key)
    plain = key.replace("LLAMA_ARG_NO_", "LLAMA_ARG_", 1)
    return next((t[name] for name in (key, plain) for t in (backend.BY_KEY, backend.PASSED_ON) if name in t), None)


def close_key(role: Role, key: str) -> str | None:
    """The key of the service that may be meant by an unknown one; None where none is alike."""
    known: Iterable[str] = proxy.BY_KEY if role is Role.PROXY else [*backend.BY_KEY, *backend.PASSED_ON]
    cutoff = _ALIKE_OURS if key.startswith(_PREFIX[role]) else _ALIKE
    import difflib

    close = difflib.get_close_matches(key.upper(), known, n=1, cutoff=cutoff)
    return close[0] if close else None


PASSED_ON_GROUP = "Passed on to llama-server"


class KeyHelp(Struct, frozen=True):
    """What an operator wants to know of an env key, in single lines. `default` None: the engine decides, or nothing."""

    key: str
    role: Role
    meaning: str
    values: str
    """What it may be, in words: kind, range and unit, or the choices."""
    unit: str
    default: str | None
    secret: bool
    flags: tuple[str, ...]
    """The engine's flags that the key becomes; none for what specdash itself or the proxy reads."""
    readers: tuple[str, ...]
    """The spec types that read it; none for what is not about speculation."""
    restart: bool
    """Whether a change takes effect only when the service is started again."""
    notes: tuple[str, ...]
    group: str = ""
    """Heading under which an editor lists it."""


def key_help(key: str) -> KeyHelp | None:
    """The help for a key of either service, by any name that sets it; None for an unknown one."""
    if key in proxy.BY_KEY:
        return _described(Role.PROXY, proxy.BY_KEY[key])
    parameter = backend.BY_KEY.get(key) or backend.PASSED_ON.get(key)
    return _described(Role.BACKEND, parameter, key) if parameter is not None else None


def all_keys(role: Role) -> tuple[KeyHelp, ...]:
    """Every key of a service in the order of the catalogue, each parameter once, by the name that wins."""
    ours = (*backend.PARAMETERS, *backend.PASSED_ON.values()) if role is Role.BACKEND else proxy.PARAMETERS
    return tuple(_described(role, parameter) for parameter in ours if parameter.keys)


def _described(role: Role, parameter: Parameter, key: str = "") -> KeyHelp:
    groups = (*proxy.GROUPS, *backend.GROUPS)
    default = parameter.shown_default
    if parameter.kind is ValueKind.SWITCH and default is not None:
        default = "on" if parameter.default else "off"
    flags, readers, notes = _of_engine(parameter) if role is Role.BACKEND else ((), (), [])
    if key and key != parameter.key:
        notes.append(f"{parameter.key} sets the same, and wins")
    return KeyHelp(
        key=key or parameter.key,
        role=role,
        meaning=parameter.meaning,
        values=parameter.allowed,
        unit=parameter.unit,
        default=default,
        secret=parameter.secret,
        flags=flags,
        readers=readers,
        restart=role is Role.BACKEND or parameter.key in proxy.NEEDS_RESTART,
        notes=tuple(notes),
        group=next((title for title, members in groups if parameter in members), PASSED_ON_GROUP),
    )


def _of_engine(parameter: Parameter) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """The flags that a key becomes, the spec types that read it, and notes."""
    key, flags = parameter.key, (*parameter.flags[:1], *parameter.off_flags[:1])
    if key in backend.PASSED_ON:
        return flags, (), ["handed to llama-server unread; xllamacpp does not read it"]
    if key in KNOBS:
        # A knob means another parameter for each spec type.
        moved = {t.name: knob for t in SPEC_TYPES if (knob := t.knob(key)) is not None}
        notes = [f"{name}: sets --{knob}" for name, knob in moved.items()]
        for spec_type in SPEC_TYPES:
            if spec_type.name not in moved:
                fixed = spec_type.fixed_draft_length if key == "LLAMA_DRAFT_MAX" else None
                why = (
                    "does not read it" if fixed is None else f"has no knob, its draft length is fixed at {fixed} tokens"
                )
                notes.append(f"{spec_type.name}: {why}")
        return tuple(f"--{knob}" for knob in dict.fromkeys(moved.values())), tuple(moved), notes
    notes = []
    if parameter.environment is not None:
        notes.append(f"secret: reaches the server as the variable {parameter.environment}, never on its command line")
    if parameter.attribute is None and not parameter.ours:
        notes.append("llama-server only: xllamacpp has no such parameter")
    if parameter.always:
        notes.append("always passed: the default differs between builds")
    own = (parameter.ours and key != _CHAIN_KEY) or parameter.environment is not None
    return () if own else flags, readers_of(parameter.name), notes
