"""Is speculation paying? The net speed-up of decode over the window, and where it comes from. docs/speedup.md."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from dataclasses import replace
from itertools import accumulate, pairwise, takewhile
from math import exp, inf, log, sqrt
from pathlib import PurePath
from typing import TYPE_CHECKING

from specdash.core.changes import ApplyOutcome
from specdash.core.proxy_events import DECODE, speed
from specdash.core.readings import Source
from specdash.core.records import BaselineMethod
from specdash.core.speculation import spec_type
from specdash.insight.log.counter_log import delta
from specdash.insight.picture import Basis, GroupFigures, Paying, SpeedUpNeed, SpeedUpPicture
from specdash.insight.request import NO_DRAFTS, DraftTally, RequestPurpose
from specdash.insight.speculation import speculation
from specdash.insight.speculation.acceptance import between
from specdash.insight.speedup.verdict import ENOUGH, VerdictKind, judged
from specdash.system.data import dataclass
from specdash.system.stats import Z_95, Interval, interval, median, ratio_of, wilson
from specdash.system.text import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Reversible, Sequence

    from specdash.core.changes import ApplyRecord
    from specdash.core.readings import Gpus, Props
    from specdash.core.records import Baseline
    from specdash.core.speculation import SpecType
    from specdash.insight.request import ServedRequest
    from specdash.insight.state import TargetState


# Which requests decoded beside which: for each, how long so many of them decoded at once. Pure.

PREFILL_SHARE = 0.1
"""A request whose decode ran beside other prompts' prefill for more of its time tells nothing of decode."""
TOUCH_S = 0.02
"""Requests that follow each other overlap by so much in a log that is dated to the millisecond."""


class Overlap:
    """Decode and prefill of all requests on one axis of time."""

    def __init__(self, samples: Sequence[ServedRequest]) -> None:
        edges: list[tuple[float, int, int]] = []
        for sample in samples:
            span = sample.decode_s or 0.0
            first = sample.ended - span
            edges += [(first, 1, 0), (sample.ended, -1, 0)]
            if first - sample.began > TOUCH_S:
                edges += [(sample.began, 0, 1), (first, 0, -1)]
        decoding = filling = 0
        counts: dict[float, tuple[int, int]] = {}
        for at, decode, fill in sorted(edges):
            decoding, filling = decoding + decode, filling + fill
            counts[at] = max(1, decoding), filling
        self._times = list(counts)
        spans = [(later - at, *counts[at]) for at, later in pairwise(self._times)]
        self._seconds = {
            count: list(accumulate((span * (decoding == count) for span, decoding, _ in spans), initial=0.0))
            for count in {decoding for _, decoding, _ in spans}
        }
        self._filled = list(accumulate((span * (filling > 0) for span, _, filling in spans), initial=0.0))

    def profile(self, request_sample: ServedRequest) -> tuple[dict[int, float], float]:
        """Seconds of its decode by how many requests decoded then (itself included), and the share of it during which
        others were in prefill."""
        start, end = request_sample.ended - (request_sample.decode_s or 0.0), request_sample.ended
        first, last = bisect_left(self._times, start), bisect_left(self._times, end)
        spans = {count: until[last] - until[first] for count, until in self._seconds.items()}
        seconds = {count: span for count, span in spans.items() if span > 1e-6}
        return _without_touches(seconds), (self._filled[last] - self._filled[first]) / (end - start or inf)


def _without_touches(seconds: dict[int, float]) -> dict[int, float]:
    if len(seconds) <= 1:
        return seconds
    kept = {count: span for count, span in seconds.items() if span > TOUCH_S}
    return kept or {min(seconds): sum(seconds.values())}


# Which recorded baselines say how fast a server would decode without speculation, and what they say. Pure.

RECORD = "`specdash baseline record`"
STARTS_DIFFER = 0.015
"""Standard deviation of the speed between two starts of one configuration, at least: no single run shows it."""
DRIFT = 0.01
"""Standard deviation of the speed of one start over an hour; it grows with the root of the time."""
MOST_DRIFT = 0.03
SHARED = 0.15
"""The same of a machine whose CPUs others keep busy; of less, that share of it."""
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


