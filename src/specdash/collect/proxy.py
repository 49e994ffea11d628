"""Polls one proxy's live picture: GET /v1/context, with its own deadline, until cancelled."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.collect.backend import MAX_INTERVAL_S, MIN_INTERVAL_S, PollPace, poll
from specdash.core.proxy_events import ProxyStatus, SessionView, status_from_json
from specdash.core.readings import Failure, FailureKind, Reading, Source
from specdash.core.target import Target
from specdash.llama.client import LlamaClient
from specdash.llama.server_answers import ParseError, flag, load_object, mapping, natural, text

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 2.0
_WORDS = {
    FailureKind.UNAUTHORIZED: "the proxy wants its API key; name it with --proxy-key-env NAME",
    FailureKind.NOT_FOUND: "no /v1/context there; is it the proxy's address?",
}
"""What to do about a failure, in place of its own words."""


class ProxyPoller:
    """Publishes PROXY readings of the target's proxy until its `run` is cancelled."""

    def __init__(
        self,
        target: Target,
        publish: Callable[[Reading[Any]], None],
        *,
        interval_s: float = 1.0,
        pace: PollPace | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Raises UsageError when the address cannot be meant. The target names a proxy."""
        is_recorded = "proxy_key" in target.proxy_found
        self._client = LlamaClient(
            Target(target.proxy_url or "", api_key=target.proxy_key, key_is_recorded=is_recorded), "a proxy"
        )
        self._publish = publish
        self._pace = pace or PollPace()
        self._deadline_s = deadline_s
        self._wake = asyncio.Event()
        self._misses = 0
        self._has_answered = False
        self.set_interval(interval_s)

    def set_interval(self, interval_s: float) -> None:
        """Seconds between two looks; kept within the bounds of all pollers."""
        self._interval = min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
        self._wake.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        await poll(Source.PROXY, self.look, self._publish, self._pause, self._wake)

    async def look(self) -> ProxyStatus | Failure:
        """Ask once."""
        found = await self._client.ask("/v1/context", self._parse, self._deadline_s)
        if isinstance(found, Failure):
            return replace(found, detail=_WORDS.get(found.kind, found.detail))
        return found

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    def _parse(self, body: bytes) -> ProxyStatus:
        """Of an answer that is another than the one before it."""
        changed_at, self._has_answered = time.time() if self._has_answered else 0.0, True
        return parse_context(body, changed_at)

    def _pause(self, result: ProxyStatus | Failure) -> float:
        self._misses = self._misses + 1 if isinstance(result, Failure) else 0
        if not isinstance(result, Failure):
            return self._interval
        return self._pace.settled if result.kind is FailureKind.DISABLED else self._pace.retry(self._misses)


UAP = "UAP"
"""What stands for the version of a proxy that has none and answers as the UAP proxy does."""

_UAP_FIELDS = frozenset({"active_session_id", "last_input_tokens", "utilization", "loop_protection"})


def parse_context(body: bytes, changed_at: float = 0.0) -> ProxyStatus:
    """The proxy's picture from the body of GET /v1/context. Raises ParseError when it is no proxy's.

    A UAP proxy does not date its last request: `changed_at`, the Unix time of a change that was seen, stands for it,
    and 0 for not known.
    """
    answer = load_object(body)
    if "status" in answer:
        status = status_from_json(answer["status"])
        if status is None:
            raise ParseError("a status of another form")
        return status
    if not _UAP_FIELDS & answer.keys():
        raise ParseError("a JSON object without a proxy's status")
    return _uap_status(answer, changed_at)


_UAP_COUNTS = {
    "requests": "total_requests",
    "prunes": "prune_count",
    "overflows": "overflow_count",
    "loop_repeats": "loop_repeat_count",
    "no_progress": "no_progress_streak",
    "loop_warnings": "loop_warnings_emitted",
    "malformed_streak": "malformed_tool_streak",
    "contamination_resets": "contamination_resets",
    "unexpected_ends": "unexpected_end_turn_count",
}
"""By our name; where nothing is counted, that is 0."""
_UAP_FIGURES = {
    "context_tokens": "last_input_tokens",
    "context_window": "context_window",
    "peak_tokens": "peak_input_tokens",
    "output_tokens": "last_output_tokens",
    "turns_remaining": "estimated_turns_remaining",
}


def _uap_status(answer: dict[str, Any], changed_at: float) -> ProxyStatus:
    given = {**answer, **mapping(answer.get("loop_protection"))}
    counts: dict[str, Any] = {name: natural(given.get(theirs)) or 0 for name, theirs in _UAP_COUNTS.items()}
    figures: dict[str, Any] = {name: natural(given.get(theirs)) for name, theirs in _UAP_FIGURES.items()}
    is_looping = bool(flag(given.get("is_looping")))
    session = text(answer.get("active_session_id"))
    sessions: tuple[SessionView, ...] = ()
    if session is not None and counts["requests"]:
        sessions = (SessionView(session, changed_at, is_looping=is_looping, **counts, **figures),)
    return ProxyStatus(
        version=UAP,
        context_window=figures["context_window"],
        requests=counts["requests"],
        sessions=sessions,
        session_count=natural(answer.get("session_count")) or len(sessions),
    )
