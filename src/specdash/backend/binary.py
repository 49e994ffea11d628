"""Backend settings as a llama-server command line and environment, for the build at hand."""

from __future__ import annotations

import difflib
import re
from dataclasses import field
from typing import TYPE_CHECKING

from specdash.backend.rules import error, warning
from specdash.backend.settings import DEFAULT, canonical, setting
from specdash.backend.settings import SOURCE as EXTRA_ARGS
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME, ENGINE, PASSED_ON, SPECULATION
from specdash.core.parameters import Parameter, ValueKind
from specdash.core.speculation import NO_SPECULATION, SpecType, named_type, spec_type
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from specdash.backend.settings import BackendSettings, ParameterValue
    from specdash.core.errors import Finding


# What an engine can do, and what it lacks of what is asked: data, and the reading of `llama-server --help`.

SPEC_TYPE_FLAG = "--spec-type"
_REMOVED = "argument has been removed"
_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_COMMA = re.compile(r", *")
_VALUE = re.compile(r" (\S.*?)(?: {2,}|$)")
_BRACKETED = re.compile(r"<[^<>]*>|\[[^][]*\]|\{[^{}]*\}")
_VARIABLE = re.compile(r"\(env: *([A-Z][A-Z0-9_]*)\)")
_DEFAULT = re.compile(r"\(default: *'?([^\s,;')]+)")
_ADVICE = re.compile(r"has been removed\. *(use .+?) *(?:\(env:|$)")


_OF_TODAY = (SPEC_TYPE_FLAG, "--spec-draft-n-max")
"""Flags that llama-server has had since May 2026."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one build of an engine knows.

    `flags` are the flags llama-server takes, or the attribute paths of `xllamacpp.CommonParams`; `removed` are flags
    it lists only to refuse them. `spec_types` are its names of the spec types, `none` left out. The other fields are
    empty where nothing is known; what is unknown is never held against an engine.
    """

    kind: str
    version: str
    flags: frozenset[str]
    removed: frozenset[str] = frozenset()
    spec_types: tuple[str, ...] = ()
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

    def has_type(self, wanted: SpecType) -> bool:
        """Whether the engine has this spec type, as far as is known."""
        return not self.spec_types or wanted.name in self.spec_types

    @property
    def before_today(self) -> str | None:
        """What a llama-server lacks that those of today have: a flag, or a spec type; None for one of today."""
        missing = next((flag for flag in _OF_TODAY if flag not in self.flags), None)
        if missing is None and self.spec_types and "draft-simple" not in self.spec_types:
            return f"{SPEC_TYPE_FLAG} draft-simple"
        return missing

    def advice(self, flag: str) -> str | None:
        """What the engine says to write instead of a removed flag."""
        found = _ADVICE.search(self.texts.get(flag, ""))
        return found.group(1) if found is not None else None

    def stated_default(self, flag: str) -> str | None:
        """The default its help states for a flag."""
        found = _DEFAULT.search(self.texts.get(flag, ""))
        return found.group(1) if found is not None else None


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


def from_help(version: str, entries: Iterable[HelpEntry]) -> Capabilities:
    """The capabilities of a llama-server whose help has these entries."""
    entries = tuple(entries)
    removed = frozenset(name for entry in entries if _REMOVED in entry.text for name in entry.names)
    shown = next((entry.value for entry in entries if SPEC_TYPE_FLAG in entry.names), "")
    types = tuple(name for name in shown.strip("[]{}<>").split(",") if name and name != NO_SPECULATION)
    if not any(map(spec_type, types)):
        types = ()
    return Capabilities(
        kind="llama-server",
        version=version,
        flags=frozenset(name for entry in entries for name in entry.names) - removed,
        removed=removed,
        spec_types=types,
        values={name: _count(entry.value) for entry in entries for name in entry.names},
        texts={name: entry.text for entry in entries for name in entry.names},
        variables=frozenset(name for entry in entries for name in _VARIABLE.findall(entry.text)),
    )


