"""Finished requests as samples: what each tells of speed and acceptance, and when it ran. Bounded; outlives servers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Outcome
from specdash.core.token_speed import DECODE, PREFILL, speed, told_speed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.proxy_events import RequestEvent
    from specdash.insight.requests import LoggedRequest

KEPT = 4096
HELD_S = 0.05
"""A request that the proxy held longer waited for something else than the server."""


@dataclass(frozen=True, slots=True)
class RequestSample:
    """One request that ran to its end. `began` and `ended` are Unix times; a figure that is not known, or that the
    request was too short for, is None."""

    began: float
    ended: float
    prompt_tokens: int | None = None
    """Length of the prompt, cached tokens included."""
    cached_tokens: int | None = None
    decode_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    decode_rate: float | None = None
    prefill_rate: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    """From the first generated token to the last: the time of `decode_tokens` - 1 tokens."""
    replays: int = 0
    """Decode calls that repeated tokens after a checkpoint was restored (LLAMA_TRACE=1)."""
    work: Work | None = None
    """What it was for, as the proxy saw it."""


class Work(StrEnum):
    """What a request was for, as far as the proxy can see."""

    TOOL_CALL = "tool call"
    """Tools were offered, and the answer called one."""
    AGENT_TEXT = "agent text"
    """Tools were offered, and the answer called none."""
    CHAT = "chat"
    """No tools were offered."""


class Samples:
    """The latest requests, of the log and of the proxy's events, each in the order in which they ended."""

    def __init__(self) -> None:
        self.logged: deque[RequestSample] = deque(maxlen=KEPT)
        self.told: dict[tuple[str, float], RequestSample] = {}
        """What the proxy told, by request and time of arrival: its file may be read twice."""
        self.left: deque[float] = deque(maxlen=KEPT)
        """When requests of the log were cancelled, because their client left or gave up; Unix times."""
        self.version = 0
        """Grows whenever a sample came."""
        self._undated: deque[tuple[float, LoggedRequest]] = deque(maxlen=KEPT)

    def add_logged(self, ended: float, request: LoggedRequest) -> None:
        """Take in a request of the log that ended at monotonic `ended`."""
        if request.cancelled or (request.completed and request.timed):
            self._undated.append((ended, request))

    def add_former(self, ended: Iterable[tuple[float, LoggedRequest]]) -> None:
        """Take in requests of a server before all that are there, with the Unix times of their ends, in that order."""
        found = [_of_log(at, one) for at, one in ended if one.completed and one.timed]
        self.logged = deque([*found, *self.logged], maxlen=KEPT)
        self.version += 1

    def add_event(self, event: RequestEvent) -> None:
        """Take in a request of the proxy's events."""
        if event.outcome is not Outcome.OK or event.duration_s is None or not event.at:
            return
        if event.retries or (event.held_s or 0.0) > HELD_S:
            return
        key = (event.request_id, event.at)
        if key in self.told:
            return
        while len(self.told) >= KEPT:
            del self.told[next(iter(self.told))]
        self.told[key] = _of_event(event, event.duration_s)
        self.version += 1

    def date(self, now: float, wall: float) -> None:
        """Give the requests of the log that came since the last call their Unix times; `now` and `wall` are one moment.

        Soon after they came, so that a clock that is set or a machine that sleeps does not move them.
        """
        while self._undated:
            at, request = self._undated.popleft()
            if request.cancelled:
                self.left.append(at + wall - now)
                continue
            self.logged.append(_of_log(at + wall - now, request))
            self.version += 1


def _of_log(ended: float, request: LoggedRequest) -> RequestSample:
    processed, cached = request.prompt_tokens, request.prompt_cached
    total = request.prompt_total_tokens
    if total is None and request.slot_tokens is not None and request.decode_tokens is not None:
        total = max(processed or 0, request.slot_tokens - request.decode_tokens)
    if total is None and processed is not None:
        total = processed + (cached or 0)
    return RequestSample(
        began=ended - _duration_s(request),
        ended=ended,
        prompt_tokens=total,
        cached_tokens=cached if cached is not None or total is None or processed is None else max(0, total - processed),
        decode_tokens=request.decode_tokens,
        drafted=request.draft_generated,
        accepted=request.draft_accepted,
        decode_rate=speed(request.decode_tokens, request.decode_ms, DECODE),
        prefill_rate=speed(processed, request.prompt_ms, PREFILL),
        ttft_s=_positive(request.prompt_ms / 1000.0 if request.prompt_ms is not None else None),
        decode_s=_positive(request.decode_ms / 1000.0 if request.decode_ms is not None else None),
        replays=request.replays,
    )


def _of_event(event: RequestEvent, duration_s: float) -> RequestSample:
    prompt, cached, decoded = event.prompt_tokens, event.cached_tokens, event.completion_tokens
    processed = prompt - (cached or 0) if prompt is not None else 0
    return RequestSample(
        began=event.at,
        ended=event.at + duration_s,
        prompt_tokens=prompt,
        cached_tokens=cached,
        decode_tokens=decoded,
        drafted=event.draft_tokens,
        accepted=event.accepted_tokens,
        decode_rate=told_speed(event.decode_rate, decoded or 0, DECODE),
        prefill_rate=told_speed(event.prefill_rate, processed, PREFILL),
        ttft_s=_positive(event.ttft_s),
        decode_s=_positive(event.decode_s),
        work=_work(event),
    )


def _work(event: RequestEvent) -> Work | None:
    if event.tool_calls:
        return Work.TOOL_CALL
    if event.tools is None or event.tool_calls is None:
        return None
    return Work.AGENT_TEXT if event.tools else Work.CHAT


def _duration_s(request: LoggedRequest) -> float:
    if request.started_s is not None and request.at_s is not None and request.at_s >= request.started_s:
        return request.at_s - request.started_s
    parts = (request.prompt_ms or 0.0) + (request.decode_ms or 0.0)
    total = request.total_ms if request.total_ms is not None else parts
    return total / 1000.0 if isfinite(total) and total > 0 else 0.0


def _positive(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and value > 0 else None
