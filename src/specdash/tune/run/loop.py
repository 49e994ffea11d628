"""Drives a tuner on a bed: boots what it asks for, measures, feeds it, and at the end leaves the bed as it was.

A boot that fails is a result with its reason. A boot during which someone else used the engine or the machine is
discarded and done again. Everything is on the disk (`tune.status`) before the tuner hears of it, so that a run that is
killed goes on where it was: what was measured is fed again, and the same tuner asks the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.bench.load.samples import BootFailedError
from specdash.bench.verify import BUILT_IN, Agreement, VerifySide, cause
from specdash.bench.verify_run import Verification, VerifyEffort, VerifyServer
from specdash.core.changes import shown_value
from specdash.core.errors import ConflictError, InputError, NotWrittenError, SpecdashError
from specdash.core.flag import Flag
from specdash.system.processes import own_start
from specdash.tune.model.problem import (
    BootResult,
    NextBoot,
    Point,
    TuneOutcome,
    mixture_speed,
    plain_results,
)
from specdash.tune.run.measuring import Limits, StartFigures, UnmeasuredError, boot_seconds, left_s
from specdash.tune.run.status import Boot, CurrentStep, Ending, Guess, RunEnd, RunHead, TuneStep, exclusion_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from specdash.bench.load.samples import EngineAddress, TrialBed
    from specdash.bench.verify import VerifyReport
    from specdash.core.changes import ApplyRecord
    from specdash.tune.model.problem import Task, Tuner
    from specdash.tune.run.measuring import MeasuredBoot
    from specdash.tune.run.status import RunPlan, Settings

    PromptRunner = Callable[[EngineAddress, Callable[[int, int], None]], MeasuredBoot]
    """Asks an engine all prompts, and says how many of how many are done."""


# What a run of the tuner works with: a bed, a measurement, a record, and what observes the run.

REPEATS = 2
"""How often a disturbed boot is done again before it is taken as it is."""


class RunRecorder(Protocol):
    """Where a run is written down: `status.RunFiles`, and samples beside it."""

    def add(self, event: RunHead | Boot | RunEnd) -> None:
        """Append one event. Raises `NotWrittenError`."""

    def tell(self, now: CurrentStep) -> None:
        """Replace what is going on. Raises `NotWrittenError`."""

    def keep(self, number: int, measured: MeasuredBoot, discarded: str) -> None:
        """Keep the requests of a boot. `discarded` says why they do not count. Raises `NotWrittenError`."""


class LoopObserver(Protocol):
    """Hears what goes on, in the thread of the loop."""

    def now(self, now: CurrentStep) -> None:
        """A step began, or came further."""

    def booted(self, boot: Boot, again: bool) -> None:
        """A boot ended; `again`: it is of an earlier run."""

    def discarded(self, why: str) -> None:
        """A boot did not count."""


class Texts(Struct, frozen=True):
    """Whether outputs stayed the same. `same` None: that is not known."""

    same: bool | None
    words: str


class LoopParts(Struct, frozen=True):
    """What a loop works with.

    `configure` gives the settings of a point. `before_boot` waits for a moment at which a restart harms no one; it may
    raise KeyboardInterrupt. `verify` compares the texts of a point with those without drafts; None: not to be done.
    `users` counts the requests that wait at the proxies, from a thread of its own; None: not to be done.
    """

    tuner: Tuner
    bed: TrialBed
    measure: PromptRunner
    configure: Callable[[Point], Mapping[str, str]]
    record: RunRecorder
    observer: LoopObserver
    before_boot: Callable[[Callable[[str], None]], None] = lambda _: None
    verify: Callable[[Point, Callable[[str], None]], Texts] | None = None
    limits: Limits = field(default_factory=Limits)
    repeats: int = REPEATS
    users: Callable[[], int | None] | None = None


# Something that is done again and again beside a run, in a thread of its own, and never at much cost.

BEAT_S = 0.5
_IDLE = 20.0
"""At most one part in so many of the time is spent on it, however long one beat takes."""
_END_S = 5.0


class Pulse:
    """Calls `beat` every `BEAT_S` between enter and exit; None: nothing is done. `beat` must not raise."""

    def __init__(self, beat: Callable[[], None] | None, every_s: float = BEAT_S) -> None:
        self._beat = beat
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._beat is not None:
            self._thread = threading.Thread(target=self._go, args=(self._beat,), name="tune-pulse", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            # What it was for has ended already: there is nothing left to interrupt.
            with contextlib.suppress(KeyboardInterrupt):
                self._thread.join(_END_S)

    def _go(self, beat: Callable[[], None]) -> None:
        took = 0.0
        while not self._ended.wait(max(self._every_s, _IDLE * took)):
            began = time.monotonic()
            beat()
            took = time.monotonic() - began


class StartFailedError(SpecdashError):
    """The settings in force do not come up, so that nothing can be compared with them."""


class AllFailedError(SpecdashError):
    """No boot could be measured."""


class Loop(Struct):
    """One run, from its first boot to the bed restored."""

    task: Task
    plan: RunPlan
    gear: LoopParts
    earlier: Sequence[Boot] = ()
    stop: Flag = field(default_factory=Flag)
    """Set when the run is to end: it begins nothing else, and puts the original back."""
    command: str = "specdash tune"
    report: str = ""
    """Path of the report, for anyone who reads the run's end."""
    boots: list[Boot] = field(default_factory=list)
    norm: StartFigures = field(default_factory=StartFigures)
    _began: float = field(default_factory=time.monotonic)
    _now: CurrentStep = field(default_factory=lambda: CurrentStep(time.time(), TuneStep.PLAN))
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> RunEnd:
        """Do it, and say how it ended. Raises `SpecdashError` for what ended it early, with everything restored and
        written down; a bed that cannot be restored is the worst of them."""
        began = own_start()
        head = RunHead(self.plan, time.time(), os.getpid(), began, self.command, resumed=bool(self.earlier))
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
            # It was asked for when everything was measured: the user wants nothing applied either.
            ending, outcome, texts = Ending.STOPPED, self._so_far(), ""
        return self._ended(ending, outcome, texts, problem or error, problem)

    def _replay(self) -> None:
        """Tell the tuner what an earlier run measured. Raises `InputError` where it would ask for something else."""
        for boot in self.earlier:
            wanted = self._wanted()
            if wanted is None or wanted.point != boot.result.point:
                raise InputError(
                    f"boot {boot.number} measured {boot.result.point.name}, and this version of the tuner asks for "
                    f"{wanted.point.name if wanted is not None else 'nothing more'}; start a new run"
                )
            self.norm.learn(boot.result, self.task.start)
            self.gear.tuner.tell(boot.result)
            self.boots.append(boot)
            self.gear.observer.booted(boot, True)

    def _boot_all(self) -> None:
        while True:
            self._tell(TuneStep.THINK, why="", since=None, number=None, point=None)
            wanted = self._wanted()
            if wanted is None or self._late():
                break
            boot = self._boot(wanted)
            self.gear.record.add(boot)
            # Fed first: the tuner can judge any of these boots.
            self.gear.tuner.tell(boot.result)
            self.boots.append(boot)
            self._believe()
            self.gear.record.add(self.boots[-1])
            self.gear.observer.booted(self.boots[-1], False)
            if boot.result.failure and wanted.point == self.task.start and len(self.boots) == 1:
                raise StartFailedError(f"the settings in force cannot be measured: {boot.result.failure}")

    def _wanted(self) -> NextBoot | None:
        """The next boot that the tuner asks for within the budget."""
        return self.gear.tuner.ask() if len(self.boots) < self.task.budget.restarts else None

    def _late(self) -> bool:
        minutes = self.task.budget.minutes
        if minutes is None:
            return False
        return time.monotonic() - self._began + (boot_seconds(self.boots) or 0.0) > 60 * minutes

    def _boot(self, wanted: NextBoot) -> Boot:
        """One boot that counts: measured, or failed."""
        number = len(self.boots) + 1
        self.gear.bed.announce(number, max(number, self.task.budget.restarts))
        first, at = time.monotonic(), time.time()
        about = {"number": number, "stage": wanted.stage, "point": wanted.point, "why": wanted.why, "since": at}
        for turn in range(self.gear.repeats + 1):
            self._tell(TuneStep.WAIT, **about)
            self.gear.before_boot(lambda words: self._tell(TuneStep.WAIT, detail=words))
            self._stopped()
            began = time.monotonic()
            settings = dict(self.gear.configure(wanted.point))
            already = len(_applies(self.gear.bed))
            measured, failure = self._measured(settings)
            if not self._discarded(number, measured, last=turn == self.gear.repeats):
                break
        result, excluded = self._result(wanted.point, measured, failure)
        self.norm.learn(result, self.task.start, measured.warnings if measured is not None else None)
        away = [apply.downtime_s for apply in _applies(self.gear.bed)[already:] if apply.downtime_s is not None]
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
            excluded=excluded,
            settings=_shown(settings),
            speed=speed,
        )

    def _measured(self, settings: Mapping[str, str]) -> tuple[MeasuredBoot | None, SpecdashError | None]:
        """What a boot measured, and why that does not do, if it does not."""
        measured: MeasuredBoot | None = None
        try:
            self._tell(TuneStep.RESTART)
            with self.gear.bed.boot(settings) as place:
                measured = self._asked(place)
                measured.check()
        except (BootFailedError, UnmeasuredError) as error:
            return measured, error
        return measured, None

    def _asked(self, place: EngineAddress) -> MeasuredBoot:
        """Raises `UnmeasuredError` for an engine that does not answer."""
        self._tell(TuneStep.WARM_UP)
        try:
            return self.gear.measure(place, lambda done, total: self._tell(TuneStep.MEASURE, done=done, total=total))
        except NotWrittenError:
            raise
        except SpecdashError as error:
            raise UnmeasuredError(str(error)) from None

    def _discarded(self, number: int, measured: MeasuredBoot | None, *, last: bool) -> bool:
        """Keep what was measured, and say whether the boot is to be done again."""
        if measured is None:
            return False
        disturbed = measured.seen.disturbance()
        again = bool(disturbed) and not last
        self.gear.record.keep(number, measured, disturbed if again else "")
        if again:
            self.gear.observer.discarded(disturbed)
        return again

    def _result(
        self, point: Point, measured: MeasuredBoot | None, error: SpecdashError | None
    ) -> tuple[BootResult, str]:
        """What a boot comes to, and which limit rules its point out."""
        failure = str(error) if error is not None else ""
        short = isinstance(error, BootFailedError) and error.out_of_memory
        if measured is None:
            return BootResult(point, failure=failure, out_of_memory=short), ""
        results = plain_results(measured.samples, every_step=point.drafts_every_step)
        result = BootResult(point, results, measured.draft_s, failure, measured.ttft_s, short)
        if not failure and not results:
            failure = "nothing was answered"
        if failure:
            return replace(result, failure=failure), ""
        if limit := self.gear.limits.memory(measured):
            return replace(result, failure=limit, out_of_memory=True), limit
        limit = self.gear.limits.drafts(result)
        if not limit and point != self.task.start:
            limit = self.gear.limits.beside_start(result, measured, self.norm)
        return replace(result, failure=limit), limit

    def _verdict(self) -> tuple[TuneOutcome, str]:
        """The outcome, with texts compared and the points named that limits ruled out; raises `AllFailedError` when
        there is nothing to judge."""
        outcome, texts = self._judged()
        ruled_out = exclusion_words(self.boots)
        return replace(outcome, why="; ".join(name for name in (outcome.why, ruled_out) if name)), texts

    def _judged(self) -> tuple[TuneOutcome, str]:
        if not any(not boot.result.failure for boot in self.boots):
            reason = self.boots[-1].result.failure if self.boots else "no boot fitted into the time"
            raise AllFailedError(f"no boot could be measured, so there is no recommendation: {reason}")
        outcome = self.gear.tuner.outcome()
        if outcome.improved and not outcome.confirmed:
            why = f"no improvement confirmed: {outcome.why}"
            return replace(outcome, chosen=self.task.start, improved=False, why=why), ""
        if not outcome.improved or self.gear.verify is None:
            return outcome, ""
        if not outcome.chosen.types:
            return outcome, "nothing drafts, so the texts are those without drafts"
        self._tell(TuneStep.VERIFY, point=outcome.chosen, since=time.time())
        self.gear.bed.announce(None)
        texts = self.gear.verify(outcome.chosen, lambda words: self._tell(TuneStep.VERIFY, detail=words))
        if texts.same is False:
            why = f"{outcome.chosen.name} is faster, and changes the texts: {texts.words}"
            return replace(outcome, chosen=self.task.start, improved=False, why=why), texts.words
        return outcome, texts.words

    def _so_far(self) -> TuneOutcome | None:
        """What is known of a run that was stopped; nothing that was not confirmed."""
        if not any(not boot.result.failure for boot in self.boots):
            return None
        return replace(self.gear.tuner.outcome(), chosen=self.task.start, improved=False, why="stopped before its end")

    def _restored(self) -> SpecdashError | None:
        """Put the bed back; what went wrong with that."""
        while True:
            try:
                with contextlib.suppress(NotWrittenError):
                    self._tell(TuneStep.RESTORE)
                self.gear.bed.restore()
            except KeyboardInterrupt:
                # Anyone who is impatient gets the original back all the same.
                continue
            except SpecdashError as error:
                return error
            return None

    def _ended(
        self,
        ending: Ending,
        outcome: TuneOutcome | None,
        texts: str,
        error: SpecdashError | None,
        problem: SpecdashError | None,
    ) -> RunEnd:
        chosen = outcome.chosen if outcome is not None else self.task.start
        in_force = "the settings of another change" if isinstance(problem, ConflictError) else "unknown"
        end = RunEnd(
            at=time.time(),
            ending=Ending.FAILED if error is not None else ending,
            outcome=outcome,
            settings=_shown(self.gear.configure(chosen)) if outcome is not None else (),
            in_force="the original" if problem is None else in_force,
            restored=problem is None,
            texts=texts,
            error=str(error) if error is not None else "",
            report=self.report,
        )
        if error is not None:
            with contextlib.suppress(NotWrittenError):
                self.gear.record.add(end)
            raise error
        self.gear.record.add(end)
        return end

    def _believe(self) -> None:
        """Note what is believed after the boot that has just ended."""
        if all(boot.result.failure for boot in self.boots):
            return
        found = self.gear.tuner.outcome()
        self.boots[-1] = replace(self.boots[-1], gain=found.gain, low=found.low, high=found.high)
        self._now = replace(self._now, guess=Guess(found.chosen, None, found.gain, found.low, found.high))

    def _left(self, step: TuneStep) -> float | None:
        if step in (TuneStep.VERIFY, TuneStep.RESTORE):
            return None
        elapsed = max(0.0, time.time() - self._now.since) if self._now.since is not None else 0.0
        return left_s(self.boots, self.task.budget.restarts, elapsed)

    def _tell(self, step: TuneStep, **more: Any) -> None:
        """Say what is done now. Raises KeyboardInterrupt instead when a stop was asked for: nothing else is begun."""
        if step is not TuneStep.RESTORE:
            self._stopped()
        changed: dict[str, Any] = {"detail": "", "done": None, "total": None, "stopping": self.stop.is_set(), **more}
        with self._telling:
            self._now = replace(self._now, at=time.time(), step=step, **changed)
            self._now = replace(self._now, left_s=self._left(step))
            self.gear.record.tell(self._now)
        self.gear.observer.now(self._now)

    def _beat(self) -> None:
        """Write down how many requests wait, where that has changed."""
        assert self.gear.users is not None  # noqa: S101 - else there is no pulse
        waiting = self.gear.users()
        with self._telling:
            if waiting == self._now.held:
                return
            now = replace(self._now, at=time.time(), held=waiting)
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