def type_names(members: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Names of spec types from the members of xllamacpp's enum."""
    plain = (name.removeprefix(prefix).lower().replace("_", "-") for name in members if name.startswith(prefix))
    return tuple(name for name in plain if name not in (NO_SPECULATION, _COUNT))


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


LACKS = "engine-lacks"
"""The rule of what the settings ask for and the engine has not."""
ESSENTIAL = frozenset(
    {
        "model",
        "model-url",
        "hf-repo",
        "docker-repo",
        "host",
        "port",
        "api-key-file",
        "api-key",
        "device",
        "ssl-cert-file",
        "ssl-key-file",
    }
)
"""Parameters without which the server would serve something else, elsewhere, or to everybody."""
_SHOWN_BY_SPECDASH = frozenset({"metrics", "slots"})
_SPECULATION = frozenset(parameter.name for parameter in SPECULATION)
_NUMBER = re.compile(r"-[\d.]")
_COUNT = "count"
"""The last member of an enum in C, which counts the others."""
_NEWER = "use a newer llama.cpp"


@dataclass(slots=True)
class BinaryFit:
    """The arguments for one build, and what of the settings is not among them."""

    arguments: list[str] = field(default_factory=list)
    lacks: list[Finding] = field(default_factory=list)


def arguments(settings: BackendSettings, capabilities: Capabilities | None = None) -> list[str]:
    """The arguments after the program's name, without secrets: what keys set, then what LLAMA_EXTRA_ARGS set.

    With `capabilities` only flags that this build lists.
    """
    return fit(settings, capabilities).arguments


def fit(settings: BackendSettings, capabilities: Capabilities | None = None) -> BinaryFit:
    """The arguments and everything that the build lacks of the settings, in the order of the catalogue; of a build from
    before today's flags that alone, and no arguments."""
    lacking = capabilities.before_today if capabilities is not None else None
    if capabilities is not None and lacking is not None:
        message = f"{capabilities.words} has no {lacking}: specdash runs builds with today's flags, and watches others"
        return BinaryFit([], [error(LACKS, message, "LLAMA_BIN", _NEWER)])
    fitter = _Fitter(settings, capabilities)
    first: list[str] = []
    last: list[str] = []
    for parameter in ENGINE:
        assigned = settings.parameters.get(parameter.name)
        if assigned is not None:
            into = last if assigned.source == EXTRA_ARGS else first
            into += fitter.parameter(parameter, assigned)
    if settings.spec_types:
        into = last if settings.spec_source == EXTRA_ARGS else first
        into += fitter.chain()
    rest = fitter.rest()
    fitter.variables()
    return BinaryFit([*first, *last, *rest], fitter.lacks)


def environment(settings: BackendSettings) -> dict[str, str]:
    """Variables llama-server needs beside its arguments. Holds secrets: never print it unmasked."""
    secrets = {
        variable: value.get_secret_value()
        for name, value in settings.secrets.items()
        if (variable := BY_NAME[name].environment) is not None
    }
    return {**settings.environment, **settings.native, **secrets}


def on_purpose(assigned: ParameterValue) -> bool:
    """Whether somebody set the value, and not a default of ours."""
    return assigned.source != DEFAULT


def key_of(source: str) -> str | None:
    """The env key behind a value's source, None for a default."""
    return source if source in BY_KEY or source.startswith("LLAMA_") else None


def setting_of(parameter: Parameter, assigned: ParameterValue) -> str:
    """A value as the operator set it, for messages: `KEY=value`, or the flag inside LLAMA_EXTRA_ARGS."""
    return setting(key_of(assigned.source) or parameter.key, parameter, assigned.value)


class _Fitter:
    def __init__(self, settings: BackendSettings, capabilities: Capabilities | None) -> None:
        self.settings = settings
        self.known = capabilities
        self.lacks: list[Finding] = []

    def parameter(self, parameter: Parameter, assigned: ParameterValue) -> list[str]:
        """One parameter as arguments; none when the build has no flag for it."""
        if parameter.kind is ValueKind.SWITCH:
            return self._switch(parameter, assigned)
        flag = parameter.flags[0]
        text = parameter.text(assigned.value)
        known = self.known
        if known is None:
            return [flag, text]
        listed = known.first(parameter.flags)
        if listed is None:
            self._lack(parameter, assigned, flag)
            return []
        return [listed, text]

    def _switch(self, parameter: Parameter, assigned: ParameterValue) -> list[str]:
        wanted, other = (
            (parameter.flags, parameter.off_flags) if assigned.value else (parameter.off_flags, parameter.flags)
        )
        if self.known is None:
            return [wanted[0]] if wanted else []
        listed = self.known.first(wanted)
        if listed is not None:
            return [listed]
        # A build that has only a flag for the opposite does by itself what is wanted.
        if self.known.first(other) is None and (assigned.value or parameter.off_flags):
            self._lack(parameter, assigned, wanted[0])
        return []

    def chain(self) -> list[str]:
        """The spec types as one flag."""
        types = [named_type(name) for name in self.settings.spec_types]
        names = []
        for kind in types:
            if self.known is None or self.known.has_type(kind):
                names.append(kind.name)
            else:
                self._refuse_type(kind, self.known)
        return [SPEC_TYPE_FLAG, ",".join(names)] if names else []

    def _refuse_type(self, item: SpecType, known: Capabilities) -> None:
        message = f"{self._spec_setting}: {known.words} has no spec type {item.name}"
        self._refuse(self._spec_key, message, f"it knows {', '.join(known.spec_types)}; {_NEWER}")

    def rest(self) -> list[str]:
        """The arguments that no catalogue entry covers, as they are spelled; without those the build does not take."""
        kept: list[str] = []
        for words in _arguments(self.settings.extra_args, self.known):
            if self.known is None or canonical(words[0]) in self.known.flags:
                kept += words
            else:
                self._refuse_argument(self.known, words[0])
        return kept

    def _refuse_argument(self, known: Capabilities, word: str) -> None:
        flag = canonical(word)
        if flag in known.removed:
            instead = known.advice(flag) or "remove it"
            self._refuse(EXTRA_ARGS, f"{EXTRA_ARGS}: {known.words} removed {word}", instead)
            return
        name, equals, value = word.partition("=")
        if equals and canonical(name) in known.flags:
            self._refuse(EXTRA_ARGS, f"{EXTRA_ARGS}: {known.words} has no {word}", f"write '{name} {value}'")
            return
        if not flag.startswith("-"):
            message = f"{EXTRA_ARGS}: {word!r} belongs to no argument that {known.words} knows"
            self._refuse(EXTRA_ARGS, message, "remove it")
            return
        close = difflib.get_close_matches(flag, known.flags, n=1, cutoff=0.8)
        hint = f"did you mean {close[0]}?" if close else f"remove it, or {_NEWER}"
        self._refuse(EXTRA_ARGS, f"{EXTRA_ARGS}: {known.words} has no {word}", hint)

    def variables(self) -> None:
        """Secrets and llama.cpp's own variables that the build does not read."""
        known = self.known
        if known is None:
            return
        for name in self.settings.secrets:
            parameter = BY_NAME[name]
            if known.first(parameter.flags) is None:
                message = f"{parameter.key}: {known.words} has no {parameter.flags[0]}"
                if name in ESSENTIAL:
                    self._refuse(parameter.key, f"{message} and would serve everybody", _NEWER)
                else:
                    self._leave_out(parameter.key, f"{message}, and does not read it")
        for key in self.settings.native:
            if key in PASSED_ON and known.variables and key not in known.variables:
                self._leave_out(key, f"{key} has no effect: {known.words} does not read it")

    def _lack(self, parameter: Parameter, assigned: ParameterValue, flag: str) -> None:
        asked = on_purpose(assigned)
        setting = setting_of(parameter, assigned)
        key = key_of(assigned.source)
        message = f"{setting}: {self._engine} has no {flag}"
        wanted = parameter.name in _SPECULATION or assigned.source == EXTRA_ARGS
        if parameter.name in ESSENTIAL or (asked and wanted):
            self._refuse(key, message, f"remove it, or {_NEWER}")
        elif parameter.name in _SHOWN_BY_SPECDASH:
            lost = f"{self._engine} has no {flag}: specdash cannot show what it reads there"
            self._leave_out(key or parameter.key, lost)
        elif asked:
            self._leave_out(key, f"{setting} is left out: {self._engine} has no {flag}")

    def _refuse(self, key: str | None, message: str, fix: str) -> None:
        """The server would not start, or would silently do something else."""
        self.lacks.append(error(LACKS, message, key, fix))

    def _leave_out(self, key: str | None, message: str) -> None:
        self.lacks.append(warning(LACKS, message, key, f"remove it, or {_NEWER}"))

    @property
    def _engine(self) -> str:
        return self.known.words if self.known is not None else "llama-server"

    @property
    def _spec_key(self) -> str:
        return key_of(self.settings.spec_source) or "LLAMA_SPEC_TYPE"

    @property
    def _spec_setting(self) -> str:
        return self.settings.spec_setting


def _arguments(words: tuple[str, ...], known: Capabilities | None) -> Iterator[list[str]]:
    """Each argument with its values: as many as the build takes, or up to the next word that looks like a flag."""
    at = 0
    while at < len(words):
        flag = canonical(words[at])
        end = at + 1
        count = known.values.get(flag) if known is not None and flag in known.flags else None
        if count is not None:
            end = min(len(words), end + count)
        elif flag.startswith("-"):
            while end < len(words) and (not words[end].startswith("-") or _NUMBER.match(words[end])):
                end += 1
        yield list(words[at:end])
        at = end
