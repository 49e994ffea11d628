"""Derives how much of the prompts was there already, and what that saves.

Sums are differences of /metrics counters. These print six significant digits, so above a million tokens, and where
there are no counters, they are those of the requests in the log or in the proxy's events. At verbosity 3 the log does
not print what was cached: there it is what the slot held at the end, less the answer and what was processed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from specdash.core.readings import Source
from specdash.core.token_speed import PREFILL, speed
from specdash.insight.acceptance import resolution
from specdash.insight.counter_log import delta
from specdash.insight.drafter_picture import PrefixCachePicture, PrefixRequest, PrefixSession, PrefixSlot
from specdash.insight.prefix_verdict import NO_COUNTERS, verdict_on
from specdash.insight.proxy_picture import ended_at
from specdash.insight.rates import lifetime_rates

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.observations import Slots
    from specdash.core.proxy_events import RequestEvent
    from specdash.insight.proxy import ProxyState
    from specdash.insight.requests import LoggedRequest
    from specdash.insight.state import TargetState

KEPT = 50
KEPT_SESSIONS = 20
WARM_SHARE = 0.5
"""A request is warm when this much of its prompt was cached."""
ROUNDING = 0.02
"""Counters are left aside where one step of theirs is more than this share of what they grew by."""
COMPARABLE = 0.25
"""A cold prompt below this share of the usual warm one says nothing of what a warm one would take cold."""
LEAST_PREFILL = 128
"""Fewer processed tokens than this are no measure of the prefill rate: a batch has a cost of its own."""
SAME_END_S = 3.0
_EVICTIONS = ("prompt_cache_evicted", "prompt_cache_skipped")


@dataclass(frozen=True, slots=True)
class _Sums:
    cached: int
    processed: int
    basis: str


def derive(state: TargetState, now: float, wall: float, window_s: float) -> PrefixCachePicture:
    """This part of the picture. The caller holds the state's lock."""
    requests = _requests(state, now, wall)
    recent = [one for one in requests if one.ended_age_s <= window_s]
    sums = _sums(state, now, window_s, requests)
    warm, cold = _ttfts(recent)
    if not warm or not cold:
        warm, cold = _ttfts(requests)
    rate = _prefill_rate(state)
    book = state.log.prompt_cache
    similar = [one.similarity for one in recent if one.similarity is not None]
    found = PrefixCachePicture(
        cached=sums.cached if sums is not None else None,
        processed=sums.processed if sums is not None else None,
        cached_share=_share(sums.cached, sums.processed) if sums is not None else None,
        lifetime_share=_lifetime_share(state),
        requests=tuple(requests),
        sessions=_sessions(state.proxy),
        slots=_slots(state, requests),
        ttft_warm_s=median(warm) if warm else None,
        ttft_cold_s=median(cold) if cold else None,
        warm=len(warm),
        cold=len(cold),
        saved_s=sums.cached / rate if sums is not None and rate is not None else None,
        entries=book.state.prompts if book.state is not None else None,
        size_mib=book.state.size_mib if book.state is not None else None,
        limit_mib=book.state.limit_mib if book.state is not None else None,
        hits=state.log.whole(book.hits),
        saves=state.log.whole(book.saves),
        evicted=state.log.whole(sum(state.log.storms.count(name) for name in _EVICTIONS)),
        full_reprocessed=book.read_again(now, window_s),
        similarity=median(similar) if similar else None,
        basis=sums.basis if sums is not None else "",
        ttft_basis=_ttft_basis(requests) if warm or cold else "",
        prefill_rate=rate,
        unknown=_unknown(state),
    )
    return verdict_on(found, window_s, _untold(state))


def _requests(state: TargetState, now: float, wall: float) -> list[PrefixRequest]:
    """Requests whose prompt's cost is known, newest first: the proxy's events, with slot and task where the log has the
    same request, and what the log alone knows of."""
    logged = [_of_log(max(0.0, now - at), one) for at, one in state.log.recent if one.prompt_tokens is not None]
    told: list[PrefixRequest] = []
    for event in reversed(state.proxy.finished):
        if len(told) >= KEPT:
            break
        if event.prompt_tokens is not None and event.cached_tokens is not None and event.at:
            told.append(_of_event(max(0.0, wall - ended_at(event)), event))
    if not told:
        return logged[:KEPT]
    by_size: dict[int | None, list[PrefixRequest]] = {}
    for one in logged:
        by_size.setdefault(one.processed, []).append(one)
    joined = [_joined(one, by_size.get(one.processed, [])) for one in told]
    rest = [one for same in by_size.values() for one in same]
    return sorted((*joined, *rest), key=lambda one: one.ended_age_s)[:KEPT]


