"""Measures one boot: the same prompts every time, with forced length and no cache, and all that tells their cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Protocol

from specdash.bench.chat import Fault
from specdash.bench.drive import Options, measure
from specdash.bench.statistics import usable
from specdash.core.errors import SpecdashError
from specdash.core.speculation import SPEC_TYPES
from specdash.llama.log_grammar import WARNING_CLASSES
from specdash.llama.log_parser import LogParser
from specdash.tune.surroundings import Surroundings, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.bench.drive import Run
    from specdash.bench.samples import Place, Prompt, Sample
    from specdash.collect.gpu_looks import GpuLooks
    from specdash.core.flag import Flag

_MOST_LOG = 64 << 20
_OWN_LINES = frozenset(name for one in SPEC_TYPES for name in one.log_classes)
"""Line classes that only one way to speculate writes: new ones come with a new way, and mean no trouble."""


class UnmeasuredError(SpecdashError):
    """The engine was up and could not be measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One boot, as it was measured."""

    samples: tuple[Sample, ...]
    draft_s: float | None = None
    warnings: frozenset[str] = frozenset()
    """Classes of warnings and errors in the engine's log."""
    seen: Surroundings = field(default_factory=Surroundings)
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why it is not complete; empty when it is."""

    def check(self) -> None:
        """Raise `UnmeasuredError` where it is not complete."""
        if self.problem:
            raise UnmeasuredError(self.problem)

    @property
    def ttft_s(self) -> float | None:
        """The median."""
        found = [one.ttft_s for one in self.samples if not one.failed and one.ttft_s is not None]
        return median(found) if found else None


class Measure(Protocol):
    """Asks an engine all prompts. `on_done` is told how many of how many are done."""

    def __call__(self, place: Place, on_done: Callable[[int, int], None]) -> Measured:
        """Raises `SpecdashError`, and `bench.drive.Interrupted`."""


class Measurer:
    """The measurement of every boot of a run."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        options: Options,
        gpus: GpuLooks | None = None,
        stop: Flag | None = None,
    ) -> None:
        self.prompts = tuple(prompts)
        self._options = replace(options, cache=False, force_length=True, positions=True)
        self._gpus = gpus
        self._stop = stop

    def __call__(self, place: Place, on_done: Callable[[int, int], None]) -> Measured:
        """See `Measure`."""
        watch = Watch(place, self._gpus)
        done = 0

        def count(_: Sample) -> None:
            nonlocal done
            done += 1
            on_done(done, len(self.prompts) * self._options.runs)

        run = measure(place, self.prompts, replace(self._options, log=place.log), count, stop=self._stop)
        return measured(run, watch.end(own_tokens(run)), place.log)


def measured(run: Run, seen: Surroundings, log: str | None) -> Measured:
    """What a run of requests comes to. Requests whose figures cannot be are left out."""
    good = usable(run.samples)
    odd = len(run.answered) - len(good)
    notes = list(run.notes)
    if odd:
        notes.append(f"{odd} requests with impossible figures left out")
    failed = [one for one in run.samples if one.failed]
    problem = ""
    if failed:
        problem = f"{len(failed)} of {len(run.samples)} requests failed: {failed[0].error}{_why(failed, log)}"
    elif not good:
        problem = "no request gave figures that can be"
    elif not run.complete:
        problem = "not all requests were asked"
    return Measured(
        samples=(*good, *failed),
        draft_s=run.draft_s,
        warnings=warning_classes(log) if log is not None else frozenset(),
        seen=seen,
        notes=tuple(notes),
        problem=problem,
    )


def _why(failed: Sequence[Sample], log: str | None) -> str:
    """What the log says of an engine that went away."""
    from specdash.bench.baseline_engine import last_words

    if log is None or not any(one.fault in (Fault.BROKEN, Fault.UNREACHABLE) for one in failed):
        return ""
    try:
        return f"; {last_words(log)}"
    except OSError:
        return ""


def own_tokens(run: Run) -> int | None:
    """What the engine generated for us; None where an answer that broke off does not tell."""
    asked = [*run.samples, *([run.warm_up] if run.warm_up is not None else [])]
    if any(one.failed or one.predicted_tokens is None for one in asked):
        return None
    return sum(one.predicted_tokens or 0 for one in asked)


def warning_classes(log: str) -> frozenset[str]:
    """Classes of warnings and errors in a log, of the last server that wrote to it."""
    try:
        with Path(log).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _MOST_LOG))
            batch = LogParser().feed(file.read(_MOST_LOG))
    except OSError:
        return frozenset()
    return frozenset(one.warning for one in batch.warnings if not one.lives_ago and one.warning not in _OWN_LINES)


def warning_titles(classes: frozenset[str]) -> str:
    """For people."""
    return ", ".join(sorted(WARNING_CLASSES[one].title if one in WARNING_CLASSES else one for one in classes))
