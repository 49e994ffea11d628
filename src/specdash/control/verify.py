"""Whether a backend is what its settings promise: healthy, drafting or not as asked, and able to generate."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.control.apply_http import Reply, ask
from specdash.control.apply_steps import StepFailedError
from specdash.core.observations import Health, HealthStatus
from specdash.llama.bodies import ParseError, error_message
from specdash.llama.health import parse_health
from specdash.llama.metrics import parse_metrics
from specdash.llama.slots import parse_slots

if TYPE_CHECKING:
    from specdash.control.apply_engine import Promise
    from specdash.core.observations import Slots

ANSWER_S = 5.0
_HEALTH_S = 1.0
_PROBE_PROMPT = "the speculative decoder drafts several tokens, the speculative decoder drafts several"
_PROBE_TOKENS = 16
_HARD_PROBE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a check went. `warning` is for the operator; `detail` is what the step shows."""

    detail: str
    warning: str | None = None


def health(url: str) -> Health | None:
    """GET /health; None when nothing answers, or something that is no llama-server."""
    try:
        reply = ask(url, "/health", timeout=_HEALTH_S)
        return parse_health(reply.status, reply.body)
    except (OSError, ParseError):
        return None


def healthy(url: str) -> bool:
    """Whether /health says so."""
    found = health(url)
    return found is not None and found.status is HealthStatus.OK


def speculative(url: str, promise: Promise) -> bool | None:
    """Whether every slot drafts; None where that cannot be seen, or looking would wake a sleeping server."""
    if promise.router or _sleeps(url, promise):
        return None
    slots = _slots(url, promise)
    told = [] if isinstance(slots, str) else [slot.speculative for slot in slots.slots]
    return all(told) if told and None not in told else None


def check_speculation(url: str, promise: Promise) -> Verdict:
    """Raises `StepFailedError` when a slot does not do what the settings ask."""
    wanted = promise.speculates
    if promise.router:
        return Verdict("a router: each of its models has settings of its own")
    slots = _slots(url, promise)
    if isinstance(slots, str):
        return Verdict(slots, f"whether it speculates could not be checked: {slots}")
    told = [slot.speculative for slot in slots.slots]
    if wanted is None or None in told or not told:
        why = "the settings do not tell" if wanted is None else "this build's /slots does not tell"
        return Verdict(why, f"whether it speculates could not be checked: {why}")
    wrong = [slot.id for slot in slots.slots if slot.speculative is not wanted]
    if not wrong:
        return Verdict(f"{len(told)} slots draft" if wanted else "no slot drafts, as asked")
    if wanted:
        raise StepFailedError(f"it is healthy but does not speculate ({len(wrong)} of {len(told)} slots do not draft)")
    raise StepFailedError(f"it speculates although the settings ask for none ({len(wrong)} of {len(told)} slots draft)")


def probe(url: str, promise: Promise, timeout: float) -> Verdict:
    """Generate a few tokens, and a few more where no draft was rejected yet: some settings abort the server only then.

    Raises `StepFailedError` when there is no proper answer.
    """
    if promise.no_probe is not None:
        return Verdict(f"skipped: {promise.no_probe}")
    began = time.monotonic()
    first = _generate(url, promise, timeout, n_predict=_PROBE_TOKENS, temperature=0)
    tokens = _tokens(first)
    if promise.speculates and _rejected(first) == 0:
        left = max(1.0, timeout - (time.monotonic() - began))
        hard = _generate(
            url, promise, left, n_predict=_HARD_PROBE_TOKENS, temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=1
        )
        tokens += _tokens(hard)
    found = health(url)
    if found is None or found.status is not HealthStatus.OK:
        raise StepFailedError("it generated, and is not healthy any more")
    return Verdict(f"{tokens} tokens in {time.monotonic() - began:.1f} s")


def busy(url: str, promise: Promise) -> int | None:
    """Requests that the backend works on or has queued; None where it does not tell."""
    with contextlib.suppress(OSError, ParseError):
        reply = ask(url, "/metrics", headers=promise.headers, timeout=ANSWER_S)
        if reply.status == 200:
            counters = parse_metrics(reply.body)
            if counters.requests_processing is not None:
                return int(counters.requests_processing + (counters.requests_deferred or 0))
    if promise.router or _sleeps(url, promise):
        return None
    slots = _slots(url, promise)
    return None if isinstance(slots, str) else sum(slot.is_processing for slot in slots.slots)


def _slots(url: str, promise: Promise) -> Slots | str:
    """The slots, or in words why there are none to be seen."""
    try:
        reply = ask(url, "/slots", headers=promise.headers, timeout=ANSWER_S)
        if reply.status == 200:
            return parse_slots(reply.body)
    except (OSError, ParseError) as error:
        return f"/slots: {error}"
    return f"/slots answers HTTP {reply.status}"


def _sleeps(url: str, promise: Promise) -> bool:
    try:
        props = ask(url, "/props", headers=promise.headers, timeout=ANSWER_S).json
    except OSError:
        return False
    return isinstance(props, dict) and props.get("is_sleeping") is True


def _generate(url: str, promise: Promise, timeout: float, **parameters: Any) -> dict[str, Any]:
    body = {"prompt": _PROBE_PROMPT, "cache_prompt": False, "ignore_eos": True, "stream": False, **parameters}
    try:
        reply = ask(url, "/completion", headers=promise.headers, body=body, timeout=timeout)
    except OSError as error:
        words = "did not answer in time" if isinstance(error, TimeoutError) else f"broke off ({error})"
        raise StepFailedError(f"a first completion {words}") from None
    if reply.status != 200 or not isinstance(reply.json, dict):
        raise StepFailedError(f"a first completion failed: {_complaint(reply)}")
    found: dict[str, Any] = reply.json
    if not _tokens(found):
        raise StepFailedError("a first completion gave no tokens")
    return found


def _complaint(reply: Reply) -> str:
    said = error_message(reply.body)
    return f"HTTP {reply.status}{': ' if said else ''}{said}"


def _tokens(answer: dict[str, Any]) -> int:
    count = answer.get("tokens_predicted")
    if isinstance(count, int):
        return count
    return 1 if answer.get("content") else 0


def _rejected(answer: dict[str, Any]) -> int:
    """Draft tokens that the target did not take; 0 when nothing was drafted."""
    timings = answer.get("timings")
    if not isinstance(timings, dict):
        return 0
    drafted, accepted = timings.get("draft_n"), timings.get("draft_n_accepted")
    return drafted - accepted if isinstance(drafted, int) and isinstance(accepted, int) else 0