def _applies(bed: TrialBed) -> list[ApplyRecord]:
    """The applies of a bed that makes some."""
    return list(getattr(bed, "records", ()))


# Are the answers at temperature 0 the same with the chosen configuration as without drafts? `bench.verify`, on a bed.
#
# Two boots, and one or two more where texts differ: the one without drafts is asked what it thinks of the
# differences. A near tie is what other batch shapes do and is allowed; more than that is damage.


TOKENS = 128
SYNTHETIC = "acceptance is synthetic (--spec-synth-*), which makes every text garbage by design: nothing to compare"


class TextCheck:
    """Compares a point with no drafts at all, on the bed that it was tuned on."""

    def __init__(self, bed: TrialBed, configure: Callable[[Point], Mapping[str, str]], tokens: int = TOKENS) -> None:
        self._bed = bed
        self._configure = configure
        self._tokens = tokens

    def __call__(self, point: Point, say: Callable[[str], None]) -> Texts:
        """Never raises for what a server does: what could not be compared is unknown, with the reason."""
        check = Verification(BUILT_IN, VerifyEffort(tokens=self._tokens), lambda _, words: say(words))
        try:
            check.run(lambda: self._open(Point(), "without drafts"), lambda: self._open(point, point.name))
        except NotWrittenError:
            raise
        except SpecdashError as error:
            if check.report.verdict is not Agreement.DAMAGED:
                return Texts(None, f"could not be compared: {error}")
        return judged(check.report)

    @contextmanager
    def _open(self, point: Point, name: str) -> Iterator[VerifyServer]:
        with self._bed.boot(self._configure(point)) as place, VerifyServer(place.url, place.key, name) as server:
            yield server


def judged(report: VerifyReport) -> Texts:
    """What a comparison says of a configuration."""
    runs = report.of(VerifySide.CANDIDATE)
    verdict = report.verdict
    if verdict is None or not runs:
        return Texts(None, "nothing was compared")
    worst = next(run for run in runs if run.verdict is verdict)
    answers = f"{len(runs)} answers compared with those without drafts"
    if verdict is Agreement.IDENTICAL:
        return Texts(True, f"{answers}: identical")
    if verdict is Agreement.BATCH_SHAPE:
        return Texts(True, f"{answers}: {cause(worst)}")
    return Texts(None if verdict is Agreement.UNDECIDED else False, f"{answers}: {verdict}: {cause(worst)}")
