"""What the tuner's screen knows: the run there is, what a new one would do, and the budget. No I/O, no drawing."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.system.stats import mean
from specdash.tune.model.problem import Budget
from specdash.tune.run.status import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.tune.model.gains import Gain
    from specdash.tune.model.problem import Point
    from specdash.tune.run.status import Boot, RunPlan, Settings, TuneRun


MOST_RESTARTS = 200
MOST_MINUTES = 7 * 24 * 60.0
_UNDER_WAY = (RunState.RUNNING, RunState.STOPPING)


class TunerSituation(StrEnum):
    """What the screen is about now."""

    PLAN = "plan"
    """What a run would do."""
    RUN = "run"
    ENDED = "ended"


class TunerModel(Struct):
    """Everything the screen shows. Changed by the event loop alone."""

    run: TuneRun | None = None
    gains: Mapping[int, Gain] = field(default_factory=dict)
    """Boots by number to what they gain over the start."""
    looked: bool = False
    """Whether there was a look at the runs."""
    plan: RunPlan | None = None
    plan_error: str = ""
    planning: bool = False
    budget: Budget = field(default_factory=Budget)
    wants_plan: bool = False
    """What a new run would do is wanted, although there is the outcome of one that ended."""
    starting: bool = False
    stopping: str = ""
    """The directory of the run that was asked to stop."""

    @property
    def under_way(self) -> bool:
        """Whether a run goes on, from here or elsewhere."""
        return self.run is not None and self.run.state in _UNDER_WAY

    @property
    def state(self) -> RunState | None:
        """How the run stands; one that was asked to stop, and still runs, is stopping."""
        run = self.run
        if run is None:
            return None
        asked = run.state is RunState.RUNNING and self.stopping == run.directory
        return RunState.STOPPING if asked else run.state

    @property
    def scene(self) -> TunerSituation:
        """A run that goes on comes before everything."""
        if self.under_way:
            return TunerSituation.RUN
        return TunerSituation.PLAN if self.run is None or self.wants_plan else TunerSituation.ENDED

    def take(self, run: TuneRun | None, gains: Mapping[int, Gain]) -> bool:
        """The run as it was just read; whether another one has begun, or this one ended."""
        before = (self.run.directory, self.run.state) if self.run is not None else None
        self.run, self.gains, self.looked = run, gains, True
        now = (run.directory, run.state) if run is not None else None
        if self.under_way:
            self.starting = self.wants_plan = False
        return before != now

    def read_budget(self, text: str) -> str:
        """Take `restarts [minutes]`; why that cannot be meant, empty when it was taken."""
        words = text.replace(",", " ").split()
        try:
            restarts = int(words[0])
            minutes = float(words[1]) if len(words) > 1 else None
        except (IndexError, ValueError):
            return f"budget {text!r}: must be a number of restarts, and optionally minutes: `12` or `12 60`"
        if len(words) > 2 or not 3 <= restarts <= MOST_RESTARTS:
            return f"budget {text!r}: must be 3 to {MOST_RESTARTS} restarts"
        if minutes is not None and not 1 <= minutes <= MOST_MINUTES:
            return f"budget {text!r}: must be 1 to {MOST_MINUTES:g} minutes"
        self.budget = Budget(restarts, minutes)
        return ""


def start_speed(run: TuneRun) -> float | None:
    """Mean speed of the boots with the start's settings; None before there is one."""
    return mean(boot.speed for boot in run.boots if boot.result.point == run.plan.start)


def chosen_point(run: TuneRun | None) -> Point | None:
    """What the run found to be better; None where it did not, or not yet."""
    outcome = run.end.outcome if run is not None and run.end is not None else None
    return outcome.chosen if outcome is not None and outcome.improved else None


def best_boot(run: TuneRun, gains: Mapping[int, Gain]) -> tuple[Boot, Gain] | None:
    """The boot that gained most; None where none is known to gain."""
    known = [(boot, gains[boot.number]) for boot in run.boots if boot.number in gains]
    best = max(known, key=lambda pair: pair[1].gain, default=None)
    return best if best is not None and best[1].gain > 0 else None


def chosen_settings(run: TuneRun | None) -> Settings:
    """What the run found to be better; nothing where it did not."""
    end = run.end if run is not None else None
    improved = end is not None and end.outcome is not None and end.outcome.improved
    return end.settings if improved and end is not None else ()
