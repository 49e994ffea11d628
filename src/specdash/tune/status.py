"""A run of `specdash tune` as everybody sees it: what it is to do, what it measured, what it does now, how it ended.

A run has a directory of its own, `paths.tune_runs_dir()/<UTC time>/`, mode 0700, with no secrets in it:

* `run.jsonl`: one `RunHead`, then a `Boot` for each start of the engine, at last a `RunEnd`; a run that is taken up
  again adds another head. Appended to, a whole line at a time; each is one JSON object whose `event` is `head`, `boot`
  or `end`.
* `now.json`: `Now`, what is going on; replaced as a whole, about once a second.
* `log`: what the process prints when it has no terminal.

Times are Unix times in seconds, durations seconds, speeds tokens per second; gains and their intervals are shares (0.1
is 10 % faster). None is unknown, never zero. `tune.run_files` writes and reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.tune.problem import BootResult, Budget, Outcome, Point, Stage, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run is made of, in seconds (`tune.forecast`)."""

    boot_s: float
    """The start and the measurement of one boot that counts."""
    wait_s: float = 0.0
    """What it waits for, and what is discarded, on average."""
    check_s: float = 0.0
    """Comparing the texts, where it comes to that."""
    restore_s: float = 0.0


Settings = tuple[tuple[str, str], ...]
"""Keys of the env file with their values, the empty one unset."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One key that is tuned."""

    key: str
    values: str
    """In words: `1 to 16`, `0, 0.5, 0.75`."""
    now: str | None = None
    """What it is at the start, None where it is not set."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What is to be tuned, before anything is touched."""

    service: str
    url: str = ""
    start: Point = field(default_factory=Point)
    knobs: tuple[Knob, ...] = ()
    points: int = 0
    """How many configurations there are to choose from."""
    budget: Budget = field(default_factory=Budget)
    least_gain: float = 0.02
    objective: str = "decode tok/s"
    limits: tuple[str, ...] = ()
    """What a choice must keep, one line each: `TTFT at most 5 % above the start's`."""
    workload: Workload = field(default_factory=lambda: Workload(()))
    workload_words: str = ""
    """Where it comes from: `live traffic of the last 24 h`, `prompts/coding.jsonl`."""
    prompts: int = 0
    """Measured in every boot."""
    eta_s: float | None = None
    forecast: Forecast | None = None
    """Of which `eta_s` is made; None where nobody knows how fast the engine is."""
    downtime_s: float | None = None
    """For how long, in all, clients wait or find no engine."""
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why there is nothing to tune; empty when it can begin."""


@dataclass(frozen=True, slots=True)
class RunHead:
    """A run, or what goes on with one that was cut short: who does it."""

    plan: RunPlan
    at: float
    pid: int
    pid_started: float
    """Creation time of the process, by which a reused pid is told from it."""
    command: str = "specdash tune"
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot that ended, also one that failed."""

    number: int
    """From 1."""
    stage: Stage
    why: str
    result: BootResult
    at: float
    seconds: float | None = None
    """Of its start and its measurement."""
    waited_s: float | None = None
    """Before that: for others, and for boots of the same that were discarded."""
    downtime_s: float | None = None
    broke: str = ""
    """Which soft limit this boot broke, also where most boots of its point keep it (`tune.limits`)."""
    excluded: str = ""
    """Which limit rules this point out with this boot; it was measured, and its figures are kept."""
    settings: Settings = ()
    speed: float | None = None
    """On the workload (`problem.mixture_speed`)."""
    gain: float | None = None
    """Of the choice that the tuner would have made then, over the start, with its 95 % interval; of this boot against
    the start see `tune.gains`."""
    low: float | None = None
    high: float | None = None


def excluded_points(boots: Sequence[Boot]) -> dict[Point, str]:
    """The points that a limit rules out, and which."""
    return {one.result.point: one.excluded for one in boots if one.excluded}


def exclusion_words(boots: Sequence[Boot]) -> str:
    """What limits took out of the choice, each point with its fastest speed; empty where that is nothing."""
    found = []
    for point, limit in excluded_points(boots).items():
        speeds = [one.speed for one in boots if one.result.point == point and one.speed is not None]
        found.append(f"{point.name}{f', {max(speeds):.4g}' if speeds else ''} ({limit})")
    return f"ruled out by a limit: {'; '.join(found)}" if found else ""


class Step(StrEnum):
    """What is done now."""

    PLAN = "planning"
    WAIT = "waiting for quiet"
    RESTART = "restarting"
    WARM_UP = "warming up"
    MEASURE = "measuring"
    THINK = "choosing the next point"
    VERIFY = "verifying the texts"
    RESTORE = "putting back"
    COMMIT = "applying the choice"


@dataclass(frozen=True, slots=True)
class Guess:
    """What the model believes to be the best so far; a belief, confirmed by nothing."""

    point: Point
    speed: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """What is going on."""

    at: float
    step: Step
    number: int | None = None
    """The boot it is about."""
    stage: Stage | None = None
    point: Point | None = None
    why: str = ""
    since: float | None = None
    """When this boot began."""
    done: int | None = None
    total: int | None = None
    """Requests of this boot."""
    detail: str = ""
    held: int | None = None
    """Requests that wait at the proxy for the engine."""
    queued: int | None = None
    """Requests of users that wait for a slot."""
    guess: Guess | None = None
    left_s: float | None = None
    stopping: bool = False


class Ending(StrEnum):
    """How a run came to its end."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """Somebody ended it; the original was put back."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run."""

    at: float
    ending: Ending
    outcome: Outcome | None = None
    settings: Settings = ()
    """The chosen ones; those of the start where nothing better was found."""
    in_force: str = ""
    """What the service runs now, in words: `the original`, `the chosen settings`."""
    restored: bool | None = None
    """Whether the service is known to run what it ran before, or what was chosen."""
    texts: str = ""
    """Whether outputs at temperature 0 stayed the same, in words."""
    error: str = ""
    """One line, where it failed."""
    report: str = ""
    """Path of report.md, empty where there is none."""


class RunState(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    CUT_SHORT = "cut short"
    """Its process is gone, and it had not ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """Everything there is to know of a run. `alive`: its process is there."""

    directory: str
    head: RunHead
    boots: tuple[Boot, ...] = ()
    now: Now | None = None
    end: RunEnd | None = None
    alive: bool = False
    heads: int = 1
    """Above 1: it was taken up again."""

    @property
    def plan(self) -> RunPlan:
        """What it is to do."""
        return self.head.plan

    @property
    def state(self) -> RunState:
        """How it stands."""
        if self.end is not None:
            return RunState(str(self.end.ending))
        if not self.alive:
            return RunState.CUT_SHORT
        return RunState.STOPPING if self.now is not None and self.now.stopping else RunState.RUNNING

    @property
    def restarts(self) -> int:
        """Boots that were spent, the present one not."""
        return len(self.boots)
