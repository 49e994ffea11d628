"""Derives how much of the prompts was there already, and what that saves.

Sums are differences of /metrics counters. These print six significant digits, so above a million tokens, and where
there are no counters, they are those of the requests in the log or in the proxy's events. At verbosity 3 the log does
not print what was cached: there it is what the slot held at the end, less the answer and what was processed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.proxy_events import PREFILL, speed
from specdash.core.readings import Source
from specdash.insight.log.counter_log import delta
from specdash.insight.picture import PrefixCachePicture, PrefixSession, PrefixSlot, ended_at
from specdash.insight.proxy.read_again import read_again, summed
from specdash.insight.rates import lifetime_rates
from specdash.insight.request import of_event, told_ttft
from specdash.insight.speculation.acceptance import resolution
from specdash.system.stats import median, share
from specdash.system.text import counted, duration, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.proxy_events import RequestEvent
    from specdash.core.readings import Slots
    from specdash.insight.request import ServedRequest
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
WELL = 0.5
"""From this share of cached tokens on there is nothing to explain."""
FULL = 0.95
LOW_SIMILARITY = 0.5
NO_COUNTERS = "/metrics does not count it (builds since August 2026 do)"
_EVICTIONS = ("prompt_cache_evicted", "prompt_cache_skipped")


class _Sums(Struct, frozen=True):
    cached: int
    processed: int
    basis: str


def derive(state: TargetState, now: float, wall: float, window_s: float) -> PrefixCachePicture:
    """This part of the picture. The caller holds the state's lock."""
    requests = _requests(state, now, wall)
    recent = [request for request in requests if request.ended_age_s <= window_s]
    sums = _sums(state, now, window_s, requests)
    warm, cold = _ttfts(recent)
    if not warm or not cold:
        warm, cold = _ttfts(requests)
    rate = _prefill_rate(state)
    book = state.log.prompt_cache
    dropped = any(state.log.storms.count(name) for name in _EVICTIONS)
    again = (read_again(request, dropped=dropped) for request in recent)
    found = PrefixCachePicture(
        cached=sums.cached if sums is not None else None,
        processed=sums.processed if sums is not None else None,
        cached_share=share(sums.cached, sums.cached + sums.processed) if sums is not None else None,
        lifetime_share=_lifetime_share(state),
        requests=tuple(requests),
        sessions=state.memo.once(
            "prefix sessions", (state.proxy, state.proxy.version), lambda: _sessions(state.proxy.finished)
        ),
        slots=_slots(state, requests),
        ttft_warm_s=median(warm),
        ttft_cold_s=median(cold),
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
        similarity=median(prefix_request.similarity for prefix_request in recent),
        basis=sums.basis if sums is not None else "",
        ttft_basis=_ttft_basis(requests) if warm or cold else "",
        prefill_rate=rate,
        read_again=summed(one for one in again if one is not None),
        unknown=_unknown(state),
    )
    return verdict_on(found, window_s, _missing(state))


def _requests(state: TargetState, now: float, wall: float) -> list[ServedRequest]:
    """Requests whose prompt's cost is known, newest first: the proxy's events, with slot and task where the log has the
    same request, and what the log alone knows of."""
    known = (
        request.aged(max(0.0, now - at)) for at, request in state.log.recent if request.processed_tokens is not None
    )
    from_proxy: list[ServedRequest] = []
    for event in reversed(state.proxy.finished):
        if len(from_proxy) >= KEPT:
            break
        if event.prompt_tokens is not None and event.cached_tokens is not None and event.at:
            from_proxy.append(of_event(event).aged(max(0.0, wall - ended_at(event))))
    if not from_proxy:
        return list(islice(known, KEPT))
    logged = [*known]
    by_size: dict[int | None, list[ServedRequest]] = {}
    for prefix_request in logged:
        by_size.setdefault(prefix_request.processed_tokens, []).append(prefix_request)
    joined = [
        _joined(prefix_request, by_size.get(prefix_request.processed_tokens, [])) for prefix_request in from_proxy
    ]
    rest = [prefix_request for same in by_size.values() for prefix_request in same]
    return sorted((*joined, *rest), key=lambda prefix_request: prefix_request.ended_age_s)[:KEPT]


def _joined(from_proxy: ServedRequest, logged: list[ServedRequest]) -> ServedRequest:
    """The proxy's request with what the log adds; that one of the log is taken out of `logged`."""
    for index, request in enumerate(logged):
        if abs(request.ended_age_s - from_proxy.ended_age_s) <= SAME_END_S:
            del logged[index]
            return replace(
                from_proxy,
                slot=request.slot,
                task=request.task,
                similarity=request.similarity,
                selected=request.selected,
                no_checkpoint=request.no_checkpoint,
            )
    return from_proxy


