"""Alerts on the incidents screen: the table of active and past ones, and one in detail."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from specdash.core.timeline import EventKind
from specdash.insight.charts import CHARTS, Metric
from specdash.insight.rules.runbook import runbook
from specdash.insight.timeline import of_alert
from specdash.tui.formatting import age, clean, clock, count, duration, fit
from specdash.tui.layout import PanelId
from specdash.tui.spans import BLANK, Line, Span, line_width, spread, wrap
from specdash.tui.widgets.banner import ROLES, glyph, worst
from specdash.tui.widgets.chart import SCALE_WIDTH, Chart
from specdash.tui.widgets.panel import TitledPanel
from specdash.tui.widgets.rows import RowsPanel
from specdash.tui.widgets.table import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual import events

    from specdash.core.alerts import Alert
    from specdash.insight.rules.catalogue import RuleSpec
    from specdash.tui.view import View

NOTHING_WRONG = "nothing is wrong"
ALERTS, DETAIL = "incidents-alerts", "incidents-detail"
_SERIES = {
    Metric.ACCEPTANCE: PanelId.ACCEPTANCE,
    Metric.PREFILL: PanelId.PREFILL,
    Metric.DECODE: PanelId.DECODE,
    Metric.TOKENS_PER_DECODE: PanelId.GAIN,
}
_SPANS_S = (120.0, 300.0, 900.0, 3_600.0, 10_800.0, 43_200.0, 86_400.0)
_DAY_S = 86_400.0
_LABEL = 11
_MOST_LINES = 20
_CHART_BESIDE = 96
_CHART_LEAST, _CHART_MOST = 6, 24


def lasted(alert: Alert, wall: float) -> float:
    """Seconds from its first sign to its end, or until now."""
    return max((alert.ended if alert.ended is not None else wall) - alert.since, 0.0)


def moment(at: float, wall: float) -> str:
    """`02:13:45`; of another day `11-20 02:13`."""
    return clock(at) if wall - at < _DAY_S / 2 else time.strftime("%m-%d %H:%M", time.localtime(at))


def subject_words(alert: Alert) -> str:
    """`slot 3: Slot is hung`, the title alone where there is no subject."""
    title = clean(alert.title, 80)
    return f"{title} ({clean(alert.subject, 40)})" if alert.subject else title


class AlertsTable(RowsPanel["Alert"]):
    """Active alerts, worst first; below them those that are over."""

    def __init__(self) -> None:
        super().__init__("Alerts", id=ALERTS)
        self.follower: AlertDetail | None = None
        """What shows the selected alert."""

    def show(self, view: View) -> None:
        """Draw this view; also while it is hidden, it knows which alert is selected."""
        self._rows = list(self.rows(view))
        super().show(view)

    def keep_selection(self) -> None:
        """Stay with the alert that is selected now, also when a graver one comes."""
        alert = self.selected
        self.chosen = self.key(alert) if alert is not None else None

    def move(self, lines: int) -> None:
        """Select another alert; the detail follows."""
        super().move(lines)
        if self.follower is not None:
            self.follower.redraw()

    def on_click(self, event: events.Click) -> None:
        """Select the alert; the detail follows."""
        super().on_click(event)
        if self.follower is not None:
            self.follower.redraw()

    def rows(self, view: View) -> Sequence[Alert]:
        """All of them; first the one that explains the others."""
        alerts = view.picture.alerts
        active = sorted(alerts.active, key=lambda one: one.key != alerts.cause_key)
        return (*active, *alerts.past)

    def key(self, row: Alert) -> str:
        """The same while it is active and when it is over."""
        return f"{row.rule}|{row.subject}|{row.since:.3f}"

    def key_figure(self, view: View) -> Line:
        """How many are active, in the colour of the worst."""
        active = view.picture.alerts.active
        if not active:
            known = bool(view.picture.alerts.judged)
            return ((NOTHING_WRONG, "good bold"),) if known else (("nothing is judged", "warn bold"),)
        return ((f"{len(active)} active", f"{ROLES[worst(active)]} bold"),)

    def aside(self, view: View) -> Line:
        """How many are over, and how many rules are not judged."""
        alerts = view.picture.alerts
        parts = [f"{count(len(alerts.past))} over"] if alerts.past else []
        if alerts.unjudged:
            many = len(alerts.unjudged)
            parts.append(f"{many} rule{'s' * (many > 1)} not judged now")
        return (("  ".join(parts), "dim"),) if parts else ()

    def nothing(self, view: View) -> str:
        """The detail says it."""
        del view
        return "no alerts"

    def columns(self, view: View) -> Sequence[Column[Alert]]:
        """Severity, what, since when, how long, and whether it is over."""
        wall, glyphs, alerts = view.picture.wall, view.glyphs, view.picture.alerts

        def severity(alert: Alert) -> Span:
            role = ROLES[alert.severity]
            text = f"{glyph(alert.severity, glyphs)} {alert.severity}"
            return (text, f"{role} bold") if alert.is_active else (text, "dim")

        def what(alert: Alert) -> Span:
            return subject_words(alert), "text bold" if alert.is_active else "text"

        def state(alert: Alert) -> Span:
            if alert.ended is None:
                is_cause = alert.key == alerts.cause_key and len(alerts.active) > 1
                return "cause" if is_cause else "active", f"{ROLES[alert.severity]} bold"
            return f"over {age(max(wall - alert.ended, 1.0))}", "dim"

        return (
            Column("severity", 10, severity, 0, right=False),
            Column("alert", 24, what, 0, right=False, stretch=True),
            Column("since", 11 if _is_old(view) else 8, lambda one: (moment(one.since, wall), "text"), 1),
            Column("lasted", 7, lambda one: (duration(lasted(one, wall)), "text"), 2),
            Column("state", 9, state, 1, right=False),
        )


def _is_old(view: View) -> bool:
    return any(view.picture.wall - one.since >= _DAY_S / 2 for one in view.picture.alerts.past)


class AlertDetail(TitledPanel):
    """One alert: what it says, what to do, what it rests on, and the chart around its time."""

    def __init__(self, table: AlertsTable) -> None:
        super().__init__("Detail", id=DETAIL)
        self.table = table
        table.follower = self
        self.top = 0
        self._of: str | None = None
        self._length = 0
        self._specs: Mapping[str, RuleSpec] | None = None
        self._charts: dict[Metric, Chart] = {}

    @property
    def specs(self) -> Mapping[str, RuleSpec]:
        """What is said of each rule."""
        if self._specs is None:
            from specdash.insight.rules.catalogue import shipped

            self._specs = {rule.spec.id: rule.spec for rule in shipped()}
        return self._specs

    def on_focus(self) -> None:
        """Who reads on shall not be shown another alert."""
        self.table.keep_selection()
        super().on_focus()

    def redraw(self) -> None:
        """Build title and body; another alert is read from its beginning."""
        alert = self.table.selected
        key = self.table.key(alert) if alert is not None else None
        if key != self._of:
            self._of, self.top = key, 0
        self.panel_title = subject_words(alert) if alert is not None else "What is judged"
        super().redraw()

    def key_figure(self, view: View) -> Line:
        """The severity."""
        del view
        alert = self.table.selected
        if alert is None:
            return ()
        return ((str(alert.severity), f"{ROLES[alert.severity]} bold" if alert.is_active else "dim"),)

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The text, scrolled; the chart beside it, or where there is no room below it."""
        alert = self.table.selected
        if alert is None:
            return self._scrolled(judged_lines(view, self.specs, width), width, height)
        spec = self.specs.get(alert.rule)
        if width >= _CHART_BESIDE and alert.chart is not None:
            room = width * 2 // 5
            chart = self._chart(alert, view, room, min(height, _CHART_MOST))
            text = self._scrolled(detail_lines(alert, spec, view, width - room - 2), width - room - 2, height)
            return [
                (
                    *_padded(text[y] if y < len(text) else BLANK, width - room),
                    *(chart[y] if y < len(chart) else BLANK),
                )
                for y in range(height)
            ]
        lines = detail_lines(alert, spec, view, width)
        if alert.chart is not None:
            spare = height - len(lines) - 1
            lines += [BLANK, *self._chart(alert, view, width, min(max(spare, _CHART_LEAST), _CHART_MOST))]
        return self._scrolled(lines, width, height)

    def _scrolled(self, lines: list[Line], width: int, height: int) -> list[Line]:
        self._length = len(lines)
        self.top = max(min(self.top, len(lines) - height), 0)
        seen = lines[self.top : self.top + height]
        below = len(lines) - self.top - height
        if below > 0 and seen:
            how = "↓" if self.has_focus else "z shows all"
            seen[-1] = ((fit(f"  {below + 1} more lines: {how}", width), "accent"),)
        return seen

    def _chart(self, alert: Alert, view: View, width: int, height: int) -> list[Line]:
        metric = Metric(alert.chart) if alert.chart in tuple(Metric) else None
        if metric is None or height < _CHART_LEAST - 1:
            return []
        chart = self._charts.setdefault(metric, Chart(metric, _SERIES.get(metric, PanelId.MACHINE).value))
        end, span = chart_span(alert, view.picture.wall)
        lines = list(chart.lines(_at(view, alert, end, span), width, height - 2))
        if not lines:
            return []
        if chart.empty:
            told = "nothing is kept of this time here; enter goes there"
            lines[len(lines) // 2] = ((fit(" " * SCALE_WIDTH + told, width), "dim"),)
        spec = CHARTS[metric]
        title: Line = ((f"{spec.title} ", "text"), (spec.unit, "dim"))
        return [
            spread(title, ((f"{_length(span)} around it ", "dim"),), width),
            *lines,
            _span_line(alert, end, span, width),
        ]

    def move(self, lines: int) -> None:
        """Scroll."""
        self.top = max(min(self.top + lines, self._length - self.size.height + 1), 0)
        self.redraw()

    def page(self, pages: int) -> None:
        """Scroll by what is seen."""
        self.move(pages * max(self.size.height - 2, 1))

    def to_start(self) -> None:
        """To the summary."""
        self.move(-self._length)

    def to_end(self) -> None:
        """To the last line."""
        self.move(self._length)


def detail_lines(alert: Alert, spec: RuleSpec | None, view: View, width: int) -> list[Line]:
    """What it says first, then what to do, then what it rests on and means."""
    wall = view.picture.wall
    ends = "still active" if alert.ended is None else f"over since {moment(alert.ended, wall)}"
    lines: list[Line] = [((text, "text bold"),) for text in wrap(clean(alert.summary, 600), width, 4)]
    lines.append(((f"since {moment(alert.since, wall)}, {duration(lasted(alert, wall))}, {ends}", "dim"),))
    for index, (key, value) in enumerate(alert.fix):
        wanted = f"= {clean(value, 60)}" if value is not None else "removed"
        hint = "   f: to the tune screen" if index == 0 else ""
        lines.append(
            (
                (fit("fix" if index == 0 else "", _LABEL), "good"),
                (fit(f"{clean(key, 60)} {wanted}", max(width - _LABEL - len(hint), 0)).rstrip(), "good bold"),
                (hint, "dim"),
            )
        )
    if spec is not None:
        todo = runbook(spec, alert)
        lines += _labelled("do", todo.remedy, width, "accent", "text")
        for index, check in enumerate(todo.checks):
            lines += _labelled("check" if not index else "", f"{index + 1}. {check}", width, "accent", "text")
    names = min(max((len(label) for label, _ in alert.evidence), default=0), max(width // 2 - _LABEL, 8)) + 2
    for index, (label, value) in enumerate(alert.evidence):
        head = fit("evidence" if not index else "", _LABEL)
        room = max(width - _LABEL - names, 8)
        lines.append(((head, "dim"), (fit(clean(label, 60), names), "dim"), (fit(clean(value, 200), room), "text")))
    if spec is not None:
        lines += _labelled("meaning", spec.meaning, width)
    return lines


def judged_lines(view: View, specs: Mapping[str, RuleSpec], width: int) -> list[Line]:
    """That nothing is wrong, what is judged, and what is not and why."""
    unjudged, judged = view.picture.alerts.unjudged, view.picture.alerts.judged
    if not judged and not unjudged:
        return [(("Nothing was judged yet.", "text"),)]
    told = f"{len(judged)} of {len(judged) + len(unjudged)} rules are judged at every look at the server; none holds."
    lines: list[Line] = [
        ((f"{NOTHING_WRONG.capitalize()}.", "good bold"),) if judged else (("Nothing can be judged.", "warn bold"),),
        *(((text, "text"),) for text in wrap(told, width, 2)),
        BLANK,
    ]
    by_why: dict[str, list[str]] = {}
    for rule, why in unjudged:
        by_why.setdefault(why, []).append(specs[rule].title if rule in specs else rule)
    for why, titles in by_why.items():
        lines.append((("not judged  ", "warn"), (fit(clean(why, 200), max(width - 12, 1)).rstrip(), "text")))
        lines += [((f"  {text}", "dim"),) for text in wrap(", ".join(titles), width - 2, 6)]
    watched = [specs[rule].title if rule in specs else rule for rule in judged]
    if watched:
        lines.append((("judged", "good"),))
        lines += [((f"  {text}", "dim"),) for text in wrap(", ".join(watched), width - 2, 12)]
    return lines


def chart_span(alert: Alert, wall: float) -> tuple[float, float]:
    """The Unix time where a chart around an alert ends, and how many seconds it shows: half again as much as the alert
    lasted, most of it before."""
    long = lasted(alert, wall)
    span = next((one for one in _SPANS_S if one >= long * 1.5 + 30.0), _SPANS_S[-1])
    if alert.ended is None:
        return wall, span
    return min(wall, alert.ended + (span - long) / 3), span


def _at(view: View, alert: Alert, end: float, span: float) -> View:
    """The view of a chart that ends at `end`, with the marks of this alert, of applies and of restarts."""
    picture = view.picture
    back = picture.wall - end
    applies = tuple(replace(one, age_s=one.age_s - back) for one in picture.applies)
    others = [one for one in picture.timeline if one.kind is not EventKind.ALERT]
    events = tuple(sorted((*others, replace(of_alert(alert), ended=alert.since)), key=lambda one: one.at))
    moved = replace(picture, at=picture.at - back, wall=end, window_s=span, applies=applies, timeline=events)
    return replace(view, picture=moved)


def _span_line(alert: Alert, end: float, span: float, width: int) -> Line:
    """Below a chart: a bar while the alert lasted, between the times of the chart's ends."""
    first, last = moment(end - span, end), moment(end, end)
    room = max(width - SCALE_WIDTH, 1)
    begin = min(max(round((alert.since - end + span) / span * room), 0), room - 1)
    stop = min(max(round(((alert.ended or end) - end + span) / span * room), begin + 1), room)
    cells: list[Span] = [(" ", "dim")] * room
    cells[begin:stop] = [("━", f"{ROLES[alert.severity]} bold")] * (stop - begin)
    for text, at in ((first, 0), (last, room - len(last))):
        if all(char == " " for char, _ in cells[at : at + len(text) + (at == 0)]):
            cells[at : at + len(text)] = [(char, "dim") for char in text]
    return ((" " * SCALE_WIDTH, "dim"), *cells)


def _length(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"


def _labelled(label: str, text: str, width: int, label_role: str = "dim", role: str = "dim") -> list[Line]:
    texts = wrap(text, max(width - _LABEL, 10), _MOST_LINES)
    return [((fit(label if not i else "", _LABEL), label_role), (one, role)) for i, one in enumerate(texts)]


def _padded(line: Line, width: int) -> Line:
    return (*line, (" " * max(width - line_width(line), 0), "text"))
