"""Derives how much of the prompts was there already, and what that saves.

Sums are differences of /metrics counters. These print six significant digits, so above a million tokens, and where
there are no counters, they are those of the requests in the log or in the proxy's events. At verbosity 3 the log does
not print what was cached: there it is what the slot held at the end, less the answer and what was processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.proxy_events import PREFILL, speed
from specdash.core.readings import Source
from specdash.insight.log.counter_log import delta
from specdash.insight.picture import PrefixCachePicture, PrefixSession, PrefixSlot
from specdash.insight.proxy.read_again import read_again, summed
from specdash.insight.rates import lifetime_rates
from specdash.insight.request import of_event
from specdash.insight.speculation.acceptance import resolution
from specdash.system.stats import median, share
from specdash.system.text import counted, duration, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.readings import Slots
    from specdash.insight.log.counter_log import Scrape
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


def derive(state: TargetState, now: float, wall: float, window_s: float) -> PrefixCachePicture:
    """This part of the picture. The caller holds the state's lock."""
    told = state.memo.once("prompts of the proxy", (state.proxy, state.proxy.version), lambda: _told(state))
    requests = _requests(state, told, now, wall)
    recent = [request for request in requests if request.ended_age_s <= window_s]
    cached, processed, basis = _sums(state, now, window_s, requests)
    warm, cold = _ttfts(recent)
    if not warm or not cold:
        warm, cold = _ttfts(requests)
    rate = _prefill_rate(state)
    log, kept, life = state.log, state.log.cache_state, state.counters.life
    evicted = sum(log.storms.count(name) for name in _EVICTIONS)
    again = (read_again(request, dropped=evicted > 0) for request in recent)
    lifetime = _grown(*life) if life is not None else None
    found = PrefixCachePicture(
        cached=cached,
        processed=processed,
        cached_share=share(cached, cached + processed) if cached is not None and processed is not None else None,
        lifetime_share=share(lifetime[0], sum(lifetime)) if lifetime is not None else None,
        requests=tuple(requests),
        sessions=state.memo.once("prefix sessions", told, lambda: _sessions(told)),
        slots=_slots(state, requests),
        ttft_warm_s=median(warm),
        ttft_cold_s=median(cold),
        warm=len(warm),
        cold=len(cold),
        saved_s=cached / rate if cached is not None and rate is not None else None,
        entries=kept.prompts if kept is not None else None,
        size_mib=kept.size_mib if kept is not None else None,
        limit_mib=kept.limit_mib if kept is not None else None,
        hits=log.whole(log.here["prompt_cache_hit"]),
        saves=log.whole(log.here["prompt_cache_saved"]),
        evicted=log.whole(evicted),
        full_reprocessed=log.full_reprocessed.since(now - window_s),
        similarity=median(request.similarity for request in recent),
        basis=basis,
        ttft_basis=_ttft_basis(requests) if warm or cold else "",
        prefill_rate=rate,
        read_again=summed(one for one in again if one is not None),
        unknown=_unknown(state),
    )
    missing = _missing(state)
    if missing:
        words = f"not known how much of the prompts was cached: {missing}, and no log is read; name it with --log"
        return replace(found, verdict=words)
    return replace(found, verdict=verdict_on(found, window_s))


def _told(state: TargetState) -> tuple[ServedRequest, ...]:
    """The proxy's requests whose prompt's cost is known, newest first."""
    return tuple(
        of_event(event)
        for event in reversed(state.proxy.finished)
        if event.prompt_tokens is not None and event.cached_tokens is not None and event.at
    )


def _requests(state: TargetState, told: Sequence[ServedRequest], now: float, wall: float) -> list[ServedRequest]:
    """Requests whose prompt's cost is known, newest first: the proxy's events, with slot and task where the log has the
    same request, and what the log alone knows of."""
    logged = [
        request.aged(max(0.0, now - at)) for at, request in state.log.recent if request.processed_tokens is not None
    ]
    joined = []
    for event in told[:KEPT]:
        request = event.aged(max(0.0, wall - event.ended))
        for index, same in enumerate(logged):
            near = abs(same.ended_age_s - request.ended_age_s) <= SAME_END_S
            if near and same.processed_tokens == request.processed_tokens:
                request.slot, request.task, request.similarity = same.slot, same.task, same.similarity
                request.selected, request.no_checkpoint = same.selected, same.no_checkpoint
                del logged[index]
                break
        joined.append(request)
    if not joined:
        return logged[:KEPT]
    return sorted((*joined, *logged), key=lambda request: request.ended_age_s)[:KEPT]