def _sums(state: TargetState, now: float, window_s: float, requests: Sequence[ServedRequest]) -> _Sums | None:
    """Cached and processed tokens of the window; None where nothing tells them."""
    counted = _counted(state, now, window_s)
    known = [
        request for request in requests if request.cached_tokens is not None and request.processed_tokens is not None
    ]
    recent = [prefix_request for prefix_request in known if prefix_request.ended_age_s <= window_s]
    basis = "proxy" if any(prefix_request.session is not None for prefix_request in recent) else "log"
    listed = _Sums(
        sum(prefix_request.cached_tokens or 0 for prefix_request in recent),
        sum(prefix_request.processed_tokens or 0 for prefix_request in recent),
        basis,
    )
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
    return _Sums(max(0, int(cached)), max(0, int(processed)), "counters"), sum(step for step in steps if step > 1)


def _lifetime_share(state: TargetState) -> float | None:
    life = state.counters.life
    if life is None:
        return None
    first, last = life[0].counters, life[1].counters
    cached = delta(first.prompt_tokens_cached, last.prompt_tokens_cached)
    processed = delta(first.prompt_tokens, last.prompt_tokens)
    return share(cached, cached + processed) if cached is not None and processed is not None else None


def _ttft_basis(requests: Iterable[ServedRequest]) -> str:
    return (
        "proxy" if any(request.session is not None and request.ttft_s is not None for request in requests) else "prompt"
    )


def _ttfts(requests: Sequence[ServedRequest]) -> tuple[list[float], list[float]]:
    """TTFT of warm and of cold requests: as clients had it where the proxy tells of any, else the prompt's time."""
    is_told = _ttft_basis(requests) == "proxy"
    return _warm_and_cold(
        (request.prompt_tokens, request.cached_tokens, request.ttft_s)
        for request in requests
        if request.session is not None or not is_told
    )


def _warm_and_cold(prompts: Iterable[tuple[int | None, int | None, float | None]]) -> tuple[list[float], list[float]]:
    """TTFT of warm and of cold prompts, each of so many tokens, of which so many were cached."""
    warm: list[float] = []
    lengths: list[int] = []
    cold: list[tuple[int, float]] = []
    for length, cached, ttft_s in prompts:
        if ttft_s is None or not length or cached is None:
            continue
        if cached / length >= WARM_SHARE:
            warm.append(ttft_s)
            lengths.append(length)
        else:
            cold.append((length, ttft_s))
    least = COMPARABLE * (median(lengths) or 0)
    return warm, [ttft_s for length, ttft_s in cold if length >= least]


def _sessions(finished: Iterable[RequestEvent]) -> tuple[PrefixSession, ...]:
    """The sessions, the most recent first."""
    by_session: dict[str, list[RequestEvent]] = {}
    for event in finished:
        if event.session and event.prompt_tokens is not None and event.cached_tokens is not None:
            # One that is used again moves to the end.
            events = by_session.pop(event.session, [])
            events.append(event)
            by_session[event.session] = events
    found = []
    for name in list(reversed(by_session))[:KEPT_SESSIONS]:
        turns = by_session[name]
        prompts = [(event.prompt_tokens or 0, event.cached_tokens or 0, told_ttft(event)) for event in turns]
        warm, cold = _warm_and_cold(prompts)
        found.append(
            PrefixSession(
                id=name,
                requests=len(turns),
                cached=sum(cached for _, cached, _ in prompts),
                processed=sum(max(0, length - cached) for length, cached, _ in prompts),
                ttft_warm_s=median(warm),
                ttft_cold_s=median(cold),
            )
        )
    return tuple(found)


def _slots(state: TargetState, requests: Sequence[ServedRequest]) -> tuple[PrefixSlot, ...]:
    slots: Slots | None = state.value(Source.SLOTS)
    if slots is None:
        return ()
    similar: dict[int, float] = {}
    seen: set[int] = set()
    for request in requests:
        if request.slot is not None and request.slot not in seen:
            seen.add(request.slot)
            if request.similarity is not None:
                similar[request.slot] = request.similarity
    return tuple(
        PrefixSlot(slot.id, slot.n_prompt_tokens, similar.get(slot.id), slot.is_processing) for slot in slots.slots
    )


def _prefill_rate(state: TargetState) -> float | None:
    """Tokens per second of prompts long enough to tell, else of all since the server's start."""
    tokens, ms = 0, 0.0
    for _, logged_request in state.log.recent:
        if (
            logged_request.processed_tokens is not None
            and logged_request.processed_tokens >= LEAST_PREFILL
            and logged_request.prompt_ms
        ):
            tokens, ms = tokens + logged_request.processed_tokens, ms + logged_request.prompt_ms
    life = state.counters.life
    return speed(tokens, ms, PREFILL) or (lifetime_rates(*(s.counters for s in life))[0] if life is not None else None)


