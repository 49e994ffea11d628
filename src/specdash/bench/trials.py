"""Boots of configurations, one after the other, each measured on the same prompts and on the disk as soon as it is."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from specdash.bench.baseline_engine import last_words
from specdash.bench.chat import Fault
from specdash.bench.drive import Interrupted, measure
from specdash.bench.samples import BootFailedError, Sample
from specdash.bench.statistics import decode_parts, usable
from specdash.control.safe_file import not_written
from specdash.core.errors import InputError, SpecdashError
from specdash.core.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from specdash.bench.configurations import Candidate
    from specdash.bench.drive import Run
    from specdash.bench.samples import Bed, Place, Prompt
    from specdash.bench.schedule import Options
    from specdash.bench.statistics import Boot

BOOTS = "boots.jsonl"
FAILURES = 2
"""After so many failed boots a configuration is not tried again."""
_SAMPLE_FIELDS = frozenset(one.name for one in fields(Sample))


@dataclass(frozen=True, slots=True)
class Booted:
    """One boot, as it was measured. `round` counts from 0; `at` is Unix time, `up_s` until it was up, in seconds."""

    name: str
    round: int
    at: float
    up_s: float | None = None
    took_s: float = 0.0
    samples: tuple[Sample, ...] = field(default=(), repr=False)
    failure: str = ""
    """Why it did not come up, or answered nothing."""
    draft_s: float | None = None
    notes: tuple[str, ...] = ()

    def boot(self, kind: str | None = None) -> Boot:
        """Tokens and seconds of each prompt, of one class only where it is named."""
        sums: dict[str, tuple[float, float]] = {}
        for sample in usable(self.samples):
            told = decode_parts(sample)
            if told is not None and kind in (None, sample.kind):
                before = sums.get(sample.prompt, (0.0, 0.0))
                sums[sample.prompt] = (before[0] + told[0], before[1] + told[1])
        return sums

    def acceptance(self, kind: str | None = None) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        chosen = [one for one in self.samples if not one.failed and kind in (None, one.kind)]
        drafted = sum(one.drafted or 0 for one in chosen)
        return sum(one.accepted or 0 for one in chosen) / drafted if drafted else None

    def as_json(self) -> dict[str, Any]:
        """A line of boots.jsonl. It holds no text of anybody."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Booted:
        """Raises TypeError, KeyError or AttributeError for what is none."""
        samples = tuple(_sample(one) for one in data["samples"])
        return cls(**{**data, "samples": samples, "notes": tuple(data["notes"])})


def _sample(data: Mapping[str, Any]) -> Sample:
    known = {key: value for key, value in data.items() if key in _SAMPLE_FIELDS}
    lists = {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
    return Sample(**{**known, **lists})


class BootFile:
    """boots.jsonl: a first line that says what is measured, then one line a boot. Mode 0600, appended and synced."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / BOOTS

    def begin(self, head: Mapping[str, Any]) -> None:
        """The first line. Raises `NotWrittenError`."""
        self._append(head)

    def add(self, booted: Booted) -> None:
        """One boot; on the disk when we return. Raises `NotWrittenError`."""
        self._append(booted.as_json())

    def read(self) -> tuple[dict[str, Any], list[Booted]]:
        """What was measured, and all whole lines; the last one, cut short by a kill, is taken off the file.

        Raises `InputError`.
        """
        try:
            data = self.path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                os.truncate(self.path, len(whole))
            head, *rows = [json.loads(line) for line in whole.splitlines()]
            return {**head}, [Booted.from_json(row) for row in rows]
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}; name the folder of an earlier run") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{self.path} is no record of this version of specdash ({error}); begin anew") from None

    def _append(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise not_written(self.path, error) from None


@dataclass(slots=True)
class Trials:
    """Boots in a given order. `booted` fills as it goes, and is what there is when it is stopped."""

    bed: Bed
    candidates: Sequence[Candidate]
    prompts: Sequence[Prompt]
    options: Options
    schedule: Sequence[tuple[int, str]]
    """Round and name of every boot to come."""
    file: BootFile
    on_step: Callable[[float, str], None] = lambda _done, _words: None
    """Told the boots done so far, with the fraction of the one that runs, and what goes on."""
    booted: list[Booted] = field(default_factory=list)
    stop: Flag = field(default_factory=Flag)

    def run(self) -> None:
        """All boots that are not there yet. KeyboardInterrupt and errors that end everything pass; restoring the bed is
        the caller's."""
        by_name = {one.name: one for one in self.candidates}
        there = {(one.round, one.name) for one in self.booted}
        for number, (turn, name) in enumerate(self.schedule):
            if (turn, name) in there or self.failed(name) >= FAILURES:
                continue
            if self.stop.is_set():
                raise KeyboardInterrupt
            one = self._booted(number, turn, by_name[name])
            self.file.add(one)
            self.booted.append(one)
        self.on_step(len(self.schedule), "done")

    def failed(self, name: str) -> int:
        """How often the configuration did not come up."""
        return sum(one.name == name and bool(one.failure) for one in self.booted)

    def _booted(self, number: int, turn: int, candidate: Candidate) -> Booted:
        at, began = time.time(), time.monotonic()
        self.on_step(number, f"{candidate.name}: starting")
        up_s: float | None = None
        run: Run | None = None
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
            return Booted(candidate.name, turn, at, up_s, took, failure=failure)
        return Booted(candidate.name, turn, at, up_s, took, run.samples, failure, run.draft_s, run.notes)

    def _measured(self, place: Place, number: int, candidate: Candidate) -> tuple[Run | None, str]:
        """What was measured, and why that is nothing."""
        done, planned = 0, len(self.prompts) * self.options.runs + 1

        def told(sample: Sample) -> None:
            nonlocal done
            done += 1
            self.on_step(number + done / planned, f"{candidate.name}: {sample.prompt}")

        self.on_step(number, f"{candidate.name}: warming up")
        try:
            run = measure(place, self.prompts, replace(self.options, log=place.log), told, stop=self.stop)
        except Interrupted:
            raise KeyboardInterrupt from None
        except SpecdashError as error:
            return None, f"{error}{_why(place)}"
        failed = [one for one in run.samples if one.failed]
        if failed and any(one.fault in (Fault.BROKEN, Fault.UNREACHABLE) for one in failed):
            return run, f"{len(failed)} of {run.planned} requests failed: {failed[0].error}{_why(place)}"
        if not usable(run.samples):
            return run, f"no request gave figures that can be: {failed[0].error if failed else 'no timings'}"
        return run, ""


def _why(place: Place) -> str:
    """What the log says of an engine that went away."""
    from specdash.control.verify import healthy

    if place.log is None or healthy(place.url):
        return ""
    try:
        return f"; {last_words(place.log)}"
    except OSError:
        return ""


def rounds_of(booted: Iterable[Booted], kind: str | None = None) -> dict[int, dict[str, Boot]]:
    """Boots by round and name, those that failed left out."""
    found: dict[int, dict[str, Boot]] = {}
    for one in booted:
        boot = one.boot(kind) if not one.failure else {}
        if boot:
            found.setdefault(one.round, {})[one.name] = boot
    return found
