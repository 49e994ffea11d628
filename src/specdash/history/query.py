"""Series of the record as rows of equal length, for tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.history.tiers import Cell, tier_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.history.store import Store
    from specdash.insight.charts import Metric


@dataclass(frozen=True, slots=True)
class QueryRow:
    """The samples of every metric between `at` (Unix time) and the next row; a metric without samples is missing."""

    at: float
    cells: Mapping[Metric, Cell]

    def as_json(self) -> dict[str, Any]:
        """For a JSON array."""
        told = {
            metric.value: {"mean": cell.mean, "min": cell.low, "max": cell.high, "count": cell.count}
            for metric, cell in self.cells.items()
        }
        return {"at": self.at, **told}

    def as_csv(self, metrics: Iterable[Metric]) -> list[str]:
        """Mean, least, most and count per metric; empty where nothing is known."""
        found: list[str] = []
        for metric in metrics:
            cell = self.cells.get(metric)
            found += [f"{cell.mean:.6g}", f"{cell.low:.6g}", f"{cell.high:.6g}", str(cell.count)] if cell else [""] * 4
        return found

    def as_text(self, metrics: Iterable[Metric]) -> list[str]:
        """The mean per metric, `--` where nothing is known."""
        return [f"{self.cells[metric].mean:.4g}" if metric in self.cells else "--" for metric in metrics]


def table(
    store: Store, target: str, metrics: Sequence[Metric], since: float, until: float, step_s: float
) -> list[QueryRow]:
    """Rows at whole multiples of `step_s`, oldest first; without those in which nothing is known of any metric.

    From the coarsest tier whose cells are no longer than a row. What that no longer has, because it is too old, or does
    not have yet, comes from the next one.
    """
    rows: dict[int, dict[Metric, Cell]] = {}
    for metric in metrics:
        for tier in tier_for(step_s, 1):
            found = store.cells(target, metric, since - tier.step_s + 1, until, tier)
            if found:
                break
        for at, cell in found:
            number = math.floor(max(at, since) / step_s)
            own = rows.setdefault(number, {})
            before = own.get(metric)
            own[metric] = _together(before, cell) if before is not None else cell
    return [QueryRow(number * step_s, cells) for number, cells in sorted(rows.items())]


def _together(one: Cell, other: Cell) -> Cell:
    return Cell(min(one.low, other.low), one.total + other.total, max(one.high, other.high), one.count + other.count)
