"""The steps of a change: reported as they begin and end, timed, cancelled; what a backend must show to pass them."""

from __future__ import annotations

import contextlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specdash.backend import start_check
from specdash.core.changes import ApplyProgress, ApplyStep, StepState
from specdash.core.errors import ExitCode, SpecdashError
from specdash.core.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdash.backend.start_check import ServerPromise
    from specdash.core.records import StartCheck

_CANCELLED, _KEPT = "cancelled", "kept"


class StepFailedError(SpecdashError):
    """A step did not come true. `log_lines` are the service's own words on it."""

    exit_code = ExitCode.ROLLED_BACK

    def __init__(self, reason: str, log_lines: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.log_lines = log_lines


class CancelledApplyError(SpecdashError):
    """The end of the apply was asked for."""

    exit_code = ExitCode.INTERRUPTED


class RunnerStoppedError(SpecdashError):
    """The runner was asked to end while the change was under way."""


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
        """From here on nothing ends the change. Raises `CancelledApplyError` when its end was asked for before."""
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
        self.current, self._began, self._detail = step, time.monotonic(), detail
        self._report(step, StepState.RUNNING)
        ended = StepState.FAILED
        try:
            self.check()
            yield
            self.check()
            ended = StepState.DONE
        except BaseException as error:
            self._detail = str(error) or type(error).__name__
            raise
        finally:
            took = self.seconds.get(str(step), 0.0) + time.monotonic() - self._began
            self.seconds[str(step)] = round(took, 4)
            self._report(step, ended)

    def say(self, detail: str, fraction: float | None = None) -> None:
        """Tell how the current step stands."""
        self._detail = detail
        if self.current is not None:
            self._report(self.current, StepState.RUNNING, fraction)

    def skip(self, step: ApplyStep, why: str) -> None:
        """Tell that a step is not needed."""
        self.check()
        self._began, self._detail = time.monotonic(), why
        self._report(step, StepState.SKIPPED)

    def _report(self, step: ApplyStep, state: StepState, fraction: float | None = None) -> None:
        seconds = 0.0 if state is StepState.SKIPPED else time.monotonic() - self._began
        # A listener must not harm what is under way: a closed terminal does not stop a change.
        with contextlib.suppress(Exception):
            self._on_progress(ApplyProgress(step, state, self._detail, fraction, seconds))


_POLL_S = 0.02
_RUNNER_S = 12.0
"""The longest wait for the runner's own probe, which bounds itself."""


def probe(
    url: str,
    promise: ServerPromise,
    timeout: float,
    runner: Callable[[], StartCheck | None] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[str, float | None]:
    """Generate a few tokens: what came of it, in words, and the seconds a token.

    `runner` gives the check that the runner made of this start, as far as it is: what its probe has shown already is
    not asked again. Raises `StepFailedError` when there is no proper answer.
    """
    if promise.no_probe is not None:
        return f"skipped: {promise.no_probe}", None
    deadline = time.monotonic() + min(timeout, _RUNNER_S)
    while (known := runner()) is not None and known.pending and time.monotonic() < deadline:
        wait(_POLL_S)
    tokens, seconds = 0, None
    if known is not None and not known.pending and not known.probe_problem:
        tokens, seconds = known.probe_tokens or 0, known.probe_s
    if not tokens:
        found = start_check.first_completion(promise, timeout)
        if found.problem:
            raise StepFailedError(found.problem)
        tokens, seconds = found.tokens, found.seconds
    if not start_check.healthy(url):
        raise StepFailedError("it generated, and is not healthy any more")
    if seconds is None:
        return f"{tokens} tokens", None
    return f"{tokens} tokens in {seconds:.1f} s", seconds / tokens
