"""Drives the tuner on a bed: boots what it asks for, measures, and at the end leaves the bed as it was.

A boot that fails is a result with its reason. A boot during which someone else used the engine is discarded and done
again.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.bench.load.samples import BootFailedError
from specdash.core.changes import shown_value
from specdash.core.errors import ConflictError, NotWrittenError, SpecdashError
from specdash.core.flag import Flag
from specdash.system.processes import own_start
from specdash.tune.model.problem import BootResult, NextBoot, Point, TuneOutcome, mixture_speed, plain_results
from specdash.tune.run.measuring import Limits, MeasuredBoot, boot_seconds
from specdash.tune.run.status import Boot, CurrentStep, Ending, RunEnd, RunHead, TuneStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.bench.load.samples import EngineAddress, TrialBed
    from specdash.core.changes import ApplyRecord
    from specdash.tune.model.problem import Task
    from specdash.tune.model.tuner import SpecTuner
    from specdash.tune.run.status import RunPlan, Settings, TuneRunRecord

    PromptRunner = Callable[[EngineAddress, Callable[[int, int], None]], MeasuredBoot]
    """Asks an engine all prompts, and says how many of how many are done."""

REPEATS = 2
"""How often a disturbed boot is done again before it is taken as it is."""


class LoopObserver(Protocol):
    """Gets what goes on, in the thread of the loop."""

    def now(self, now: CurrentStep) -> None:
        """A step began, or came further."""

    def booted(self, boot: Boot) -> None:
        """A boot ended."""

    def discarded(self, why: str) -> None:
        """A boot did not count."""


class Loop(Struct):
    """One run, from its first boot to the bed restored. `configure` gives the settings of a point."""

    task: Task
    plan: RunPlan
    tuner: SpecTuner
    bed: TrialBed
    measure: PromptRunner
    configure: Callable[[Point], Mapping[str, str]]
    record: TuneRunRecord
    observer: LoopObserver
    limits: Limits = field(default_factory=Limits)
    repeats: int = REPEATS
    stop: Flag = field(default_factory=Flag)
    """Set when the run is to end: it begins nothing else, and puts the original back."""
    command: str = "specdash tune"
    report: str = ""
    """Path of the report, for anyone who reads the run's end."""
    boots: list[Boot] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _now: CurrentStep = field(default_factory=lambda: CurrentStep(time.time(), TuneStep.PLAN))

    def run(self) -> RunEnd:
        """Do it, and say how it ended. Raises `SpecdashError` for what ended it early, with everything restored and
        written down; a bed that cannot be restored is the worst of them."""
        self.record.add(RunHead(self.plan, time.time(), os.getpid(), own_start(), self.command))
        error: SpecdashError | None = None
        outcome, ending = None, Ending.FINISHED
        try:
            self._boot_all()
            outcome = self._verdict()
        except KeyboardInterrupt:
            ending, outcome = Ending.STOPPED, self._so_far()
        except SpecdashError as found:
            ending, error = Ending.FAILED, found
        finally:
            problem = self._restored()
        if self.stop.is_set() and ending is Ending.FINISHED:
            # It was asked for when everything was measured: the user wants nothing applied either.
            ending, outcome = Ending.STOPPED, self._so_far()
        return self._ended(ending, outcome, problem or error, problem)

    def _boot_all(self) -> None:
        while True:
            self._tell(TuneStep.THINK, why="", since=None, number=None, point=None)
            wanted = self.tuner.ask()
            if wanted is None or self._late():
                break
            boot = self._boot(wanted)
            self.tuner.tell(boot.result)
            self.boots.append(boot)
            self.record.add(boot)
            self.observer.booted(boot)
            if boot.result.failure and wanted.point == self.task.start and len(self.boots) == 1:
                raise SpecdashError(f"the settings in force cannot be measured: {boot.result.failure}")

    def _late(self) -> bool:
        minutes = self.task.budget.minutes
        if minutes is None:
            return False
        return time.monotonic() - self._began + (boot_seconds(self.boots) or 0.0) > 60 * minutes

    def _boot(self, wanted: NextBoot) -> Boot:
        """One boot that counts: measured, or failed."""
        number = len(self.boots) + 1
        self.bed.announce(number, max(number, self.task.budget.restarts))
        first, at = time.monotonic(), time.time()
        about = {"number": number, "stage": wanted.stage, "point": wanted.point, "why": wanted.why, "since": at}
        discarded: list[str] = []
        while True:
            self._tell(TuneStep.RESTART, **about)
            began = time.monotonic()
            settings = dict(self.configure(wanted.point))
            already = len(_applies(self.bed))
            measured, failure = self._measured(settings)
            disturbed = measured.disturbed if measured is not None else ""
            if not disturbed or len(discarded) == self.repeats:
                break
            discarded.append(disturbed)
            self.observer.discarded(disturbed)
        result, excluded = self._result(wanted.point, measured, failure)
        away = [apply.downtime_s for apply in _applies(self.bed)[already:] if apply.downtime_s is not None]
        return Boot(
            number,
            wanted.stage,
            wanted.why,
            result,
            at,
            seconds=time.monotonic() - began,
            waited_s=began - first,
            downtime_s=sum(away) if away else None,
            excluded=excluded,
            discarded=tuple(discarded),
            settings=_shown(settings),
            speed=mixture_speed(result.prompts, self.task.workload) if result.prompts else None,
        )

    def _measured(self, settings: Mapping[str, str]) -> tuple[MeasuredBoot | None, SpecdashError | None]:
        """What a boot measured, and why that does not do, if it does not."""
        try:
            with self.bed.boot(settings) as place:
                measured = self._asked(place)
        except BootFailedError as error:
            return None, error
        return measured, BootFailedError(measured.problem) if measured.problem else None

    def _asked(self, place: EngineAddress) -> MeasuredBoot:
        """Raises `BootFailedError` for an engine that does not answer."""
        self._tell(TuneStep.WARM_UP)
        try:
            return self.measure(place, lambda done, total: self._tell(TuneStep.MEASURE, done=done, total=total))
        except NotWrittenError:
            raise
        except SpecdashError as error:
            raise BootFailedError(str(error)) from None

    def _result(
        self, point: Point, measured: MeasuredBoot | None, error: SpecdashError | None
    ) -> tuple[BootResult, str]:
        """What a boot comes to, and which limit rules its point out."""
        failure = str(error) if error is not None else ""
        short = isinstance(error, BootFailedError) and error.out_of_memory
        if measured is None:
            return BootResult(point, failure=failure, out_of_memory=short), ""
        results = plain_results(measured.samples)
        result = BootResult(point, results, failure, measured.ttft_s, short)
        if not failure and not results:
            failure = "nothing was answered"
        if failure:
            return replace(result, failure=failure), ""
        if limit := self.limits.memory(measured):
            return replace(result, failure=limit, out_of_memory=True), limit
        limit = self.limits.drafts(result)
        if not limit and point != self.task.start:
            limit = self.limits.ttft_of(result, self.task.start, self.boots)
        return replace(result, failure=limit), limit

    def _verdict(self) -> TuneOutcome:
        """The outcome. Raises `SpecdashError` when there is nothing to judge."""
        if not any(not boot.result.failure for boot in self.boots):
            reason = self.boots[-1].result.failure if self.boots else "no boot fitted into the time"
            raise SpecdashError(f"no boot could be measured, so there is no recommendation: {reason}")
        return self.tuner.outcome()

    def _so_far(self) -> TuneOutcome | None:
        """The outcome of a run that was stopped; nothing that was not confirmed."""
        if not any(not boot.result.failure for boot in self.boots):
            return None
        return replace(self.tuner.outcome(), chosen=self.task.start, improved=False, why="stopped before its end")

    def _restored(self) -> SpecdashError | None:
        """Put the bed back; what went wrong with that."""
        while True:
            try:
                with contextlib.suppress(NotWrittenError):
                    self._tell(TuneStep.RESTORE)
                self.bed.restore()
            except KeyboardInterrupt:
                # Anyone who is impatient gets the original back all the same.
                continue
            except SpecdashError as error:
                return error
            return None

    def _ended(
        self, ending: Ending, outcome: TuneOutcome | None, error: SpecdashError | None, problem: SpecdashError | None
    ) -> RunEnd:
        in_force = "the settings of another program" if isinstance(problem, ConflictError) else "unknown"
        end = RunEnd(
            at=time.time(),
            ending=Ending.FAILED if error is not None else ending,
            outcome=outcome,
            settings=_shown(self.configure(outcome.chosen)) if outcome is not None else (),
            in_force="the original" if problem is None else in_force,
            restored=problem is None,
            error=str(error) if error is not None else "",
            report=self.report,
        )
        if error is not None:
            with contextlib.suppress(NotWrittenError):
                self.record.add(end)
            raise error
        self.record.add(end)
        return end

    def _tell(self, step: TuneStep, **more: Any) -> None:
        """Say what is done now. Raises KeyboardInterrupt instead when a stop was asked for: nothing else is begun."""
        if step is not TuneStep.RESTORE and self.stop.is_set():
            raise KeyboardInterrupt
        changed: dict[str, Any] = {"done": None, "total": None, "stopping": self.stop.is_set(), **more}
        now = replace(self._now, at=time.time(), step=step, **changed)
        each, left = boot_seconds(self.boots), None
        if each is not None and step is not TuneStep.RESTORE:
            elapsed = min(now.at - now.since, each) if now.since is not None else 0.0
            left = max(0.0, (self.task.budget.restarts - len(self.boots)) * each - elapsed)
        self._now = replace(now, left_s=left)
        self.record.tell(self._now)
        self.observer.now(self._now)


def _shown(settings: Mapping[str, str]) -> Settings:
    """As they may be stored: a key among other arguments is masked."""
    return tuple((key, shown_value(key, value) or "") for key, value in sorted(settings.items()))


def _applies(bed: TrialBed) -> list[ApplyRecord]:
    """The applies of a bed that makes some."""
    return list(getattr(bed, "records", ()))
