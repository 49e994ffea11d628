"""What an apply changed in practice: requests before it against requests after it. Pure; the method and its limits are
in docs/experiments.md."""

from __future__ import annotations

from enum import StrEnum
from itertools import takewhile
from math import expm1, inf, log
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Change, Role
from specdash.insight.request import Samples, drafts_of
from specdash.system.stats import bootstrap, median, quantile, ratio
from specdash.system.text import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdash.insight.request import ServedRequest

    Sides = tuple[tuple[ServedRequest, ...], tuple[ServedRequest, ...]]


ENOUGH = 12
"""Requests that each side needs before a difference is reported."""
MOST = 200
"""Requests of a side that are compared."""


class ApplyMark(Struct, frozen=True):
    """One apply: when it changed what runs (`wall`, and how long ago), and what it changed in short."""

    record: ApplyRecord
    age_s: float
    wall: float
    text: str
    """`DRAFT_MAX 4→12`; of several changes the first one and how many more. Secrets are masked."""

    @property
    def name(self) -> str:
        """`apply 7`; `restart` of one whose build changed, which no apply was."""
        return f"{self.record.kind} {self.record.number}" if self.record.number else "restart"


class MeasureName(StrEnum):
    """What is compared."""

    ACCEPTANCE = "acceptance"
    """Accepted over generated draft tokens."""
    DECODE = "decode"
    PREFILL = "prefill"
    TTFT = "ttft"
    """Seconds to the first token."""


class ExperimentVerdict(StrEnum):
    """The result of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "no clear difference"
    TOO_FEW = "not enough data"


class ExperimentSide(Struct, frozen=True):
    """One measure of the requests of one side: how many, the median (of acceptance the ratio of sums), and the
    quartiles of single requests."""

    count: int = 0
    value: float | None = None
    lower: float | None = None
    upper: float | None = None


class MeasureComparison(Struct, frozen=True):
    """One measure before and after. `change` is after less before, with its 95 % interval; None without a value on
    either side, and the interval None where data do not suffice."""

    name: MeasureName
    source: str
    """Where the values come from, in words."""
    before: ExperimentSide
    after: ExperimentSide
    is_relative: bool
    """Whether `change` is a share of the value before (0.12 is 12 % more), or a difference of fractions."""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: ExperimentVerdict = ExperimentVerdict.TOO_FEW

    @property
    def words(self) -> str:
        """The verdict in words, with how many requests there are where they do not suffice."""
        if self.verdict is not ExperimentVerdict.TOO_FEW:
            return str(self.verdict)
        return f"{self.verdict} ({min(self.before.count, self.after.count)} of {ENOUGH} requests)"


class ExperimentCard(Struct, frozen=True):
    """What the newest apply changed in practice."""

    mark: ApplyMark
    measures: tuple[MeasureComparison, ...]
    caveats: tuple[str, ...] = ()
    """What makes the comparison unfair, in sentences without a full stop."""


LEAST = 5
"""With fewer requests on a side, their kinds are not compared."""
TIMES = 2.0
"""Medians of lengths that differ by more make a comparison unfair."""
BACK_S = 1800.0
"""How far back requests count as before."""
LATE_S = 0.3
"""A request of the log may be dated this much late: the log is read at intervals."""
LEAST_CHANGE = 0.02
"""Two starts of one configuration differ by as much; a smaller change of speed is not called one."""
LEAST_POINTS = 0.01
"""The same for acceptance, as a fraction."""
_CHANGED = (ApplyOutcome.APPLIED, ApplyOutcome.ROLLBACK_FAILED)
"""Outcomes after which something else may run than before."""
_TEXT_VALUE = 16


def restarted_at(record: ApplyRecord) -> float:
    """When an apply replaced what ran; its begin where it replaced nothing, or does not say."""
    steps = record.step_seconds if str(ApplyStep.RESTART) in record.step_seconds else {}
    spent = sum(seconds for _, seconds in takewhile(lambda step: step[0] != ApplyStep.RESTART, steps.items()))
    return min(record.at + spent, max(record.ended_at, record.at))


def short_text(record: ApplyRecord) -> str:
    """What it changed, in a few words: `DRAFT_MAX 4→12 +2`."""
    if not record.changes:
        return record.profile or str(record.kind)
    first = record.changes[0]
    name = first.key.removeprefix("LLAMA_").removeprefix("PROXY_")
    more = f" +{len(record.changes) - 1}" if len(record.changes) > 1 else ""
    return f"{name} {_short_value(first.before)}→{_short_value(first.after)}{more}"


def _short_value(value: str | None) -> str:
    if value is None:
        return "unset"
    shown = value.rstrip("/").rpartition("/")[2] if value.startswith(("/", "~")) else value
    return shortened(shown, _TEXT_VALUE) or '""'


class SideSpan(Struct, frozen=True):
    """Which requests belong to one side: those that ran from `start` to `end`; after an apply the first one is cold."""

    start: float
    end: float
    is_after_apply: bool

    def fair(self, samples: Iterable[ServedRequest], late_s: float) -> tuple[ServedRequest, ...]:
        """Its requests in the order in which they began, without the cold one."""
        start = self.start + late_s if self.is_after_apply else self.start
        inside = [sample for sample in samples if start <= sample.began and sample.ended <= self.end]
        return tuple(sorted(inside, key=lambda sample: sample.began)[int(self.is_after_apply) :])


def spans(records: Sequence[ApplyRecord], here: ApplyRecord) -> tuple[SideSpan, SideSpan]:
    """The time before and the time after an apply, up to its neighbours that stopped anything."""
    restart = restarted_at(here)
    others = [record for record in records if record.outcome is not ApplyOutcome.REFUSED and record is not here]
    ended = [max(record.ended_at, restarted_at(record)) for record in others if restarted_at(record) <= restart]
    until = min((restarted_at(record) for record in others if restarted_at(record) > restart), default=inf)
    since = max([restart - BACK_S, *ended])
    return (
        SideSpan(since, restart, is_after_apply=since in ended),
        SideSpan(max(here.ended_at, restart), until, is_after_apply=True),
    )


class _Kind(Struct, frozen=True):
    name: MeasureName
    value: Callable[[ServedRequest], float | None]
    is_more_better: bool = True


def _acceptance(sample: ServedRequest) -> float | None:
    drafts = sample.drafts
    return drafts.acceptance if 0 <= drafts.accepted <= drafts.drafted else None


_KINDS = (
    _Kind(MeasureName.ACCEPTANCE, _acceptance),
    _Kind(MeasureName.DECODE, lambda sample: sample.decode_rate),
    _Kind(MeasureName.PREFILL, lambda sample: sample.prefill_rate),
    _Kind(MeasureName.TTFT, lambda sample: sample.ttft_s, is_more_better=False),
)
LOG, EVENTS = "log", "proxy events"


def compare(logged: Sides, reported: Sides) -> tuple[MeasureComparison, ...]:
    """All measures, each from the better source: the log, or the proxy's events."""
    return tuple(_measure(kind, logged, reported) for kind in _KINDS)


