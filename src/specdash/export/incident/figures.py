"""Key figures before and after the moment at which it began to go wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from specdash.core.applies import Outcome
from specdash.insight.charts import CHARTS, Metric

if TYPE_CHECKING:
    from specdash.export.incident.parts import Parts

LEAST_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Pivot:
    """The moment that separates before and after, and what it was."""

    at: float
    what: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One series: medians of both sides, None where there are too few values. A unit of % has fractions."""

    title: str
    unit: str
    before: float | None
    after: float | None
    low: float
    high: float

    @property
    def change(self) -> float | None:
        """After less before, as a share of before; of fractions their difference."""
        if self.before is None or self.after is None:
            return None
        if self.unit == "%":
            return self.after - self.before
        return (self.after - self.before) / self.before if self.before else None


def pivot(parts: Parts) -> Pivot | None:
    """When the worst alert of the span began, else its last apply; None when nothing happened in it."""
    inside = [alert for alert in parts.alerts if parts.span.since < alert.since < parts.span.until]
    if inside:
        worst = max(inside, key=lambda alert: (alert.severity.rank, -alert.since))
        return Pivot(worst.since, f"the alert “{worst.title}” began")
    applied = [
        one
        for one in parts.applies
        if one.outcome is not Outcome.REFUSED and parts.span.since < one.at < parts.span.until
    ]
    if applied:
        return Pivot(applied[-1].ended_at, f"{applied[-1].kind} {applied[-1].number} ended")
    return None


def figures(parts: Parts, at: Pivot | None) -> tuple[Figure, ...]:
    """Every series that has values. Without a pivot, all of them are `after`."""
    found: list[Figure] = []
    for metric in Metric:
        known = [(when, value) for when, value in parts.series.get(metric, ()) if _is_number(value)]
        if not known:
            continue
        values = [value for _, value in known if value is not None]
        before = [value for when, value in known if at is not None and when < at.at and value is not None]
        after = [value for when, value in known if (at is None or when >= at.at) and value is not None]
        spec = CHARTS[metric]
        found.append(
            Figure(
                spec.title,
                spec.unit,
                _median(before),
                _median(after, 1 if at is None else LEAST_SAMPLES),
                min(values),
                max(values),
            )
        )
    return tuple(found)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _median(values: list[float], least: int = LEAST_SAMPLES) -> float | None:
    return median(values) if len(values) >= least else None
