"""What a llama-server can do, read from its `--help`, and backend settings as its command line and environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.backend.rules import error, warning
from specdash.backend.settings import DEFAULT, canonical, setting
from specdash.backend.settings import SOURCE as EXTRA_ARGS
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME, ENGINE, PASSED_ON, SPECULATION
from specdash.core.parameters import Parameter, ValueKind
from specdash.core.speculation import NO_SPECULATION, spec_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.backend.settings import BackendSettings, ParameterValue
    from specdash.core.errors import Finding

SPEC_TYPE_FLAG = "--spec-type"
_REMOVED = "argument has been removed"
_NAMES = re.compile(r"--?[A-Za-z][\w.-]*(?:, *--?[A-Za-z][\w.-]*)*")
_VALUE = re.compile(r" (\S.*?)(?: {2,}|$)")
_VARIABLE = re.compile(r"\(env: *([A-Z][A-Z0-9_]*)\)")
_ADVICE = re.compile(r"has been removed\. *(use .+?) *(?:\(env:|$)")
_OF_TODAY = (SPEC_TYPE_FLAG, "--spec-draft-n-max")
"""Flags that llama-server has had since May 2026."""


class Engine(Struct, frozen=True):
    """An engine that can be started, and what this build of it knows.

    `flags` are the flags llama-server takes, or the attribute paths of `xllamacpp.CommonParams`; `removed` are flags
    it lists only to refuse them. `spec_types` are its names of the spec types, `none` left out.
    """

    kind: str
    version: str
    flags: frozenset[str]
    removed: frozenset[str] = frozenset()
    spec_types: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    """What the help says of a flag, in one line."""
    variables: frozenset[str] = frozenset()
    """The `LLAMA_ARG_*` variables it reads."""
    path: str = ""
    reason: str = ""
    """Why it was taken."""
    loader: tuple[tuple[str, str], ...] = ()
    """The variables of the env file that tell the system's loader where the engine's libraries are."""

    @property
    def words(self) -> str:
        """Kind and version, as messages, the header and the run record show them."""
        return f"{self.kind} {self.version}"

    def first(self, flags: Iterable[str]) -> str | None:
        """The first of these names that the engine takes, None when it takes none."""
        return next((flag for flag in flags if flag in self.flags), None)

    def has_type(self, name: str) -> bool:
        """Whether the engine has this spec type; where it lists none, nothing is known against it."""
        return not self.spec_types or name in self.spec_types


def from_help(version: str, output: str) -> Engine:
    """The llama-server whose `--help` prints this; one without flags when the text is no such help."""
    found: list[tuple[list[str], str, list[str]]] = []
    inside = False
    for line in output.splitlines():
        if (names := _NAMES.match(line)) is not None:
            rest = line[names.end() :]
            value = _VALUE.match(rest)
            text = rest[value.end() :] if value else rest
            found.append((re.split(", *", names.group()), value.group(1) if value else "", [text]))
            inside = True
        elif line.startswith(" ") and inside:
            found[-1][2].append(line)
        elif line.strip():
            inside = False
    texts = {name: " ".join(" ".join(lines).split()) for entry, _, lines in found for name in entry}
    removed = frozenset(name for name, text in texts.items() if _REMOVED in text)
    shown = next((value for entry, value, _ in found if SPEC_TYPE_FLAG in entry), "")
    types = tuple(name for name in shown.strip("[]{}<>").split(",") if name and name != NO_SPECULATION)
    return Engine(
        kind="llama-server",
        version=version,
        flags=frozenset(texts) - removed,
        removed=removed,
        spec_types=types if any(map(spec_type, types)) else (),
        texts=texts,
        variables=frozenset(name for text in texts.values() for name in _VARIABLE.findall(text)),
    )


LACKS = "engine-lacks"
"""The rule of what the settings ask for and the engine has not."""
ESSENTIAL = frozenset(
    (
        *("model", "model-url", "hf-repo", "docker-repo", "host", "port", "api-key-file", "api-key", "device"),
        *("ssl-cert-file", "ssl-key-file"),
    )
)
"""Parameters without which the server would serve something else, elsewhere, or to everybody."""
_SHOWN_BY_SPECDASH = ("metrics", "slots")
_NUMBER = re.compile(r"-[\d.]")
_NEWER = "use a newer llama.cpp"


def fit(  # noqa: C901 - one loop for each kind of setting
    settings: BackendSettings, known: Engine
) -> tuple[list[str], list[Finding]]:
    """The arguments after the program's name, without secrets (what keys set, then what LLAMA_EXTRA_ARGS set), and
    everything that the build lacks of the settings, in the order of the catalogue; of a build from before today's flags
    that alone, and no arguments."""
    lacking = next((flag for flag in _OF_TODAY if flag not in known.flags), None)
    if lacking is None and not known.has_type("draft-simple"):
        lacking = f"{SPEC_TYPE_FLAG} draft-simple"
    if lacking is not None:
        message = f"{known.words} has no {lacking}: specdash runs builds with today's flags, and watches others"
        return [], [error(LACKS, message, "LLAMA_BIN", _NEWER)]
    lacks: list[Finding] = []
    first: list[str] = []
    last: list[str] = []
    for parameter in ENGINE:
        if (assigned := settings.parameters.get(parameter.name)) is None:
            continue
        into = last if assigned.source == EXTRA_ARGS else first
        switch = parameter.kind is ValueKind.SWITCH
        wanted, other = parameter.flags, parameter.off_flags
        if switch and not assigned.value:
            wanted, other = other, wanted
        listed = known.first(wanted)
        if listed is not None:
            into += [listed] if switch else [listed, parameter.text(assigned.value)]
        elif not switch or (wanted and known.first(other) is None):
            # A build that has only a flag for the opposite does by itself what is wanted.
            lacks += lack(parameter, assigned, f"{known.words} has no {wanted[0]}", f"remove it, or {_NEWER}")
    names = [name for name in settings.spec_types if known.has_type(name)]
    for name in [name for name in settings.spec_types if name not in names]:
        message = f"{settings.spec_setting()}: {known.words} has no spec type {name}"
        fix = f"it knows {', '.join(known.spec_types)}; {_NEWER}"
        lacks.append(error(LACKS, message, key_of(settings.spec_source) or "LLAMA_SPEC_TYPE", fix))
    if names:
        (last if settings.spec_source == EXTRA_ARGS else first).extend((SPEC_TYPE_FLAG, ",".join(names)))
    given: list[list[str]] = []
    for word in settings.extra_args:
        # Each argument with its values: the words up to the next one that looks like a flag.
        if given and (word[:1] != "-" or _NUMBER.match(word)):
            given[-1].append(word)
        else:
            given.append([word])
    for words in given:
        if (flag := canonical(words[0])) in known.flags:
            last += words
            continue
        has, fix = "has no", f"remove it, or {_NEWER}"
        if flag in known.removed:
            advice = _ADVICE.search(known.texts[flag])
            has, fix = "removed", advice.group(1) if advice else "remove it"
        lacks.append(error(LACKS, f"{EXTRA_ARGS}: {known.words} {has} {words[0]}", EXTRA_ARGS, fix))
    for name in settings.secrets:
        secret = BY_NAME[name]
        if known.first(secret.flags) is None:
            message = f"{secret.key}: {known.words} has no {secret.flags[0]} and would serve everybody"
            lacks.append(error(LACKS, message, secret.key, _NEWER))
    for key in settings.native:
        if key in PASSED_ON and known.variables and key not in known.variables:
            message = f"{key} has no effect: {known.words} does not read it"
            lacks.append(warning(LACKS, message, key, f"remove it, or {_NEWER}"))
    return [*first, *last], lacks


def environment(settings: BackendSettings) -> dict[str, str]:
    """Variables llama-server needs beside its arguments. Holds secrets: never print it unmasked."""
    return {**settings.environment, **settings.native, **secrets(settings)}


def secrets(settings: BackendSettings) -> dict[str, str]:
    """The secrets in the variables that an engine reads them from."""
    found = {BY_NAME[name].environment: value for name, value in settings.secrets.items()}
    return {variable: value for variable, value in found.items() if variable is not None}


def key_of(source: str) -> str | None:
    """The env key behind a value's source, None for a default."""
    return source if source in BY_KEY or source.startswith("LLAMA_") else None


def lack(parameter: Parameter, assigned: ParameterValue, has_not: str, fix: str) -> list[Finding]:
    """A parameter that an engine does not have: refused where the server would be another one without it, else left out
    with a warning where it was set."""
    asked, key = assigned.source != DEFAULT, key_of(assigned.source)
    named = setting(key or parameter.key, parameter, assigned.value)
    if parameter.name in ESSENTIAL or (asked and (parameter in SPECULATION or assigned.source == EXTRA_ARGS)):
        return [error(LACKS, f"{named}: {has_not}", key, fix)]
    if parameter.name in _SHOWN_BY_SPECDASH:
        return [warning(LACKS, f"{has_not}: specdash cannot show what it reads there", key or parameter.key, fix)]
    return [warning(LACKS, f"{named} is left out: {has_not}", key, fix)] if asked else []
