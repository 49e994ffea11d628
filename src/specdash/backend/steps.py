"""The steps of a change: reported as they begin and end, timed, cancelled; what a backend must show to pass them."""

from __future__ import annotations

import contextlib
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.backend import start_check
from specdash.backend.start_check import healthy
from specdash.core.changes import ApplyProgress, ApplyStep, StepState
from specdash.core.errors import ExitCode, SpecdashError
from specdash.core.flag import Flag
from specdash.core.masking import without_secrets
from specdash.system.text import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
        self.current = step
        self._began = began = time.monotonic()
        self._detail = detail
        self._report(step, StepState.RUNNING, detail)
        try:
            self.check()
            yield
            self.check()
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
        # A listener must not harm what is under way: a closed terminal does not stop a change.
        with contextlib.suppress(Exception):
            self._on_progress(ApplyProgress(step, state, detail, fraction, seconds))


_POLL_S = 0.02
_RUNNER_S = 12.0
"""The longest wait for the runner's own probe, which bounds itself."""


class CheckResult(Struct, frozen=True):
    """How a check went. `warning` is for the operator; `detail` is what the step shows."""

    detail: str
    warning: str | None = None
    seconds_per_token: float | None = None
    """Of a first completion."""


def speculative(url: str, promise: ServerPromise) -> bool | None:
    """Whether every slot drafts; None where that cannot be seen, or looking would wake a sleeping server."""
    if promise.router or start_check.sleeps(url, promise):
        return None
    slots = start_check.slots_of(url, promise)
    drafting = slots.drafting if not isinstance(slots, str) else None
    return all(drafting) if drafting is not None else None


def check_speculation(url: str, promise: ServerPromise) -> CheckResult:
    """Raises `StepFailedError` when a slot does not do what the settings ask."""
    wanted = promise.speculates
    if promise.router:
        return CheckResult("a router: each of its models has settings of its own")
    slots = start_check.slots_of(url, promise)
    if isinstance(slots, str):
        return CheckResult(slots, f"whether it speculates could not be checked: {slots}")
    drafting = slots.drafting
    if wanted is None or drafting is None:
        why = "the settings do not say" if wanted is None else "this build's /slots does not say"
        return CheckResult(why, f"whether it speculates could not be checked: {why}")
    wrong = [slot.id for slot in slots.slots if slot.speculative is not wanted]
    if not wrong:
        return CheckResult(f"{len(drafting)} slots draft" if wanted else "no slot drafts, as asked")
    if wanted:
        raise StepFailedError(
            f"it is healthy but does not speculate ({len(wrong)} of {len(drafting)} slots do not draft)"
        )
    raise StepFailedError(
        f"it speculates although the settings ask for none ({len(wrong)} of {len(drafting)} slots draft)"
    )


def probe(
    url: str,
    promise: ServerPromise,
    timeout: float,
    runner: Callable[[], StartCheck | None] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> CheckResult:
    """Generate a few tokens, and a few more where that has not shown everything yet (`server_check.probe`).

    `runner` gives the check that the server's runner made of this start, as far as it is: what its probe has shown
    already is not asked again. Raises `StepFailedError` when there is no proper answer.
    """
    if promise.no_probe is not None:
        return CheckResult(f"skipped: {promise.no_probe}")
    known = _by_runner(runner, timeout, wait)
    if known is not None and known.probe_tokens:
        tokens, seconds = known.probe_tokens, known.probe_s
    else:
        found = start_check.first_completion(url, promise, timeout)
        if found.problem:
            raise StepFailedError(found.problem)
        tokens, seconds = found.tokens, found.seconds
    if not healthy(url):
        raise StepFailedError("it generated, and is not healthy any more")
    took = f" in {seconds:.1f} s" if seconds is not None else ""
    return CheckResult(f"{tokens} tokens{took}", seconds_per_token=seconds / tokens if seconds is not None else None)


def _by_runner(
    runner: Callable[[], StartCheck | None], timeout: float, wait: Callable[[float], None]
) -> StartCheck | None:
    """The runner's check once its probe is through; None when there is no runner, or its probe shows nothing."""
    deadline = time.monotonic() + min(timeout, _RUNNER_S)
    known = runner()
    while known is not None and known.pending and time.monotonic() < deadline:
        wait(_POLL_S)
        known = runner()
    if known is None or known.pending or known.probe_problem:
        return None
    return known


_TELLING = re.compile(
    r"^\s*[\d.]+\s+E\s|^specdash: |\berror\b|failed|GGML_ASSERT|terminate called|couldn't|could not|not found|invalid|"
    r"refused|exit code|signal SIG|cannot|unknown",
    re.IGNORECASE,
)
_CALM = re.compile(r"^\s*[\d.]+\s+[ID]\s|\[(?:INFO|DEBUG)\]")
_SPECULATION = re.compile(r"draft|spec|vocab|ngram", re.IGNORECASE)
_WEIGHTY = re.compile(r"^\s*[\d.]+\s+[EW]\s|error|failed|warn|incompatible|mismatch", re.IGNORECASE)
_LONGEST = 400
_MOST_LINES = 8


def explained(lines: list[str]) -> tuple[str, ...]:
    """The lines that look like the cause, in their order, each once, else the last ones; without secrets."""
    kept = [line for line in dict.fromkeys(lines) if _TELLING.search(line) and not _CALM.match(line)]
    return _shown((kept or lines)[-_MOST_LINES:])


def failure(what: str, lines: tuple[str, ...]) -> StepFailedError:
    """The failure, with the last of its lines as the cause."""
    return StepFailedError(f"{what}: {lines[-1]}" if lines else what, lines)


def about_speculation(lines: Iterable[str]) -> tuple[str, ...]:
    """The errors and warnings that concern drafting."""
    kept = list(dict.fromkeys(lines))
    return _shown([line for line in kept if _SPECULATION.search(line) and _WEIGHTY.search(line)][-_MOST_LINES:])


def last_line(lines: Sequence[str]) -> str:
    """The last of them, short."""
    return _shown(lines[-1:])[0][:120] if lines else ""


def _shown(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(without_secrets(shortened(line, _LONGEST)) for line in lines)
