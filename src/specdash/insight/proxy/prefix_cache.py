"""Derives how much of the prompts was there already, and what that saves.

Sums are differences of /metrics counters. These print six significant digits, so above a million tokens, and where
there are no counters, they are those of the requests in the log or in the proxy's events. At verbosity 3 the log does
not print what was cached: there it is what the slot held at the end, less the answer and what was processed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.proxy_events import PREFILL, speed
from specdash.core.readings import Source
from specdash.insight.log.counter_log import delta, resolution
from specdash.insight.picture import PrefixCachePicture, PrefixSlot
from specdash.insight.proxy.read_again import read_again, summed
from specdash.insight.rates import lifetime_rates
from specdash.insight.request import of_event
from specdash.system.stats import median, share
from specdash.system.text import counted, duration, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.readings import Slots
    from specdash.insight.log.counter_log import Scrape
    from specdash.insight.request import ServedRequest
    from specdash.insight.state import TargetState

KEPT = 50
WARM_SHARE = 0.5
"""A request is warm when this much of its prompt was cached."""
ROUNDING = 0.02
"""Counters are left aside where one step of theirs is more than this share of what they grew by."""
COMPARABLE = 0.25
"""A cold prompt below this share of the usual warm one says nothing about a warm one."""
LEAST_PREFILL = 128
"""Fewer processed tokens than this are no measure of the prefill rate: a batch has a cost of its own."""
SAME_END_S = 3.0
WELL = 0.5
"""From this share of cached tokens on there is nothing to explain."""
FULL = 0.95
LOW_SIMILARITY = 0.5
NO_COUNTERS = "/metrics does not count it (builds since August 2026 do)"


def derive(state: TargetState, now: float, wall: float, window_s: float) -> PrefixCachePicture:
    """This part of the picture. The caller holds the state's lock."""
    requests = _requests(state, now, wall)
    recent = [request for request in requests if request.ended_age_s <= window_s]
    cached, processed, basis = _sums(state, now, window_s, requests)
    is_of_proxy = any(request.session is not None and request.ttft_s is not None for request in requests)
    warm, cold = _ttfts(recent, is_of_proxy)
    if not warm or not cold:
        warm, cold = _ttfts(requests, is_of_proxy)
    rate = _prefill_rate(state)
    log, kept, life = state.log, state.log.cache_state, state.counters.life
    evicted = sum(log.storms.count(name) for name in ("prompt_cache_evicted", "prompt_cache_skipped"))
    again = (read_again(request, dropped=evicted > 0) for request in recent)
    lifetime = _grown(*life) if life is not None else None
    slots: Slots | None = state.value(Source.SLOTS)
    # The newest of a slot comes last and stays.
    newest = {request.slot: request.similarity for request in reversed(requests)}
    found = PrefixCachePicture(
        cached=cached,
        processed=processed,
        cached_share=share(cached, cached + processed) if cached is not None and processed is not None else None,
        lifetime_share=share(lifetime[0], sum(lifetime)) if lifetime is not None else None,
        requests=tuple(requests),
        slots=tuple(
            PrefixSlot(slot.id, slot.n_prompt_tokens, newest.get(slot.id), slot.is_processing)
            for slot in (slots.slots if slots is not None else ())
        ),
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
        ttft_basis=("proxy" if is_of_proxy else "prompt") if warm or cold else "",
        prefill_rate=rate,
        read_again=summed(one for one in again if one is not None),
        unknown=_unknown(state),
    )
    missing = _missing(state)
    if missing:
        words = f"not known how much of the prompts was cached: {missing}, and no log is read; name it with --log"
        return replace(found, verdict=words)
    return replace(found, verdict=verdict_on(found, window_s))


def _requests(state: TargetState, now: float, wall: float) -> list[ServedRequest]:
    """Requests whose prompt's cost is known, newest first: the proxy's events, with slot and task where the log has the
    same request, and what the log alone knows of."""
    logged = [
        request.aged(max(0.0, now - at)) for at, request in state.log.recent if request.processed_tokens is not None
    ]
    known = (
        of_event(event)
        for event in reversed(state.proxy.finished)
        if event.prompt_tokens is not None and event.cached_tokens is not None and event.at
    )
    joined = []
    for event in islice(known, KEPT):
        request = event.aged(max(0.0, wall - event.ended))
        for index, same in enumerate(logged):
            near = abs(same.ended_age_s - request.ended_age_s) <= SAME_END_S
            if near and same.processed_tokens == request.processed_tokens:
                request.slot, request.task, request.similarity = same.slot, same.task, same.similarity
                request.selected, request.no_checkpoint = same.selected, same.no_checkpoint
                del logged[index]
                break
        joined.append(request)
    return sorted((*joined, *logged), key=lambda request: request.ended_age_s)[:KEPT] if joined else logged[:KEPT]


def _sums(
    state: TargetState, now: float, window_s: float, requests: Sequence[ServedRequest]
) -> tuple[int | None, int | None, str]:
    """Cached and processed tokens of the window, and from what; None where they are not known."""
    known = [one for one in requests if one.cached_tokens is not None and one.processed_tokens is not None]
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


