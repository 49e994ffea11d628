"""What is tried against what: configurations as people write them, and which of them are one to the engine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from specdash.bench.beds import laid_over
from specdash.core.changes import Role, role_of, shown_value
from specdash.core.errors import InputError, SpecdashError, UsageError
from specdash.core.speculation import KNOBS, NO_SPECULATION, knob_readers, spec_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.backend.settings import BackendSettings

SPEC_TYPE = "LLAMA_SPEC_TYPE"
CURRENT = "current"
DEFAULT = "default"
UAP = "uap"
UAP_80 = "uap80"
PRESETS = {
    UAP: (
        ("none", {SPEC_TYPE: NO_SPECULATION}),
        ("default", dict(zip(KNOBS, ("16", "3", "0.75"), strict=True))),
        ("tuned", dict(zip(KNOBS, ("21", "6", "0.72"), strict=True))),
    )
}
"""UAP's A/B: no speculation, its run script's defaults, and what its sweep had found."""
GRIDS: dict[str, dict[str, tuple[str, ...]]] = {
    UAP_80: dict(
        zip(
            KNOBS,
            (("16", "18", "20", "21", "22"), ("3", "4", "5", "6"), ("0.70", "0.72", "0.75", "0.78")),
            strict=True,
        )
    )
}
"""UAP's sweep: DRAFT_MAXS, DRAFT_MINS and DRAFT_P_MINS, five times four times four."""
_LEFT_ALONE = ("LLAMA_HOST", "LLAMA_PORT", "LLAMA_API_KEY", "LLAMA_API_KEY_FILE", "LLAMA_LOG_FILE")
_NEXT = re.compile(r",(?=[A-Z][A-Z0-9_]*=)")
_NAMED = re.compile(r"([a-z0-9][a-z0-9._-]*):(?=[A-Z])")
_MOST_NAME = 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration: env keys laid over the settings in force, an empty value unsets a key."""

    name: str
    configuration: Mapping[str, str] = field(repr=False)

    @property
    def words(self) -> str:
        """What it sets, secrets masked."""
        parts = [f"{key}={shown_value(key, value) or ''}" for key, value in self.configuration.items()]
        return " ".join(parts) or "the settings in force"


def parse_candidate(word: str, env: Mapping[str, str] = os.environ) -> Candidate:
    """`none`, `default`, `current`, a profile's name, or `KEY=VALUE,KEY=VALUE`, perhaps with a `name:` before it.

    Raises `UsageError` or `InputError` naming the word.
    """
    if word == NO_SPECULATION:
        return Candidate(word, {SPEC_TYPE: NO_SPECULATION})
    if word == CURRENT:
        return Candidate(word, {})
    if word == DEFAULT:
        return Candidate(word, dict.fromkeys(KNOBS, ""))
    if "=" not in word:
        from specdash.control.profiles import find_profile

        profile = find_profile(word, env)
        values = dict(profile.values.get(Role.BACKEND, {}))
        if not values:
            raise InputError(f"profile {word} sets nothing of the backend, so it changes no speed")
        return Candidate(word, _checked(values, word))
    named = _NAMED.match(word)
    text = word[named.end() :] if named else word
    values = {}
    for part in _NEXT.split(text):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UsageError(f"{word!r}: write KEY=VALUE,KEY=VALUE, a profile's name, none, default or current")
        if key in values:
            raise UsageError(f"{word!r}: {key} is given twice")
        values[key] = value
    return Candidate(named[1] if named else text[:_MOST_NAME], _checked(values, word))


def candidates(words: Sequence[str], env: Mapping[str, str] = os.environ) -> tuple[Candidate, ...]:
    """One for each word; the same twice is two, to see how far equals differ."""
    found: list[Candidate] = []
    for word in words:
        one = parse_candidate(word, env)
        count = sum(one.name == other.name or other.name.startswith(f"{one.name} (") for other in found)
        found.append(one if not count else Candidate(f"{one.name} ({count + 1})", one.configuration))
    return tuple(found)


def preset(name: str) -> tuple[Candidate, ...]:
    """The configurations of a preset. Raises `UsageError`."""
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}; there is {', '.join(PRESETS)}")
    return tuple(Candidate(one, values) for one, values in PRESETS[name])


def parse_grid(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`KEY=V1,V2` words. Raises `UsageError`."""
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        values = tuple(dict.fromkeys(one.strip() for one in text.split(",")))
        if not equals or not key or not text:
            raise UsageError(f"--grid {word!r}: write KEY=V1,V2; V1+V2 is a chain of spec types")
        if key in grid:
            raise UsageError(f"--grid {key}: is given twice")
        grid[key] = tuple(one.replace("+", ",") if key == SPEC_TYPE else one for one in values)
    _checked(dict.fromkeys(grid, ""), "--grid")
    return grid


