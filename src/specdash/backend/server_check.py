"""What a server shows of itself when it is asked: its health, whether its slots draft, and a first completion.

The runner asks after every start, an apply before it lets requests pass again: here, so that both know the same.
Nothing is asked that would wake a sleeping server, or load a router's model.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.backend.local_http import Cancel, Reply, ask
from specdash.core.observations import Health, HealthStatus
from specdash.core.speculation import spec_type
from specdash.core.start_check import Completion
from specdash.llama.bodies import ParseError, error_message
from specdash.llama.health import parse_health
from specdash.llama.metrics import parse_metrics
from specdash.llama.slots import parse_slots

if TYPE_CHECKING:
    from specdash.backend.promise import Promise
    from specdash.core.observations import Slots

ANSWER_S = 5.0
_HEALTH_S = 1.0
_NOT_ALLOWED = (401, 403, 429, 503)
SHORT_PROMPT = "the speculative decoder drafts several tokens, the speculative decoder drafts several"
LONG_PROMPT = (
    "Count the lanterns along the harbour wall: one, two, three, four, five, six, seven, eight, nine, ten, eleven, "
    "twelve, and then begin again at the first of them without a pause.\n"
)
"""Long enough that n-grams of 24 tokens are in it."""
PROBE_TOKENS = 16
_HARD_TOKENS = 32
_HARD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
"""What no draft can guess: some settings abort the server only at a rejected token."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a first completion gave. `problem` says in words why there is no proper answer, "" when there is one."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    tasks: tuple[int, ...] = ()
    """The numbers of its tasks in the server's log, where /slots told them."""
    problem: str = ""
    completion: Completion = Completion.ANSWERED

    @property
    def rejected(self) -> int:
        """Draft tokens that the target did not take."""
        return self.drafted - self.accepted

    def and_then(self, more: Probed) -> Probed:
        """Both together."""
        return Probed(
            self.tokens + more.tokens,
            self.drafted + more.drafted,
            self.accepted + more.accepted,
            self.seconds + more.seconds,
            (*self.tasks, *more.tasks),
            more.problem,
            more.completion,
        )


def health(url: str, cancel: Cancel | None = None) -> Health | None:
    """GET /health; None when nothing answers, or something that is no llama-server."""
    try:
        reply = ask(url, "/health", timeout=_HEALTH_S, cancel=cancel)
        return parse_health(reply.status, reply.body)
    except (OSError, ParseError):
        return None


def healthy(url: str, cancel: Cancel | None = None) -> bool:
    """Whether /health says so."""
    found = health(url, cancel)
    return found is not None and found.status is HealthStatus.OK


def slots_of(url: str, promise: Promise, cancel: Cancel | None = None) -> Slots | str:
    """The slots, or in words why there are none to be seen."""
    try:
        reply = ask(url, "/slots", headers=promise.headers, timeout=ANSWER_S, cancel=cancel)
        if reply.status == 200:
            return parse_slots(reply.body)
    except (OSError, ParseError) as error:
        return f"/slots: {error}"
    return f"/slots answers HTTP {reply.status}"


def sleeps(url: str, promise: Promise, cancel: Cancel | None = None) -> bool:
    """Whether the server sleeps, so that looking at its slots would wake it."""
    try:
        props = ask(url, "/props", headers=promise.headers, timeout=ANSWER_S, cancel=cancel).json
    except OSError:
        return False
    return isinstance(props, dict) and props.get("is_sleeping") is True


def busy(url: str, promise: Promise) -> int | None:
    """Requests that the backend works on or has queued; None where it does not tell."""
    with contextlib.suppress(OSError, ParseError):
        reply = ask(url, "/metrics", headers=promise.headers, timeout=ANSWER_S)
        if reply.status == 200:
            counters = parse_metrics(reply.body)
            if counters.requests_processing is not None:
                return int(counters.requests_processing + (counters.requests_deferred or 0))
    if promise.router or sleeps(url, promise):
        return None
    found = slots_of(url, promise)
    return None if isinstance(found, str) else sum(slot.is_processing for slot in found.slots)


