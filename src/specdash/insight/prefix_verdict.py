"""The one sentence on the prefix cache: what it gives, or why it gives little."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.insight.drafter_picture import PrefixCachePicture

WELL = 0.5
"""From this share of cached tokens on there is nothing to explain."""
FULL = 0.95
LOW_SIMILARITY = 0.5
NO_COUNTERS = "/metrics does not count it (builds since August 2026 do)"


def verdict_on(found: PrefixCachePicture, window_s: float, untold: str = "") -> PrefixCachePicture:
    """The same with its verdict. `untold` is why nothing tells what is cached; empty where something does, even if
    there was no prompt yet."""
    if untold:
        words = f"not known how much of the prompts was cached: {untold}, and no log is read; name it with --log"
        return replace(found, verdict=words)
    return replace(found, verdict=_verdict(found, window_s))


def _verdict(found: PrefixCachePicture, window_s: float) -> str:
    if found.cached_share is None:
        nothing = f"no prompt seen in the last {_span(window_s)}"
        if found.lifetime_share is None:
            return nothing
        return f"{nothing}; since the start {percent(found.lifetime_share)} of prompt tokens came from the cache"
    came = f"{percent(found.cached_share)} of prompt tokens came from the cache"
    why = _why_little(found)
    if found.full_reprocessed and (found.cached_share < WELL or found.full_reprocessed > 1):
        prompts = _many(found.full_reprocessed, "prompt was", "prompts were")
        return f"{came}; {prompts} read from the start for want of a checkpoint"
    if found.cached_share < WELL and why:
        return f"{why}; only {came}" if found.cached else why
    return came + _ttft(found)


def _why_little(found: PrefixCachePicture) -> str:
    if found.size_mib is not None and found.limit_mib and found.size_mib >= FULL * found.limit_mib:
        dropped = f", {_many(found.evicted, 'prompt', 'prompts')} dropped" if found.evicted else ""
        return f"cache full: {found.size_mib:.0f} of {found.limit_mib:.0f} MiB{dropped}; raise LLAMA_ARG_CACHE_RAM"
    if found.evicted:
        dropped = _many(found.evicted, "prompt was", "prompts were")
        return f"cache too small: {dropped} dropped to make room; raise LLAMA_ARG_CACHE_RAM"
    if found.similarity is not None and found.similarity < LOW_SIMILARITY:
        return f"prompts change near their beginning: similarity {found.similarity:.2f}"
    return ""


def _ttft(found: PrefixCachePicture) -> str:
    word = "TTFT" if found.ttft_basis == "proxy" else "prompt time"
    warm, cold = found.ttft_warm_s, found.ttft_cold_s
    # Warm prompts may be so much longer that they take longer all the same: then this says nothing of the cache.
    if warm is not None and cold is not None and warm < cold:
        return f"; warm {word} {seconds(warm)} against {seconds(cold)} cold"
    if found.cached and found.saved_s is not None and found.saved_s >= 0.01:
        return f", which saved {seconds(found.saved_s)} of prefill"
    return ""


def percent(share: float) -> str:
    """A share in words: not 100 % unless it is all, not 0 % unless it is nothing."""
    if 0.0 < share <= 0.005:
        return "under 1 %"
    if 0.995 <= share < 1.0:
        return "over 99 %"
    return f"{share * 100:.0f} %"


def seconds(value: float) -> str:
    """A time as short as it is telling."""
    if value < 1.0:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def _span(window_s: float) -> str:
    return f"{window_s / 60:.0f} min" if window_s >= 60 else f"{window_s:.0f} s"


def _many(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