def _of_log(age_s: float, request: LoggedRequest) -> PrefixRequest:
    processed = request.prompt_tokens or 0
    total, cached = request.prompt_total_tokens, request.prompt_cached
    if total is None and cached is not None:
        total = processed + cached
    elif total is None and request.slot_tokens is not None and request.decode_tokens and not request.truncated:
        # The last token of an answer is not put into the slot any more.
        total = max(processed, request.slot_tokens - request.decode_tokens + 1)
    return PrefixRequest(
        ended_age_s=age_s,
        slot=request.slot,
        task=request.task,
        prompt_tokens=total,
        # What was processed is the truth of it: after a restored checkpoint less than was held is used.
        cached=max(0, total - processed) if total is not None else None,
        processed=processed,
        ttft_s=request.prompt_ms / 1000.0 if request.prompt_ms is not None else None,
        similarity=request.similarity,
    )


def _of_event(age_s: float, event: RequestEvent) -> PrefixRequest:
    prompt, cached = event.prompt_tokens or 0, event.cached_tokens or 0
    return PrefixRequest(
        ended_age_s=age_s,
        session=event.session or None,
        prompt_tokens=prompt,
        cached=cached,
        processed=max(0, prompt - cached),
        ttft_s=event.ttft_s,
    )


def _joined(told: PrefixRequest, logged: list[PrefixRequest]) -> PrefixRequest:
    """The proxy's request with what the log adds; that one of the log is taken out of `logged`."""
    for index, one in enumerate(logged):
        if abs(one.ended_age_s - told.ended_age_s) <= SAME_END_S:
            del logged[index]
            return PrefixRequest(
                told.ended_age_s, one.slot, one.task, told.session, told.prompt_tokens, told.cached, told.processed,
                told.ttft_s, one.similarity,
            )  # fmt: skip
    return told


def _sums(state: TargetState, now: float, window_s: float, requests: Sequence[PrefixRequest]) -> _Sums | None:
    """Cached and processed tokens of the window; None where nothing tells them."""
    counted = _counted(state, now, window_s)
    known = [one for one in requests if one.cached is not None and one.processed is not None]
    recent = [one for one in known if one.ended_age_s <= window_s]
    basis = "proxy" if any(one.session is not None for one in recent) else "log"
    listed = _Sums(sum(one.cached or 0 for one in recent), sum(one.processed or 0 for one in recent), basis)
    if counted is None:
        return listed if known else None
    sums, error = counted
    covered = len(requests) < KEPT or len(recent) < len(requests)
    rounded = error > ROUNDING * max(1, sums.cached + sums.processed)
    return listed if rounded and recent and covered else sums


def _counted(state: TargetState, now: float, window_s: float) -> tuple[_Sums, float] | None:
    """What the counters grew by, and by how much that may be off; None where the server does not count."""
    bounds = state.window(now, window_s)
    if bounds is None or bounds[1].counters.prompt_tokens_cached is None or bounds[1].at < now - window_s:
        return None
    first, last = bounds[0].counters, bounds[1].counters
    cached = delta(first.prompt_tokens_cached, last.prompt_tokens_cached)
    processed = delta(first.prompt_tokens, last.prompt_tokens)
    if cached is None or processed is None:
        return None
    steps = [resolution(total) for total in (last.prompt_tokens_cached, last.prompt_tokens)]
    return _Sums(max(0, int(cached)), max(0, int(processed)), "counters"), sum(one for one in steps if one > 1)


def _lifetime_share(state: TargetState) -> float | None:
    last = state.counters.last
    if last is None or last.counters.prompt_tokens_cached is None or last.counters.prompt_tokens is None:
        return None
    return _share(last.counters.prompt_tokens_cached, last.counters.prompt_tokens)


def _share(cached: float, processed: float) -> float | None:
    total = cached + processed
    return cached / total if total else None


def _ttft_basis(requests: Iterable[PrefixRequest]) -> str:
    return "proxy" if any(one.session is not None and one.ttft_s is not None for one in requests) else "prompt"


