"""Alerts on the incidents screen: the table of active and past ones, and one in detail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.records import AlertSeverity, EventKind
from specdash.insight.charts import CHARTS, Metric
from specdash.insight.derive import of_alert
from specdash.insight.rules.catalogue import runbook
from specdash.system.text import age, clean, clock, counted, duration, moment, number, scale_time
from specdash.tui.layout import PanelId
from specdash.tui.plot import APPLIED, CRITICAL, FAILED, RESTARTED, UNDONE, WARNED, MarkStyle, look_of, look_of_event
from specdash.tui.spans import BLANK, GLYPHS, Line, Span, fit, line_width, spread, wrap
from specdash.tui.widgets.chart import SCALE_WIDTH, Chart
from specdash.tui.widgets.header import ROLES, glyph, worst
from specdash.tui.widgets.panel import Column, LinesWidget, RowsPanel, TitledPanel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.records import Alert, TimelineEvent
    from specdash.insight.experiments import ApplyMark
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule
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
_TITLE = 48
"""Cells of a rule's title among others side by side."""
_MOST_LINES = 20
_CHART_BESIDE = 96
_CHART_LEAST, _CHART_MOST = 6, 24
_CHART_TALL = 10
"""Lines for which another chart is worth having below."""
_BESIDE = (Metric.DECODE, Metric.ACCEPTANCE, Metric.CPU)


def lasted(alert: Alert, wall: float) -> float:
    """Seconds from its first sign to its end, or until now."""
    return max((alert.ended if alert.ended is not None else wall) - alert.since, 0.0)


def subject_words(alert: Alert) -> str:
    """`slot 3: Slot is hung`, the title alone where there is no subject."""
    title = clean(alert.title, 80)
    return f"{title} ({clean(alert.subject, 40)})" if alert.subject else title


class AlertsTable(RowsPanel["Alert"]):
    """Active alerts, worst first; below them those that are over."""

    def __init__(self) -> None:
        super().__init__("Alerts", id=ALERTS)

    def show(self, view: View) -> None:
        """Draw this view; also while it is hidden, it knows which alert is selected."""
        self._rows = list(self.rows(view))
        super().show(view)

    def keep_selection(self) -> None:
        """Stay with the alert that is selected now, also when a graver one comes."""
        alert = self.selected
        self.chosen = self.key(alert) if alert is not None else None

    def rows(self, view: View) -> Sequence[Alert]:
        """All of them; first the one that explains the others."""
        alerts = view.picture.alerts
        active = sorted(alerts.active, key=lambda alert: alert.key != alerts.cause_key)
        return (*active, *alerts.past)

    def key(self, row: Alert) -> str:
        """The same while it is active and when it is over."""
        return f"{row.rule}|{row.subject}|{row.since:.3f}"

    def key_figure(self, view: View) -> Line:
        """How many are active, in the colour of the worst."""
        active = view.picture.alerts.active
        if not active:
            known = bool(view.picture.alerts.judged)
            return ((NOTHING_WRONG, "good bold"),) if known else (("not checked yet", "warn bold"),)
        return ((f"{len(active)} active", f"{ROLES[worst(active)]} bold"),)

    def aside(self, view: View) -> Line:
        """How many are over, and how many rules are not judged."""
        alerts = view.picture.alerts
        parts = [f"{number(len(alerts.past))} over"] if alerts.past else []
        if alerts.unjudged:
            many = len(alerts.unjudged)
            parts.append(f"{counted(many, 'check')} without data")
        return (("  ".join(parts), "dim"),) if parts else ()

    def nothing(self, view: View) -> str:
        """The detail says it."""
        return "no alerts"

    def columns(self, view: View) -> Sequence[Column[Alert]]:
        """Severity, what, since when, how long, and whether it is over."""
        wall, alerts = view.picture.wall, view.picture.alerts

        def severity(alert: Alert) -> Span:
            role = ROLES[alert.severity]
            text = f"{glyph(alert.severity)} {alert.severity}"
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
            Column(
                "since", 11 if _is_old(view) else 8, lambda alert: (moment(alert.since, wall, seconds=False), "text"), 1
            ),
            Column("lasted", 7, lambda alert: (duration(lasted(alert, wall), short=True), "text"), 2),
            Column("state", 9, state, 1, right=False),
        )


