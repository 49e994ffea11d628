"""How servers did over a long time, by what `export.prometheus` told a Prometheus: downsampled there, read here. Pure.

Each point stands for the step that ends with it. Rates are Prometheus's own, which knows counters that began anew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from math import ceil
from typing import TYPE_CHECKING

from specdash.core.moments import even_step
from specdash.core.records import AlertSeverity
from specdash.export.prometheus import SERVER
from specdash.export.prometheus_fleet import INSTANCE
from specdash.insight.rules.catalogue import title_of
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.collect.prometheus import PrometheusSeries
    from specdash.insight.fleet import FleetRow

_SERIES = "series"
"""The label by which the parts of the one query are known in its answer."""
_UP, _ALERT = "up", "alert"
_BY = f"by ({SERVER}, {INSTANCE})"
FIGURES: Mapping[str, str] = {
    "acceptance": f"sum {_BY} (rate(specdash_accepted_tokens_total#)) / sum {_BY} (rate(specdash_draft_tokens_total#))",
    "decode": "avg_over_time(specdash_decode_tokens_per_second#)",
    "prefill": "avg_over_time(specdash_prefill_tokens_per_second#)",
    "queue": "max_over_time(specdash_requests_deferred#)",
    "gpu": f"max {_BY} (avg_over_time(specdash_gpu_utilisation_ratio#))",
    _UP: "avg_over_time(specdash_up#)",
}
"""What is read of a server, and how a step of it becomes a point; # is which series, and over which time."""
_ACTIVE = "max_over_time(specdash_alert_active#)"
SCRAPE_QUERY = "max(count_over_time(specdash_up[2m]))"
"""Scrapes in `SCRAPE_LOOK_S`."""
SCRAPE_LOOK_S = 120.0
USUAL_SCRAPE_S = 60.0
"""Prometheus's own default, where nothing was scraped of late."""
_SCRAPES = 2.2
"""A rate needs two scrapes, neither of which comes to the second."""
STALE_STEPS = 2.0


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """Which moments are asked for: from `since` to `until` (Unix times), a point for each `step_s`, none of them before
    the clock has passed it."""

    since: float
    until: float
    step_s: float
    scrape_s: float = USUAL_SCRAPE_S

    @property
    def count(self) -> int:
        """Points."""
        return round((self.until - self.since) / self.step_s) + 1

    @property
    def times(self) -> list[float]:
        """Their ends, oldest first."""
        return [self.since + number * self.step_s for number in range(self.count)]

    @property
    def window_s(self) -> float:
        """What one point is made of: its step, or where that is shorter than a few scrapes, these."""
        return max(self.step_s, ceil(self.scrape_s * _SCRAPES))


def history_range(since: float, until: float, most: int, scrape_s: float, step_s: float | None = None) -> HistoryRange:
    """That time in at most `most` points, at whole multiples of an even step: a chart changes once a step."""
    step = step_s if step_s is not None else even_step((until - since) / most)
    end = until // step * step
    count = max(min(int((until - since) / step), most), 1)
    return HistoryRange(end - (count - 1) * step, end, step, scrape_s)


@dataclass(frozen=True, slots=True)
class AlertSpan:
    """A time in which an alert was active, in Unix time, as exact as the steps."""

    rule: str
    title: str
    severity: AlertSeverity
    since: float
    until: float | None
    """None: it still is."""


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """One server over a time. `figures` has a value for each point, None where nothing is known of the step."""

    url: str
    exporter: str
    range: HistoryRange
    figures: Mapping[str, tuple[float | None, ...]]
    alerts: tuple[AlertSpan, ...] = ()

    @property
    def stale_since(self) -> float | None:
        """Since when Prometheus has had nothing of it (Unix time); None while it has."""
        newest = max(
            (at for at, up in zip(self.range.times, self.figures[_UP], strict=True) if up is not None), default=0
        )
        return newest if newest < self.range.until - STALE_STEPS * self.range.window_s else None


def query_of(asked: HistoryRange, row: FleetRow | None = None) -> str:
    """The one query for everything of the row's server, or of all servers."""
    chosen = ""
    if row is not None:
        texts = {SERVER: row.url, INSTANCE: row.exporter}
        chosen = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in texts.items())
    selector = f"{{{chosen}}}[{asked.window_s:.0f}s]"
    parts = {**FIGURES, _ALERT: _ACTIVE}
    return " or ".join(
        f'label_replace({part.replace("#", selector)}, "{_SERIES}", "{name}", "", "")' for name, part in parts.items()
    )


def histories_of(series: Iterable[PrometheusSeries], asked: HistoryRange) -> list[ServerHistory]:
    """What came, a history for each server of each exporter."""
    by_server: defaultdict[tuple[str, str], list[PrometheusSeries]] = defaultdict(list)
    for one_series in series:
        labels = one_series.labels
        if SERVER in labels and labels.get(_SERIES) in (*FIGURES, _ALERT):
            by_server[labels[SERVER], labels.get(INSTANCE, "")].append(one_series)
    return [_history(url, exporter, own, asked) for (url, exporter), own in by_server.items()]


def no_history(row: FleetRow, asked: HistoryRange) -> ServerHistory:
    """That of a server of which Prometheus has nothing in that time."""
    return ServerHistory(row.url, row.exporter, asked, dict.fromkeys(FIGURES, (None,) * asked.count))


def _history(url: str, exporter: str, series: Sequence[PrometheusSeries], asked: HistoryRange) -> ServerHistory:
    figures: dict[str, list[float | None]] = {name: [None] * asked.count for name in FIGURES}
    alerts: list[AlertSpan] = []
    for own in series:
        name = own.labels[_SERIES]
        if name == _ALERT:
            alerts += _spans(own, asked)
            continue
        for at, value in own.points:
            index = round((at - asked.since) / asked.step_s)
            if 0 <= index < asked.count:
                figures[name][index] = value
    found = {name: tuple(values) for name, values in figures.items()}
    return ServerHistory(url, exporter, asked, found, tuple(sorted(alerts, key=lambda alert: alert.since)))


def _spans(series: PrometheusSeries, asked: HistoryRange) -> list[AlertSpan]:
    """The steps in which the alert was seen, joined where they follow each other."""
    rule, severity = series.labels.get("rule", ""), series.labels.get("severity")
    if severity not in set(AlertSeverity):
        return []
    spans: list[tuple[float, float]] = []
    for at, value in series.points:
        if not value:
            continue
        if spans and at - spans[-1][1] < asked.step_s * 1.5:
            spans[-1] = (spans[-1][0], at)
        else:
            spans.append((at - asked.step_s, at))
    return [
        AlertSpan(rule, title_of(rule), AlertSeverity(severity), since, until if until < asked.until else None)
        for since, until in spans
    ]