def grid_candidates(grid: Mapping[str, Sequence[str]]) -> tuple[tuple[Candidate, ...], tuple[tuple[str, str], ...]]:
    """Every combination that can be meant; and those left out, with the reason."""
    kept, left_out = [], []
    for values in product(*grid.values()):
        configuration = dict(zip(grid, values, strict=True))
        name = " ".join(f"{_short(key)}={value}" for key, value in configuration.items())
        reason = _impossible(configuration)
        if reason:
            left_out.append((name, reason))
        else:
            kept.append(Candidate(name, configuration))
    return tuple(kept), tuple(left_out)


def _impossible(configuration: Mapping[str, str]) -> str:
    most, least, p_min = (_number(configuration.get(key)) for key in KNOBS)
    if most is not None and least is not None and least > most:
        return f"the least draft, {least:g}, is longer than the longest, {most:g}"
    if most is not None and most < 1:
        return "a longest draft below 1 is none: write LLAMA_SPEC_TYPE=none"
    if p_min is not None and not 0 <= p_min <= 1:
        return f"{p_min:g} is no probability"
    return ""


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _short(key: str) -> str:
    return key.removeprefix("LLAMA_").removeprefix("DRAFT_").lower()


def _checked(values: dict[str, str], where: str) -> dict[str, str]:
    for key in values:
        if role_of(key) is not Role.BACKEND:
            raise UsageError(f"{where}: {key} is no setting of the backend")
        if key in _LEFT_ALONE:
            raise UsageError(f"{where}: {key} says where the server is, which stays as it is")
    return values


def engine_arguments(
    values: Mapping[str, str], candidate: Candidate, env: Mapping[str, str] = os.environ
) -> tuple[str, ...] | None:
    """What the engine is told with this configuration; None where it cannot be planned."""
    from specdash.backend import binary

    try:
        settings = _settings(values, candidate, env)
    except SpecdashError:
        return None
    native = tuple(sorted(f"{key}={value}" for key, value in settings.native.items()))
    return (*binary.arguments(settings), *native)


def must_be_meant(values: Mapping[str, str], tried: Sequence[Candidate], env: Mapping[str, str] = os.environ) -> None:
    """Raise `UsageError` for a configuration that sets a key to what it cannot be, which no boot is needed to know.

    What is wrong with the settings in force is left to their own boot, and so are files and what an engine refuses.
    """
    for one in tried:
        if reason := _cannot_be(values, one, env):
            raise UsageError(reason)


def meant(
    values: Mapping[str, str], tried: Sequence[Candidate], env: Mapping[str, str] = os.environ
) -> tuple[tuple[Candidate, ...], tuple[tuple[str, str], ...]]:
    """Those for which `must_be_meant` has nothing to raise; and the others, with the reason."""
    reasons = {one.name: _cannot_be(values, one, env) for one in tried}
    kept = tuple(one for one in tried if not reasons[one.name])
    return kept, tuple((name, reason) for name, reason in reasons.items() if reason)


def _cannot_be(values: Mapping[str, str], one: Candidate, env: Mapping[str, str]) -> str:
    try:
        _settings(values, one, env)
    except SpecdashError as error:
        if any(f"{key}={value}" in str(error) for key, value in one.configuration.items() if value):
            return str(error)
    return ""


def _settings(values: Mapping[str, str], candidate: Candidate, env: Mapping[str, str]) -> BackendSettings:
    from specdash.backend.launch import settings_of

    return settings_of({**laid_over(values, candidate.configuration), "LLAMA_PORT": "1"}, env)


def same_to_the_engine(
    values: Mapping[str, str], tried: Sequence[Candidate], env: Mapping[str, str] = os.environ
) -> dict[str, tuple[str, ...]]:
    """Names that come to the same arguments, by the first of them; those that stand alone are not there."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in tried:
        told = engine_arguments(values, one, env)
        if told is not None:
            groups.setdefault(told, []).append(one.name)
    return {names[0]: tuple(names) for names in groups.values() if len(names) > 1}


def unread_knobs(values: Mapping[str, str], tried: Sequence[Candidate]) -> list[str]:
    """Knobs that configurations set and that no type in their chain reads, a sentence each."""
    found: dict[str, None] = {}
    for one in tried:
        chain = laid_over(values, one.configuration).get(SPEC_TYPE, "")
        types = [kind for name in chain.split(",") if (kind := spec_type(name)) is not None]
        for key in KNOBS:
            if types and one.configuration.get(key) and not any(kind in knob_readers(key) for kind in types):
                found[f"{key} is read by no type of {chain}: it changes nothing"] = None
    return list(found)
