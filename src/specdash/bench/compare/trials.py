"""Boots of configurations, one after the other, each measured on the same prompts and on the disk as soon as it is."""

from __future__ import annotations

import json
import os
import re
import time
from itertools import product
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.bench.compare.beds import laid_over
from specdash.bench.engines import last_said
from specdash.bench.load.drive import Interrupted, measure
from specdash.bench.load.figures import decode_parts, usable
from specdash.bench.load.samples import BenchSample, BootFailedError
from specdash.core.changes import Role, role_of, shown_value
from specdash.core.errors import InputError, NotWrittenError, SpecdashError, UsageError
from specdash.core.flag import Flag
from specdash.core.speculation import KNOBS, NO_SPECULATION, spec_type
from specdash.core.structs import Masked, json_of
from specdash.llama.chat import ChatFault
from specdash.system.files import append_line, not_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from specdash.backend.settings import BackendSettings
    from specdash.bench.compare.ab import Boot
    from specdash.bench.load.drive import MeasuredRun
    from specdash.bench.load.samples import EngineAddress, MeasureOptions, TrialBed, WorkloadPrompt


# What is tried against what: configurations as people write them, and which of them are one to the engine.

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


class Candidate(Masked, Struct, frozen=True):
    """One configuration: env keys laid over the settings in force, an empty value unsets a key."""

    hidden = ("configuration",)

    name: str
    configuration: Mapping[str, str]

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
        candidate = parse_candidate(word, env)
        count = sum(candidate.name == other.name or other.name.startswith(f"{candidate.name} (") for other in found)
        found.append(candidate if not count else Candidate(f"{candidate.name} ({count + 1})", candidate.configuration))
    return tuple(found)


def preset(name: str) -> tuple[Candidate, ...]:
    """The configurations of a preset. Raises `UsageError`."""
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}; there is {', '.join(PRESETS)}")
    return tuple(Candidate(name, values) for name, values in PRESETS[name])


