"""A tuner's console for screens: made-up runs at one moment, and no process behind them."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from specdash.core.errors import SpecdashError
from specdash.tune.model.problem import (
    BootResult,
    Budget,
    Point,
    PromptResult,
    Stage,
    TuneOutcome,
    WorkloadShares,
    mixture_speed,
)
from specdash.tune.run.console import NewestRun
from specdash.tune.run.status import (
    Boot,
    CurrentStep,
    Ending,
    Knob,
    RunEnd,
    RunHead,
    RunPlan,
    TuneRun,
    TuneStep,
    gains_of,
)

WALL = 1_790_000_000.0
START = Point(("draft-simple",), n_max=4)
DEEP = Point(("draft-simple",), n_max=12)
GATED = Point(("draft-simple",), n_max=8, p_min=0.5)
SHORT = Point(("draft-simple",), n_max=2)
MIXED = Point(("ngram-mod", "draft-simple"), n_max=6)
OFF = Point()
WORKLOAD = WorkloadShares((("coding", 0.55), ("agentic", 0.3), ("prose", 0.15)))
PLAN = RunPlan(
    service="specdash-backend.service",
    url="http://127.0.0.1:8080",
    start=START,
    knobs=(
        Knob("LLAMA_DRAFT_MAX", "1, 2, 3, 4, 5, 6, 8, 10, 12, 16", "4"),
        Knob("LLAMA_DRAFT_P_MIN", "0, 0.5, 0.75", None),
    ),
    points=46,
    budget=Budget(12, 60.0),
    limits=("TTFT at most 5 % above the start's", "no new warnings in the log"),
    workload=WORKLOAD,
    workload_words="bundled prompts, all classes alike",
    prompts=24,
    downtime_s=260.0,
)
CHOSEN = (("LLAMA_DRAFT_MAX", "8"), ("LLAMA_DRAFT_P_MIN", "0.5"))
_BASE = {"coding": 78.0, "agentic": 61.0, "prose": 42.0}
_FACTORS = {OFF: 0.71, DEEP: 0.93, GATED: 1.12, SHORT: 0.97, MIXED: 1.05}


def prompts(point: Point, number: int, damped: float = 1.0) -> tuple[PromptResult, ...]:
    """24 prompts of three classes, as a boot of this point measured them."""
    noise = random.Random(number)
    factor = 1 + (_FACTORS.get(point, 1.0) - 1) * damped
    boot = math.exp(noise.gauss(0.0, 0.008))
    found = []
    for kind, base in _BASE.items():
        for index in range(8):
            taste = 1 + 0.06 * (index - 3.5) * (factor - 1)
            speed = base * factor * boot * taste * math.exp(noise.gauss(0.0, 0.004))
            drafted = 0 if not point.types else 400
            found.append(PromptResult(f"{kind}{index}", kind, 256, 256 / speed, drafted, int(drafted * 0.66)))
    return tuple(found)


def boot(number: int, stage: Stage, point: Point, why: str, failure: str = "") -> Boot:
    """A boot that ended."""
    result = BootResult(point, () if failure else prompts(point, number), failure=failure, ttft_s=0.21)
    settings = () if point == START else (("LLAMA_DRAFT_MAX", str(point.n_max)), ("LLAMA_SPEC_TYPE", point.name[:12]))
    speed = mixture_speed(result.prompts, WORKLOAD) if not failure else None
    at = WALL - 1_900 + 150 * number
    seconds = 143.0 if not failure else 21.0
    return Boot(number, stage, why, result, at, seconds=seconds, downtime_s=19.0, settings=settings, speed=speed)


MEMORY = "the engine ended with exit code 1: cudaMalloc failed: out of memory (llama_init_from_model: failed to create)"


def flat(item: Boot) -> Boot:
    """The same boot where settings matter little, and noise more."""
    result = replace(item.result, prompts=prompts(item.result.point, item.number + 50, 0.12))
    return replace(item, result=result, speed=mixture_speed(result.prompts, WORKLOAD))


BOOTS = (
    boot(1, Stage.CALIBRATE, START, "the start, to measure everything against"),
    boot(2, Stage.CALIBRATE, OFF, "without drafts: what a step costs"),
    boot(3, Stage.EXPLORE, DEEP, "a long draft tells the acceptance of every position below it"),
    boot(4, Stage.EXPLORE, GATED, "the model expects +9.8 % of it, more than of any other"),
    boot(5, Stage.EXPLORE, SHORT, "least known of those that could still win"),
    boot(6, Stage.EXPLORE, MIXED, "n-grams before the draft: repeated code would gain"),
    boot(7, Stage.RACE, START, "the start again, beside the best guess"),
    boot(8, Stage.RACE, GATED, "the best guess again: two boots each tell noise from gain"),
)
NOW = CurrentStep(
    at=WALL - 0.4,
    step=TuneStep.MEASURE,
    number=9,
    stage=Stage.RACE,
    point=GATED,
    why="the best guess against the start, in ABBA order: its lower bound is 1.1 % above nothing, 2 % are wanted",
    since=WALL - 96.0,
    done=14,
    total=24,
    left_s=520.0,
)
IMPROVED = RunEnd(
    at=WALL - 200.0,
    ending=Ending.FINISHED,
    outcome=TuneOutcome(
        GATED,
        improved=True,
        gain=0.114,
        low=0.081,
        high=0.149,
        restarts=12,
        why="its lower bound is above 2 % in four boots each, interleaved with the start",
        noise=0.009,
    ),
    settings=CHOSEN,
    in_force="the original",
    restored=True,
    report="/home/ops/.local/state/specdash/tune/20260921T142640Z/report.md",
)
NOTHING = replace(
    IMPROVED,
    outcome=TuneOutcome(
        START, improved=False, restarts=12, noise=0.031, why="the best guess gained 1.4 %, and noise alone does as much"
    ),
    settings=(),
)


def run(
    boots: tuple[Boot, ...], now: CurrentStep | None = None, end: RunEnd | None = None, *, alive: bool = True
) -> TuneRun:
    """A run at this moment."""
    head = RunHead(PLAN, WALL - 1_800.0, 4242, 1.0)
    return TuneRun("/state/tune/20260921T142640Z", head, boots, now, end, alive and end is None)


def elsewhere(*made: Any) -> TuneRun:
    """A run on a server that the dashboard does not watch."""
    tune_run = run(*made)
    return replace(tune_run, head=replace(tune_run.head, plan=replace(tune_run.plan, url="http://127.0.0.1:9999")))


def failed_boots() -> tuple[Boot, ...]:
    """Two of five did not come up."""
    return (
        BOOTS[0],
        BOOTS[1],
        boot(3, Stage.EXPLORE, DEEP, "a long draft tells most", MEMORY),
        boot(4, Stage.EXPLORE, MIXED, "n-grams before the draft", "TTFT 0.34 s is 62 % above the start's"),
        replace(BOOTS[4], number=5),
    )


def begun_elsewhere() -> TuneRun:
    """Begun in a terminal, with options of its own."""
    tune_run = run(BOOTS[:4], replace(NOW, number=5, done=3, point=SHORT, stage=Stage.EXPLORE, why=BOOTS[4].why))
    return replace(tune_run, head=replace(tune_run.head, command="specdash tune --each 3"))


SCENES: dict[str, Callable[[], TuneRun | None]] = {
    "ready": lambda: None,
    "running": lambda: run(BOOTS, NOW),
    "failing": lambda: elsewhere(
        failed_boots(), replace(NOW, number=6, step=TuneStep.RESTART, done=None, total=None,
        stage=Stage.EXPLORE)),
    "improved": lambda: run((*BOOTS, *(replace(item, number=item.number + 4) for item in BOOTS[4:])), end=IMPROVED),
    "nothing": lambda: run(
        tuple(map(flat, (*BOOTS, *(replace(item, number=item.number + 4) for item in BOOTS[4:])))), end=NOTHING),
    "begun_elsewhere": begun_elsewhere,
    "cut_short": lambda: run(BOOTS[:5], alive=False),
    "stopped": lambda: run(BOOTS[:5], end=RunEnd(WALL - 30, Ending.STOPPED, in_force="the original", restored=True)),
    "failed": lambda: run(
        BOOTS[:2], end=RunEnd(WALL - 30, Ending.FAILED, restored=False, error="the engine does not come up again")),
}  # fmt: skip


@dataclass
class FakeTuner:
    """Remembers what it was asked."""

    scene: str = "ready"
    problem: str = ""
    """Why there is nothing to tune."""
    refuses: str = ""
    """Why a run does not begin."""
    asked: list[object] = field(default_factory=list)

    def look(self) -> NewestRun:
        """The scene."""
        found = SCENES[self.scene]()
        return NewestRun(found, gains_of(found) if found is not None else {})

    def plan(self, budget: Budget) -> RunPlan:
        """The plan, for this budget."""
        self.asked.append(("plan", budget))
        if self.problem.startswith("error:"):
            raise SpecdashError(self.problem.removeprefix("error:"))
        return replace(PLAN, budget=budget, problem=self.problem)

    def start(self, budget: Budget) -> TuneRun:
        """It runs from now on."""
        if self.refuses:
            raise SpecdashError(self.refuses)
        self.asked.append(("start", budget))
        self.scene = "running"
        return run(BOOTS, NOW)

    def stop(self, tune_run: TuneRun) -> None:
        """It has stopped, and the original is back."""
        self.asked.append(("stop", tune_run.head.pid))
        self.scene = "stopped"