def _measure(kind: _Kind, logged: Sides, reported: Sides) -> MeasureComparison:
    sources = [(LOG, logged), (EVENTS, reported)]
    if kind.name is MeasureName.TTFT:
        sources = [(EVENTS, reported), ("log: prompt time", logged)]
    counted = [(name, _known(kind, before), _known(kind, after)) for name, (before, after) in sources]
    # The first source that suffices, else the one that is nearest to it.
    name, before, after = max(counted, key=lambda pair: min(len(pair[1]), len(pair[2]), ENOUGH))
    if not before and not after:
        name, before, after = max(counted, key=lambda pair: len(pair[1]) + len(pair[2]))
    is_relative = kind.name is not MeasureName.ACCEPTANCE
    measure = MeasureComparison(kind.name, name, _side(kind, before), _side(kind, after), is_relative)
    if measure.before.value is None or measure.after.value is None:
        return measure
    shown = expm1 if is_relative else float
    apart: Callable[[float, float], float] = (lambda old, new: log(new / old)) if is_relative else (lambda a, b: b - a)
    if min(len(before), len(after)) < ENOUGH:
        return replace(measure, change=shown(apart(measure.before.value, measure.after.value)))
    if is_relative:
        values = [[kind.value(sample) or 0.0 for sample in side] for side in (before, after)]
        found = bootstrap(values, median, apart, is_narrow=False)
    else:
        sides = [[(one.draft_accepted or 0, one.draft_generated or 1) for one in side] for side in (before, after)]
        found = bootstrap(sides, ratio, apart)
    least = log(1 + LEAST_CHANGE) if is_relative else LEAST_POINTS
    verdict = ExperimentVerdict.UNCLEAR
    if abs(found.value) >= least and (found.low > 0 or found.high < 0):
        verdict = ExperimentVerdict.BETTER if (found.value > 0) is kind.is_more_better else ExperimentVerdict.WORSE
    return replace(measure, change=shown(found.value), low=shown(found.low), high=shown(found.high), verdict=verdict)


def _known(kind: _Kind, samples: Iterable[ServedRequest]) -> list[ServedRequest]:
    return [sample for sample in samples if kind.value(sample) is not None]


def _side(kind: _Kind, samples: Sequence[ServedRequest]) -> ExperimentSide:
    values = sorted(value for sample in samples if (value := kind.value(sample)) is not None)
    if not values:
        return ExperimentSide()
    middle = quantile(values, 0.5)
    if kind.name is MeasureName.ACCEPTANCE:
        middle = drafts_of(samples).acceptance or 0.0
    return ExperimentSide(len(values), middle, quantile(values, 0.25), quantile(values, 0.75))