def parse_grid(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        values = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        if not equals or not key or not text:
            raise UsageError(f"--grid {word!r}: write KEY=V1,V2; V1+V2 is a chain of spec types")
        if key in grid:
            raise UsageError(f"--grid {key}: is given twice")
        grid[key] = tuple(value.replace("+", ",") if key == SPEC_TYPE else value for value in values)
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
    """What the engine gets with this configuration; None where it cannot be planned."""
    try:
        settings = _settings(values, candidate, env)
    except SpecdashError:
        return None
    given = {name: parameter.value for name, parameter in settings.parameters.items()} | settings.native
    return (*(f"{name}={value}" for name, value in given.items()), *settings.spec_types, *settings.extra_args)


def must_be_meant(values: Mapping[str, str], tried: Sequence[Candidate], env: Mapping[str, str] = os.environ) -> None:
    """Raise `UsageError` for a configuration that sets a key to what it cannot be, which no boot is needed to know.

    What is wrong with the settings in force is left to their own boot, and so are files and what an engine refuses.
    """
    for candidate in tried:
        if reason := _cannot_be(values, candidate, env):
            raise UsageError(reason)


def meant(
    values: Mapping[str, str], tried: Sequence[Candidate], env: Mapping[str, str] = os.environ
) -> tuple[tuple[Candidate, ...], tuple[tuple[str, str], ...]]:
    """Those for which `must_be_meant` has nothing to raise; and the others, with the reason."""
    reasons = {candidate.name: _cannot_be(values, candidate, env) for candidate in tried}
    kept = tuple(candidate for candidate in tried if not reasons[candidate.name])
    return kept, tuple((name, reason) for name, reason in reasons.items() if reason)


def _cannot_be(values: Mapping[str, str], candidate: Candidate, env: Mapping[str, str]) -> str:
    try:
        _settings(values, candidate, env)
    except SpecdashError as error:
        if any(candidate.configuration.get(key) for key in (error.problem.key, *error.problem.also) if key is not None):
            return str(error)
    return ""


def _settings(values: Mapping[str, str], candidate: Candidate, env: Mapping[str, str]) -> BackendSettings:
    from specdash.backend.auto import settings_of

    return settings_of({**laid_over(values, candidate.configuration), "LLAMA_PORT": "1"}, env)


def same_to_the_engine(
    values: Mapping[str, str], tried: Sequence[Candidate], env: Mapping[str, str] = os.environ
) -> dict[str, tuple[str, ...]]:
    """Names that come to the same arguments, by the first of them; those that stand alone are not there."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for candidate in tried:
        arguments = engine_arguments(values, candidate, env)
        if arguments is not None:
            groups.setdefault(arguments, []).append(candidate.name)
    return {names[0]: tuple(names) for names in groups.values() if len(names) > 1}


def unread_knobs(values: Mapping[str, str], tried: Sequence[Candidate]) -> list[str]:
    """Knobs that configurations set and that no type in their chain reads, a sentence each."""
    found: dict[str, None] = {}
    for candidate in tried:
        chain = laid_over(values, candidate.configuration).get(SPEC_TYPE, "")
        types = [kind for name in chain.split(",") if (kind := spec_type(name)) is not None]
        for key in KNOBS:
            if types and candidate.configuration.get(key) and not any(kind.knob(key) is not None for kind in types):
                found[f"{key} is read by no type of {chain}: it changes nothing"] = None
    return list(found)


BOOTS = "boots.jsonl"
FAILURES = 2
"""After so many failed boots a configuration is not tried again."""
_SAMPLE_FIELDS = frozenset(BenchSample.__struct_fields__)


class BootMeasurement(Masked, Struct, frozen=True):
    """One boot, as it was measured. `round` counts from 0; `at` is Unix time, `up_s` until it was up, in seconds."""

    hidden = ("samples",)

    name: str
    round: int
    at: float
    up_s: float | None = None
    took_s: float = 0.0
    samples: tuple[BenchSample, ...] = ()
    failure: str = ""
    """Why it did not come up, or answered nothing."""
    draft_s: float | None = None
    notes: tuple[str, ...] = ()

    def boot(self, kind: str | None = None) -> Boot:
        """Tokens and seconds of each prompt, of one class only where it is named."""
        sums: dict[str, tuple[float, float]] = {}
        for sample in usable(self.samples):
            pair = decode_parts(sample)
            if pair is not None and kind in (None, sample.kind):
                before = sums.get(sample.prompt, (0.0, 0.0))
                sums[sample.prompt] = (before[0] + pair[0], before[1] + pair[1])
        return sums

    def acceptance(self, kind: str | None = None) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        chosen = [sample for sample in self.samples if not sample.failed and kind in (None, sample.kind)]
        drafted = sum(bench_sample.drafted or 0 for bench_sample in chosen)
        return sum(bench_sample.accepted or 0 for bench_sample in chosen) / drafted if drafted else None

    def as_json(self) -> dict[str, Any]:
        """A line of boots.jsonl. It holds no text of anybody."""
        return dict(json_of(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BootMeasurement:
        """Raises TypeError, KeyError or AttributeError for what is none."""
        samples = tuple(_sample(sample) for sample in data["samples"])
        return cls(**{**data, "samples": samples, "notes": tuple(data["notes"])})


def _sample(data: Mapping[str, Any]) -> BenchSample:
    known = {key: value for key, value in data.items() if key in _SAMPLE_FIELDS}
    lists = {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
    return BenchSample(**{**known, **lists})


class BootFile:
    """boots.jsonl: a first line that says what is measured, then one line a boot. Mode 0600, appended and synced."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / BOOTS

    def begin(self, head: Mapping[str, Any]) -> None:
        """The first line. Raises `NotWrittenError`."""
        self._append(head)

    def add(self, booted: BootMeasurement) -> None:
        """One boot; on the disk when we return. Raises `NotWrittenError`."""
        self._append(booted.as_json())

    def read(self) -> tuple[dict[str, Any], list[BootMeasurement]]:
        """What was measured, and all whole lines; the last one, cut short by a kill, is taken off the file.

        Raises `InputError`.
        """
        try:
            data = self.path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                os.truncate(self.path, len(whole))
            head, *rows = [json.loads(line) for line in whole.splitlines()]
            return {**head}, [BootMeasurement.from_json(row) for row in rows]
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}; name the folder of an earlier run") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{self.path} is no record of this version of specdash ({error}); start over") from None

    def _append(self, value: Mapping[str, Any]) -> None:
        try:
            append_line(self.path, json.dumps(value, separators=(",", ":")).encode())
        except OSError as error:
            raise NotWrittenError(not_written(self.path, error)) from None


