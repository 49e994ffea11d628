"""Which recorded baselines say how fast a server would decode without speculation, and what they say. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from math import inf, log, sqrt
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.changes import ApplyOutcome
from specdash.core.records import BaselineMethod
from specdash.system.stats import Z_95

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.changes import ApplyRecord
    from specdash.core.records import Baseline


RECORD = "`specdash baseline record`"
STARTS_DIFFER = 0.015
"""Standard deviation of the speed between two starts of one configuration, at least: no single run shows it."""
DRIFT = 0.01
"""Standard deviation of the speed of one start over an hour; it grows with the root of the time."""
MOST_DRIFT = 0.03
NEAR = 0.15
"""So far outside of the recorded concurrencies the requests at a time may be."""
_LEAST_SHARE = 0.5
"""Of the shortest context's time: no empty context is faster."""
_BUILD = re.compile(r"b\d+-")
_HARMLESS = ("LLAMA_SPEC_", "LLAMA_DRAFT_", "LLAMA_LOG_", "LLAMA_API_KEY", "LLAMA_ARG_SPEC_")
_HARMLESS_KEYS = frozenset(
    {"LLAMA_ALIAS", "LLAMA_HOST", "LLAMA_PORT", "LLAMA_TRACE", "LLAMA_STOP_TIMEOUT", "LLAMA_START_PROBE"}
    | {"LLAMA_START_BASELINE"}
)


class DecodingServer(Struct, frozen=True):
    """What is known of the server that decodes; None is unknown, and compared with nothing."""

    model: str | None
    """File name of its model."""
    model_bytes: int | None = None
    engines: tuple[str, ...] = ()
    """Its engine as its run record and GET /props name it: builds without git all have the same name
    there."""
    gpu: str | None = None


def matching(
    baselines: Iterable[Baseline], server: DecodingServer, applies: Sequence[ApplyRecord] = ()
) -> tuple[tuple[Baseline, ...], str]:
    """The baselines that hold for the server, the newest of each key; without one, why, and what to do."""
    if server.model is None:
        return (), "the server does not tell its model"
    newest: dict[tuple[object, ...], Baseline] = {
        baseline.key: baseline for baseline in sorted(baselines, key=lambda baseline: baseline.at)
    }
    left = [baseline for baseline in newest.values() if baseline.model == server.model]
    if not left:
        return (), f"no baseline of {server.model}; {RECORD} measures one"
    engines = " or ".join(server.engines)
    for kept, what in (
        ([one for one in left if _agree(one.model_bytes, server.model_bytes)], f"another file {server.model}"),
        (
            [one for one in left if _is_engine(one.engine, server.engines)],
            f"another engine than {engines}",
        ),
        ([one for one in left if _agree(one.gpu, server.gpu)], "another GPU"),
    ):
        left = [one for one in left if one in kept]
        if not left:
            return (), f"the baseline is of {what}; record it again with {RECORD}"
    changed = {one: _changed_since(applies, one.at) for one in left}
    fresh = [one for one in left if not changed[one]]
    if not fresh:
        return (), f"{changed[left[0]]} was changed since the baseline; record it again with {RECORD}"
    return combined(fresh), ""


def combined(baselines: Sequence[Baseline]) -> tuple[Baseline, ...]:
    """Those of the method that was used last, and from the other what they do not cover: longer contexts, and more or
    fewer requests at once."""
    last = max(baselines, key=lambda baseline: baseline.at).method
    newer = Reference([baseline for baseline in baselines if baseline.method is last])
    former = (baseline for baseline in baselines if baseline.method is not last)
    return (*newer.baselines, *(one for one in former if newer.at(one.middle, one.concurrency) is None))


def _agree(recorded: object, present: object) -> bool:
    return recorded is None or present is None or recorded == present


def _is_engine(recorded: str, known: Iterable[str]) -> bool:
    """Whether it may be this engine: names are compared with names, and what /props says with what /props says."""
    same_kind = [name for name in known if bool(_BUILD.match(name)) is bool(_BUILD.match(recorded))]
    return not recorded or not same_kind or recorded in same_kind


