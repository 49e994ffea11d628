"""Waits while one engine takes the other's place: looks often, and ends as soon as it is certain how it goes."""

from __future__ import annotations

import contextlib
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specdash.backend import start_check
from specdash.backend.start_check import ANSWER_S, busy, health, healthy
from specdash.collect.discover import place
from specdash.control.apply.engine import (
    LogMark,
    ServingEngine,
    last_line,
    last_lines,
    lines_since,
    main_engine,
    mark,
    owns_port,
    recorded_engine,
    telling,
)
from specdash.control.services.services import ServiceState
from specdash.core.changes import ApplyProgress, ApplyStep, StepState
from specdash.core.errors import ExitCode, SpecdashError
from specdash.core.flag import Flag
from specdash.core.readings import Health, HealthStatus
from specdash.system.data import dataclass
from specdash.system.processes import age_s, is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdash.backend.start_check import ServerPromise
    from specdash.control.services.services import ManagedService, ServiceStatus
    from specdash.core.records import StartCheck


# How an apply tells where it is: one step at a time, timed, and able to end at a cancel.

_CANCELLED, _KEPT = "cancelled", "kept"


class StepFailedError(SpecdashError):
    """A step did not come true. `log_lines` are the service's own words on it."""

    exit_code = ExitCode.ROLLED_BACK

    def __init__(self, reason: str, log_lines: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.log_lines = log_lines


class CancelledApplyError(SpecdashError):
    """Somebody asked for the end of the apply."""

    exit_code = ExitCode.INTERRUPTED


class Steps:
    """The steps of one apply. `seconds` holds how long each took; `current` the one that runs, or failed."""

    def __init__(self, on_progress: Callable[[ApplyProgress], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.current: ApplyStep | None = None
        self.undoing = False
        """While undoing, nothing can cancel any more."""
        self._on_progress = on_progress
        self.cancelled = False
        """Whether the end was asked for, in time or not."""
        self._cancelling = Flag()
        self._decided: dict[str, str] = {}
        self._began = 0.0
        self._detail = ""

    def cancel(self) -> bool:
        """Ask for the end; returns at once, and says whether it goes back: not any more once the change is kept."""
        self.cancelled = True
        granted = self._decide(_CANCELLED) or self.undoing
        if granted:
            self._cancelling.set()
        return granted

    def keep(self) -> None:
        """From here on the change stays, whoever asks for the end. Raises `CancelledApplyError` when that came
        before."""
        if not self._decide(_KEPT):
            raise CancelledApplyError("it was interrupted")

    def _decide(self, what: str) -> bool:
        # One step of the interpreter, so that neither a handler of signals nor another thread comes between.
        return self._decided.setdefault("end", what) == what

    def check(self) -> None:
        """Raise `CancelledApplyError` when the end was asked for and can still be given."""
        if self._cancelling.is_set() and not self.undoing:
            raise CancelledApplyError("it was interrupted")

    def wait(self, seconds: float) -> None:
        """Sleep, and `check`."""
        if self.undoing:
            time.sleep(seconds)
        else:
            self._cancelling.wait(seconds)
            self.check()

    @contextmanager
    def step(self, step: ApplyStep, detail: str = "") -> Iterator[None]:
        """Do one step: reported when it begins and when it ends, however it does."""
        self.current = step
        self._began = began = time.monotonic()
        self._detail = detail
        self._report(step, StepState.RUNNING, detail)
        try:
            self.check()
            yield
        except BaseException as error:
            self._took(step, began)
            self._report(step, StepState.FAILED, str(error) or type(error).__name__)
            raise
        self._took(step, began)
        self._report(step, StepState.DONE, self._detail)

    def say(self, detail: str, fraction: float | None = None) -> None:
        """Tell how the current step stands."""
        self._detail = detail
        if self.current is not None:
            self._report(self.current, StepState.RUNNING, detail, fraction)

    def skip(self, step: ApplyStep, why: str) -> None:
        """Tell that a step is not needed."""
        self.check()
        self._report(step, StepState.SKIPPED, why)

    def _took(self, step: ApplyStep, began: float) -> None:
        self.seconds[str(step)] = round(self.seconds.get(str(step), 0.0) + time.monotonic() - began, 4)

    def _report(self, step: ApplyStep, state: StepState, detail: str, fraction: float | None = None) -> None:
        seconds = 0.0 if state is StepState.SKIPPED else time.monotonic() - self._began
        # Whoever looks on must not be able to harm what is under way: a closed terminal is no reason to stop.
        with contextlib.suppress(Exception):
            self._on_progress(ApplyProgress(step, state, detail, fraction, seconds))


# Whether a backend is what its settings promise: healthy, drafting or not as asked, and able to generate.


__all__ = ["ANSWER_S", "CheckResult", "busy", "check_speculation", "health", "healthy", "probe", "speculative"]

_POLL_S = 0.02
_RUNNER_S = 12.0
"""The longest wait for the runner's own probe, which bounds itself."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a check went. `warning` is for the operator; `detail` is what the step shows."""

    detail: str
    warning: str | None = None


def speculative(url: str, promise: ServerPromise) -> bool | None:
    """Whether every slot drafts; None where that cannot be seen, or looking would wake a sleeping server."""
    if promise.router or start_check.sleeps(url, promise):
        return None
    slots = start_check.slots_of(url, promise)
    told = slots.drafting if not isinstance(slots, str) else None
    return all(told) if told is not None else None


def check_speculation(url: str, promise: ServerPromise) -> CheckResult:
    """Raises `StepFailedError` when a slot does not do what the settings ask."""
    wanted = promise.speculates
    if promise.router:
        return CheckResult("a router: each of its models has settings of its own")
    slots = start_check.slots_of(url, promise)
    if isinstance(slots, str):
        return CheckResult(slots, f"whether it speculates could not be checked: {slots}")
    told = slots.drafting
    if wanted is None or told is None:
        why = "the settings do not tell" if wanted is None else "this build's /slots does not tell"
        return CheckResult(why, f"whether it speculates could not be checked: {why}")
    wrong = [slot.id for slot in slots.slots if slot.speculative is not wanted]
    if not wrong:
        return CheckResult(f"{len(told)} slots draft" if wanted else "no slot drafts, as asked")
    if wanted:
        raise StepFailedError(f"it is healthy but does not speculate ({len(wrong)} of {len(told)} slots do not draft)")
    raise StepFailedError(f"it speculates although the settings ask for none ({len(wrong)} of {len(told)} slots draft)")


def probe(
    url: str, promise: ServerPromise, timeout: float, runner: Callable[[], StartCheck | None] = lambda: None
) -> CheckResult:
    """Generate a few tokens, and a few more where that has not shown everything yet (`server_check.probe`).

    `runner` gives the check that the server's runner made of this start, as far as it is: what its probe has shown
    already is not asked again. Raises `StepFailedError` when there is no proper answer.
    """
    if promise.no_probe is not None:
        return CheckResult(f"skipped: {promise.no_probe}")
    known = _by_runner(runner, timeout)
    if known is not None and known.probe_tokens and not _lacks_a_rejection(promise, known):
        tokens, seconds, who = known.probe_tokens, None, ", as its runner saw"
    else:
        found = start_check.first_completion(url, promise, timeout, patience=timeout)
        if found.problem:
            raise StepFailedError(found.problem)
        tokens, seconds, who = found.tokens, found.seconds, ""
    if not healthy(url):
        raise StepFailedError("it generated, and is not healthy any more")
    took = f" in {seconds:.1f} s" if seconds is not None else ""
    return CheckResult(f"{tokens} tokens{took}{who}")


def _by_runner(runner: Callable[[], StartCheck | None], timeout: float) -> StartCheck | None:
    """The runner's check once its probe is through; None when there is no runner, or its probe shows nothing."""
    deadline = time.monotonic() + min(timeout, _RUNNER_S)
    known = runner()
    while known is not None and known.pending and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        known = runner()
    if known is None or known.pending or known.probe_problem:
        return None
    return known


def _lacks_a_rejection(promise: ServerPromise, known: StartCheck) -> bool:
    """Whether a draft model drafts and no token of it was rejected yet, which aborts the server with some settings."""
    return start_check.drafts_with_a_model(promise) and known.probe_drafted == known.probe_accepted


LOOK_S = 0.012
"""Time between two looks: what passes between health and our seeing it is downtime."""
_STATUS_S = 0.2
_SAY_S = 0.2
_REFUSED = re.compile(r"specdash: reload refused(?: \(env \S+\))?: (.*)")
SWAP_S = 60.0
"""The longest a runner may plan a swap: it asks the new engine for its version and reads headers of models."""
_FOREIGN_S = 20.0
"""How long a healthy answer may come from a process that is none of the service's."""
_LAST_LINES = 30
_SHORT = 40
_LAST_WORDS_S = 0.3


class ReloadRefusedError(StepFailedError):
    """The runner keeps its engine: nothing was stopped."""


class EngineSwap:
    """One change of engines of a backend service, seen from outside.

    `digest` is the wanted version of the env file and `promise` what that promises. `old` is the engine that served
    before, None when none did. Times are monotonic seconds.
    """

    def __init__(
        self,
        service: ManagedService,
        env: Mapping[str, str],
        steps: Steps,
        digest: str,
        promise: ServerPromise,
        old: ServingEngine | None,
    ) -> None:
        self.service = service
        self.steps = steps
        self.digest = digest
        self.promise = promise
        self.old = old
        self.asked_at = self.last_old = time.monotonic()
        self.first_ok: float | None = None
        self.engine: ServingEngine | None = None
        self._env = env
        self._marks = marks(promise, old)
        self._main: ServiceStatus | None = None
        self._by_record = service.reloads and (old is None or old.recorded)
        self._health: Health | None = None
        self._next_status = self._next_say = 0.0
        self._stranger_since: float | None = None

    def asked(self) -> None:
        """The old engine is being told to stop from now on."""
        self.asked_at = self.last_old = time.monotonic()

    def watch_main(self) -> None:
        """What the manager says now is how it should stay: a further restart is a crash."""
        self._main = self.service.status()

    def until_old_is_gone(self) -> None:
        """Wait until the runner has ended the old engine. Raises `StepFailedError` when it refuses, or does not."""
        deadline = time.monotonic() + SWAP_S
        while self.old is not None and self.old.alive:
            self._look()
            refusal = next((found for line in self.lines() if (found := _REFUSED.search(line))), None)
            if refusal is not None:
                raise ReloadRefusedError(f"the runner refused the new settings: {refusal.group(1)}", self.explained())
            self.check_service()
            if time.monotonic() > deadline:
                raise StepFailedError(f"the runner did not swap its engine within {SWAP_S:g} s", self.explained())
            self.steps.wait(LOOK_S)

    def until_healthy(self, limit: float) -> ServingEngine:
        """Wait for a healthy answer of the wanted version. Raises `StepFailedError` as soon as it cannot come."""
        deadline = time.monotonic() + limit
        while True:
            self._look()
            if self.first_ok is not None:
                found = self._identified()
                if found is not None:
                    self.engine = found
                    return found
            self.check_service()
            if time.monotonic() > deadline:
                raise StepFailedError(f"not healthy within {limit:g} s ({self._state_words()})", self.explained())
            self._say()
            self.steps.wait(LOOK_S)

    @property
    def down_since(self) -> float:
        """The old engine's last sign of life."""
        return max(self.asked_at, self.last_old)

    @property
    def load_s(self) -> float | None:
        """What the new engine itself took, from its start to its first healthy answer."""
        age = age_s(self.engine.pid) if self.engine is not None else None
        if age is None or self.first_ok is None:
            return None
        return max(0.0, age - (time.monotonic() - self.first_ok))

    def lines(self) -> list[str]:
        """What the service's engine has logged since this began."""
        return [line for log_mark in self._marks for line in lines_since(log_mark)]

    def explained(self) -> tuple[str, ...]:
        """The lines that say why, from the engine's log, else from the manager's."""
        lines = self.lines()
        told = telling(lines)
        if told:
            return told
        written = list(self.service.manager.log_tail(self.service.name, _LAST_LINES))
        return telling(written) or last_lines(written or lines)

    def last_words(self) -> tuple[str, ...]:
        """The same of a server that may just have died: its runner needs a moment to write the end of it."""
        if self.engine is None or not self.engine.alive:
            time.sleep(_LAST_WORDS_S)
        return self.explained()

    def _look(self) -> None:
        """Ask for health once, and note whose answer it was."""
        url = self.engine.url if self.engine is not None else self.promise.url
        if self.engine is None and self._by_record:
            fresh = self._recorded()
            url = fresh.url if fresh is not None else url
        old_lives = self.old is not None and self.old.alive
        self._health = health(url)
        now = time.monotonic()
        if self._health is None or self._health.status is not HealthStatus.OK:
            self.first_ok = None
        elif old_lives and self.old is not None and place(self.old.url) == place(url):
            self.last_old, self.first_ok = now, None
        elif self.first_ok is None:
            self.first_ok = now

    def _recorded(self) -> ServingEngine | None:
        found = recorded_engine(self.service, self._env)
        if found is None or found.digest != self.digest or self._is_old(found):
            return None
        return found

    def _is_old(self, found: ServingEngine) -> bool:
        return self.old is not None and found.pid == self.old.pid and self.old.alive

    def _identified(self) -> ServingEngine | None:
        """The engine that gave the healthy answer, when it is the service's own and of the wanted version."""
        if self._by_record:
            found = self._recorded()
        else:
            status = self.service.status()
            found = main_engine(status, self.promise.url)
            if found is not None and (self._is_old(found) or place(found.url) != place(self.promise.url)):
                found = None
        if found is not None and owns_port(found) is not False:
            return found
        now = time.monotonic()
        self._stranger_since = self._stranger_since or now
        if now - self._stranger_since > _FOREIGN_S:
            hint = "; is its XDG_STATE_HOME ours?" if self._by_record else ""
            raise StepFailedError(
                f"{self.promise.url} is answered, but by no process of {self.service.name} with these settings{hint}",
                self.explained(),
            )
        return None

    def check_service(self) -> None:
        """Raise `StepFailedError` as soon as the service's process has ended, whatever its manager means to do next."""
        main = self._main
        now = time.monotonic()
        gone = main is not None and main.pid is not None and not is_alive(main.pid)
        if now < self._next_status and not gone:
            return
        self._next_status = now + _STATUS_S
        status = self.service.status()
        what = failure(main, status)
        if what is not None:
            lines = self.explained()
            raise StepFailedError(f"{self.service.name} {what}{because(status, lines)}", lines)

    def _say(self) -> None:
        now = time.monotonic()
        if now < self._next_say:
            return
        self._next_say = now + _SAY_S
        words = [self._state_words(), last_line(self.lines())]
        self.steps.say(": ".join(word for word in words if word), self._health.progress if self._health else None)

    def _state_words(self) -> str:
        if self._health is None:
            return "no answer yet"
        if self._health.status is HealthStatus.LOADING:
            return "loading"
        if self._health.status is HealthStatus.OK:
            return "answers, not identified yet"
        return self._health.detail or "unhealthy"


def failure(before: ServiceStatus | None, now: ServiceStatus) -> str | None:
    """What became of a service that should run on as it did `before`, None while it does."""
    if now.state is ServiceState.FAILED:
        return "failed"
    if now.state is ServiceState.WAITING:
        return "ended, and is about to be restarted by its manager (crash loop)"
    if now.state is ServiceState.MISSING:
        return "is not known to its manager any more"
    if now.state in (ServiceState.STOPPED, ServiceState.STOPPING):
        return "has stopped"
    if before is not None and now.restarts > before.restarts:
        return "ended, and was restarted by its manager (crash loop)"
    if before is not None and None not in (before.pid, now.pid) and before.pid != now.pid:
        return "ended, and runs again as another process"
    return None


def marks(promise: ServerPromise, old: ServingEngine | None) -> tuple[LogMark, ...]:
    """The ends of the logs that the old and the new engine write to."""
    paths = dict.fromkeys(path for path in (old.log if old is not None else None, promise.log) if path is not None)
    return tuple(found for path in paths if (found := mark(path)) is not None)


def because(status: ServiceStatus, lines: tuple[str, ...]) -> str:
    """Why a service ended, to be appended to the words that say it did."""
    last = lines[-1] if lines else ""
    # The supervisor quotes the log itself, systemd gives the exit code alone.
    said = [status.detail, *([last] if last not in status.detail and len(status.detail) < _SHORT else [])]
    words = ": ".join(name for name in said if name)
    return f": {words}" if words else ""