def _missing(state: TargetState) -> str:
    """Why nothing tells what is cached; empty where something does, once there are prompts."""
    if Source.LOG in state.last_known or Source.PROXY_EVENTS in state.last_known:
        return ""
    last, latest = state.counters.last, state.latest.get(Source.METRICS)
    if last is not None and (latest is None or latest.failure is None):
        return "" if last.counters.prompt_tokens_cached is not None else NO_COUNTERS
    return f"/metrics: {latest.failure or 'no answer yet'}" if latest is not None else "/metrics was not asked yet"


def _unknown(state: TargetState) -> str:
    """What is unknown, and what would show it."""
    from_proxy = state.log.events.get("verbosity")
    level = from_proxy.get("verbosity") if from_proxy is not None else None
    if Source.LOG not in state.last_known:
        return "the prompt cache's entries and the slots' similarity: no log is read; name it with --log"
    if state.log.prompt_cache.state is None and level is not None and level.isdecimal() and int(level) < 4:
        return f"the prompt cache's entries: the log has verbosity {level}; LLAMA_LOG_VERBOSITY=4 tells them"
    if state.log.prompt_cache.state is None:
        return "the prompt cache's entries: LLAMA_LOG_VERBOSITY=4 tells them, once a slot was taken by another prompt"
    return ""


def verdict_on(found: PrefixCachePicture, window_s: float, untold: str = "") -> PrefixCachePicture:
    """The same with its verdict. `untold` is why nothing tells what is cached; empty where something does, even if
    there was no prompt yet."""
    if untold:
        words = f"not known how much of the prompts was cached: {untold}, and no log is read; name it with --log"
        return replace(found, verdict=words)
    return replace(found, verdict=_verdict(found, window_s))


def _verdict(found: PrefixCachePicture, window_s: float) -> str:
    if found.cached_share is None:
        nothing = f"no prompt seen in the last {duration(window_s)}"
        if found.lifetime_share is None:
            return nothing
        return f"{nothing}; since the start {_cached(found.lifetime_share)}"
    came = _cached(found.cached_share)
    why = _why_little(found)
    if found.full_reprocessed and (found.cached_share < WELL or found.full_reprocessed > 1):
        prompts = counted(found.full_reprocessed, "prompt was", "prompts were")
        return f"{came}; {prompts} read from the start because no checkpoint was available"
    if found.cached_share < WELL and why:
        return f"{why}; only {came}" if found.cached else why
    return came + _ttft(found)


def _cached(share: float) -> str:
    return f"{percent(share, bounded=True)} of prompt tokens came from the cache"


def _why_little(found: PrefixCachePicture) -> str:
    if found.size_mib is not None and found.limit_mib and found.size_mib > found.limit_mib and found.entries == 1:
        held = f"{found.size_mib:.0f} MiB against a limit of {found.limit_mib:.0f}"
        return (
            f"one prompt alone is over the cache's limit: {held}; raise LLAMA_ARG_CACHE_RAM only where the machine has "
            "that much memory to spare, else set it to 0"
        )
    if found.size_mib is not None and found.limit_mib and found.size_mib >= FULL * found.limit_mib:
        dropped = f", {counted(found.evicted, 'prompt')} dropped" if found.evicted else ""
        return f"cache full: {found.size_mib:.0f} of {found.limit_mib:.0f} MiB{dropped}; raise LLAMA_ARG_CACHE_RAM"
    if found.evicted:
        dropped = counted(found.evicted, "prompt was", "prompts were")
        return f"cache too small: {dropped} dropped to make room; raise LLAMA_ARG_CACHE_RAM"
    if found.similarity is not None and found.similarity < LOW_SIMILARITY:
        return f"prompts change near their beginning: similarity {found.similarity:.2f}"
    return ""


def _ttft(found: PrefixCachePicture) -> str:
    word = "TTFT" if found.ttft_basis == "proxy" else "prompt time"
    warm, cold = found.ttft_warm_s, found.ttft_cold_s
    # Warm prompts may be so much longer that they take longer all the same: then this says nothing of the cache.
    if warm is not None and cold is not None and warm < cold:
        return f"; warm {word} {seconds(warm, ms=True, narrow=True)} against {seconds(cold, ms=True)} cold"
    if found.cached and found.saved_s is not None and found.saved_s >= 0.01:
        return f", which saved {seconds(found.saved_s, ms=True, narrow=True)} of prefill"
    return ""