def _changed_since(applies: Iterable[ApplyRecord], at: float) -> str:
    """The first key that applies since then left at another value, and that may change the speed of decode."""
    first: dict[str, str | None] = {}
    last: dict[str, str | None] = {}
    for record in applies:
        if record.ended_at <= at or record.outcome not in (ApplyOutcome.APPLIED, ApplyOutcome.ROLLBACK_FAILED):
            continue
        for change in record.changes:
            is_harmless = change.key.startswith(_HARMLESS) or change.key in _HARMLESS_KEYS
            if change.role == "backend" and not is_harmless:
                first.setdefault(change.key, change.before)
                last[change.key] = change.after
    return next((key for key, value in last.items() if value != first[key]), "")


class Reference:
    """What matching baselines say for any context length and concurrency.

    A token's time without speculation grows in a straight line with the context (attention reads it) and with the
    requests beside it (one batch for all), so it is interpolated so, and the line is followed to shorter contexts than
    were recorded, and to longer ones up to `reach`. Concurrencies beyond the recorded ones are unknown.
    """

    def __init__(self, baselines: Iterable[Baseline], wall: float | None = None, started: float = inf) -> None:
        """`baselines` are not empty. `wall` is now, and `started` the server's start, both in Unix time: a baseline of
        this start is surer, and an old one is less."""
        self.baselines = tuple(baselines)
        self._wall, self._started = wall, started
        grouped: dict[int, list[tuple[float, float]]] = {}
        for baseline in self.baselines:
            grouped.setdefault(baseline.concurrency, []).append((baseline.middle, 1 / baseline.decode_rate))
        self._lines = {count: sorted(grouped[count]) for count in sorted(grouped)}
        self.concurrencies = tuple(self._lines)
        """Those recorded, ascending."""
        self.reach = max(1.5 * points[-1][0] + 512 for points in self._lines.values())
        """The longest context for which it holds."""

    def deviation(self, baseline: Baseline) -> float:
        """The standard deviation of the logarithm of its speed."""
        measured = log(baseline.high / baseline.low) / (2 * Z_95)
        own_start = baseline.method is BaselineMethod.TWO_TOKENS and baseline.at >= self._started
        hours = max(0.0, (self._wall or baseline.at) - baseline.at) / 3600.0
        drift = min(MOST_DRIFT, DRIFT * sqrt(hours))
        return sqrt(measured**2 + (0.0 if own_start else STARTS_DIFFER) ** 2 + drift**2)

    def nearest(self, context: float) -> Baseline:
        """The baseline recorded nearest to this context, of the least concurrency."""
        alone = (baseline for baseline in self.baselines if baseline.concurrency == self.concurrencies[0])
        return min(alone, key=lambda baseline: abs(log((baseline.middle + 64) / (context + 64))))

    def at(self, context: float, concurrency: float) -> float | None:
        """A token's seconds at this context, with so many requests decoding at a time; None where none near was
        recorded.

        `context` counts the tokens halfway through the answer.
        """
        counts = self.concurrencies
        count = min(max(concurrency, counts[0]), counts[-1])
        if context > self.reach or abs(count - concurrency) > NEAR:
            return None
        place = bisect_left(counts, count)
        upper = _on_line(self._lines[counts[place]], context)
        if counts[place] == count:
            return upper
        lower = _on_line(self._lines[counts[place - 1]], context)
        if upper is None or lower is None:
            return None
        return lower + (upper - lower) * (count - counts[place - 1]) / (counts[place] - counts[place - 1])


def _on_line(points: Sequence[tuple[float, float]], context: float) -> float | None:
    """On the straight line through the two points around this context, or through the two nearest to it; a single point
    does not say how the time falls with the context."""
    if len(points) == 1:
        return points[0][1] if context >= points[0][0] / 2 - 512 else None
    place = min(max(bisect_left(points, (context,)), 1), len(points) - 1)
    (x0, low), (x1, high) = points[place - 1], points[place]
    share = (context - x0) / (x1 - x0) if x1 > x0 else 0.0
    if high <= low and not 0 <= share <= 1:
        # What seems to fall with the context is noise, and no line to follow.
        return low if share < 0 else high
    return max(low + (high - low) * share, _LEAST_SHARE * points[0][1])
