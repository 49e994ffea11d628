"""A bed, a measurement and a record of a tuning run, scripted: speeds by point, and faults where a test wants them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specdash.bench.load.samples import BenchSample, BootFailedError, EngineAddress
from specdash.tune.model.problem import (
    BootResult,
    Budget,
    NextBoot,
    Point,
    Stage,
    Task,
    TuneOutcome,
    WorkloadShares,
    mixture_speed,
)
from specdash.tune.model.tuner import SpecTuner
from specdash.tune.run.loop import Loop
from specdash.tune.run.measuring import MeasuredBoot
from specdash.tune.run.status import Boot, CurrentStep, RunEnd, RunHead, RunPlan, TuneRunRecord

START = Point(("draft-simple",), n_max=3, p_min=0.0)
FAST = Point(("draft-simple",), n_max=6, p_min=0.0)
SLOW = Point(("draft-simple",), n_max=12, p_min=0.0)
POINTS = (START, FAST, SLOW, Point())
SPEEDS = {START: 50.0, FAST: 70.0, SLOW: 30.0, Point(): 40.0}
KINDS = ("coding", "prose")
WORKLOAD = WorkloadShares(tuple((kind, 1 / len(KINDS)) for kind in KINDS))


def samples(speed: float, *, ttft_s: float = 0.1, drafted: int = 90) -> tuple[BenchSample, ...]:
    """Four answers of 101 tokens."""
    seconds = 100 / speed
    return tuple(
        BenchSample(
            f"{kind}-{number}", kind, 0, 0.0, 0.0, ttft_s, ttft_s + seconds, prompt_tokens=50, cached_tokens=0,
            prompt_ms=90.0, predicted_tokens=101, predicted_ms=seconds * 1000, drafted=drafted, accepted=60,
        )
        for kind in KINDS
        for number in range(2)
    )  # fmt: skip


class InTurn(SpecTuner):
    """A tuner that boots the start, then every other point, then the best again, and keeps the best."""

    def __init__(self, task: Task, points: tuple[Point, ...] = POINTS) -> None:
        super().__init__(task)
        self.left = [task.start, *(point for point in points if point != task.start)]

    def ask(self) -> NextBoot | None:
        return NextBoot(self.left[0], Stage.EXPLORE, "next") if self.left else None

    def tell(self, result: BootResult) -> None:
        # What is asked beyond its list is a boot that has to decide.
        assert not self.left or result.point == self.left.pop(0)
        super().tell(result)

    def outcome(self) -> TuneOutcome:
        failed = {result.point for result in self.results if result.failure}
        told = {
            result.point: speed
            for result in self.results
            if result.point not in failed and (speed := mixture_speed(result.prompts, self.task.workload)) is not None
        }
        best = max(told, key=lambda point: told[point])
        gain = told[best] / told[self.task.start] - 1
        chosen = best if gain > 0.02 else self.task.start
        return TuneOutcome(
            chosen, chosen != self.task.start, gain, gain - 0.01, gain + 0.01, len(self.results), "", 0.004
        )


@dataclass(slots=True)
class ScriptedBed:
    """`faults` maps the number of a boot, from 1, to what it raises."""

    faults: Mapping[int, BaseException] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    point: Point = START
    boots: int = 0
    restored: int = 0
    restoring: list[BaseException] = field(default_factory=list)

    @contextmanager
    def boot(self, configuration: Mapping[str, str]) -> Iterator[EngineAddress]:
        self.boots += 1
        self.restored = 0
        fault = self.faults.get(self.boots)
        if fault is not None:
            raise fault
        self.point = by_name(configuration["POINT"])
        yield EngineAddress("http://127.0.0.1:9", log=None)

    def announce(self, number: int | None, planned: int | None = None) -> None:
        """Nobody watches."""

    def restore(self) -> None:
        if self.restoring:
            raise self.restoring.pop(0)
        self.restored += 1


def by_name(name: str) -> Point:
    return next(point for point in POINTS if point.name == name)


class Kept(TuneRunRecord):
    """A record in memory. `fails` is the number of the write that fails."""

    def __init__(self) -> None:
        self.events: list[RunHead | Boot | RunEnd] = []
        self.nows: list[CurrentStep] = []
        self.fails: dict[int, BaseException] = {}
        self.writes = 0

    def add(self, event: RunHead | Boot | RunEnd) -> None:
        self._written()
        self.events.append(event)

    def tell(self, now: CurrentStep) -> None:
        self._written()
        self.nows.append(now)

    def _written(self) -> None:
        self.writes += 1
        if self.writes in self.fails:
            raise self.fails[self.writes]


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.boots: list[Boot] = []
        self.thrown: list[str] = []

    def now(self, now: CurrentStep) -> None:
        """Nothing to keep."""

    def booted(self, boot: Boot) -> None:
        self.boots.append(boot)

    def discarded(self, why: str) -> None:
        self.thrown.append(why)


@dataclass(slots=True)
class Scene:
    """A loop and what it works with; change it before `loop`."""

    budget: Budget = field(default_factory=lambda: Budget(12))
    points: tuple[Point, ...] = POINTS
    bed: ScriptedBed = field(default_factory=ScriptedBed)
    record: Kept = field(default_factory=Kept)
    watcher: Watcher = field(default_factory=Watcher)
    measured: dict[int, Callable[[], MeasuredBoot]] = field(default_factory=dict)
    """By number of the measurement, from 1, instead of the usual."""
    measurements: int = 0
    tuner: Any = None

    def measure(self, place: EngineAddress, on_done: Callable[[int, int], None]) -> MeasuredBoot:
        self.measurements += 1
        on_done(1, 4)
        if self.measurements in self.measured:
            return self.measured[self.measurements]()
        drafted = 90 if self.bed.point.types else 0
        return MeasuredBoot(samples(SPEEDS[self.bed.point], drafted=drafted))

    def loop(self, **more: Any) -> Loop:
        task = Task(POINTS, START, WORKLOAD, self.budget)
        return Loop(
            task,
            RunPlan("the test", start=START, workload=WORKLOAD),
            self.tuner or InTurn(task, self.points),
            self.bed,
            self.measure,
            lambda point: {"POINT": point.name},
            self.record,
            self.watcher,
            **more,
        )


def disturbed(speed: float = 20.0) -> MeasuredBoot:
    """A boot during which somebody else used the engine."""
    return MeasuredBoot(samples(speed), disturbed="the engine generated 17 tokens for other clients")


def boot_failed(words: str = "out of memory") -> BootFailedError:
    """What a bed raises for a configuration that does not come up."""
    return BootFailedError(words)