def _ttfts(requests: Sequence[ServedRequest], is_of_proxy: bool) -> tuple[list[float], list[float]]:
    """TTFT of warm and of cold requests: as clients had it where the proxy knows any, else the prompt's time."""
    known = [
        (one.cached_tokens / one.prompt_tokens >= WARM_SHARE, one.prompt_tokens, one.ttft_s)
        for one in requests
        if one.ttft_s is not None
        and one.prompt_tokens
        and one.cached_tokens is not None
        and (one.session is not None or not is_of_proxy)
    ]
    least = COMPARABLE * (median(length for is_warm, length, _ in known if is_warm) or 0)
    warm = [ttft_s for is_warm, _, ttft_s in known if is_warm]
    return warm, [ttft_s for is_warm, length, ttft_s in known if not is_warm and length >= least]


def _prefill_rate(state: TargetState) -> float | None:
    """Tokens per second of prompts long enough, else of all since the server's start."""
    timed = [request for _, request in state.log.recent if (request.processed_tokens or 0) >= LEAST_PREFILL]
    tokens = sum(request.processed_tokens or 0 for request in timed if request.prompt_ms)
    life = state.counters.life
    lifetime = lifetime_rates(*(scrape.counters for scrape in life))[0] if life is not None else None
    return speed(tokens, sum(request.prompt_ms or 0.0 for request in timed), PREFILL) or lifetime


def _missing(state: TargetState) -> str:
    """Why it is not known what is cached; empty where it is, once there are prompts."""
    if Source.LOG in state.last_known or Source.PROXY_EVENTS in state.last_known:
        return ""
    last, latest = state.counters.last, state.latest.get(Source.METRICS)
    if last is not None and (latest is None or latest.failure is None):
        return "" if last.counters.prompt_tokens_cached is not None else NO_COUNTERS
    return f"/metrics: {latest.failure or 'no answer yet'}" if latest is not None else "/metrics was not asked yet"


def _unknown(state: TargetState) -> str:
    """What is unknown, and what would show it."""
    if Source.LOG not in state.last_known:
        return "the prompt cache's entries and the slots' similarity: no log is read; name it with --log"
    if state.log.cache_state is not None:
        return ""
    event = state.log.events.get("verbosity")
    level = event.get("verbosity") if event is not None else None
    if level is not None and level.isdecimal() and int(level) < 4:
        return f"the prompt cache's entries: the log has verbosity {level}; LLAMA_LOG_VERBOSITY=4 shows them"
    return "the prompt cache's entries: LLAMA_LOG_VERBOSITY=4 shows them, once a slot was taken by another prompt"


def verdict_on(found: PrefixCachePicture, window_s: float) -> str:
    """One sentence on how much was cached, and why it is little."""
    came, since = (
        f"{percent(part, bounded=True)} of prompt tokens came from the cache" if part is not None else ""
        for part in (found.cached_share, found.lifetime_share)
    )
    if not came:
        return f"no prompt seen in the last {duration(window_s)}" + (f"; since the start {since}" if since else "")
    is_little, why = (found.cached_share or 0.0) < WELL, _why_little(found)
    if found.full_reprocessed and (is_little or found.full_reprocessed > 1):
        prompts = counted(found.full_reprocessed, "prompt was", "prompts were")
        return f"{came}; {prompts} read from the start because no checkpoint was available"
    if is_little and why:
        return f"{why}; only {came}" if found.cached else why
    word = "TTFT" if found.ttft_basis == "proxy" else "prompt time"
    warm, cold = found.ttft_warm_s, found.ttft_cold_s
    # Warm prompts may be so much longer that they take longer all the same: then this says nothing of the cache.
    if warm is not None and cold is not None and warm < cold:
        return f"{came}; warm {word} {seconds(warm)} against {seconds(cold)} cold"
    if found.cached and found.saved_s is not None and found.saved_s >= 0.01:
        return f"{came}, which saved {seconds(found.saved_s)} of prefill"
    return came


def over_limit(entries: int | None, size: float, limit: float | None) -> str:
    """What to do where one prompt alone, in MiB, is larger than the cache may be; empty where none is."""
    if entries != 1 or not limit or size <= limit:
        return ""
    return (
        f"one prompt alone is over the cache's limit: {size:.0f} MiB against a limit of {limit:.0f}; raise "
        "LLAMA_ARG_CACHE_RAM only where the machine has that much memory to spare, else set it to 0"
    )


def _why_little(found: PrefixCachePicture) -> str:
    size, limit = found.size_mib or 0.0, found.limit_mib or 0.0
    if over := over_limit(found.entries, size, limit):
        return over
    if limit and size >= FULL * limit:
        dropped = f", {counted(found.evicted, 'prompt')} dropped" if found.evicted else ""
        return f"cache full: {size:.0f} of {limit:.0f} MiB{dropped}; raise LLAMA_ARG_CACHE_RAM"
    if found.evicted:
        dropped = counted(found.evicted, "prompt was", "prompts were")
        return f"cache too small: {dropped} dropped to make room; raise LLAMA_ARG_CACHE_RAM"
    if found.similarity is not None and found.similarity < LOW_SIMILARITY:
        return f"prompts change near their beginning: similarity {found.similarity:.2f}"
    return ""
