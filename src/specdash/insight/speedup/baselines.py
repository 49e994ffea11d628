"""Which recorded baselines say how fast a server would decode without speculation, and what they say. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from math import inf, log, sqrt
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.changes import ApplyOutcome
from specdash.core.records import BaselineMethod
from specdash.insight.picture import SpeedUpNeed
from specdash.system.stats import Z_95

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdash.core.changes import ApplyRecord
    from specdash.core.records import Baseline


RECORD = "`specdash baseline record`"
STARTS_DIFFER = 0.015
"""Standard deviation of the speed between two starts of one configuration, at least: no single run shows it."""
DRIFT = 0.01
"""Standard deviation of the speed of one start over an hour; it grows with the root of the time."""
MOST_DRIFT = 0.03
NEAR = 0.15
"""So far outside of the recorded concurrencies a request may be."""
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


class ExpectedDecode(Struct, frozen=True):
    """Decode without speculation: seconds a token, and the standard deviation of its logarithm."""

    seconds: float
    deviation: float


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
    for holds, what in (
        (lambda entry: _agree(entry.model_bytes, server.model_bytes), f"another file {server.model}"),
        (lambda entry: _is_engine(entry.engine, server.engines), f"another engine than {' or '.join(server.engines)}"),
        (lambda entry: _agree(entry.gpu, server.gpu), "another GPU"),
    ):
        judge: Callable[[Baseline], bool] = holds
        left = [baseline for baseline in left if judge(baseline)]
        if not left:
            return (), f"the baseline is of {what}; record it again with {RECORD}"
    changed = ""
    fresh = []
    for baseline in left:
        key = _changed_since(applies, baseline.at)
        changed = changed or key
        if not key:
            fresh.append(baseline)
    if not fresh:
        return (), f"{changed} was changed since the baseline; record it again with {RECORD}"
    return combined(fresh), ""


def combined(baselines: Sequence[Baseline]) -> tuple[Baseline, ...]:
    """Those of the method that was used last, and from the other what they do not cover: longer contexts, and more or
    fewer requests at once."""
    last = max(baselines, key=lambda baseline: baseline.at).method
    present = [baseline for baseline in baselines if baseline.method is last]
    newer = Reference(present)
    former = [
        baseline
        for baseline in baselines
        if baseline.method is not last and newer.at(baseline.middle, baseline.concurrency) is None
    ]
    return tuple(present + former)


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
            if change.role == "backend" and not _is_harmless(change.key):
                first.setdefault(change.key, change.before)
                last[change.key] = change.after
    return next((key for key, value in last.items() if value != first[key]), "")


def _is_harmless(key: str) -> bool:
    return key.startswith(_HARMLESS) or key in _HARMLESS_KEYS


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

        def deviation(baseline: Baseline) -> float:
            measured = log(baseline.high / baseline.low) / (2 * Z_95)
            own_start = baseline.method is BaselineMethod.TWO_TOKENS and baseline.at >= started
            hours = max(0.0, (wall or baseline.at) - baseline.at) / 3600.0
            drift = min(MOST_DRIFT, DRIFT * sqrt(hours))
            return sqrt(measured**2 + (0.0 if own_start else STARTS_DIFFER) ** 2 + drift**2)

        grouped: dict[int, list[Baseline]] = {}
        for baseline in self.baselines:
            grouped.setdefault(baseline.concurrency, []).append(baseline)
        self._lines = {
            count: sorted(
                (baseline.middle, 1 / baseline.decode_rate, deviation(baseline)) for baseline in grouped[count]
            )
            for count in sorted(grouped)
        }
        self.concurrencies = tuple(self._lines)
        """Those recorded, ascending."""
        self.reach = max(1.5 * points[-1][0] + 512 for points in self._lines.values())
        """The longest context for which it holds."""

    def need(self, baseline: Baseline, low: float, high: float) -> SpeedUpNeed:
        """What would narrow an interval that rests on this baseline: a new one where it is half of the variance."""
        own = self.at(baseline.middle, baseline.concurrency)
        half = (log(high / low) / (2 * Z_95)) ** 2 / 2
        return SpeedUpNeed.BASELINE if own is not None and own.deviation**2 > half else SpeedUpNeed.REQUESTS

    def nearest(self, context: float, concurrency: float) -> Baseline:
        """The baseline recorded nearest to these."""
        return min(
            self.baselines,
            key=lambda baseline: (
                abs(baseline.concurrency - concurrency),
                abs(log((baseline.middle + 64) / (context + 64))),
            ),
        )

    def at(self, context: float, concurrency: int) -> ExpectedDecode | None:
        """A token's time at this context, with `concurrency` requests decoding; None where nothing near was recorded.

        `context` counts the tokens halfway through the answer.
        """
        counts = self.concurrencies
        if context > self.reach or not counts[0] <= concurrency <= counts[-1]:
            return None
        place = bisect_left(counts, concurrency)
        used = counts[place : place + 1] if counts[place] == concurrency else counts[place - 1 : place + 1]
        if any(context < _least(self._lines[count]) for count in used):
            return None
        upper = _on_line(self._lines[counts[place]], context)
        if counts[place] == concurrency:
            return upper
        lower = _on_line(self._lines[counts[place - 1]], context)
        return _between(lower, upper, (concurrency - counts[place - 1]) / (counts[place] - counts[place - 1]))

    def over(self, context: float, profile: Mapping[int, float]) -> ExpectedDecode | None:
        """A token's time for a request that spent these seconds beside so many others (itself included)."""
        tokens = deviation = known = unknown = 0.0
        for count, seconds in profile.items():
            found = self.at(context, count)
            if found is None:
                unknown += seconds
                continue
            tokens += seconds / found.seconds
            deviation += seconds * found.deviation
            known += seconds
        if tokens <= 0 or unknown > NEAR * (known + unknown):
            return None
        return ExpectedDecode(known / tokens, deviation / known)


def _least(points: Sequence[tuple[float, float, float]]) -> float:
    """The shortest context for which a line holds: one of a single point does not say how the time falls with it."""
    return points[0][0] / 2 - 512 if len(points) == 1 else 0.0


def _on_line(points: Sequence[tuple[float, float, float]], context: float) -> ExpectedDecode:
    """On the straight line through the two points around this context, or through the two nearest to it."""
    if len(points) == 1:
        return ExpectedDecode(points[0][1], points[0][2])
    place = min(max(bisect_left(points, (context,)), 1), len(points) - 1)
    (x0, *first), (x1, *second) = points[place - 1], points[place]
    low, high = ExpectedDecode(*first), ExpectedDecode(*second)
    share = (context - x0) / (x1 - x0) if x1 > x0 else 0.0
    if 0 <= share <= 1:
        return _between(low, high, share)
    # What seems to fall with the context is noise, and no line to follow.
    followed = (
        _between(low, high, share).seconds if high.seconds > low.seconds else (low if share < 0 else high).seconds
    )
    return ExpectedDecode(max(followed, _LEAST_SHARE * points[0][1]), max(low.deviation, high.deviation))


def _between(low: ExpectedDecode, high: ExpectedDecode, share: float) -> ExpectedDecode:
    return ExpectedDecode(
        low.seconds + (high.seconds - low.seconds) * share, low.deviation + (high.deviation - low.deviation) * share
    )