@dataclass(frozen=True, slots=True)
class DecodingServer:
    """What is known of the server that decodes; None is unknown, and compared with nothing."""

    model: str | None
    """File name of its model."""
    model_bytes: int | None = None
    engines: tuple[str, ...] = ()
    """Its engine as its run record and GET /props name it: builds without git all have the same name
    there."""
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectedDecode:
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
    fewer requests at once. What is taken over is set to the present speed, by what both say of the same contexts."""
    last = max(baselines, key=lambda baseline: baseline.at).method
    present = [baseline for baseline in baselines if baseline.method is last]
    former = [baseline for baseline in baselines if baseline.method is not last]
    if not former:
        return tuple(present)
    newer, older = Reference(present), Reference(former)
    logs = [
        log(known.seconds * baseline.decode_rate)
        for baseline in present
        if (known := older.at(baseline.middle, baseline.concurrency)) is not None
    ]
    scale = exp(median(logs) or 0.0)
    apart = max((abs(value - log(scale)) for value in logs), default=MOST_DRIFT)
    more = [
        replace(
            baseline,
            decode_rate=baseline.decode_rate * scale,
            low=baseline.low * scale * exp(-apart),
            high=baseline.high * scale * exp(apart),
        )
        for baseline in former
        if newer.at(baseline.middle, baseline.concurrency) is None
    ]
    return tuple(present + more)


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

    def __init__(
        self, baselines: Iterable[Baseline], wall: float | None = None, started: float = inf, shared: float = 0.0
    ) -> None:
        """`baselines` are not empty. `wall` is now, and `started` the server's start, both in Unix time: a baseline of
        this start is surer, and an old one is less. `shared` is the share of the CPUs that others use now."""
        self.baselines = tuple(baselines)
        self._shared = SHARED * shared

        def deviation(baseline: Baseline) -> float:
            measured = log(baseline.high / baseline.low) / (2 * Z_95)
            own_start = baseline.method is BaselineMethod.TWO_TOKENS and baseline.at >= started
            hours = max(0.0, (wall or baseline.at) - baseline.at) / 3600.0
            drift = min(MOST_DRIFT, DRIFT * sqrt(hours))
            return sqrt(measured**2 + (0.0 if own_start else STARTS_DIFFER) ** 2 + drift**2 + self._shared**2)

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
        shares = [baseline.pair_share for baseline in self.baselines if baseline.pair_share]
        assumed = 1.0 if any(baseline.gpu for baseline in self.baselines) else LEAST_PAIR
        self.pair_share = max(median(shares) or assumed, 0.5)
        """What a batch of two tokens takes, as a share of one of a single token."""

    def need(self, baseline: Baseline, low: float, high: float) -> SpeedUpNeed:
        """What would narrow an interval most that rests on this baseline, where one thing is half of its variance."""
        half = (log(high / low) / (2 * Z_95)) ** 2 / 2
        own = next(
            deviation
            for points in self._lines.values()
            for middle, seconds, deviation in points
            if (middle, seconds) == (baseline.middle, 1 / baseline.decode_rate)
        )
        if own**2 <= half:
            return SpeedUpNeed.REQUESTS
        return SpeedUpNeed.QUIET if self._shared**2 > own**2 / 2 else SpeedUpNeed.BASELINE

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


# The arithmetic of the speed-up: what requests did, what they would have taken, and where it breaks even. Pure.
#
# The estimate is Leviathan et al. 2023 (arXiv 2211.17192): tokens per step over the cost of a step, with the parts of
# that cost measured where the log tells them, and bounded where it does not. Method and limits: docs/speedup.md.

VERIFY_COSTS = (0.0, 0.2, 0.8)
"""What each draft token adds to a step's verification, as a share of a token's decode: least, usual, most. Published: 0
while memory bandwidth is the limit (Leviathan's assumption), 0.2 on an RTX 3090, 0.8 on an Apple M4."""
LEAST_VERIFY_COST = 0.01
"""Of a server that is watched: a draft token's logits and its sampling are never free, so a drafter that is hardly ever
right costs something, however little."""
VERIFY_COSTS_ANYWHERE = (0.0, 0.5, 1.5)
"""The same where no NVIDIA GPU is seen. Measured with llama.cpp: 0.15 for a 99 MB model on several cores, 1.24 for the
demo's of 2 MB on one, whose batches of a few tokens cost more than as many single ones."""
LEAST_PAIR = 0.75
"""What a batch of two takes, as a share of one of a single token, at least, where no NVIDIA GPU is seen and no baseline
has it: on some CPUs it has a kernel of its own, and is the faster of both. A batch of three or four is not."""
DRAFT_COSTS = (0.02, 0.1, 0.4)
"""What a draft model adds a token, likewise, where the log does not tell. Least: one layer of a model of fifty."""
BLOCK_DRAFT_COSTS = (0.1, 0.75, 1.5)
"""What a draft of one block costs, however long it is. Usual: what the published break-even of about 25 % at block size
16 leaves (marksverdhei/llama.cpp#53), when verifying a token costs 0.2."""
BLOCKS = 24
"""More requests than this are resampled in as many blocks of neighbours: what lasts minutes shows in the interval."""
RESAMPLES = 800
"""Enough for bounds that are drawn with two decimals, and recomputed with every request."""
_MOST_SHARE = 0.95
_MICRO = 1e6
_LEAST_SPREAD = 0.25
_STEADY = 12


def draft_costs_of(types: Sequence[SpecType], drafted_per_step: float) -> tuple[float, ...]:
    """What a draft token may cost where the log does not tell, for drafts of that many tokens by such types."""
    if types and not any(kind.reads_draft_model for kind in types):
        return (0.0, 0.0, 0.0)
    if any(kind.block_margin is not None for kind in types):
        return tuple(cost / max(drafted_per_step, 1.0) for cost in BLOCK_DRAFT_COSTS)
    return DRAFT_COSTS


@dataclass(frozen=True, slots=True)
class DecodeTotals:
    """What requests did in all. The steps of `drafts` are decode calls of the target, replays included."""

    requests: int = 0
    tokens: float = 0.0
    """Generated, the first of each request apart: it is the prompt's."""
    seconds: float = 0.0
    drafts: DraftTally = NO_DRAFTS

    @property
    def length(self) -> float | None:
        """Tokens per step."""
        return self.tokens / self.drafts.steps if self.drafts.steps else None

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens that a step verifies."""
        return self.drafts.drafted / self.drafts.steps if self.drafts.steps else 0.0

    @property
    def rate(self) -> float | None:
        """Tokens over decode time."""
        return speed(self.tokens, self.seconds * 1000.0, DECODE)


def effort_of(samples: Sequence[ServedRequest]) -> DecodeTotals:
    """The sum over requests that `is_usable`."""
    tokens = calls = drafted = accepted = 0
    seconds = 0.0
    for sample in samples:
        own = (sample.decode_tokens or 1) - 1
        hit = min(sample.draft_accepted or 0, own)
        tokens += own
        # Every decode call brings one token beside those accepted: a step, a step without a draft, and also a replay,
        # which decodes accepted tokens again and then goes one on.
        calls += max(1, own - hit)
        drafted += sample.draft_generated or 0
        accepted += hit
        seconds += sample.decode_s or 0.0
    return DecodeTotals(len(samples), tokens, seconds, DraftTally(drafted, accepted, calls))


def compared(pairs: Sequence[tuple[float, float, float]]) -> Interval:
    """The speed-up over requests, each (seconds without, seconds with, deviation of the baseline's logarithm), in the
    order in which they ran: the time that all would have taken over the time that they took."""
    blocks = _blocks([(without, took) for without, took, _ in pairs])
    found = interval(ratio_of([(round(a * _MICRO), max(1, round(b * _MICRO))) for a, b in blocks], RESAMPLES))
    total = sum(without for without, _, _ in pairs)
    # One baseline is behind many requests, so its error does not average out.
    deviation = sum(without * sd for without, _, sd in pairs) / total if total else 0.0
    value = max(found.value, 1e-9)
    low = sqrt(log(value / max(found.low, 1e-9)) ** 2 + (Z_95 * deviation) ** 2)
    high = sqrt(log(max(found.high, value) / value) ** 2 + (Z_95 * deviation) ** 2)
    return Interval(value, value * exp(-low), value * exp(high))


def _blocks(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(pairs) <= BLOCKS:
        return list(pairs)
    bounds = [round(index * len(pairs) / BLOCKS) for index in range(BLOCKS + 1)]
    parts = [pairs[first:last] for first, last in pairwise(bounds)]
    return [(sum(a for a, _ in part), sum(b for _, b in part)) for part in parts]


def leviathan(
    length: float,
    drafted_per_step: float,
    draft_share: float | None,
    verify_costs: tuple[float, ...] = VERIFY_COSTS,
    draft_costs: tuple[float, ...] = DRAFT_COSTS,
    least_pair: float = 1.0,
) -> Interval:
    """The speed-up of steps that bring `length` tokens and verify `drafted_per_step` draft tokens.

    `draft_share` is the share of decode time that goes into drafting; where it is None, `draft_costs` bound what each
    draft token costs, as shares of a token's decode. `verify_costs` bound what verifying one adds, and a batch of two
    takes at least `least_pair` of one of a single token.
    """
    drafted = max(drafted_per_step, 0.0)
    if draft_share is not None:
        kept = 1 - min(max(draft_share, 0.0), _MOST_SHARE)
        best, usual, worst = (length * kept / (1 + cost * drafted) for cost in verify_costs)
    else:
        costs = zip(verify_costs, draft_costs, strict=True)
        best, usual, worst = (length / (1 + (verify + draft) * drafted) for verify, draft in costs)
    if best > 1:
        # A gain may be greater by what a batch of two saves; what would be a loss with free verification is one.
        best /= 1 - (1 - least_pair) * max(0.0, 1 - abs(drafted - 1))
    return Interval(usual, worst, best)


def from_own_steps(samples: Sequence[ServedRequest]) -> Interval | None:
    """The speed-up as the requests' own steps tell it: a line through seconds a step against draft tokens a step, whose
    value at no draft token is a step without speculation. None where the requests drafted too evenly to tell."""
    rows = [(sample, effort_of((sample,))) for sample in samples]
    points = [
        (own.drafted_per_step, own.seconds / own.drafts.steps, own.drafts.steps)
        for _, own in rows
        if own.drafts.steps and own.seconds
    ]
    if len(points) < _STEADY:
        return None
    total = sum(weight for *_, weight in points)
    middle_x = sum(x * weight for x, _, weight in points) / total
    middle_y = sum(y * weight for _, y, weight in points) / total
    spread = sum(weight * (x - middle_x) ** 2 for x, _, weight in points)
    # A line far beyond its points would tell of nothing but its slope.
    if min(x for x, *_ in points) > _LEAST_SPREAD * max(x for x, *_ in points) or spread <= 0:
        return None
    slope = sum(weight * (x - middle_x) * (y - middle_y) for x, y, weight in points) / spread
    alone = middle_y - slope * middle_x
    if slope < 0 or alone <= 0:
        return None
    left = sum(weight * (y - alone - slope * x) ** 2 for x, y, weight in points) / (len(points) - 2)
    error = sqrt(left / total + left * middle_x**2 / spread)
    if error > 0.1 * alone:
        return None
    every = effort_of(samples)
    value = alone * every.tokens / every.seconds
    share = exp(sqrt((Z_95 * error / alone) ** 2 + 0.05**2))
    return Interval(value, value / share, value * share)


def sampled(found: Interval, effort: DecodeTotals) -> Interval:
    """The interval with what chance adds: so few steps may have been lucky, or unlucky, with their drafts.

    Wilson's bounds of the acceptance, with a step as one trial: its tokens are accepted one after the other, and so not
    each by itself.
    """
    steps, drafted, length = effort.drafts.steps, effort.drafts.drafted, effort.length
    if not steps or drafted <= 0 or length is None:
        return found
    low, high = (1 + bound * drafted / steps for bound in wilson(effort.drafts.accepted / drafted, steps))
    return Interval(found.value, found.low * min(1.0, low / length), found.high * max(1.0, high / length))


def break_even(length: float, speedup: float, drafted_per_step: float) -> tuple[float, float | None]:
    """Tokens per step at which the speed-up is 1, and the acceptance that brings them, None where none would do."""
    needed = length / speedup
    if drafted_per_step <= 0:
        return needed, None
    acceptance = (needed - 1) / drafted_per_step
    return needed, max(0.0, acceptance) if acceptance <= 1 else None


# Requests grouped by what they were: by context length and by kind of work. Pure.


CONTEXT_BOUNDS = (256, 1024, 4096, 16384, 65536)
CONTEXT_NAMES = ("0–256", "256–1k", "1k–4k", "4k–16k", "16k–64k", "64k+")
LONG_PROMPT = 2048
"""Tokens to process from which a request counts as one with a long prompt."""
FOLLOW_UP = 0.5
"""Share of a prompt's tokens that must have been cached for a follow-up."""
LONG, NEXT, FRESH = "long prompt", "follow-up", "new prompt"
PHASES = (*(str(purpose) for purpose in RequestPurpose), LONG, NEXT, FRESH)
_LATE_S = 2.0
_DISORDER_S = 60.0
"""Requests reported later may have ended earlier by so much."""


def context_of(sample: ServedRequest) -> str | None:
    """The bucket of its context's length at its end."""
    if sample.prompt_tokens is None:
        return None
    length = sample.prompt_tokens + (sample.decode_tokens or 0)
    return CONTEXT_NAMES[sum(length >= bound for bound in CONTEXT_BOUNDS)]


def phase_of(sample: ServedRequest, work: RequestPurpose | None) -> str | None:
    """What the proxy saw it was for; else the shape of its prompt, which is all that the server's log tells."""
    if work is not None:
        return str(work)
    if sample.prompt_tokens is None:
        return None
    cached = sample.cached_tokens or 0
    if sample.prompt_tokens - cached >= LONG_PROMPT:
        return LONG
    return NEXT if cached >= FOLLOW_UP * sample.prompt_tokens and cached else FRESH


def works(samples: Sequence[ServedRequest], told: Reversible[ServedRequest]) -> dict[int, RequestPurpose]:
    """The purpose of requests in the log, by their index, from the proxy's with equal tokens and end.

    Both are in the order in which they ended: only the proxy's requests within the samples' span are searched.
    """
    known: dict[tuple[int | None, int | None], list[ServedRequest]] = {}
    first = min((sample.ended for sample in samples if sample.purpose is None), default=math.inf) - _LATE_S
    for request_sample in reversed(told):
        if request_sample.ended < first - _DISORDER_S:
            break
        if request_sample.purpose is not None:
            known.setdefault((request_sample.prompt_tokens, request_sample.decode_tokens), []).append(request_sample)
    found: dict[int, RequestPurpose] = {}
    for index, sample in enumerate(samples):
        for request_sample in known.get((sample.prompt_tokens, sample.decode_tokens), ()):
            if abs(request_sample.ended - sample.ended) <= _LATE_S and request_sample.purpose is not None:
                found.setdefault(index, request_sample.purpose)
    return found


def grouped(
    samples: Sequence[ServedRequest],
    names: Mapping[int, str | None],
    order: Sequence[str],
    speedup: Callable[[int], tuple[float, float] | None],
) -> tuple[GroupFigures, ...]:
    """One group a name, in this order. `speedup` gives seconds without and with speculation of the request at an index,
    None where it cannot be compared."""
    members: dict[str, list[int]] = {}
    for index in range(len(samples)):
        name = names.get(index)
        if name is not None:
            members.setdefault(name, []).append(index)
    return tuple(_figures(name, samples, members[name], speedup) for name in order if name in members)


def _figures(
    name: str,
    samples: Sequence[ServedRequest],
    indices: Sequence[int],
    speedup: Callable[[int], tuple[float, float] | None],
) -> GroupFigures:
    own = [samples[index] for index in indices]
    effort = effort_of(own)
    pairs = [pair for index in indices if (pair := speedup(index)) is not None]
    took = sum(pair[1] for pair in pairs)
    return GroupFigures(
        name=name,
        requests=len(own),
        acceptance=effort.drafts.acceptance,
        mean_accepted_length=effort.length,
        decode_rate=effort.rate,
        speedup=sum(pair[0] for pair in pairs) / took if took > 0 else None,
    )


HELD_S = 1800.0
"""Where the window has fewer requests, the newest of this time stand for it."""
HELD_REQUESTS = 24
MOST = 96
SETTLED_S = 5.0
"""Where dozens ended before the last multiple of so long, those after it wait for the next: a server that ends
several a second would be recomputed at each look."""
LEAST_TOKENS = 8
"""A shorter answer tells nothing of speed."""
BUSIER = 0.2
"""Share of the CPUs by which others may take more than at the baseline; beyond it decode is slowed by them as much as
by anything that a setting does."""
REQUEST_SPREAD = 0.5
"""Standard deviation of the logarithm of one request's speed-up, where too few have ended to tell: what text and
context make of it is less."""
NARROW = 0.25
"""An interval that holds 1 and is no wider says that there is no clear gain; a wider one says nothing."""
MOST_GAIN = 1.2
"""A step brings so many tokens and takes no less time than a plain one, so the gain is at most that many; with this
much more for chance, the baseline is of a machine that had other things to do. Where a batch of two tokens is the
faster one, a step that verifies one is, too."""
TOO_GOOD = f"by the baseline, a step with a draft would take less time than one without; record it again with {RECORD}"
OFF = "the server does not speculate"


@dataclass(frozen=True, slots=True)
class _Pool:
    """The requests to judge. `every` are all that may have run beside them."""

    chosen: tuple[ServedRequest, ...]
    every: tuple[ServedRequest, ...]
    held: bool
    settled: bool = False
    """Whether those that ended just now wait."""
    busier: frozenset[int] = frozenset()
    """Indices of those chosen that ran while others took more of the CPUs than at the baseline."""
    others: float | None = None
    """That share, where it holds of now or of the newest request: what decode is like then tells nothing."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A request against its baseline: seconds without and with speculation."""

    without: float
    took: float
    deviation: float


def derive(state: TargetState, now: float, wall: float, window_s: float) -> SpeedUpPicture:
    """The speed-up part of the picture. The caller holds the state's lock; `now` and `wall` are one moment."""
    log = state.log
    if speculation.is_active(state) is False:
        return SpeedUpPicture(why=OFF)
    pool = _with_others(state, _pool(state, now, wall, window_s), now, wall)
    # Of many requests the newest stand for each window that has them.
    is_full = pool.settled and len(pool.chosen) == MOST
    until = now - wall % SETTLED_S if pool.settled else now
    cost = log.drafting.seconds_per_token(now - wall + pool.chosen[0].began if is_full else until - window_s, until)
    key = (
        state.experiments.samples,
        pool.chosen if pool.settled else state.experiments.samples.version,
        pool.held,
        len(pool.chosen),
        pool.chosen[0].ended if pool.chosen else None,
        cost,
        state.baselines,
        # What is known of a speed grows less sure by the minute, and with what others use.
        (int(wall / 60.0), round(_shared(state, pool, now, wall), 1)) if state.baselines else None,
        pool.busier,
        round(pool.others, 2) if pool.others is not None else None,
        len(state.experiments.records),
        state.value(Source.PROPS),
        _counted(state, now, window_s) if not pool.chosen else None,
    )
    name = ("speedup", MOST if is_full else window_s)
    picture = state.memo.once(name, key, lambda: _picture(state, pool, cost, (now, wall, window_s)))
    return replace(picture, by_generated=log.answers.figures(now, max(window_s, 60.0)), by_type=log.drafting.figures())


def _pool(state: TargetState, now: float, wall: float, window_s: float) -> _Pool:
    """The requests of this server that ended in the window, or the newest ones where there are too few."""
    started = _started(state, now, wall)
    samples = state.experiments.samples
    every: list[ServedRequest] = []
    for source in (samples.logged, samples.told.values()):
        for request_sample in reversed(source):
            if request_sample.ended < wall - HELD_S or len(every) >= 2 * MOST:
                break
            if request_sample.began >= started - 1.0:
                every.append(request_sample)
        if every:
            break
    every.sort(key=lambda request_sample: request_sample.ended)
    usable = [
        request_sample
        for request_sample in every
        if request_sample.decode_s and (request_sample.decode_tokens or 0) >= LEAST_TOKENS
    ]
    recent = [request_sample for request_sample in usable if request_sample.ended >= wall - window_s]
    edge = wall - wall % SETTLED_S
    settled = [request_sample for request_sample in usable if edge - window_s <= request_sample.ended <= edge]
    if len(settled) >= HELD_REQUESTS:
        every = [request_sample for request_sample in every if request_sample.ended <= settled[-1].ended]
        return _Pool(tuple(settled[-MOST:]), tuple(every), held=False, settled=True)
    held = len(recent) < ENOUGH and len(usable) > len(recent)
    chosen = usable[-HELD_REQUESTS:] if held else recent[-MOST:]
    return _Pool(tuple(chosen), tuple(every), held)


def _started(state: TargetState, now: float, wall: float) -> float:
    """When the running server began, in Unix time; no moment where nothing tells."""
    uptime = state.uptime(now, wall)
    restarts = [record.ended_at for record in state.experiments.records if record.downtime_s is not None]
    return max([*restarts[-1:], *([wall - uptime] if uptime is not None else [])], default=-inf)


def _shared(state: TargetState, pool: _Pool, now: float, wall: float) -> float:
    """Share of the CPUs that others took while these requests ran, else now; 0 where that is not known."""
    quiet = [sample for index, sample in enumerate(pool.chosen) if index not in pool.busier]
    if not quiet:
        return state.others.now(now) or 0.0
    return state.others.over(quiet[0].began - wall + now, quiet[-1].ended - wall + now) or 0.0


def _with_others(state: TargetState, pool: _Pool, now: float, wall: float) -> _Pool:
    """With those requests marked that ran while others took more of the CPUs than when the baseline was measured."""
    if not state.baselines:
        return pool
    quiet = _others_then(state) + BUSIER
    shares = [
        state.others.over(sample.ended - (sample.decode_s or 0.0) - wall + now, sample.ended - wall + now) or 0.0
        for sample in pool.chosen
    ]
    busier = frozenset(index for index, share in enumerate(shares) if share > quiet)
    present = max(state.others.now(now) or 0.0, shares[-1] if shares else 0.0)
    if present <= quiet and busier and len(pool.chosen) - len(busier) < ENOUGH:
        # Too few are left to say anything, and it is others who left so few.
        present = max(shares)
    return replace(pool, busier=busier, others=present if present > quiet else None)


def _others_then(state: TargetState) -> float:
    """Share of the CPUs that others took when the baselines that hold were measured: the least, 0 of old ones."""
    found, _ = state.memo.once(
        "matching",
        (state.baselines, _server(state), len(state.experiments.records)),
        lambda: matching(state.baselines, _server(state), state.experiments.records),
    )
    return min((baseline.others or 0.0 for baseline in found), default=inf)


def _picture(state: TargetState, pool: _Pool, cost: float | None, moment: tuple[float, float, float]) -> SpeedUpPicture:
    now, wall, window_s = moment
    overlap = Overlap(pool.every)
    profiles = [overlap.profile(request_sample) for request_sample in pool.chosen]
    effort = effort_of(pool.chosen)
    beside = _mean_count(profiles)
    if not pool.chosen:
        counted = _counted(state, now, window_s)
        if counted is None:
            return SpeedUpPicture()
        effort, beside = counted, None
    baselines, why_not = matching(state.baselines, _server(state), state.experiments.records)
    started = _started(state, now, wall)
    shared = _shared(state, pool, now, wall)
    reference = Reference(baselines, wall, started if started > -inf else inf, shared) if baselines else None
    pairs: list[_Pair | None] = [None] * len(pool.chosen)
    if reference is not None:
        unseen = _unseen(state, pool, wall - now)
        for index, request_sample in enumerate(pool.chosen):
            if index not in unseen and index not in pool.busier:
                pairs[index] = _pair(reference, request_sample, *profiles[index])
        why_not = why_not or _why_uncovered(reference, pool, profiles)
    known = [pair for pair in pairs if pair is not None]
    compared_ones = [sample for sample, pair in zip(pool.chosen, pairs, strict=True) if pair]
    if known and reference is not None and _too_good(known, compared_ones, reference):
        known, pairs, why_not = [], [None] * len(pairs), TOO_GOOD
    if pool.others is not None and reference is not None:
        then = min(baseline.others or 0.0 for baseline in baselines)
        return _with_groups(_outrun(pool.others, then, effort), state, pool, [None] * len(pairs))
    compared_to = pool
    if known and reference is not None:
        # The text beside the figure is about the same requests.
        places = [index for index, pair in enumerate(pairs) if pair is not None]
        compared_to = replace(pool, chosen=tuple(pool.chosen[place] for place in places))
        effort, beside = effort_of(compared_to.chosen), _mean_count([profiles[place] for place in places])
    share = _draft_share(state, effort, cost, beside)
    if known and reference is not None:
        picture = _measured(known, compared_to, reference, len(pool.chosen) - len(known))
    else:
        costs = (
            verify_costs_of(state), draft_costs_of(_known_types(state), effort.drafted_per_step), _least_pair(state)
        )  # fmt: skip
        picture = _estimated(effort, share, pool, why_not, costs)
    if effort.length is not None and picture.value:
        length, acceptance = break_even(effort.length, picture.value, effort.drafted_per_step)
        picture = replace(picture, break_even_length=length, break_even_acceptance=acceptance)
    picture = replace(picture, mean_accepted_length=effort.length, draft_share=share)
    return _with_groups(picture, state, pool, pairs)


def _too_good(pairs: Sequence[_Pair], samples: Sequence[ServedRequest], reference: Reference) -> bool:
    """Whether the baseline would have a step that verifies a draft take less time than any batch does."""
    length = effort_of(samples).length
    gain = sum(pair.without for pair in pairs) / sum(pair.took for pair in pairs)
    return length is not None and gain > MOST_GAIN * length / min(1.0, reference.pair_share)


def _outrun(others: float, then: float, effort: DecodeTotals) -> SpeedUpPicture:
    """Nothing but what was generated: others take the CPUs, and decode is slow because of that."""
    why = f"other programs took {percent(then)} when the baseline was measured, and take {percent(others)} now"
    return SpeedUpPicture(
        why=f"{why}: how fast decode is now says nothing of speculation",
        requests=effort.requests,
        need=SpeedUpNeed.QUIET,
        others=others,
        decode_rate=effort.rate,
        mean_accepted_length=effort.length,
    )


def _measured(pairs: Sequence[_Pair], pool: _Pool, reference: Reference, left_out: int) -> SpeedUpPicture:
    """`pool` has the requests of the pairs; `left_out` could not be compared."""
    took = sum(pair.took for pair in pairs)
    without = sum(pair.without for pair in pairs)
    value, tokens = without / took, effort_of(pool.chosen).tokens
    middle = sum(_middle(request_sample) for request_sample in pool.chosen) / len(pool.chosen)
    picture = SpeedUpPicture(
        value=value,
        basis=Basis.MEASURED,
        requests=len(pairs),
        baseline=reference.nearest(middle, 1.0 if 1 in reference.concurrencies else reference.concurrencies[0]),
        decode_rate=tokens / took,
        baseline_rate=tokens / without,
    )
    words = f"{len(pairs)} requests against {_words(reference)}"
    if left_out > len(pool.busier):
        words += f"; {left_out - len(pool.busier)} more ran longer, or beside more others, than was recorded"
    if pool.busier:
        words += f"; {len(pool.busier)} more ran while other programs took the CPUs"
    if pool.held:
        words += "; the newest ones, for the window has too few"
    if len(pairs) < ENOUGH:
        return _early(picture, pairs, f"{words}; {ENOUGH} are needed for an interval")
    found = compared([(pair.without, pair.took, pair.deviation) for pair in pairs])
    need = picture.need
    if picture.baseline is not None and found.low > 0:
        need = reference.need(picture.baseline, found.low, found.high)
    verdict = _verdict(found)
    return replace(picture, low=found.low, high=found.high, verdict=verdict, why=words, need=need)


def _early(picture: SpeedUpPicture, pairs: Sequence[_Pair], words: str) -> SpeedUpPicture:
    """Few requests have no interval of their own; but a loss that no spread of requests explains need not wait."""
    value = picture.value or 0.0
    reach = Z_95 * sqrt(REQUEST_SPREAD**2 / len(pairs) + max(pair.deviation for pair in pairs) ** 2)
    if value * exp(reach) >= 1:
        return replace(picture, why=words)
    return replace(picture, low=value * exp(-reach), high=value * exp(reach), verdict=Paying.HURTING, why=words)


def _estimated(
    effort: DecodeTotals,
    share: float | None,
    pool: _Pool,
    why_not: str,
    costs: tuple[tuple[float, ...], tuple[float, ...], float],
) -> SpeedUpPicture:
    if effort.length is None or effort.rate is None:
        return SpeedUpPicture(why=why_not or "no request has ended yet")
    found = from_own_steps(pool.chosen)
    how = "from its own steps, of which some drafted less"
    if found is None:
        found = leviathan(effort.length, effort.drafted_per_step, share, *costs)
        how = "from tokens per step"
        how += " and the time spent drafting" if share is not None else "; what drafting costs is assumed"
        how += "; what verifying costs is assumed" if effort.drafted_per_step > 0 else ""
    found = sampled(found, effort)
    verdict = _verdict(found)
    if verdict is Paying.EVEN and found.high - found.low > NARROW:
        verdict = Paying.UNKNOWN
    if effort.requests < ENOUGH and verdict is not Paying.HURTING:
        verdict = Paying.UNKNOWN
    return SpeedUpPicture(
        value=found.value,
        low=found.low,
        high=found.high,
        basis=Basis.ESTIMATED,
        verdict=verdict,
        why=f"{how}: {why_not}" if why_not else how,
        requests=effort.requests,
        decode_rate=effort.rate,
        baseline_rate=effort.rate / found.value,
    )


def _verdict(found: Interval) -> Paying:
    """`judged`, as the picture keeps it: EVEN also where the interval is known and holds 1."""
    kind = judged(found.low, found.high)
    if kind is VerdictKind.PAYS:
        return Paying.PAYING
    return Paying.HURTING if kind is VerdictKind.COSTS else Paying.EVEN


def _middle(sample: ServedRequest) -> float:
    """Tokens in the context halfway through the answer."""
    return (sample.prompt_tokens or 0) + (sample.decode_tokens or 0) / 2


def _pair(reference: Reference, sample: ServedRequest, profile: dict[int, float], filled: float) -> _Pair | None:
    if filled > PREFILL_SHARE or sample.prompt_tokens is None or not sample.decode_s:
        return None
    found = reference.over(_middle(sample), profile)
    if found is None:
        return None
    return _Pair(found.seconds * ((sample.decode_tokens or 1) - 1), sample.decode_s, found.deviation)


_SOURCES = {
    BaselineMethod.WITHOUT: "recorded without speculation",
    BaselineMethod.TWO_TOKENS: "measured by completions of two tokens",
}


def _words(reference: Reference) -> str:
    contexts = sorted({baseline.context for baseline in reference.baselines})
    spans = f"{contexts[0]}" if len(contexts) == 1 else f"{contexts[0]} to {contexts[-1]}"
    at_once = ", ".join(map(str, reference.concurrencies))
    methods = sorted({baseline.method for baseline in reference.baselines}, reverse=True)
    source = " and ".join(_SOURCES[method] for method in methods)
    return f"the baseline (context {spans} tokens, {at_once} at once; {source})"


def _why_uncovered(reference: Reference, pool: _Pool, profiles: Sequence[tuple[dict[int, float], float]]) -> str:
    """Why no request could be compared with the baselines there are."""
    counts = sorted(max(profile, key=lambda count: profile[count]) for profile, _ in profiles if profile)
    usual = counts[len(counts) // 2] if counts else 1
    recorded = reference.concurrencies
    if not recorded[0] <= usual <= recorded[-1]:
        return f"requests ran {usual} at once, and no baseline was recorded so; {RECORD} --concurrency {usual}"
    shortest = min((_middle(request_sample) for request_sample in pool.chosen), default=0.0)
    if reference.at(shortest, usual) is None and shortest <= reference.reach and usual in recorded:
        return f"contexts are shorter than any baseline's; {RECORD} --context {round(shortest)}"
    longest = max((_middle(request_sample) for request_sample in pool.chosen), default=0.0)
    if longest > reference.reach:
        return f"contexts are longer than any baseline's; {RECORD} --context {round(longest)}"
    return "prompts of others, or requests that have not ended, ran beside all of them"


def _unseen(state: TargetState, pool: _Pool, offset: float) -> set[int]:
    """Indices of requests beside which others ran that no sample tells of: cancelled ones, and those still running."""
    if not pool.chosen:
        return set()
    since = pool.chosen[0].began - offset
    busy = list(takewhile(lambda look: look[0] >= since, reversed(state.busy_slots)))[::-1]
    moments = [at + offset for at, _ in busy]
    begins, ends = (
        sorted(request_sample.began for request_sample in pool.every),
        sorted(request_sample.ended for request_sample in pool.every),
    )
    found = set()
    for index, request_sample in enumerate(pool.chosen):
        first, last = (
            bisect_left(moments, request_sample.ended - (request_sample.decode_s or 0.0)),
            bisect_right(moments, request_sample.ended),
        )
        if last - first < 2:
            continue
        more = sum(
            busy[place][1] - (bisect_right(begins, moments[place]) - bisect_left(ends, moments[place]))
            for place in range(first, last)
        )
        if more > 0.5 * (last - first):
            found.add(index)
    return found


def _mean_count(profiles: Sequence[tuple[dict[int, float], float]]) -> float | None:
    total = sum(sum(profile.values()) for profile, _ in profiles)
    return sum(count * span for profile, _ in profiles for count, span in profile.items()) / total if total else None


def _draft_share(state: TargetState, effort: DecodeTotals, cost: float | None, beside: float | None) -> float | None:
    """Share of decode time that went into drafting. All slots wait while one drafts."""
    if cost is not None and effort.seconds > 0 and beside is not None:
        return min(0.95, cost * effort.drafts.drafted * beside / effort.seconds)
    known = _known_types(state)
    # A look into a table of n-grams costs microseconds.
    return 0.0 if known and not any(item.reads_draft_model for item in known) else None


def _known_types(state: TargetState) -> list[SpecType]:
    return [item for name in speculation.types_of(state) or () if (item := spec_type(name)) is not None]


def verify_costs_of(state: TargetState) -> tuple[float, ...]:
    """What verifying a draft token adds to a step on this machine, as a share of a token's decode: an assumption."""
    _, usual, most = VERIFY_COSTS if _has_gpu(state) else VERIFY_COSTS_ANYWHERE
    return LEAST_VERIFY_COST, usual, most


def _least_pair(state: TargetState) -> float:
    return 1.0 if _has_gpu(state) else LEAST_PAIR


def _has_gpu(state: TargetState) -> bool:
    gpus: Gpus | None = state.value(Source.GPU)
    return gpus is not None and bool(gpus.gpus)


def _counted(state: TargetState, now: float, window_s: float) -> DecodeTotals | None:
    """What the counters tell of the window, else of the server's life, for a server whose requests are not logged."""
    if state.totals_stale_s(now) is not None:
        return None
    for bounds in (state.window(now, window_s), state.counters.life):
        if bounds is None:
            continue
        first, last = bounds[0].counters, bounds[1].counters
        drafted = between(*bounds)
        tokens = delta(first.predicted_tokens, last.predicted_tokens)
        seconds = delta(first.predicted_seconds, last.predicted_seconds)
        if drafted is not None and tokens and seconds and drafted.drafted and drafted.accepted < tokens:
            steps = tokens - drafted.accepted
            return DecodeTotals(0, tokens, seconds, DraftTally(drafted.drafted, drafted.accepted, steps))
    return None


def _server(state: TargetState) -> DecodingServer:
    props: Props | None = state.value(Source.PROPS)
    gpus: Gpus | None = state.value(Source.GPU)
    names = sorted(gpu.name for gpu in gpus.gpus if gpu.name) if gpus is not None else []
    path = props.model_path if props is not None else None
    return DecodingServer(
        model=PurePath(path).name if path else None,
        model_bytes=props.model_bytes if props is not None else None,
        engines=tuple(name for name in (state.target.engine, props.build_info if props else None) if name),
        gpu=", ".join(names) or None,
    )


def _with_groups(
    picture: SpeedUpPicture, state: TargetState, pool: _Pool, pairs: Sequence[_Pair | None]
) -> SpeedUpPicture:
    def speedup(index: int) -> tuple[float, float] | None:
        pair = pairs[index]
        return (pair.without, pair.took) if pair is not None else None

    chosen = pool.chosen
    told = works(chosen, state.experiments.samples.told.values())
    contexts = {index: context_of(request_sample) for index, request_sample in enumerate(chosen)}
    phases = {
        index: phase_of(request_sample, request_sample.purpose or told.get(index))
        for index, request_sample in enumerate(chosen)
    }
    return replace(
        picture,
        by_context=grouped(chosen, contexts, CONTEXT_NAMES, speedup),
        by_phase=grouped(chosen, phases, PHASES, speedup),
    )
