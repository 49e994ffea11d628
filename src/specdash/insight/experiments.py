"""What an apply changed in practice: requests before it against requests after it. Pure; the method and its limits are
in docs/experiments.md."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import expm1, log
from statistics import median
from typing import TYPE_CHECKING

from specdash.core.applies import ApplyRecord, Outcome, Step
from specdash.insight.bootstrap import MOST, Estimate, difference, median_of, quantile, ratio_of
from specdash.insight.experiment_picture import (
    ENOUGH,
    ApplyMark,
    ExperimentCard,
    Measure,
    MeasureName,
    Side,
    Verdict,
)
from specdash.insight.fairness import caveats
from specdash.insight.log_dates import begins
from specdash.insight.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdash.insight.log_dates import FormerServer
    from specdash.insight.samples import RequestSample

BACK_S = 1800.0
"""How far back requests count as before."""
LATE_S = 0.3
"""A request of the log may be dated this much late: the log is read at intervals."""
LEAST_CHANGE = 0.02
"""Two starts of one configuration differ by as much; a smaller change of speed is not called one."""
LEAST_POINTS = 0.01
"""The same for acceptance, as a fraction."""
_BEFORE_RESTART = (Step.LOCK, Step.PREFLIGHT, Step.BACKUP, Step.HOLD, Step.DRAIN, Step.WRITE)
_CHANGED = (Outcome.APPLIED, Outcome.ROLLBACK_FAILED)
"""Outcomes after which something else may run than before."""
_PREFIXES = ("LLAMA_", "PROXY_")
_TEXT_VALUE = 16


def restarted_at(record: ApplyRecord) -> float:
    """When an apply replaced what ran; its begin where it replaced nothing, or does not tell."""
    if str(Step.RESTART) not in record.step_seconds:
        return record.at
    spent = sum(record.step_seconds.get(str(step), 0.0) for step in _BEFORE_RESTART)
    return min(record.at + spent, max(record.ended_at, record.at))


def short_text(record: ApplyRecord) -> str:
    """What it changed, in a few words: `DRAFT_MAX 4→12 +2`."""
    if not record.changes:
        return record.profile or str(record.kind)
    first = record.changes[0]
    name = first.key
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    more = f" +{len(record.changes) - 1}" if len(record.changes) > 1 else ""
    return f"{name} {_short_value(first.before)}→{_short_value(first.after)}{more}"


def _short_value(value: str | None) -> str:
    if value is None:
        return "unset"
    shown = value.rstrip("/").rpartition("/")[2] if value.startswith(("/", "~")) else value
    return (shown if len(shown) <= _TEXT_VALUE else shown[: _TEXT_VALUE - 1] + "…") or '""'


def subject(records: Sequence[ApplyRecord]) -> int | None:
    """The index of the newest apply that changed something, None when none did."""
    for index in range(len(records) - 1, -1, -1):
        if records[index].outcome is Outcome.APPLIED and records[index].changes:
            return index
    return None


@dataclass(frozen=True, slots=True)
class Span:
    """Which requests belong to one side: those that ran from `start` to `end`, and outside of all `breaks`.

    A break is an apply that stopped something, from then to its end; the first request after it is cold.
    """

    start: float
    end: float
    breaks: tuple[tuple[float, float], ...] = ()

    def within(self, samples: Iterable[RequestSample]) -> list[RequestSample]:
        """The requests from `start` to `end`, in the order in which they began."""
        return sorted(
            (one for one in samples if self.start <= one.began and one.ended <= self.end), key=lambda one: one.began
        )

    def fair(self, ordered: Sequence[RequestSample], late_s: float) -> tuple[RequestSample, ...]:
        """Those of them that no apply touched, and that were not the first after one."""
        begins = [one.began for one in ordered]
        cold = {bisect_left(begins, right + late_s) for _, right in self.breaks}
        return tuple(
            one
            for index, one in enumerate(ordered)
            if index not in cold
            and all(one.ended <= left or one.began >= right + late_s for left, right in self.breaks)
        )


def spans(records: Sequence[ApplyRecord], index: int) -> tuple[Span, Span]:
    """The time before and the time after the apply at `index`."""
    here = records[index]
    restart = restarted_at(here)
    changed = [at for at, one in enumerate(records) if one.outcome in _CHANGED]
    first = max((at for at in changed if at < index), default=None)
    last = min((at for at in changed if at > index), default=None)
    previous = records[first] if first is not None else None
    following = records[last] if last is not None else None
    breaks = tuple(
        (restarted_at(one), max(one.ended_at, restarted_at(one)))
        for one in records[first or 0 : None if last is None else last + 1]
        if one.outcome is not Outcome.REFUSED
    )
    since = max(previous.ended_at, restart - BACK_S) if previous is not None else restart - BACK_S
    until = restarted_at(following) if following is not None else float("inf")
    return Span(since, restart, breaks), Span(max(here.ended_at, restart), until, breaks)


@dataclass(frozen=True, slots=True)
class _Kind:
    name: MeasureName
    value: Callable[[RequestSample], float | None]
    is_more_better: bool = True


def _acceptance(sample: RequestSample) -> float | None:
    if not sample.drafted or sample.accepted is None or not 0 <= sample.accepted <= sample.drafted:
        return None
    return sample.accepted / sample.drafted


_KINDS = (
    _Kind(MeasureName.ACCEPTANCE, _acceptance),
    _Kind(MeasureName.DECODE, lambda sample: sample.decode_rate),
    _Kind(MeasureName.PREFILL, lambda sample: sample.prefill_rate),
    _Kind(MeasureName.TTFT, lambda sample: sample.ttft_s, is_more_better=False),
)
Sides = tuple[tuple["RequestSample", ...], tuple["RequestSample", ...]]
"""Requests before and after."""
LOG, EVENTS = "log", "proxy events"


def compare(logged: Sides, told: Sides) -> tuple[Measure, ...]:
    """All measures, each from the better source: the log, or what the proxy told."""
    return tuple(_measure(kind, logged, told) for kind in _KINDS)


def _measure(kind: _Kind, logged: Sides, told: Sides) -> Measure:
    is_ttft = kind.name is MeasureName.TTFT
    sources = [(LOG if not is_ttft else "log: prompt time", logged), (EVENTS, told)]
    if is_ttft:
        sources.reverse()
    counted = [(name, _known(kind, sides[0]), _known(kind, sides[1])) for name, sides in sources]
    # The first source that suffices, else the one that is nearest to it.
    name, before, after = max(counted, key=lambda one: min(len(one[1]), len(one[2]), ENOUGH))
    if not before and not after:
        name, before, after = max(counted, key=lambda one: len(one[1]) + len(one[2]))
    if kind.name is MeasureName.ACCEPTANCE:
        return _judged(kind, name, (before, after), _ratio)
    return _judged(kind, name, (before, after), _median)


def _known(kind: _Kind, samples: Iterable[RequestSample]) -> list[RequestSample]:
    return [sample for sample in samples if kind.value(sample) is not None]


def _ratio(samples: Sequence[RequestSample], values: Sequence[float]) -> Estimate:
    del values
    return ratio_of([(sample.accepted or 0, sample.drafted or 1) for sample in samples])


def _median(samples: Sequence[RequestSample], values: Sequence[float]) -> Estimate:
    del samples
    return median_of(values)


def _points(before: float, after: float) -> float:
    return after - before


def _log_ratio(before: float, after: float) -> float:
    return log(after / before)


def _judged(
    kind: _Kind,
    source: str,
    sides: tuple[list[RequestSample], list[RequestSample]],
    estimate: Callable[[Sequence[RequestSample], Sequence[float]], Estimate],
) -> Measure:
    is_relative = kind.name is not MeasureName.ACCEPTANCE
    before, after = (_side(kind, samples) for samples in sides)
    measure = Measure(kind.name, source, before, after, is_relative)
    if before.value is None or after.value is None:
        return measure
    shown = expm1 if is_relative else float
    apart = _log_ratio if is_relative else _points
    if min(before.count, after.count) < ENOUGH:
        return replace(measure, change=shown(apart(before.value, after.value)))
    old, new = (estimate(samples, [kind.value(one) or 0.0 for one in samples]) for samples in sides)
    found = difference(old, new, apart)
    least = log(1 + LEAST_CHANGE) if is_relative else LEAST_POINTS
    verdict = Verdict.UNCLEAR
    if abs(found.value) >= least and (found.low > 0 or found.high < 0):
        verdict = Verdict.BETTER if (found.value > 0) is kind.is_more_better else Verdict.WORSE
    return replace(measure, change=shown(found.value), low=shown(found.low), high=shown(found.high), verdict=verdict)


def _side(kind: _Kind, samples: Sequence[RequestSample]) -> Side:
    values = sorted(value for sample in samples if (value := kind.value(sample)) is not None)
    if not values:
        return Side()
    middle = median(values)
    if kind.name is MeasureName.ACCEPTANCE:
        middle = sum(one.accepted or 0 for one in samples) / sum(one.drafted or 0 for one in samples)
    return Side(len(values), middle, quantile(values, 0.25), quantile(values, 0.75))


@dataclass(slots=True)
class _Kept:
    """The requests of one apply so far: what the bounded store of samples has dropped stays here."""

    apply: tuple[int, float]
    logged: Sides = ((), ())
    told: Sides = ((), ())
    """Within the spans, cold ones and those of breaks included."""
    fair: tuple[Sides, Sides] | None = None
    """What was compared."""
    seen: tuple[int, int] = (-1, -1)
    measures: tuple[Measure, ...] = ()
    caveats: tuple[str, ...] = ()


class Experiments:
    """The applies of one target and the comparison of the newest. Computes anew only when requests or applies came."""

    def __init__(self) -> None:
        self.samples = Samples()
        self._records: tuple[ApplyRecord, ...] = ()
        self._static: tuple[tuple[ApplyRecord, float, str], ...] = ()
        """Each apply with its Unix time and text."""
        self._moments: dict[tuple[int, float], float] = {}
        """When each apply was, on the monotonic clock: fixed at first sight, so that a chart's marker stands still."""
        self._kept: _Kept | None = None
        self._version = 0
        self._former: list[FormerServer] = []
        """Servers of the log whose times are not known yet, oldest first."""
        self._former_until = 0.0
        """When the server after the last of them began, on the monotonic clock."""
        self._former_dated = True
        """Whether all was made of them that the records there are can tell."""

    @property
    def records(self) -> tuple[ApplyRecord, ...]:
        """All applies there are, oldest first."""
        return self._records

    def set_records(self, records: tuple[ApplyRecord, ...]) -> None:
        """All applies there are, oldest first."""
        self._records = records
        self._static = tuple((one, restarted_at(one), short_text(one)) for one in records)
        known = {(one.number, one.at) for one in records}
        self._former_dated = False
        self._moments = {key: at for key, at in self._moments.items() if key in known}
        self._version += 1

    def add_former(self, former: Sequence[FormerServer], until: float) -> None:
        """Servers that ended before anybody looked, oldest first; the one after them began at monotonic `until`."""
        self._former, self._former_until, self._former_dated = list(former), until, False

    def _date_former(self, offset: float) -> None:
        """Give the requests of former servers their Unix times, where applies tell; `offset` is Unix less monotonic
        time."""
        self._former_dated = True
        restarts = [
            (restarted_at(one), max(one.ended_at, restarted_at(one)))
            for one in self._records
            if str(Step.RESTART) in one.step_seconds
        ]
        for began, one in begins(self._former, self._former_until + offset, restarts):
            self._former.pop()
            self._former_until = began - offset
            self.samples.add_former(
                (began + request.at_s, request)
                for request in one.requests
                if request.at_s is not None and request.origin is None
            )

    def marks(self, now: float, wall: float) -> tuple[ApplyMark, ...]:
        """All applies, oldest first; `now` and `wall` are one moment."""
        moment = self._moments.setdefault
        return tuple(
            ApplyMark(
                number=one.number,
                age_s=max(0.0, now - moment((one.number, one.at), now - wall + at)),
                wall=at,
                outcome=one.outcome,
                kind=one.kind,
                text=text,
            )
            for one, at, text in self._static
        )

    def card(self, marks: Sequence[ApplyMark], now: float, wall: float) -> ExperimentCard | None:
        """The comparison for the newest apply that changed something; `marks` are those of this moment."""
        self.samples.date(now, wall)
        if self._former and not self._former_dated:
            self._date_former(wall - now)
        index = subject(self._records)
        if index is None:
            return None
        record = self._records[index]
        kept = self._kept
        if kept is None or kept.apply != (record.number, record.at):
            kept = self._kept = _Kept((record.number, record.at))
        seen = (self._version, self.samples.version)
        if kept.seen != seen:
            kept.seen = seen
            self._compare(kept, spans(self._records, index))
        return ExperimentCard(marks[index], record.profile, kept.measures, kept.caveats)

    def _compare(self, kept: _Kept, both: tuple[Span, Span]) -> None:
        kept.logged = _gathered(both, kept.logged, self.samples.logged)
        kept.told = _gathered(both, kept.told, self.samples.told.values())
        fair = _fair(both, kept.logged, LATE_S), _fair(both, kept.told, 0.0)
        if fair != kept.fair:
            kept.fair = fair
            kept.measures = compare(*fair)
            kept.caveats = caveats(kept.measures, *fair)


def _gathered(both: tuple[Span, Span], kept: Sides, samples: Iterable[RequestSample]) -> Sides:
    """The requests nearest to the apply on each side, of those kept and those that came."""
    every = {id(one): one for side in (*kept, samples) for one in side}.values()
    return tuple(both[0].within(every)[-2 * MOST :]), tuple(both[1].within(every)[: 2 * MOST])


def _fair(both: tuple[Span, Span], sides: Sides, late_s: float) -> Sides:
    return both[0].fair(sides[0], late_s)[-MOST:], both[1].fair(sides[1], late_s)[:MOST]