def _ttfts(requests: Sequence[PrefixRequest]) -> tuple[list[float], list[float]]:
    """TTFT of warm and of cold requests: as clients had it where the proxy tells of any, else the prompt's time."""
    known = [one for one in requests if one.ttft_s is not None and one.cached_share is not None]
    if _ttft_basis(known) == "proxy":
        known = [one for one in known if one.session is not None]
    warm = [one for one in known if (one.cached_share or 0.0) >= WARM_SHARE]
    cold = [one for one in known if (one.cached_share or 0.0) < WARM_SHARE]
    if warm:
        usual = median(one.prompt_tokens or 0 for one in warm)
        cold = [one for one in cold if (one.prompt_tokens or 0) >= COMPARABLE * usual]
    return [one.ttft_s or 0.0 for one in warm], [one.ttft_s or 0.0 for one in cold]


def _sessions(proxy: ProxyState) -> tuple[PrefixSession, ...]:
    """The sessions, the most recent first. Events come seldom, looks often."""
    newest = proxy.finished[-1] if proxy.finished else None
    if newest is None:
        return ()
    if proxy.prefix_sessions is None or proxy.prefix_sessions[0] is not newest:
        proxy.prefix_sessions = newest, _of_sessions(proxy.finished)
    return proxy.prefix_sessions[1]


def _of_sessions(finished: Iterable[RequestEvent]) -> tuple[PrefixSession, ...]:
    by_session: dict[str, list[PrefixRequest]] = {}
    for event in finished:
        if event.session and event.prompt_tokens is not None and event.cached_tokens is not None:
            # One that is used again moves to the end.
            turns = by_session.pop(event.session, [])
            turns.append(_of_event(0.0, event))
            by_session[event.session] = turns
    found = []
    for name in list(reversed(by_session))[:KEPT_SESSIONS]:
        turns = by_session[name]
        warm, cold = _ttfts(turns)
        found.append(
            PrefixSession(
                id=name,
                requests=len(turns),
                cached=sum(one.cached or 0 for one in turns),
                processed=sum(one.processed or 0 for one in turns),
                ttft_warm_s=median(warm) if warm else None,
                ttft_cold_s=median(cold) if cold else None,
            )
        )
    return tuple(found)


def _slots(state: TargetState, requests: Sequence[PrefixRequest]) -> tuple[PrefixSlot, ...]:
    slots: Slots | None = state.value(Source.SLOTS)
    if slots is None:
        return ()
    similar: dict[int, float] = {}
    seen: set[int] = set()
    for one in requests:
        if one.slot is not None and one.slot not in seen:
            seen.add(one.slot)
            if one.similarity is not None:
                similar[one.slot] = one.similarity
    return tuple(
        PrefixSlot(slot.id, slot.n_prompt_tokens, similar.get(slot.id), slot.is_processing) for slot in slots.slots
    )


def _prefill_rate(state: TargetState) -> float | None:
    """Tokens per second of prompts long enough to tell, else of all since the server's start."""
    tokens, ms = 0, 0.0
    for _, one in state.log.recent:
        if one.prompt_tokens is not None and one.prompt_tokens >= LEAST_PREFILL and one.prompt_ms:
            tokens, ms = tokens + one.prompt_tokens, ms + one.prompt_ms
    last = state.counters.last
    return speed(tokens, ms, PREFILL) or (lifetime_rates(last.counters)[0] if last is not None else None)


def _untold(state: TargetState) -> str:
    """Why nothing tells what is cached; empty where something does, once there are prompts."""
    if Source.LOG in state.last_known or Source.PROXY_EVENTS in state.last_known:
        return ""
    last, latest = state.counters.last, state.latest.get(Source.METRICS)
    if last is not None and (latest is None or latest.failure is None):
        return "" if last.counters.prompt_tokens_cached is not None else NO_COUNTERS
    return f"/metrics: {latest.failure or 'no answer yet'}" if latest is not None else "/metrics was not asked yet"


def _unknown(state: TargetState) -> str:
    """What cannot be told, and what would tell it."""
    told = state.log.events.get("verbosity")
    level = told.get("verbosity") if told is not None else None
    if Source.LOG not in state.last_known:
        return "the prompt cache's entries and the slots' similarity: no log is read; name it with --log"
    if state.log.prompt_cache.state is None and level is not None and level.isdecimal() and int(level) < 4:
        return f"the prompt cache's entries: the log has verbosity {level}; LLAMA_LOG_VERBOSITY=4 tells them"
    if state.log.prompt_cache.state is None:
        return "the prompt cache's entries: LLAMA_LOG_VERBOSITY=4 tells them, once a slot was taken by another prompt"
    return ""
