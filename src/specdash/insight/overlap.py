"""Which requests decoded beside which: for each, how long so many of them decoded at once. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.samples import RequestSample

PREFILL_SHARE = 0.1
"""A request whose decode ran beside other prompts' prefill for more of its time tells nothing of decode."""
TOUCH_S = 0.02
"""Requests that follow each other overlap by so much in a log that is dated to the millisecond."""


class Overlap:
    """Decode and prefill of all requests on one axis of time."""

    def __init__(self, samples: Sequence[RequestSample]) -> None:
        edges: list[tuple[float, int, int]] = []
        for one in samples:
            span = one.decode_s or 0.0
            first = one.ended - span
            edges += [(first, 1, 0), (one.ended, -1, 0)]
            if first - one.began > TOUCH_S:
                edges += [(one.began, 0, 1), (first, 0, -1)]
        self._times: list[float] = []
        self._counts: list[tuple[int, int]] = []
        decoding = filling = 0
        for at, decode, fill in sorted(edges):
            decoding, filling = decoding + decode, filling + fill
            if self._times and self._times[-1] == at:
                self._counts[-1] = (max(1, decoding), filling)
            else:
                self._times.append(at)
                self._counts.append((max(1, decoding), filling))

    def profile(self, one: RequestSample) -> tuple[dict[int, float], float]:
        """Seconds of its decode by how many requests decoded then (itself included), and the share of it during which
        others were in prefill."""
        start, end = one.ended - (one.decode_s or 0.0), one.ended
        times, counts = self._times, self._counts
        seconds: dict[int, float] = {}
        filled = total = 0.0
        for place in range(bisect_left(times, start), bisect_left(times, end)):
            span = min(end, times[place + 1]) - times[place]
            decoding, filling = counts[place]
            seconds[decoding] = seconds.get(decoding, 0.0) + span
            total += span
            if filling:
                filled += span
        return _without_touches(seconds), filled / total if total > 0 else 0.0


def _without_touches(seconds: dict[int, float]) -> dict[int, float]:
    if len(seconds) <= 1:
        return seconds
    kept = {count: span for count, span in seconds.items() if span > TOUCH_S}
    return kept or {min(seconds): sum(seconds.values())}
