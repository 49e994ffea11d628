"""What `tuner_real.py` measures, as data, and its file: one JSON line a boot of the sweep, and a run of the tuner."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from math import log2
from typing import TYPE_CHECKING, Any

from specdash.core.errors import InputError
from specdash.tune.model.problem import BootResult as Boot
from specdash.tune.model.problem import Budget, Point, Task, TuneOutcome, WorkloadShares
from specdash.tune.run.status import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RESULTS = "results.jsonl"


@dataclass(frozen=True, slots=True)
class Cell:
    """A way to speculate on classes of prompts."""

    type: str
    kinds: tuple[str, ...]
    note: str = ""

    @property
    def name(self) -> str:
        """For people; unique."""
        return f"{self.type}, {self.note or ' + '.join(self.kinds)}"

    @property
    def slug(self) -> str:
        """For files."""
        return "-".join((self.type, *((self.note,) if self.note else self.kinds)))


SYNTHETIC = Cell("draft-simple", ("coding",), "synthetic")


@dataclass(frozen=True, slots=True)
class SweepBoot:
    """One boot of one point. `seconds` has everything in it, boots that were done again too."""

    what: str
    """`sweep`, or `same` for the start again and again."""
    cell: str
    turn: int
    result: Boot
    seconds: float
    disturbed: str = ""


@dataclass(frozen=True, slots=True)
class TunedRun:
    """One run of the tuner."""

    cell: str
    restarts: int
    turn: int
    results: tuple[Boot, ...]
    outcome: TuneOutcome | None
    seconds: float
    error: str = ""


@dataclass(slots=True)
class Results:
    """What was measured so far, all of it on the disk."""

    path: Path
    cells: dict[str, Cell] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    boots: list[SweepBoot] = field(default_factory=list)
    runs: list[TunedRun] = field(default_factory=list)

    @classmethod
    def open(cls, directory: Path, *, again: bool, head: Mapping[str, Any]) -> Results:
        """Raises `InputError` where there is something that is not to be gone on with, or nothing that is."""
        path = directory / RESULTS
        there = path.exists()
        if there and not again:
            raise InputError(f"{path}: there already; --resume goes on with it, or name another --out")
        if again and not there:
            raise InputError(f"{path}: not there; leave --resume and --report out, or name the --out of before")
        directory.mkdir(parents=True, exist_ok=True)
        found = cls(path)
        if not there:
            found._append({"event": "head", **head})
            return found
        for line in found._whole_lines():
            found._take(line, head)
        return found

    def plan(self, cell: Cell, task: Task) -> None:
        """Note a cell. Raises `InputError` where it was another one before."""
        before = self.tasks.get(cell.name)
        if before is None:
            self._append({"event": "cell", "cell": asdict(cell), "task": asdict(task)})
            self.cells[cell.name], self.tasks[cell.name] = cell, task
        elif before.points != task.points or before.start != task.start or before.workload != task.workload:
            raise InputError(f"{self.path}: {cell.name} had other points; name another --out")

    def has(self, what: str, cell: Cell, turn: int, point: Point) -> bool:
        """Whether the boot was measured; a failure is a result."""
        return any(
            boot.what == what and boot.cell == cell.name and boot.turn == turn and boot.result.point == point
            for boot in self.boots
        )

    def tuned(self, cell: Cell, restarts: int, turn: int) -> bool:
        """Whether the run came to its end."""
        return any(run.cell == cell.name and run.restarts == restarts and run.turn == turn for run in self.runs)

    def add_boot(self, what: str, cell: Cell, turn: int, result: Boot, seconds: float, disturbed: str) -> None:
        """Raises OSError."""
        sweep_boot = SweepBoot(what, cell.name, turn, result, seconds, disturbed)
        self._append({"event": "boot", "at": time.time(), **asdict(sweep_boot)})
        self.boots.append(sweep_boot)

    def add_run(
        self,
        cell: Cell,
        restarts: int,
        turn: int,
        results: Sequence[Boot],
        outcome: TuneOutcome | None,
        seconds: float,
        error: str,
    ) -> None:
        """Raises OSError."""
        tuned_run = TunedRun(cell.name, restarts, turn, tuple(results), outcome, seconds, error)
        self._append({"event": "run", "at": time.time(), **asdict(tuned_run)})
        self.runs.append(tuned_run)

    def sweep(self, cell: str) -> list[SweepBoot]:
        """The boots of a cell's sweep."""
        return [boot for boot in self.boots if boot.what == "sweep" and boot.cell == cell]

    def _take(self, line: dict[str, Any], head: Mapping[str, Any]) -> None:
        event = line.pop("event", None)
        if event == "head":
            other = {key: value for key, value in line.items() if head.get(key, value) != value}
            if other and head:
                self._refuse(other)
        elif event == "cell":
            cell, task = decode(Cell, line["cell"]), decode(Task, line["task"])
            if cell is not None and task is not None:
                self.cells[cell.name], self.tasks[cell.name] = cell, task
        elif event == "boot" and (boot := decode(SweepBoot, line)) is not None:
            self.boots.append(boot)
        elif event == "run" and (run := decode(TunedRun, line)) is not None:
            self.runs.append(run)

    def _refuse(self, other: Mapping[str, Any]) -> None:
        said = ", ".join(f"--{key} {value}" for key, value in other.items())
        raise InputError(f"{self.path}: measured with {said}; give the same, or another --out")

    def _whole_lines(self) -> list[dict[str, Any]]:
        """A last line that a kill cut short is taken off the file."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise InputError(f"{self.path} is damaged ({error}); name another --out") from None

    def _append(self, value: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def thinned(points: Sequence[Point], start: Point, most: int) -> tuple[Point, ...]:
    """At most so many: the start, off, and then always the one farthest from those that are there."""
    if len(points) <= most:
        return tuple(points)
    kept = [start, *(point for point in points if not point.types and point != start)]
    while len(kept) < most:
        left = [point for point in points if point not in kept]
        kept.append(max(left, key=lambda point: min(_apart(point, other) for other in kept)))
    return tuple(point for point in points if point in kept)


def _apart(point: Point, other: Point) -> float:
    return sum(abs(a - b) for a, b in zip(_place(point), _place(other), strict=True))


def _place(point: Point) -> tuple[float, ...]:
    return (
        log2(1 + (point.n_max or 0)),
        2 * (point.p_min or 0.0),
        log2(1 + (point.ngram_max or 0)),
        float(point.ngram_min is not None),
        float(point.ngram_size is not None),
        3.0 * bool(point.types),
    )


def on(task: Task, *, restarts: int | None = None, shares: Mapping[str, float] | None = None) -> Task:
    """The same task with another budget or mix."""
    workload = task.workload if shares is None else WorkloadShares(tuple(shares.items()))
    budget = task.budget if restarts is None else Budget(restarts)
    return Task(task.points, task.start, workload, budget, task.least_gain)