def _is_old(view: View) -> bool:
    wall = view.picture.wall
    return any(moment(alert.since, wall, seconds=False) != clock(alert.since) for alert in view.picture.alerts.past)


class AlertDetail(TitledPanel):
    """One alert: what it says, what to do, what it rests on, and the chart around its time."""

    def __init__(self, table: AlertsTable) -> None:
        super().__init__("Detail", id=DETAIL)
        self.table = table
        table.follow = self.redraw
        self.top = 0
        self._of: str | None = None
        self._length = 0
        self._specs: Mapping[str, Rule] | None = None
        self._charts: dict[Metric, Chart] = {}

    @property
    def specs(self) -> Mapping[str, Rule]:
        """The text of each rule."""
        if self._specs is None:
            from specdash.insight.rules.catalogue import shipped

            self._specs = {rule.id: rule for rule in shipped()}
        return self._specs

    @property
    def remedy(self) -> str:
        """What the runbook says to do about the alert, "" without one."""
        alert = self.table.selected
        spec = self.specs.get(alert.rule) if alert is not None else None
        return runbook(spec, alert).remedy if spec is not None else ""

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
        self.panel_title = subject_words(alert) if alert is not None else "Checks"
        super().redraw()

    def key_figure(self, view: View) -> Line:
        """The severity."""
        alert = self.table.selected
        if alert is None:
            return ()
        return ((str(alert.severity), f"{ROLES[alert.severity]} bold" if alert.is_active else "dim"),)

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The text, scrolled; the chart beside it, or where there is no room below it."""
        alert = self.table.selected
        spec = self.specs.get(alert.rule) if alert is not None else None
        own = Metric(alert.chart) if alert is not None and alert.chart in tuple(Metric) else None
        charted = alert is None or own is not None
        room = width * 2 // 5 if width >= _CHART_BESIDE and charted else 0
        left = width - room - 2 if room else width
        lines = judged_lines(view, self.specs, left) if alert is None else detail_lines(alert, spec, view, left)
        if room:
            metrics = list(dict.fromkeys([*filter(None, [own]), *_BESIDE]))[: max(height // _CHART_TALL, 1)]
            tall = min(height // len(metrics), _CHART_MOST)
            charts = [line for metric in metrics for line in self._chart(metric, alert, view, room, tall)]
            text = [*self._scrolled(lines, view, left, height), *[BLANK] * height]
            return [
                (*_padded(line, width - room), *chart)
                for line, chart in zip(text[:height], [*charts, *[BLANK] * height], strict=False)
            ]
        if own is not None:
            spare = min(max(height - len(lines) - 1, _CHART_LEAST), _CHART_MOST)
            lines += [BLANK, *self._chart(own, alert, view, width, spare)]
        return self._scrolled(lines, view, width, height)

    def _scrolled(self, lines: list[Line], view: View, width: int, height: int) -> list[Line]:
        self._length = len(lines)
        self.top = max(min(self.top, len(lines) - height), 0)
        seen = lines[self.top : self.top + height]
        below = len(lines) - self.top - height
        if below > 0 and seen:
            how = view.keys.arrows[1:] if self.has_focus else f"{view.keys['zoom']} shows all"
            seen[-1] = ((fit(f"  {below + 1} more lines: {how}", width), "accent"),)
        return seen

    def _chart(self, metric: Metric, alert: Alert | None, view: View, width: int, height: int) -> list[Line]:
        """A chart around the alert's time, or without one up to now."""
        if height < _CHART_LEAST - 1:
            return []
        chart = self._charts.setdefault(metric, Chart(metric, _SERIES.get(metric, PanelId.MACHINE).value))
        end, span = chart_span(alert, view.picture.wall) if alert is not None else (view.picture.wall, view.span_s)
        below = [_span_line(alert, end, span, width)] if alert is not None else []
        at = _at(view, alert, end, span) if alert is not None else view
        lines = list(chart.lines(at, width, height - 1 - len(below)))
        if not lines:
            return []
        if chart.empty:
            opens = f"nothing recorded here for that time; {view.keys['open']} opens it"
            text = opens if alert is not None else "nothing yet"
            lines[len(lines) // 2] = ((fit(" " * SCALE_WIDTH + text, width), "dim"),)
        spec = CHARTS[metric]
        title: Line = ((f"{spec.title} ", "text"), (spec.unit, "dim"))
        when = f"{duration(span)} around it " if alert is not None else f"last {duration(span, short=True)} "
        return [spread(title, ((when, "dim"),), width), *lines, *below]

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


def detail_lines(alert: Alert, spec: Rule | None, view: View, width: int) -> list[Line]:
    """What it says first, then what to do, then what it rests on and means."""
    wall = view.picture.wall
    ends = "still active" if alert.ended is None else f"over since {moment(alert.ended, wall, seconds=False)}"
    lines: list[Line] = [((text, "text bold"),) for text in wrap(clean(alert.summary, 600), width, 4)]
    since, lasting = moment(alert.since, wall, seconds=False), duration(lasted(alert, wall), short=True)
    lines.append(((f"since {since}, {lasting}, {ends}", "dim"),))
    for index, (key, value) in enumerate(alert.fix):
        wanted = f"= {clean(value, 60)}" if value is not None else "removed"
        hint = f"   {view.keys['take']}: to the tune screen" if index == 0 else ""
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


def judged_lines(view: View, specs: Mapping[str, Rule], width: int) -> list[Line]:
    """That nothing is wrong, what is judged, and what is not and why."""
    unjudged, judged = view.picture.alerts.unjudged, view.picture.alerts.judged
    if not judged and not unjudged:
        return [(("No check has run yet: they begin when the server answers.", "text"),)]
    passed = f"All {len(judged)} checks passed."
    if unjudged:
        passed = f"{len(judged)} of {len(judged) + len(unjudged)} checks passed; the others have no data yet."
    lines: list[Line] = [
        ((f"{NOTHING_WRONG.capitalize()}.", "good bold"),)
        if judged
        else (("No check has the data it needs.", "warn bold"),),
        *(((text, "text"),) for text in wrap(passed, width, 2)),
        BLANK,
    ]
    by_why: dict[str, list[str]] = {}
    for rule, why in unjudged:
        by_why.setdefault(why, []).append(specs[rule].title if rule in specs else rule)
    for why, titles in by_why.items():
        lines.append((("not checked  ", "warn"), (fit(clean(why, 200), max(width - 13, 1)).rstrip(), "text")))
        lines += [((f"  {text}", "dim"),) for text in wrap(", ".join(titles), width - 2, 6)]
    watched = [specs[rule].title if rule in specs else rule for rule in judged]
    if watched:
        lines.append((("checked", "good"),))
        many = -(-len(watched) // (width // _TITLE or 1))
        texts = ["".join(fit(title, _TITLE) for title in watched[row::many]).rstrip() for row in range(many)]
        texts = texts if width >= 2 * _TITLE else wrap(", ".join(watched), width - 2, 12)
        lines += [((f"  {text}", "dim"),) for text in texts]
    return lines


def chart_span(alert: Alert, wall: float) -> tuple[float, float]:
    """The Unix time where a chart around an alert ends, and how many seconds it shows: half again as much as the alert
    lasted, most of it before."""
    long = lasted(alert, wall)
    span = next((value for value in _SPANS_S if value >= long * 1.5 + 30.0), _SPANS_S[-1])
    if alert.ended is None:
        return wall, span
    return min(wall, alert.ended + (span - long) / 3), span


def _at(view: View, alert: Alert, end: float, span: float) -> View:
    """The view of a chart that ends at `end`, with the marks of this alert, of applies and of restarts."""
    picture = view.picture
    back = picture.wall - end
    applies = tuple(replace(apply, age_s=apply.age_s - back) for apply in picture.applies)
    others = [timeline_event for timeline_event in picture.timeline if timeline_event.kind is not EventKind.ALERT]
    events = tuple(
        sorted((*others, replace(of_alert(alert), ended=alert.since)), key=lambda timeline_event: timeline_event.at)
    )
    moved = replace(picture, at=picture.at - back, wall=end, window_s=span, applies=applies, timeline=events)
    return replace(view, picture=moved, chart_s=span)


def _span_line(alert: Alert, end: float, span: float, width: int) -> Line:
    """Below a chart: a bar while the alert lasted, between the times of the chart's ends."""
    first, last = moment(end - span, end, seconds=False), moment(end, end)
    room = max(width - SCALE_WIDTH, 1)
    begin = min(max(round((alert.since - end + span) / span * room), 0), room - 1)
    stop = min(max(round(((alert.ended or end) - end + span) / span * room), begin + 1), room)
    cells: list[Span] = [(" ", "dim")] * room
    cells[begin:stop] = [("━", f"{ROLES[alert.severity]} bold")] * (stop - begin)
    for text, at in ((first, 0), (last, room - len(last))):
        if all(char == " " for char, _ in cells[at : at + len(text) + (at == 0)]):
            cells[at : at + len(text)] = [(char, "dim") for char in text]
    return ((" " * SCALE_WIDTH, "dim"), *cells)


def _labelled(label: str, text: str, width: int, label_role: str = "dim", role: str = "dim") -> list[Line]:
    texts = wrap(text, max(width - _LABEL, 10), _MOST_LINES)
    return [((fit(label if not i else "", _LABEL), label_role), (text, role)) for i, text in enumerate(texts)]


def _padded(line: Line, width: int) -> Line:
    return (*line, (" " * max(width - line_width(line), 0), "text"))


# The timeline: one strip on which alerts are bars, and applies, restarts and other events are marks.

STRIP = "incidents-timeline"
STRIP_LINES = 3
SPANS_S = {
    "5m": 300.0, "15m": 900.0, "1h": 3_600.0, "3h": 10_800.0, "6h": 21_600.0, "12h": 43_200.0, "1d": 86_400.0,
    "3d": 259_200.0, "7d": 604_800.0,
}  # fmt: skip
NOTED = MarkStyle("", "·", "dim", "other event")
_KEY = (CRITICAL, WARNED, RESTARTED, APPLIED, UNDONE, FAILED)
_ORDER = (NOTED, WARNED, RESTARTED, APPLIED, UNDONE, FAILED, CRITICAL)
_LABEL_EVERY = 14
"""Cells from one label to the next, at least."""
_LABEL_STEPS_S = (
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1_800.0,
    3_600.0,
    7_200.0,
    10_800.0,
    21_600.0,
    43_200.0,
    _DAY_S,
    2 * _DAY_S,
)
"""Whole minutes, so that no label is there twice and none is left out."""


class TimelineStrip(LinesWidget):
    """Title, strip, scale. It spans at least the window, and as much more as it takes to show all events."""

    def __init__(self) -> None:
        super().__init__(id=STRIP)
        self._key: object = None
        self.problem = ""
        """Why nothing is recorded: what is seen here will be forgotten."""

    def show(self, view: View) -> None:
        """Draw this view, if it would look different."""
        width = self.size.width
        if width < 1:
            return
        picture = view.picture
        name, span = span_of(picture)
        step = span / width
        key = (width, name, int(picture.wall / step), picture.timeline, len(picture.applies), self.problem)
        if key != self._key:
            self._key = key
            self.set_lines(strip_lines(picture, width, self.problem))

    def redraw(self) -> None:
        """The next view is drawn in any case."""
        self._key = None


def span_of(picture: Picture) -> tuple[str, float]:
    """The name and seconds of the strip: the least that holds the window and all events, seven days at most."""
    begins = [event.ended or picture.wall for event in picture.timeline[:1]]
    begins += [event.at for event in picture.timeline[:1]] + [apply.wall for apply in picture.applies[:1]]
    needed = max([picture.window_s, *(picture.wall - begin for begin in begins)])
    return next(((name, span) for name, span in SPANS_S.items() if span >= needed), tuple(SPANS_S.items())[-1])


def strip_lines(picture: Picture, width: int, problem: str = "") -> list[Line]:
    """Three lines; `problem` says why nothing is recorded."""
    name, span = span_of(picture)
    begin = picture.wall - span
    lane = _bars(picture.timeline, begin, span, width)
    marks: list[tuple[int, MarkStyle]] = []
    for at, look in (
        *_looks(picture.timeline),
        *((apply_mark.wall, look_of(apply_mark)) for apply_mark in _touching(picture.applies)),
    ):
        cell = int((at - begin) / span * width)
        if 0 <= at - begin <= span:
            marks.append((min(cell, width - 1), look))
    for cell, look in sorted(marks, key=lambda pair: _ORDER.index(pair[1])):
        lane[cell] = (look.head, f"{look.role} bold")
    return [_title(name, width, problem), tuple(_joined(lane)), _scale(begin, span, width)]


def _looks(events: Sequence[TimelineEvent]) -> Iterable[tuple[float, MarkStyle]]:
    for event in events:
        look = look_of_event(event)
        if look is not None:
            yield event.at, look
        elif event.kind is not EventKind.APPLY:
            yield event.at, NOTED


def _touching(applies: Iterable[ApplyMark]) -> Iterable[ApplyMark]:
    from specdash.core.changes import ApplyOutcome

    return (apply for apply in applies if apply.record.outcome is not ApplyOutcome.REFUSED)


def _bars(events: Sequence[TimelineEvent], begin: float, span: float, width: int) -> list[Span]:
    """A bar for as long as each alert lasts; the gravest is seen."""
    cells: list[Span] = [("─", "faint")] * width
    alerts = [event for event in events if event.kind is EventKind.ALERT and event.severity is not None]
    for event in sorted(alerts, key=lambda timeline_event: (timeline_event.severity or AlertSeverity.NOTICE).rank):
        end = event.ended if event.ended is not None else begin + span
        first, last = (int((at - begin) / span * width) for at in (event.at, end))
        if last < 0 or first >= width:
            continue
        role = ROLES[event.severity or AlertSeverity.NOTICE]
        for cell in range(max(first, 0), min(max(last, first), width - 1) + 1):
            cells[cell] = ("━", role)
    return cells


def _joined(cells: Sequence[Span]) -> list[Span]:
    spans: list[Span] = []
    for text, role in cells:
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + text, role)
        else:
            spans.append((text, role))
    return spans


def _title(name: str, width: int, problem: str) -> Line:
    """`Timeline  last 3h ──── ◆ critical alert  ▲ warning …`, as much of the key as fits."""
    left: list[Span] = [("Timeline", "text"), (f"  last {name}", "dim")]
    if problem:
        text = f"  {clean(problem, 200)}"
        return (*left, (fit(text, max(width - line_width(left), 0)), "warn"))
    key: list[Span] = []
    for look in _KEY:
        head = look.head
        more: list[Span] = [(f"  {head}", look.role), (f" {look.about}", "dim")]
        if line_width([*left, *key, *more]) + 4 > width:
            break
        key += more
    rule = width - line_width(left) - line_width(key) - 2
    return (*left, (" " + GLYPHS.rule * max(rule, 0) + " ", "faint"), *key)


def _scale(begin: float, span: float, width: int) -> Line:
    """Times of day under the strip, each where it begins; `now` at its end."""
    cells = [" "] * width
    step = next((value for value in _LABEL_STEPS_S if value * width >= span * _LABEL_EVERY), _LABEL_STEPS_S[-1])
    offset = time.localtime(begin).tm_gmtoff
    at = begin + -(begin + offset) % step
    while (cell := int((at - begin) / span * width)) < width - 12:
        text = scale_time(at, span)
        cells[cell : cell + len(text)] = text
        at += step
    cells[width - 3 :] = "now"
    return ((fit("".join(cells), width), "dim"),)