def probe(url: str, promise: Promise, timeout: float, *, patience: float, cancel: Cancel | None = None) -> Probed:
    """Generate a few tokens, and a few more where that has not shown everything yet.

    Where nothing was drafted and n-gram types draft, the answer is put into the prompt, so that there is something to
    repeat. Where a draft model drafts and no token of it was rejected, something is generated that no draft can guess:
    some settings abort the server only then. `timeout` bounds all of it; more is asked only when the first took less
    than `patience`, in seconds.
    """
    kinds = [one for one in map(spec_type, promise.types) if one is not None]
    repeats = bool(promise.speculates) and any(not one.reads_draft_model for one in kinds)
    asking = _Asking(url, promise, timeout, cancel)
    prompt = LONG_PROMPT if repeats else SHORT_PROMPT
    found = asking.generate(prompt, PROBE_TOKENS, temperature=0, return_tokens=repeats)
    if found.problem or found.seconds > patience:
        return found
    if repeats and not found.drafted and asking.tokens:
        found = found.and_then(asking.generate([prompt, *asking.tokens, prompt], PROBE_TOKENS, temperature=0))
    if drafts_with_a_model(promise) and not found.problem and not found.rejected:
        found = found.and_then(asking.generate(SHORT_PROMPT, _HARD_TOKENS, **_HARD))
    return found


def drafts_with_a_model(promise: Promise) -> bool:
    """Whether a model drafts for it, as far as its settings tell."""
    kinds = [one for one in map(spec_type, promise.types) if one is not None]
    return bool(promise.speculates) and (not kinds or any(one.reads_draft_model for one in kinds))


class _Asking:
    """Completions, one after the other, before one deadline."""

    def __init__(self, url: str, promise: Promise, timeout: float, cancel: Cancel | None) -> None:
        self._url = url
        self._promise = promise
        self._deadline = time.monotonic() + timeout
        self._cancel = cancel
        self.tokens: list[int] = []
        """What the last one generated, where it was asked to tell."""

    def generate(self, prompt: Any, count: int, **parameters: Any) -> Probed:
        body = {"prompt": prompt, "n_predict": count, "cache_prompt": False, "ignore_eos": True, "stream": False}
        began = time.monotonic()
        left = max(1.0, self._deadline - began)
        try:
            reply = ask(
                self._url,
                "/completion",
                headers=self._promise.headers,
                body={**body, **parameters},
                timeout=left,
                cancel=self._cancel,
            )
        except OSError as error:
            late = isinstance(error, TimeoutError)
            words = "did not answer in time" if late else f"broke off ({error})"
            how = Completion.LATE if late else Completion.BROKEN_OFF
            return Probed(seconds=time.monotonic() - began, problem=f"a first completion {words}", completion=how)
        seconds = time.monotonic() - began
        if reply.status != 200 or not isinstance(reply.json, dict):
            how = Completion.NOT_ALLOWED if reply.status in _NOT_ALLOWED else Completion.FAILED
            said = f"a first completion failed: {_complaint(reply)}"
            return Probed(seconds=seconds, problem=said, completion=how)
        answer: dict[str, Any] = reply.json
        tokens = _tokens(answer)
        if not tokens:
            said = "a first completion gave no tokens"
            return Probed(seconds=seconds, problem=said, completion=Completion.FAILED)
        told = answer.get("tokens")
        self.tokens = [one for one in told if isinstance(one, int)] if isinstance(told, list) else []
        drafted, accepted = _drafts(answer)
        return Probed(tokens, drafted, accepted, seconds, self._task_in(answer.get("id_slot")))

    def _task_in(self, slot: object) -> tuple[int, ...]:
        """The last task of the slot that answered."""
        slots = slots_of(self._url, self._promise, self._cancel) if isinstance(slot, int) else ""
        if isinstance(slots, str):
            return ()
        return tuple(one.task for one in slots.slots if one.id == slot and one.task is not None)


def _complaint(reply: Reply) -> str:
    said = error_message(reply.body)
    return f"HTTP {reply.status}{': ' if said else ''}{said}"


def _tokens(answer: dict[str, Any]) -> int:
    count = answer.get("tokens_predicted")
    if isinstance(count, int):
        return count
    return 1 if answer.get("content") else 0


def _drafts(answer: dict[str, Any]) -> tuple[int, int]:
    """Drafted and accepted tokens; 0 when nothing was drafted."""
    timings = answer.get("timings")
    if not isinstance(timings, dict):
        return 0, 0
    drafted, accepted = timings.get("draft_n"), timings.get("draft_n_accepted")
    return (drafted, accepted) if isinstance(drafted, int) and isinstance(accepted, int) else (0, 0)