def caveats(measures: Sequence[MeasureComparison], logged: Sides, reported: Sides) -> tuple[str, ...]:
    """What speaks against the verdicts, in sentences without a full stop, the weightiest first."""
    verdicts = {measure.name: measure.verdict for measure in measures}
    acceptance, decode = verdicts.get(MeasureName.ACCEPTANCE), verdicts.get(MeasureName.DECODE)
    found = []
    if {acceptance, decode} == {ExperimentVerdict.BETTER, ExperimentVerdict.WORSE}:
        found.append(f"acceptance got {acceptance} and decode {decode}: speed counts, acceptance only explains it")
    sides = logged if min(map(len, logged)) >= min(map(len, reported)) else reported
    for what, name in (("prompts", "prompt_tokens"), ("answers", "decode_tokens")):
        before, after = (median(getattr(request, name) for request in side) for side in sides)
        if min(map(len, sides)) >= LEAST and before and after and max(before, after) > TIMES * min(before, after):
            times, how = (after / before, "longer") if after > before else (before / after, "shorter")
            found.append(f"{what} are {times:.1f}x {how} after ({before:.0f}, then {after:.0f} tokens)")
    return tuple(found)


class _Kept(Struct):
    """What is compared of one change; a side is full once, and outlives the store of samples."""

    record: ApplyRecord
    sides: tuple[Sides, Sides] = (((), ()), ((), ()))
    """Of the log, and of the proxy's events."""
    measures: tuple[MeasureComparison, ...] = ()
    caveats: tuple[str, ...] = ()


class Experiments:
    """The applies of one target, and the comparison of the newest of them or of a later restart with another build.
    Recomputed only after new requests or applies."""

    def __init__(self) -> None:
        self.samples = Samples()
        self.records: tuple[ApplyRecord, ...] = ()
        """All applies there are, oldest first."""
        self._kept: _Kept | None = None
        self._seen: tuple[object, ...] = ()

    def settle(self, now: float, wall: float) -> None:
        """Date what came since the last look, and compare it; `now` and `wall` are one moment.

        The caller looks soon after it came, so that a clock that is set or a machine that sleeps moves nothing.
        """
        self.samples.date(now, wall)
        seen = (self.records, self.samples, self.samples.version)
        if seen == self._seen:
            return
        self._seen = seen
        rebuilt = _rebuilt(self.samples.rebuilt, self.records)
        records = sorted((*self.records, *rebuilt), key=restarted_at)
        # The newest apply that changed something.
        index = max(
            (at for at, record in enumerate(records) if record.outcome is ApplyOutcome.APPLIED and record.changes),
            default=None,
        )
        if index is None:
            return
        kept = self._kept
        if kept is None or kept.record != records[index]:
            kept = self._kept = _Kept(records[index])
        both = spans(records, records[index])
        logged, reported = self.samples.logged, self.samples.reported.values()
        sides = _sides(both, kept.sides[0], logged, LATE_S), _sides(both, kept.sides[1], reported, 0.0)
        if sides != kept.sides or not kept.measures:
            kept.sides, kept.measures = sides, compare(*sides)
            kept.caveats = caveats(kept.measures, *sides)

    def marks(self, wall: float) -> tuple[ApplyMark, ...]:
        """All applies, oldest first, as of Unix time `wall`."""
        return tuple(_mark(record, wall) for record in self.records)

    def card(self, wall: float) -> ExperimentCard | None:
        """The comparison for the newest change, as of the last `settle`."""
        kept = self._kept
        if kept is None or (kept.record.number and kept.record not in self.records):
            return None
        return ExperimentCard(_mark(kept.record, wall), kept.measures, kept.caveats)


def _mark(record: ApplyRecord, wall: float) -> ApplyMark:
    at = restarted_at(record)
    return ApplyMark(record, max(0.0, wall - at), at, short_text(record))


def _rebuilt(
    found: tuple[ServedRequest, ServedRequest] | None, records: Sequence[ApplyRecord]
) -> tuple[ApplyRecord, ...]:
    """A restart whose build changed, between these two requests, as if it had been an apply: number 0. None where an
    apply was what restarted it."""
    if found is None:
        return ()
    last, first = found
    if any(record.outcome in _CHANGED and last.ended <= record.ended_at <= first.ended for record in records):
        return ()
    change = Change(Role.BACKEND, "build", last.build, first.build)
    at = min(last.ended, first.began)
    return (ApplyRecord(0, at, max(at, first.began - 2 * LATE_S), ApplyKind.APPLY, ApplyOutcome.APPLIED, (change,)),)


def _sides(both: tuple[SideSpan, SideSpan], kept: Sides, samples: Iterable[ServedRequest], late_s: float) -> Sides:
    """The requests nearest to the change on each side."""
    if len(kept[1]) >= MOST:
        return kept
    samples = list(samples)
    return both[0].fair(samples, late_s)[-MOST:], both[1].fair(samples, late_s)[:MOST]
