"""How an apply tells where it is: one step at a time, timed, and able to end at a cancel."""

from __future__ import annotations

import contextlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specdash.control import faults
from specdash.core.applies import Progress, Step, StepState
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
    """Somebody asked for the end of the apply."""

    exit_code = ExitCode.INTERRUPTED


class Steps:
    """The steps of one apply. `seconds` holds how long each took; `current` the one that runs, or failed."""

    def __init__(self, on_progress: Callable[[Progress], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.current: Step | None = None
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
    def step(self, step: Step, detail: str = "") -> Iterator[None]:
        """Do one step: reported when it begins and when it ends, however it does."""
        self.current = step
        self._began = began = time.monotonic()
        self._detail = detail
        self._report(step, StepState.RUNNING, detail)
        try:
            faults.reach(faults.before(step))
            self.check()
            yield
            faults.reach(faults.after(step))
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

    def skip(self, step: Step, why: str) -> None:
        """Tell that a step is not needed."""
        self.check()
        self._report(step, StepState.SKIPPED, why)

    def _took(self, step: Step, began: float) -> None:
        self.seconds[str(step)] = round(self.seconds.get(str(step), 0.0) + time.monotonic() - began, 4)

    def _report(self, step: Step, state: StepState, detail: str, fraction: float | None = None) -> None:
        seconds = 0.0 if state is StepState.SKIPPED else time.monotonic() - self._began
        # Whoever looks on must not be able to harm what is under way: a closed terminal is no reason to stop.
        with contextlib.suppress(Exception):
            self._on_progress(Progress(step, state, detail, fraction, seconds))
