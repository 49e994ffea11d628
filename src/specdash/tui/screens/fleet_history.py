"""How one server of a fleet did over hours or weeks: its charts, one below the other, and its alerts as spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.records import EventKind, TimelineEvent
from specdash.insight.charts import Metric
from specdash.insight.picture import BackendPicture, Picture
from specdash.system.stats import median
from specdash.system.text import clean, number, percent, rate, scale_time, timestamp, window
from specdash.tui import plot
from specdash.tui.spans import BLANK, Line, Span, fit
from specdash.tui.view import View
from specdash.tui.widgets.chart import SCALE_WIDTH, Chart
from specdash.tui.widgets.header import ROLES
from specdash.tui.widgets.header import glyph as severity_glyph
from specdash.tui.widgets.panel import message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.core.log_facts import LogLine
    from specdash.export.from_prometheus import AlertSpan, ServerHistory

HISTORY_SPANS_S: dict[str, float] = {"1h": 3600.0, "6h": 21600.0, "24h": 86400.0, "7d": 604800.0, "30d": 2592000.0}
_CHARTS: tuple[tuple[str, Metric, str, str, Callable[[float | None], str]], ...] = (
    ("acceptance", Metric.ACCEPTANCE, "acceptance", "Acceptance", percent),
    ("decode", Metric.DECODE, "decode", "Decode tok/s", rate),
    ("prefill", Metric.PREFILL, "prefill", "Prefill tok/s", rate),
    ("queue", Metric.REQUESTS, "gain", "Waiting requests", number),
    ("gpu", Metric.GPU_UTILISATION, "machine", "GPU", percent),
)
"""Figure, the chart's scale, its colour, its title, and how its figures are written."""
_LEAST_CHART = 4
"""Lines of a chart with its heading."""
_MOST_ALERTS = 4


class HistoryOfFigures:
    """A server's history as what a chart asks for its columns."""

    def __init__(self, history: ServerHistory) -> None:
        self._figures = {metric: list(history.figures[name]) for name, metric, *_ in _CHARTS}

    def picture(self, now: float, wall: float, window_s: float = 0.0) -> Picture:
        """Nothing is known of now."""
        raise NotImplementedError

    def columns(self, metric: Metric, _now: float, _window_s: float, _count: int) -> list[float | None]:
        """The points as they came: there were never more asked for than columns."""
        return self._figures[metric]

    def log_lines(self, _after: int = 0, _limit: int = 0) -> tuple[int, tuple[LogLine, ...]]:
        """None."""
        return 0, ()


class HistoryCharts:
    """The lines of the page, with charts that remember what they drew."""

    def __init__(self) -> None:
        # Each point is whole: one that is missing is a gap.
        self._charts = {name: Chart(metric, role, late=0) for name, metric, role, *_ in _CHARTS}

    def lines(
        self, name: str, span: str, history: ServerHistory | None, words: str, size: tuple[int, int]
    ) -> list[Line]:
        """The page in so many columns and lines; `words` say why there is no history."""
        width, height = size
        head: list[Span] = [(f" {clean(name, width // 2)}", "accent bold"), (f"  last {span}", "text")]
        if history is None:
            return [tuple(head), BLANK, *message(words, width, max(height - 2, 1), "warn" if words else "dim")]
        head.append((f", a point for {window(history.range.step_s)}", "dim"))
        if (stale := history.stale_since) is not None:
            since = f"since {timestamp(stale, year=False, seconds=False)}" if stale else "in this time"
            head.append((f"  no figures {since}", "warn"))
        alerts = self._alert_lines(history, width)
        shown = [row for row in _CHARTS if any(value is not None for value in history.figures[row[0]])] or [_CHARTS[0]]
        room = height - 2 - len(alerts)
        shown = shown[: max(room // _LEAST_CHART, 1)]
        view = _view(history)
        lines: list[Line] = [tuple(head)]
        for index, (figure, _, role, title, written) in enumerate(shown):
            own = room // len(shown) + (index < room % len(shown))
            lines.append(_heading(title, role, history.figures[figure], written))
            lines += self._charts[figure].lines(view, width, own - 1)
        return [*lines, *alerts, _axis(history, width)]

    def _alert_lines(self, history: ServerHistory, width: int) -> list[Line]:
        by_rule: dict[str, list[AlertSpan]] = {}
        for alert in sorted(history.alerts, key=lambda alert: -alert.severity.rank):
            by_rule.setdefault(alert.rule, []).append(alert)
        lines = [self._spans(spans, history, width) for spans in list(by_rule.values())[:_MOST_ALERTS]]
        if len(by_rule) > _MOST_ALERTS:
            lines.append(((f"{'':{SCALE_WIDTH}}and {len(by_rule) - _MOST_ALERTS} more alerts", "dim"),))
        return lines

    def _spans(self, spans: Sequence[AlertSpan], history: ServerHistory, width: int) -> Line:
        """Where an alert was active, and its title where it was not."""
        cells, asked = width - SCALE_WIDTH, history.range
        total = asked.count * asked.step_s
        row = [" "] * cells
        for span in spans:
            first, last = (
                int((at - asked.until + total) / total * cells) for at in (span.since, span.until or asked.until)
            )
            for cell in range(max(first, 0), min(max(last, first + 1), cells)):
                row[cell] = "━"
        title = f" {clean(spans[0].title, 60)} "
        runs = "".join(row)
        at = runs.find(" " * len(title))
        at = at if at >= 0 else runs.find("  ")
        severity = spans[0].severity
        left: Line = ((fit(severity_glyph(severity), SCALE_WIDTH), ROLES[severity]),)
        if at < 0:
            return (*left, (runs, ROLES[severity]))
        room = len(runs[at:]) - len(runs[at:].lstrip(" "))
        shown = fit(title, min(room, len(title)))
        return (*left, (runs[:at], ROLES[severity]), (shown, "dim"), (runs[at + len(shown) :], ROLES[severity]))


def _view(history: ServerHistory) -> View:
    """The history as a moment of the dashboard's charts, with its alerts as their marks."""
    asked = history.range
    # In the middle of the last step: a mark falls into the column of the step in which it was.
    at = asked.until - asked.step_s / 2
    events = tuple(
        TimelineEvent(alert.since, EventKind.ALERT, alert.title, alert.severity, alert.until, ref=alert.rule)
        for alert in history.alerts
    )
    picture = Picture(at, at, asked.count * asked.step_s, BackendPicture(history.url), timeline=events)
    return View(picture, HistoryOfFigures(history))


def _heading(title: str, role: str, values: Sequence[float | None], written: Callable[[float | None], str]) -> Line:
    known = [value for value in values if value is not None]
    if not known:
        return ((title, role), ("  nothing known of it in this time", "dim"))
    least, most = written(min(known)), written(max(known))
    return ((title, role), (f"  median {written(median(known))}", "text"), (f"  {least} to {most}", "dim"))


def _axis(history: ServerHistory, width: int) -> Line:
    """When it begins, its middle, and its end."""
    asked, cells = history.range, width - SCALE_WIDTH
    total = asked.count * asked.step_s
    begin, middle, end = (scale_time(asked.until - total * share, total) for share in (1.0, 0.5, 0.0))
    gap = max(cells - len(begin) - len(middle) - len(end), 2)
    return ((f"{'':{SCALE_WIDTH}}{begin}{' ' * (gap // 2)}{middle}{' ' * (gap - gap // 2)}{end}", "dim"),)


def points_for(width: int, span_s: float) -> int:
    """How many points a page of this width has room for."""
    return plot.column_count(max(width - SCALE_WIDTH, 8), span_s)