class Trials(Struct):
    """Boots in a given order. `booted` fills as it goes, and is what there is when it is stopped."""

    bed: TrialBed
    candidates: Sequence[Candidate]
    prompts: Sequence[WorkloadPrompt]
    options: MeasureOptions
    schedule: Sequence[tuple[int, str]]
    """Round and name of every boot to come."""
    file: BootFile
    on_step: Callable[[float, str], None] = lambda _done, _words: None
    """Gets the boots done so far, with the fraction of the one that runs, and what goes on."""
    booted: list[BootMeasurement] = field(default_factory=list)
    stop: Flag = field(default_factory=Flag)

    def run(self) -> None:
        """All boots that are not there yet. KeyboardInterrupt and errors that end everything pass; restoring the bed is
        the caller's."""
        by_name = {candidate.name: candidate for candidate in self.candidates}
        there = {(measurement.round, measurement.name) for measurement in self.booted}
        for number, (turn, name) in enumerate(self.schedule):
            if (turn, name) in there or self.failed(name) >= FAILURES:
                continue
            if self.stop.is_set():
                raise KeyboardInterrupt
            measurement = self._booted(number, turn, by_name[name])
            self.file.add(measurement)
            self.booted.append(measurement)
        self.on_step(len(self.schedule), "done")

    def failed(self, name: str) -> int:
        """How often the configuration did not come up."""
        return sum(measurement.name == name and bool(measurement.failure) for measurement in self.booted)

    def _booted(self, number: int, turn: int, candidate: Candidate) -> BootMeasurement:
        at, began = time.time(), time.monotonic()
        self.on_step(number, f"{candidate.name}: starting")
        up_s: float | None = None
        run: MeasuredRun | None = None
        failure = ""
        self.bed.announce(number + 1, len(self.schedule))
        try:
            with self.bed.boot(candidate.configuration) as place:
                up_s = time.monotonic() - began
                run, failure = self._measured(place, number, candidate)
        except BootFailedError as error:
            failure = str(error)
        took = time.monotonic() - began
        if run is None:
            return BootMeasurement(candidate.name, turn, at, up_s, took, failure=failure)
        return BootMeasurement(candidate.name, turn, at, up_s, took, run.samples, failure, run.draft_s, run.notes)

    def _measured(self, place: EngineAddress, number: int, candidate: Candidate) -> tuple[MeasuredRun | None, str]:
        """What was measured, and why that is nothing."""
        done, planned = 0, len(self.prompts) * self.options.runs + 1

        def record(sample: BenchSample) -> None:
            nonlocal done
            done += 1
            self.on_step(number + done / planned, f"{candidate.name}: {sample.prompt}")

        self.on_step(number, f"{candidate.name}: warming up")
        try:
            run = measure(place, self.prompts, replace(self.options, log=place.log), record, stop=self.stop)
        except Interrupted:
            raise KeyboardInterrupt from None
        except SpecdashError as error:
            return None, f"{error}{_why(place)}"
        failed = [sample for sample in run.samples if sample.failed]
        if failed and any(bench_sample.fault in (ChatFault.BROKEN, ChatFault.UNREACHABLE) for bench_sample in failed):
            return run, f"{len(failed)} of {run.planned} requests failed: {failed[0].error}{_why(place)}"
        if not usable(run.samples):
            return run, f"no request gave figures that can be: {failed[0].error if failed else 'no timings'}"
        return run, ""


def _why(place: EngineAddress) -> str:
    from specdash.backend.start_check import healthy

    return "" if healthy(place.url) else last_said(place.log)


def rounds_of(booted: Iterable[BootMeasurement], kind: str | None = None) -> dict[int, dict[str, Boot]]:
    """Boots by round and name, those that failed left out."""
    found: dict[int, dict[str, Boot]] = {}
    for measurement in booted:
        boot = measurement.boot(kind) if not measurement.failure else {}
        if boot:
            found.setdefault(measurement.round, {})[measurement.name] = boot
    return found
