"""What an engine can do, and what it lacks of what is asked: data, and the reading of `llama-server --help`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.speculation import NO_SPECULATION, SpecType, spec_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SPEC_TYPE_FLAG = "--spec-type"
_REMOVED = "argument has been removed"
_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_COMMA = re.compile(r", *")
_VALUE = re.compile(r" (\S.*?)(?: {2,}|$)")
_BRACKETED = re.compile(r"<[^<>]*>|\[[^][]*\]|\{[^{}]*\}")
_VARIABLE = re.compile(r"\(env: *([A-Z][A-Z0-9_]*)\)")
_DEFAULT = re.compile(r"\(default: *'?([^\s,;')]+)")
_ADVICE = re.compile(r"has been removed\. *(use .+?) *(?:\(env:|$)")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one build of an engine knows.

    `flags` are the flags llama-server takes, or the attribute paths of `xllamacpp.CommonParams`; `removed` are flags
    it lists only to refuse them. `spec_types` are its names of the spec types, `none` left out. The other fields are
    empty where nothing is known; what is unknown is never held against an engine.
    """

    kind: str
    path: str
    version: str
    flags: frozenset[str]
    removed: frozenset[str] = frozenset()
    spec_types: tuple[str, ...] = ()
    chained: bool = True
    """Whether `--spec-type` takes a chain; builds before May 2026 took one type, and a draft model beside it."""
    values: Mapping[str, int] = field(default_factory=dict)
    """How many values a flag takes."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """What the help says of a flag, in one line."""
    variables: frozenset[str] = frozenset()
    """The `LLAMA_ARG_*` variables it reads."""

    @property
    def words(self) -> str:
        """Kind and version, for messages."""
        return f"{self.kind} {self.version}"

    def first(self, flags: Iterable[str]) -> str | None:
        """The first of these names that the engine takes, None when it takes none."""
        return next((flag for flag in flags if flag in self.flags), None)

    def type_name(self, wanted: SpecType) -> str | None:
        """The engine's own name of a spec type, None when it has no such type."""
        if not self.spec_types:
            return wanted.name
        return next((name for name in self.spec_types if spec_type(name) is wanted), None)

    def advice(self, flag: str) -> str | None:
        """What the engine says to write instead of a removed flag."""
        found = _ADVICE.search(self.texts.get(flag, ""))
        return found.group(1) if found is not None else None

    def stated_default(self, flag: str) -> str | None:
        """The default its help states for a flag."""
        found = _DEFAULT.search(self.texts.get(flag, ""))
        return found.group(1) if found is not None else None


@dataclass(frozen=True, slots=True)
class Lack:
    """Something the settings ask for and the engine has not. Texts are single lines and hold no secrets.

    `name` is a parameter, a spec type or an argument; `key` the env key that asks for it. `refused`: the server would
    not start, or would silently do something else; otherwise the thing is left out, and `message` says so.
    """

    name: str
    key: str | None
    message: str
    refused: bool
    fix: str = ""

    @property
    def line(self) -> str:
        """Message and fix as one line."""
        return f"{self.message}{f'; {self.fix}' if self.fix else ''}"


@dataclass(frozen=True, slots=True)
class HelpEntry:
    """One argument of `--help`: its names, the words it shows for its values, and the text beside it in one line."""

    names: tuple[str, ...]
    value: str
    text: str


def parse_help(output: str) -> tuple[HelpEntry, ...]:
    """The arguments `llama-server --help` lists, in its order; none when the text is no such help."""
    found: list[tuple[tuple[str, ...], str, list[str]]] = []
    inside = False
    for line in output.splitlines():
        names, rest = _names(line)
        if names:
            value = _VALUE.match(rest)
            found.append((names, value.group(1) if value else "", [rest[value.end() :] if value else rest]))
            inside = True
        elif line.startswith(" ") and inside:
            found[-1][2].append(line)
        elif line.strip():
            inside = False
    return tuple(HelpEntry(names, value, " ".join(" ".join(text).split())) for names, value, text in found)


def from_help(path: str, version: str, entries: Iterable[HelpEntry]) -> Capabilities:
    """The capabilities of a llama-server whose help has these entries."""
    entries = tuple(entries)
    removed = frozenset(name for one in entries if _REMOVED in one.text for name in one.names)
    shown = next((one.value for one in entries if SPEC_TYPE_FLAG in one.names), "")
    types = tuple(name for name in re.split(r"[|,]", shown.strip("[]{}<>")) if spec_type(name) is not None)
    return Capabilities(
        kind="llama-server",
        path=path,
        version=version,
        flags=frozenset(name for one in entries for name in one.names) - removed,
        removed=removed,
        spec_types=types,
        chained="|" not in shown,
        values={name: _count(one.value) for one in entries for name in one.names},
        texts={name: one.text for one in entries for name in one.names},
        variables=frozenset(name for one in entries for name in _VARIABLE.findall(one.text)),
    )


def type_names(members: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Names of spec types from the members of xllamacpp's enum."""
    plain = (name.removeprefix(prefix).lower().replace("_", "-") for name in members if name.startswith(prefix))
    return tuple(name for name in plain if name != NO_SPECULATION and spec_type(name) is not None)


def _names(line: str) -> tuple[tuple[str, ...], str]:
    """The names at the start of a line and what follows them; no names when the line begins no argument."""
    names: list[str] = []
    at = 0
    while (match := _NAME.match(line, at)) is not None:
        names.append(match.group())
        at = match.end()
        comma = _COMMA.match(line, at)
        if comma is None:
            break
        at = comma.end()
    return tuple(names), line[at:]


def _count(value: str) -> int:
    """How many values the words stand for: `N` is one, `START END` two; brackets are one, whatever they hold."""
    before = ""
    while before != value:
        before, value = value, _BRACKETED.sub("x", value)
    return len(value.split())
