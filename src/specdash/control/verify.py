"""Whether a backend is what its settings promise: healthy, drafting or not as asked, and able to generate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.backend import server_check
from specdash.backend.server_check import ANSWER_S, busy, health, healthy
from specdash.control.apply_steps import StepFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.backend.promise import Promise
    from specdash.core.start_check import StartCheck

__all__ = ["ANSWER_S", "Verdict", "busy", "check_speculation", "health", "healthy", "probe", "speculative"]

_POLL_S = 0.02
_RUNNER_S = 12.0
"""The longest wait for the runner's own probe, which bounds itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a check went. `warning` is for the operator; `detail` is what the step shows."""

    detail: str
    warning: str | None = None


def speculative(url: str, promise: Promise) -> bool | None:
    """Whether every slot drafts; None where that cannot be seen, or looking would wake a sleeping server."""
    if promise.router or server_check.sleeps(url, promise):
        return None
    slots = server_check.slots_of(url, promise)
    told = slots.drafting if not isinstance(slots, str) else None
    return all(told) if told is not None else None


def check_speculation(url: str, promise: Promise) -> Verdict:
    """Raises `StepFailedError` when a slot does not do what the settings ask."""
    wanted = promise.speculates
    if promise.router:
        return Verdict("a router: each of its models has settings of its own")
    slots = server_check.slots_of(url, promise)
    if isinstance(slots, str):
        return Verdict(slots, f"whether it speculates could not be checked: {slots}")
    told = slots.drafting
    if wanted is None or told is None:
        why = "the settings do not tell" if wanted is None else "this build's /slots does not tell"
        return Verdict(why, f"whether it speculates could not be checked: {why}")
    wrong = [slot.id for slot in slots.slots if slot.speculative is not wanted]
    if not wrong:
        return Verdict(f"{len(told)} slots draft" if wanted else "no slot drafts, as asked")
    if wanted:
        raise StepFailedError(f"it is healthy but does not speculate ({len(wrong)} of {len(told)} slots do not draft)")
    raise StepFailedError(f"it speculates although the settings ask for none ({len(wrong)} of {len(told)} slots draft)")


def probe(
    url: str, promise: Promise, timeout: float, runner: Callable[[], StartCheck | None] = lambda: None
) -> Verdict:
    """Generate a few tokens, and a few more where that has not shown everything yet (`server_check.probe`).

    `runner` gives the check that the server's runner made of this start, as far as it is: what its probe has shown
    already is not asked again. Raises `StepFailedError` when there is no proper answer.
    """
    if promise.no_probe is not None:
        return Verdict(f"skipped: {promise.no_probe}")
    known = _by_runner(runner, timeout)
    if known is not None and known.probe_tokens and not _lacks_a_rejection(promise, known):
        tokens, seconds, who = known.probe_tokens, None, ", as its runner saw"
    else:
        found = server_check.probe(url, promise, timeout, patience=timeout)
        if found.problem:
            raise StepFailedError(found.problem)
        tokens, seconds, who = found.tokens, found.seconds, ""
    if not healthy(url):
        raise StepFailedError("it generated, and is not healthy any more")
    took = f" in {seconds:.1f} s" if seconds is not None else ""
    return Verdict(f"{tokens} tokens{took}{who}")


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


def _lacks_a_rejection(promise: Promise, known: StartCheck) -> bool:
    """Whether a draft model drafts and no token of it was rejected yet, which aborts the server with some settings."""
    return server_check.drafts_with_a_model(promise) and known.probe_drafted == known.probe_accepted
