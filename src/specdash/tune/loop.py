"""Drives a tuner on a bed: boots what it asks for, measures, tells it, and at the end leaves the bed as it was.

A boot that fails is a result with its reason. A boot during which somebody else used the engine or the machine is
discarded and done again. Everything is on the disk (`tune.status`) before the tuner hears of it, so that a run that is
killed goes on where it was: what was measured is told again, and the same tuner asks the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psutil

from specdash.bench.samples import BootFailedError
from specdash.core.changes import shown_value
from specdash.core.errors import ConflictError, InputError, NotWrittenError, SpecdashError
from specdash.core.flag import Flag
from specdash.tune.forecast import boot_seconds, left_s
from specdash.tune.gear import REPEATS, Gear, Observer, Record, Texts
from specdash.tune.limits import Conduct, Norm
from specdash.tune.measuring import UnmeasuredError
from specdash.tune.objective import Objective, results_of
from specdash.tune.problem import Ask, BootResult, Outcome, Stage, mixture_speed
from specdash.tune.pulse import Pulse
from specdash.tune.status import Boot, Ending, Guess, Now, RunEnd, RunHead, Step, exclusion_words
from specdash.tune.tail import in_the_tail, marked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.samples import Bed, Place
    from specdash.core.applies import ApplyRecord
    from specdash.tune.measuring import Measured
    from specdash.tune.problem import Point, Task
    from specdash.tune.status import RunPlan, Settings

__all__ = ["REPEATS", "AllFailedError", "Gear", "Loop", "Observer", "Record", "StartFailedError", "Texts"]

DECIDING = 2
"""Boots beyond the budget at most, to decide about a choice that broke a soft limit in just half of its boots."""


class StartFailedError(SpecdashError):
    """The settings in force do not come up, so that nothing can be compared with them."""


class AllFailedError(SpecdashError):
    """No boot could be measured."""


@dataclass(slots=True)
class Loop:
    """One run, from its first boot to the bed restored."""

    task: Task
    plan: RunPlan
    gear: Gear
    earlier: Sequence[Boot] = ()
    stop: Flag = field(default_factory=Flag)
    """Set when the run is to end: it begins nothing else, and puts the original back."""
    command: str = "specdash tune"
    report: str = ""
    """Path of the report, for whoever reads the run's end."""
    boots: list[Boot] = field(default_factory=list)
    norm: Norm = field(default_factory=Norm)
    conduct: Conduct = field(default_factory=Conduct)
    _began: float = field(default_factory=time.monotonic)
    _now: Now = field(default_factory=lambda: Now(time.time(), Step.PLAN))
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> RunEnd:
        """Do it, and say how it ended. Raises `SpecdashError` for what ended it early, with everything restored and
        written down; a bed that cannot be restored is the worst of them."""
        me = psutil.Process()
        head = RunHead(self.plan, time.time(), me.pid, me.create_time(), self.command, resumed=bool(self.earlier))
        self.gear.record.add(head)
        with Pulse(self._beat if self.gear.users is not None else None):
            return self._run()

    def _run(self) -> RunEnd:
        error: SpecdashError | None = None
        outcome, texts, ending = None, "", Ending.FINISHED
        try:
            self._replay()
            self._boot_all()
            outcome, texts = self._verdict()
        except KeyboardInterrupt:
            ending, outcome = Ending.STOPPED, self._so_far()
        except SpecdashError as found:
            ending, error = Ending.FAILED, found
        finally:
            problem = self._restored()
        if self.stop.is_set() and ending is Ending.FINISHED:
            # It was asked for when everything was measured: whoever asked wants nothing applied either.
            ending, outcome, texts = Ending.STOPPED, self._so_far(), ""
        return self._ended(ending, outcome, texts, problem or error, problem)

    def _replay(self) -> None:
        """Tell the tuner what an earlier run measured. Raises `InputError` where it would ask for something else."""
        for boot in self.earlier:
            wanted = self._wanted()
            if wanted is None or wanted.point != boot.result.point:
                raise InputError(
                    f"boot {boot.number} measured {boot.result.point.name}, and this version of the tuner asks for "
                    f"{wanted.point.name if wanted is not None else 'nothing more'}; begin anew"
                )
            self.norm.learn(boot.result, self.task.start)
            if boot.broke or not boot.result.failure:
                self.conduct.add(boot.result.point, boot.broke)
            self.gear.tuner.tell(boot.result)
            self.boots.append(boot)
            self.gear.observer.booted(boot, True)

    def _boot_all(self) -> None:
        while True:
            self._tell(Step.THINK, why="", since=None, number=None, point=None)
            wanted = self._wanted()
            if wanted is None or self._late():
                break
            boot = self._boot(wanted)
            self.gear.record.add(boot)
            # Told first: whatever is among the boots, the tuner can say something of.
            self.gear.tuner.tell(boot.result)
            self.boots.append(boot)
            self._believe()
            self.gear.record.add(self.boots[-1])
            self.gear.observer.booted(self.boots[-1], False)
            if boot.result.failure and wanted.point == self.task.start and len(self.boots) == 1:
                raise StartFailedError(f"the settings in force cannot be measured: {boot.result.failure}")

    def _wanted(self) -> Ask | None:
        """The next boot: what the tuner asks for within the budget, then what is to be decided of its choice. What was
        told settles it, so that a run that is taken up again asks the same."""
        restarts = self.task.budget.restarts
        asked = self.gear.tuner.ask() if len(self.boots) < restarts else None
        if asked is not None or len(self.boots) >= restarts + DECIDING:
            return asked
        if all(one.result.failure for one in self.boots):
            return None
        chosen = self.gear.tuner.outcome().chosen
        broke = self.conduct.split(chosen)
        if not broke:
            return None
        return Ask(chosen, Stage.CONFIRM, f"half of its boots or more broke a limit ({broke}): one more decides")

    def _late(self) -> bool:
        minutes = self.task.budget.minutes
        if minutes is None:
            return False
        return time.monotonic() - self._began + (boot_seconds(self.boots, self.plan.forecast) or 0.0) > 60 * minutes

    def _boot(self, wanted: Ask) -> Boot:
        """One boot that counts: measured, or failed."""
        number = len(self.boots) + 1
        self.gear.bed.announce(number, max(number, self.task.budget.restarts))
        first, at = time.monotonic(), time.time()
        about = {"number": number, "stage": wanted.stage, "point": wanted.point, "why": wanted.why, "since": at}
        for turn in range(self.gear.repeats + 1):
            self._tell(Step.WAIT, **about)
            self.gear.before_boot(lambda words: self._tell(Step.WAIT, detail=words))
            self._stopped()
            began = time.monotonic()
            settings = dict(self.gear.configure(wanted.point))
            already = len(_applies(self.gear.bed))
            measured, failure = self._measured(settings)
            if not self._discarded(number, measured, last=turn == self.gear.repeats):
                break
        result, broke, excluded = self._result(wanted.point, measured, failure)
        self.norm.learn(result, self.task.start, measured.warnings if measured is not None else None)
        away = [one.downtime_s for one in _applies(self.gear.bed)[already:] if one.downtime_s is not None]
        speed = mixture_speed(result.prompts, self.task.workload) if result.prompts else None
        return Boot(
            number,
            wanted.stage,
            wanted.why,
            result,
            at,
            seconds=time.monotonic() - began,
            waited_s=began - first,
            downtime_s=sum(away) if away else None,
            broke=broke,
            excluded=excluded,
            settings=_shown(settings),
            speed=speed,
        )

    def _measured(self, settings: Mapping[str, str]) -> tuple[Measured | None, str]:
        """What a boot measured, and why that does not do, if it does not."""
        measured: Measured | None = None
        try:
            self._tell(Step.RESTART)
            with self.gear.bed.boot(settings) as place:
                measured = self._asked(place)
                measured.check()
        except (BootFailedError, UnmeasuredError) as error:
            return measured, str(error)
        return measured, ""

    def _asked(self, place: Place) -> Measured:
        """Raises `UnmeasuredError` for an engine that does not answer."""
        self._tell(Step.WARM_UP)
        try:
            return self.gear.measure(place, lambda done, total: self._tell(Step.MEASURE, done=done, total=total))
        except NotWrittenError:
            raise
        except SpecdashError as error:
            raise UnmeasuredError(str(error)) from None

    def _discarded(self, number: int, measured: Measured | None, *, last: bool) -> bool:
        """Keep what was measured, and say whether the boot is to be done again."""
        if measured is None:
            return False
        disturbed = measured.seen.disturbance()
        again = bool(disturbed) and not last
        self.gear.record.keep(number, measured, disturbed if again else "")
        if again:
            self.gear.observer.discarded(disturbed)
        return again

    def _result(self, point: Point, measured: Measured | None, failure: str) -> tuple[BootResult, str, str]:
        """What a boot comes to, which soft limit it broke, and which limit rules its point out now."""
        if measured is None:
            return BootResult(point, failure=failure), "", ""
        results, draft_s = results_of(self.gear.objective, measured, every_step=point.drafts_every_step)
        if self.gear.objective is Objective.LATENCY:
            results = marked(results)
        result = BootResult(point, results, draft_s, failure, measured.ttft_s)
        if not failure and not results:
            failure = "the driver did not tell what the GPU drew" if measured.samples else "nothing was answered"
        if failure:
            return replace(result, failure=failure), "", ""
        if limit := self.gear.limits.hard(result, measured):
            return replace(result, failure=limit), "", limit
        # The start is what the limits are taken from.
        broke = self.gear.limits.soft(result, measured, self.norm) if point != self.task.start else ""
        limit = self.conduct.add(point, broke)
        return replace(result, failure=limit), broke, limit

    def _verdict(self) -> tuple[Outcome, str]:
        """The outcome, with texts compared and the points named that limits ruled out; raises `AllFailedError` when
        there is nothing to judge."""
        outcome, texts = self._judged()
        ruled_out = exclusion_words(self.boots)
        return replace(outcome, why="; ".join(one for one in (outcome.why, ruled_out) if one)), texts

    def _judged(self) -> tuple[Outcome, str]:
        if not any(not one.result.failure for one in self.boots):
            reason = self.boots[-1].result.failure if self.boots else "no boot fitted into the time"
            raise AllFailedError(f"no boot could be measured, so there is no recommendation: {reason}")
        outcome = self.gear.tuner.outcome()
        if outcome.improved and self.gear.objective is Objective.LATENCY:
            outcome = in_the_tail(outcome, [one.result for one in self.boots], self.task)
        if outcome.improved and (broke := self.conduct.split(outcome.chosen)):
            why = f"{outcome.chosen.name} is faster, and half of its boots or more broke a limit: {broke}"
            outcome = replace(outcome, chosen=self.task.start, improved=False, why=why)
        if outcome.improved and not outcome.confirmed:
            why = f"no improvement confirmed: {outcome.why}"
            return replace(outcome, chosen=self.task.start, improved=False, why=why), ""
        if not outcome.improved or self.gear.verify is None:
            return outcome, ""
        if not outcome.chosen.types:
            return outcome, "nothing drafts, so the texts are those without drafts"
        self._tell(Step.VERIFY, point=outcome.chosen, since=time.time())
        self.gear.bed.announce(None)
        texts = self.gear.verify(outcome.chosen, lambda words: self._tell(Step.VERIFY, detail=words))
        if texts.same is False:
            why = f"{outcome.chosen.name} is faster, and changes the texts: {texts.words}"
            return replace(outcome, chosen=self.task.start, improved=False, why=why), texts.words
        return outcome, texts.words

    def _so_far(self) -> Outcome | None:
        """What could be said of a run that was stopped; nothing that was not confirmed."""
        if not any(not one.result.failure for one in self.boots):
            return None
        return replace(self.gear.tuner.outcome(), chosen=self.task.start, improved=False, why="stopped before its end")

    def _restored(self) -> SpecdashError | None:
        """Put the bed back; what went wrong with that."""
        while True:
            try:
                with contextlib.suppress(NotWrittenError):
                    self._tell(Step.RESTORE)
                self.gear.bed.restore()
            except KeyboardInterrupt:
                # Whoever is impatient gets the original back all the same.
                continue
            except SpecdashError as error:
                return error
            return None

    def _ended(
        self,
        ending: Ending,
        outcome: Outcome | None,
        texts: str,
        error: SpecdashError | None,
        problem: SpecdashError | None,
    ) -> RunEnd:
        chosen = outcome.chosen if outcome is not None else self.task.start
        foreign = isinstance(problem, ConflictError)
        end = RunEnd(
            at=time.time(),
            ending=Ending.FAILED if error is not None else ending,
            outcome=outcome,
            settings=_shown(self.gear.configure(chosen)) if outcome is not None else (),
            in_force="" if problem is None else "somebody else's settings" if foreign else "unknown",
            restored=problem is None,
            texts=texts,
            error=str(error) if error is not None else "",
            report=self.report,
        )
        if problem is None:
            end = replace(end, in_force="the original")
        if error is not None:
            with contextlib.suppress(NotWrittenError):
                self.gear.record.add(end)
            raise error
        self.gear.record.add(end)
        return end

    def _believe(self) -> None:
        """Note what is believed after the boot that has just ended."""
        if all(one.result.failure for one in self.boots):
            return
        found = self.gear.tuner.outcome()
        self.boots[-1] = replace(self.boots[-1], gain=found.gain, low=found.low, high=found.high)
        self._now = replace(self._now, guess=Guess(found.chosen, None, found.gain, found.low, found.high))

    def _left(self, step: Step) -> float | None:
        guess, since = self._now.guess, self._now.since
        elapsed = max(0.0, time.time() - since) if since is not None else 0.0
        return left_s(
            self.boots,
            self.task.budget.restarts,
            self.plan.forecast,
            elapsed_s=elapsed,
            better=guess is not None and guess.point != self.task.start and bool(guess.point.types),
            comparing=step is Step.VERIFY,
        )

    def _tell(self, step: Step, **more: Any) -> None:
        """Say what is done now. Raises KeyboardInterrupt instead when a stop was asked for: nothing else is begun."""
        if step is not Step.RESTORE:
            self._stopped()
        changed: dict[str, Any] = {"detail": "", "done": None, "total": None, "stopping": self.stop.is_set(), **more}
        with self._telling:
            self._now = replace(self._now, at=time.time(), step=step, **changed)
            self._now = replace(self._now, left_s=self._left(step))
            self.gear.record.tell(self._now)
        self.gear.observer.now(self._now)

    def _beat(self) -> None:
        """Tell who waits, where that has changed."""
        assert self.gear.users is not None  # noqa: S101 - else there is no pulse
        load = self.gear.users()
        with self._telling:
            if (load.waiting, load.queued) == (self._now.held, self._now.queued):
                return
            now = replace(self._now, at=time.time(), held=load.waiting, queued=load.queued)
            self._now = replace(now, left_s=self._left(now.step), stopping=self.stop.is_set())
            # The loop itself finds out about a full disk.
            with contextlib.suppress(NotWrittenError):
                self.gear.record.tell(self._now)

    def _stopped(self) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt


def _shown(settings: Mapping[str, str]) -> Settings:
    """As they may be stored: a key among other arguments is masked."""
    return tuple((key, shown_value(key, value) or "") for key, value in sorted(settings.items()))


def _applies(bed: Bed) -> list[ApplyRecord]:
    """The applies of a bed that makes some."""
    return list(getattr(bed, "records", ()))
