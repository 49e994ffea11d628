"""A run of `specdash tune` as everybody sees it: what it is to do, what it measured, what it does now, how it ended.

A run has a directory of its own, `paths.tune_runs_dir()/<UTC time>/`, mode 0700, with no secrets in it:

* `run.jsonl`: one `RunHead`, then a `Boot` for each start of the engine, at last a `RunEnd`. Appended to, a whole line
  at a time; each is one JSON object whose `event` is `head`, `boot` or `end`.
* `now.json`: `CurrentStep`, what is going on; replaced as a whole, about once a second.

Times are Unix times in seconds, durations seconds, speeds tokens per second; gains and their intervals are shares (0.1
is 10 % faster). None is unknown, never zero.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from specdash.core.errors import NotWrittenError
from specdash.core.paths import tune_runs_dir
from specdash.system import files
from specdash.system.stats import share
from specdash.tune.model.gains import gains
from specdash.tune.model.problem import BootResult, Budget, Point, Stage, TuneOutcome, WorkloadShares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from specdash.tune.model.gains import Gain
    from specdash.tune.model.problem import PromptResult


Settings = tuple[tuple[str, str], ...]
"""Keys of the env file with their values, the empty one unset."""


class Knob(Struct, frozen=True):
    """One key that is tuned."""

    key: str
    values: str
    """In words: `1 to 16`, `0, 0.5, 0.75`."""
    now: str | None = None
    """What it is at the start, None where it is not set."""


class RunPlan(Struct, frozen=True):
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
    workload: WorkloadShares = field(default_factory=lambda: WorkloadShares(()))
    workload_words: str = ""
    """Where it comes from: `bundled prompts, all classes alike`, `prompts/coding.jsonl`."""
    prompts: int = 0
    """Measured in every boot."""
    downtime_s: float | None = None
    """For how long, in all, clients wait or find no engine."""
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why there is nothing to tune; empty when it can begin."""


class RunHead(Struct, frozen=True, tag_field="event", tag="head"):
    """A run, and who does it."""

    plan: RunPlan
    at: float
    pid: int
    pid_started: float
    """Creation time of the process, which distinguishes it from a reused pid."""
    command: str = "specdash tune"


class Boot(Struct, frozen=True, tag_field="event", tag="boot"):
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
    """Before that: for boots of the same that were discarded."""
    downtime_s: float | None = None
    excluded: str = ""
    """Which limit rules this point out with this boot; it was measured, and its figures are kept."""
    discarded: tuple[str, ...] = ()
    """Why boots of the same before it did not count."""
    settings: Settings = ()
    speed: float | None = None
    """On the workload (`problem.mixture_speed`); what that gains over the start is in `gains`."""


class ClassFigures(Struct, frozen=True):
    """One class of prompts, of one boot or several: tokens in all, tokens per second, and the share of drafts that was
    accepted."""

    tokens: int
    speed: float | None
    acceptance: float | None


def by_class(prompts: Iterable[PromptResult]) -> dict[str, ClassFigures]:
    """The figures of each class, in the order in which they were measured."""
    kinds: dict[str, list[PromptResult]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    figures = {}
    for kind, own in kinds.items():
        tokens, seconds = sum(row.tokens for row in own), sum(row.seconds for row in own)
        drafted, accepted = sum(row.drafted for row in own), sum(row.accepted for row in own)
        speed = tokens / seconds if tokens and seconds > 0 else None
        figures[kind] = ClassFigures(tokens, speed, share(accepted, drafted))
    return figures


def excluded_points(boots: Sequence[Boot]) -> dict[Point, str]:
    """The points that a limit rules out, and which."""
    return {boot.result.point: boot.excluded for boot in boots if boot.excluded}


class TuneStep(StrEnum):
    """What is done now."""

    PLAN = "planning"
    RESTART = "restarting"
    WARM_UP = "warming up"
    MEASURE = "measuring"
    THINK = "choosing the next point"
    RESTORE = "putting back"


class CurrentStep(Struct, frozen=True):
    """What is going on."""

    at: float
    step: TuneStep
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
    left_s: float | None = None
    stopping: bool = False


class Ending(StrEnum):
    """How a run came to its end."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """Someone ended it; the original was put back."""
    FAILED = "failed"


class RunEnd(Struct, frozen=True, tag_field="event", tag="end"):
    """The end of a run."""

    at: float
    ending: Ending
    outcome: TuneOutcome | None = None
    settings: Settings = ()
    """The chosen ones; those of the start where nothing better was found."""
    in_force: str = ""
    """What the service runs now, in words: `the original`, `the chosen settings`."""
    restored: bool | None = None
    """Whether the service is known to run what it ran before, or what was chosen."""
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


class TuneRun(Struct, frozen=True):
    """Everything there is to know of a run. `alive`: its process is there."""

    directory: str
    head: RunHead
    boots: tuple[Boot, ...] = ()
    now: CurrentStep | None = None
    end: RunEnd | None = None
    alive: bool = False

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


# Reading and writing the files of a run, by any process, while another one writes them.


RUN, NOW = "run.jsonl", "now.json"
MAX_BYTES = 64 * 1024 * 1024
"""Of a larger file only the beginning is read."""


class TuneRunRecord:
    """The files of one run, for the process that does it. Every method raises `NotWrittenError`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with files.writing(directory, NotWrittenError):
            files.make_directories(directory)
            files.sweep(directory)

    def add(self, event: RunHead | Boot | RunEnd) -> None:
        """Append one line, and be sure that it is on the disk."""
        path = self.directory / RUN
        with files.writing(path, NotWrittenError):
            files.append_line(path, msgspec.json.encode(event))

    def tell(self, now: CurrentStep) -> None:
        """Replace what is going on."""
        path = self.directory / NOW
        with files.writing(path, NotWrittenError):
            files.replace(path, msgspec.json.encode(now))


def read_run(directory: Path) -> TuneRun | None:
    """The run of a directory, None where there is none to be read. What cannot be read is passed over."""
    head: RunHead | None = None
    boots: dict[int, Boot] = {}
    end: RunEnd | None = None
    for line in _read(directory / RUN).split(b"\n"):
        event = decode(RunHead | Boot | RunEnd, line)
        if isinstance(event, RunHead):
            head, end = event, None
        elif isinstance(event, Boot):
            boots[event.number] = event
        elif isinstance(event, RunEnd):
            end = event
    if head is None:
        return None
    now = decode(CurrentStep, _read(directory / NOW)) if end is None else None
    # The screens look at runs, too, and psutil is not for them.
    from specdash.system.processes import same_process

    alive = end is None and same_process(head.pid, head.pid_started)
    return TuneRun(str(directory), head, tuple(boots[number] for number in sorted(boots)), now, end, alive)


def newest_run(env: Mapping[str, str] = os.environ) -> TuneRun | None:
    """The run that was begun last; one that is alive comes before those that are not."""
    try:
        directories = sorted(path for path in tune_runs_dir(env).iterdir() if (path / RUN).is_file())
    except OSError:
        return None
    newest: TuneRun | None = None
    for directory in reversed(directories[-5:]):
        run = read_run(directory)
        if run is not None and run.alive:
            return run
        newest = newest or run
    return newest


def gains_of(run: TuneRun) -> dict[int, Gain]:
    """What the boots of a run gain over its start, by number."""
    found = gains([boot.result for boot in run.boots], run.plan.start, run.plan.workload)
    return {boot.number: gain for boot, gain in zip(run.boots, found, strict=True) if gain is not None}


def decode(kind: Any, text: bytes) -> Any:
    """What a line of JSON holds, of this kind; None when that is no such thing. Unknown keys are passed over."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return b""