def _sums(
    state: TargetState, now: float, window_s: float, requests: Sequence[ServedRequest]
) -> tuple[int | None, int | None, str]:
    """Cached and processed tokens of the window, and from what; None where nothing tells them."""
    known = [
        request for request in requests if request.cached_tokens is not None and request.processed_tokens is not None
    ]
    recent = [request for request in known if request.ended_age_s <= window_s]
    listed = (
        sum(request.cached_tokens or 0 for request in recent),
        sum(request.processed_tokens or 0 for request in recent),
        "proxy" if any(request.session is not None for request in recent) else "log",
    )
    bounds = state.window(now, window_s)
    grown = _grown(*bounds) if bounds is not None and bounds[1].at >= now - window_s else None
    if bounds is None or grown is None:
        return listed if known else (None, None, "")
    last = bounds[1].counters
    steps = [resolution(total) for total in (last.prompt_tokens_cached, last.prompt_tokens)]
    rounded = sum(step for step in steps if step > 1) > ROUNDING * max(1, sum(grown))
    covered = len(requests) < KEPT or len(recent) < len(requests)
    return listed if rounded and recent and covered else (*grown, "counters")


def _grown(first: Scrape, last: Scrape) -> tuple[int, int] | None:
    """By what the counters of cached and processed tokens grew; None where the server has none."""
    cached = delta(first.counters.prompt_tokens_cached, last.counters.prompt_tokens_cached)
    processed = delta(first.counters.prompt_tokens, last.counters.prompt_tokens)
    return (max(0, int(cached)), max(0, int(processed))) if cached is not None and processed is not None else None


def _ttft_basis(requests: Sequence[ServedRequest]) -> str:
    is_told = any(request.session is not None and request.ttft_s is not None for request in requests)
    return "proxy" if is_told else "prompt"


def _ttfts(requests: Sequence[ServedRequest]) -> tuple[list[float], list[float]]:
    """TTFT of warm and of cold requests: as clients had it where the proxy tells of any, else the prompt's time."""
    is_told = _ttft_basis(requests) == "proxy"
    warm: list[tuple[int, float]] = []
    cold: list[tuple[int, float]] = []
    for request in requests:
        length, cached = request.prompt_tokens, request.cached_tokens
        if request.ttft_s is None or not length or cached is None or (is_told and request.session is None):
            continue
        (warm if cached / length >= WARM_SHARE else cold).append((length, request.ttft_s))
    least = COMPARABLE * (median(length for length, _ in warm) or 0)
    return [ttft_s for _, ttft_s in warm], [ttft_s for length, ttft_s in cold if length >= least]


def _sessions(told: Sequence[ServedRequest]) -> tuple[PrefixSession, ...]:
    """The sessions, the most recent first."""
    by_session: dict[str, list[ServedRequest]] = {}
    for request in told:
        if request.session is not None:
            by_session.setdefault(request.session, []).append(request)
    found = []
    for name, turns in list(by_session.items())[:KEPT_SESSIONS]:
        warm, cold = _ttfts(turns)
        found.append(
            PrefixSession(
                id=name,
                requests=len(turns),
                cached=sum(request.cached_tokens or 0 for request in turns),
                processed=sum(request.processed_tokens or 0 for request in turns),
                ttft_warm_s=median(warm),
                ttft_cold_s=median(cold),
            )
        )
    return tuple(found)


def _slots(state: TargetState, requests: Sequence[ServedRequest]) -> tuple[PrefixSlot, ...]:
    slots: Slots | None = state.value(Source.SLOTS)
    # The newest of a slot comes last and stays.
    newest = {request.slot: request.similarity for request in reversed(requests)}
    return tuple(
        PrefixSlot(slot.id, slot.n_prompt_tokens, newest.get(slot.id), slot.is_processing)
        for slot in (slots.slots if slots is not None else ())
    )


def _prefill_rate(state: TargetState) -> float | None:
    """Tokens per second of prompts long enough to tell, else of all since the server's start."""
    tokens, ms = 0, 0.0
    for _, request in state.log.recent:
        if (request.processed_tokens or 0) >= LEAST_PREFILL and request.prompt_ms:
            tokens, ms = tokens + (request.processed_tokens or 0), ms + request.prompt_ms
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
    event = state.log.events.get("verbosity")
    level = event.get("verbosity") if event is not None else None
    if Source.LOG not in state.last_known:
        return "the prompt cache's entries and the slots' similarity: no log is read; name it with --log"
    if state.log.cache_state is not None:
        return ""
    if level is not None and level.isdecimal() and int(level) < 4:
        return f"the prompt cache's entries: the log has verbosity {level}; LLAMA_LOG_VERBOSITY=4 tells them"
    return "the prompt cache's entries: LLAMA_LOG_VERBOSITY=4 tells them, once a slot was taken by another prompt"


def verdict_on(found: PrefixCachePicture, window_s: float) -> str:
    """One sentence on how much was cached, and why it is little."""
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
    word = "TTFT" if found.ttft_basis == "proxy" else "prompt time"
    warm, cold = found.ttft_warm_s, found.ttft_cold_s
    # Warm prompts may be so much longer that they take longer all the same: then this says nothing of the cache.
    if warm is not None and cold is not None and warm < cold:
        return f"{came}; warm {word} {seconds(warm, ms=True, narrow=True)} against {seconds(cold, ms=True)} cold"
    if found.cached and found.saved_s is not None and found.saved_s >= 0.01:
        return f"{came}, which saved {seconds(found.saved_s, ms=True, narrow=True)} of prefill"
    return came


def _cached(part: float) -> str:
    return f"{percent(part, bounded=True)} of prompt tokens came from the cache"


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
