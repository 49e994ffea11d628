"""The steps of a change: reported as they begin and end, timed, cancelled."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from specdash.core.changes import ApplyProgress, ApplyStep, StepState
from specdash.core.errors import ExitCode, SpecdashError
from specdash.core.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class Steps:
    """The steps of one apply. `seconds` holds how long each took; `current` the one that runs, or failed."""

    def __init__(self, on_progress: Callable[[ApplyProgress], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.current: ApplyStep | None = None
        self.undoing = False
        """While undoing, nothing can cancel any more."""
        self._on_progress = on_progress
        self._cancelling = Flag()
        self._decided: dict[str, str] = {}
        self._began = 0.0
        self._detail = ""

    def cancel(self) -> bool:
        """Ask for the end; returns at once, and says whether it goes back: not any more once the change is kept."""
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

    def wait(self, seconds: float) -> None:
        """Sleep; raise `CancelledApplyError` when the end was asked for and can still be given."""
        if self.undoing:
            time.sleep(seconds)
        elif self._cancelling.wait(seconds):
            raise CancelledApplyError("it was interrupted")

    @contextlib.contextmanager
    def step(self, step: ApplyStep, detail: str = "") -> Iterator[None]:
        """Do one step: reported when it begins and when it ends, however it does."""
        self.current, self._began = step, time.monotonic()
        self.say(detail)
        ended = StepState.FAILED
        try:
            self.wait(0)
            yield
            self.wait(0)
            ended = StepState.DONE
        except BaseException as error:
            self._detail = str(error) or type(error).__name__
            raise
        finally:
            took = time.monotonic() - self._began
            self.seconds[str(step)] = round(self.seconds.get(str(step), 0.0) + took, 4)
            self._report(step, ended, took)

    def say(self, detail: str, fraction: float | None = None) -> None:
        """Report how the current step stands."""
        self._detail = detail
        if self.current is not None:
            self._report(self.current, StepState.RUNNING, time.monotonic() - self._began, fraction)

    def skip(self, why: str, *steps: ApplyStep) -> None:
        """Report that steps are not needed."""
        self.wait(0)
        self._detail = why
        for step in steps:
            self._report(step, StepState.SKIPPED, 0.0)

    def _report(self, step: ApplyStep, state: StepState, seconds: float, fraction: float | None = None) -> None:
        # A listener must not harm what is under way: a closed terminal does not stop a change.
        with contextlib.suppress(Exception):
            self._on_progress(ApplyProgress(step, state, self._detail, fraction, seconds))
