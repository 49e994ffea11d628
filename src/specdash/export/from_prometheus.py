"""What `export.prometheus` told a Prometheus of servers, read back: the rows of a fleet, and how servers did. Pure.

Each point of a history stands for the step that ends with it. Rates are Prometheus's own, which knows counters that
began anew.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from math import ceil, isfinite
from typing import TYPE_CHECKING

from specdash.core.moments import even_step
from specdash.core.readings import ReadingStatus
from specdash.core.records import AlertSeverity
from specdash.export.prometheus import SERVER
from specdash.insight.fleet import FleetRow, fullest_memory, host_of
from specdash.insight.picture import BackendState, MeasuredFigure
from specdash.insight.rules.catalogue import title_of
from specdash.insight.speedup.verdict import Verdict, VerdictKind, headline
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.collect.prometheus import PrometheusSample, PrometheusSeries

READ = (
    *("server_info", "state", "speculation_verdict", "speculation_speedup_ratio", "speculation_acceptance_ratio"),
    *("decode_tokens_per_second", "prefill_tokens_per_second", "requests_processing", "requests_deferred"),
    *("context_size_tokens", "slot_context_used_tokens", "gpu_utilisation_ratio", "alerts", "alert_active"),
    *("gpu_memory_used_bytes", "gpu_memory_total_bytes"),
)
"""The metrics that a row is made of, without `specdash_`."""
QUERY = f'{{__name__=~"specdash_({"|".join(READ)})"}}'
_NAME, INSTANCE = "__name__", "instance"
"""Labels of Prometheus: the metric's name, and the exporter that it was read from."""


def rows_of_samples(samples: Iterable[PrometheusSample]) -> list[FleetRow]:
    """A row for each server of each exporter, named by its address; where several exporters know the same address,
    which is then each machine's own, with the exporter before it."""
    by_server: defaultdict[tuple[str, str], defaultdict[str, list[PrometheusSample]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples:
        labels, name = sample.labels, sample.labels.get(_NAME, "").removeprefix("specdash_")
        if name in READ and SERVER in labels and isfinite(sample.value):
            by_server[labels.get(INSTANCE, ""), labels[SERVER]][name].append(sample)
    known_by = Counter(server for _, server in by_server)
    rows = []
    for (instance, server), found in by_server.items():
        host = host_of(instance)
        is_shared = known_by[server] > 1
        rows.append(_row(f"{host}  {server}" if is_shared else server, server, instance, found))
    return rows


def _row(name: str, url: str, exporter: str, found: Mapping[str, list[PrometheusSample]]) -> FleetRow:
    def label(metric: str, label: str) -> str | None:
        """The label of the series that is 1."""
        return next((sample.labels.get(label) for sample in found.get(metric, ()) if sample.value), None)

    def most(metric: str) -> float | None:
        """The only value, or the greatest."""
        return max((sample.value for sample in found.get(metric, ())), default=None)

    alerts = {sample.labels.get("severity"): int(sample.value) for sample in found.get("alerts", ())}
    state = label("state", "state")
    slots, size = found.get("slot_context_used_tokens"), most("context_size_tokens")
    sizes = {_gpu_of(sample): sample.value for sample in found.get("gpu_memory_total_bytes", ())}
    memory = [(sample.value, sizes.get(_gpu_of(sample))) for sample in found.get("gpu_memory_used_bytes", ())]
    vram_used, vram_size = fullest_memory(memory)
    used, busy = most("slot_context_used_tokens"), most("requests_processing")
    return FleetRow(
        name=name,
        url=url,
        model=label("server_info", "model") or None,
        state=state if state in set(BackendState) else str(BackendState.UNKNOWN),
        verdict=_verdict(label("speculation_verdict", "verdict"), found.get("speculation_speedup_ratio", ())),
        acceptance=_figure(most("speculation_acceptance_ratio")),
        decode=_figure(most("decode_tokens_per_second")),
        prefill=_figure(most("prefill_tokens_per_second")),
        context_used=round(used) if used is not None else None,
        context_size=round(size) if size is not None else None,
        gpu=most("gpu_utilisation_ratio"),
        busy=round(busy) if busy is not None else None,
        slots=len(slots) if slots else None,
        queue=most("requests_deferred"),
        critical=alerts.get(AlertSeverity.CRITICAL, 0),
        warnings=alerts.get(AlertSeverity.WARNING, 0),
        notices=alerts.get(AlertSeverity.NOTICE, 0),
        cause=_cause(found.get("alert_active", ())),
        vram_used=vram_used,
        vram_size=vram_size,
        exporter=exporter,
        group=next(
            (sample.labels["group"] for rows in found.values() for sample in rows if "group" in sample.labels), ""
        ),
    )


def _gpu_of(sample: PrometheusSample) -> str | None:
    return sample.labels.get("gpu")


def _figure(value: float | None) -> MeasuredFigure:
    if value is None:
        return MeasuredFigure()
    return MeasuredFigure(value, ReadingStatus.KNOWN, basis="exported")


def _verdict(kind: str | None, bounds: Iterable[PrometheusSample]) -> Verdict | None:
    if kind not in set(VerdictKind):
        return None
    value = next((bound.value for bound in bounds if bound.labels.get("bound") == "value"), None)
    known = VerdictKind(kind)
    return Verdict(known, headline(known, value) if value is not None else known.upper())


def _cause(active: Iterable[PrometheusSample]) -> str:
    """The title of the gravest alert: which of several is the cause of the others is known where they were judged."""
    severities = list(AlertSeverity)
    rules = {
        sample.labels.get("rule", ""): severities.index(AlertSeverity(severity))
        for sample in active
        if (severity := sample.labels.get("severity")) in set(AlertSeverity)
    }
    if not rules:
        return ""
    worst = max(rules, key=lambda rule: (rules[rule], rule))
    return title_of(worst)


# How servers did over a long time, downsampled by Prometheus.

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
