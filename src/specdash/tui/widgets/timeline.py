"""The timeline: one strip on which alerts are bars, and applies, restarts and other events are marks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.core.alerts import AlertSeverity
from specdash.core.timeline import EventKind
from specdash.tui.formatting import clean, fit
from specdash.tui.marks import APPLIED, CRITICAL, FAILED, RESTARTED, UNDONE, WARNED, Look, look_of, look_of_event
from specdash.tui.spans import Line, Span, line_width
from specdash.tui.widgets.banner import ROLES
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.timeline import TimelineEvent
    from specdash.insight.experiment_picture import ApplyMark
    from specdash.insight.picture import Picture
    from specdash.tui.spans import Glyphs
    from specdash.tui.view import View

STRIP = "incidents-timeline"
STRIP_LINES = 3
SPANS_S = {
    "5m": 300.0, "15m": 900.0, "1h": 3_600.0, "3h": 10_800.0, "6h": 21_600.0, "12h": 43_200.0, "1d": 86_400.0,
    "3d": 259_200.0, "7d": 604_800.0,
}  # fmt: skip
NOTED = Look("", "·", "", ".", "dim", "other event")
_KEY = (CRITICAL, WARNED, RESTARTED, APPLIED, UNDONE, FAILED)
_ORDER = (NOTED, WARNED, RESTARTED, APPLIED, UNDONE, FAILED, CRITICAL)
_DAY_S = 86_400.0
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
        self.glyphs = view.glyphs
        width = self.size.width
        if width < 1:
            return
        picture = view.picture
        name, span = span_of(picture)
        step = span / width
        key = (width, name, int(picture.wall / step), picture.timeline, len(picture.applies), view.glyphs, self.problem)
        if key != self._key:
            self._key = key
            self.set_lines(strip_lines(picture, width, view.glyphs, self.problem))

    def redraw(self) -> None:
        """The next view is drawn whatever it holds."""
        self._key = None


def span_of(picture: Picture) -> tuple[str, float]:
    """The name and seconds of the strip: the least that holds the window and all events, seven days at most."""
    begins = [event.ended or picture.wall for event in picture.timeline[:1]]
    begins += [event.at for event in picture.timeline[:1]] + [one.wall for one in picture.applies[:1]]
    needed = max([picture.window_s, *(picture.wall - begin for begin in begins)])
    return next(((name, span) for name, span in SPANS_S.items() if span >= needed), tuple(SPANS_S.items())[-1])


def strip_lines(picture: Picture, width: int, glyphs: Glyphs, problem: str = "") -> list[Line]:
    """Three lines; `problem` says why nothing is recorded."""
    name, span = span_of(picture)
    begin = picture.wall - span
    lane = _bars(picture.timeline, begin, span, width, glyphs)
    marks: list[tuple[int, Look]] = []
    for at, look in (*_looks(picture.timeline), *((one.wall, look_of(one)) for one in _touching(picture.applies))):
        cell = int((at - begin) / span * width)
        if 0 <= at - begin <= span:
            marks.append((min(cell, width - 1), look))
    for cell, look in sorted(marks, key=lambda one: _ORDER.index(one[1])):
        lane[cell] = (look.ascii_head if glyphs.ascii_only else look.head, f"{look.role} bold")
    return [_title(name, width, glyphs, problem), tuple(_joined(lane)), _scale(begin, span, width)]


def _looks(events: Sequence[TimelineEvent]) -> Iterable[tuple[float, Look]]:
    for event in events:
        look = look_of_event(event)
        if look is not None:
            yield event.at, look
        elif event.kind is not EventKind.APPLY:
            yield event.at, NOTED


def _touching(applies: Iterable[ApplyMark]) -> Iterable[ApplyMark]:
    from specdash.core.applies import Outcome

    return (one for one in applies if one.outcome is not Outcome.REFUSED)


def _bars(events: Sequence[TimelineEvent], begin: float, span: float, width: int, glyphs: Glyphs) -> list[Span]:
    """A bar for as long as each alert lasts; the gravest is seen."""
    cells: list[Span] = [("." if glyphs.ascii_only else "─", "faint")] * width
    alerts = [one for one in events if one.kind is EventKind.ALERT and one.severity is not None]
    for event in sorted(alerts, key=lambda one: (one.severity or AlertSeverity.NOTICE).rank):
        end = event.ended if event.ended is not None else begin + span
        first, last = (int((at - begin) / span * width) for at in (event.at, end))
        if last < 0 or first >= width:
            continue
        role = ROLES[event.severity or AlertSeverity.NOTICE]
        for cell in range(max(first, 0), min(max(last, first), width - 1) + 1):
            cells[cell] = ("=" if glyphs.ascii_only else "━", role)
    return cells


def _joined(cells: Sequence[Span]) -> list[Span]:
    spans: list[Span] = []
    for text, role in cells:
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + text, role)
        else:
            spans.append((text, role))
    return spans


def _title(name: str, width: int, glyphs: Glyphs, problem: str) -> Line:
    """`Timeline  last 3h ──── ◆ critical alert  ▲ warning …`, as much of the key as fits."""
    left: list[Span] = [("Timeline", "text"), (f"  last {name}", "dim")]
    if problem:
        told = f"  {clean(problem, 200)}"
        return (*left, (fit(told, max(width - line_width(left), 0)), "warn"))
    key: list[Span] = []
    for look in _KEY:
        head = look.ascii_head if glyphs.ascii_only else look.head
        more: list[Span] = [(f"  {head}", look.role), (f" {look.about}", "dim")]
        if line_width([*left, *key, *more]) + 4 > width:
            break
        key += more
    rule = width - line_width(left) - line_width(key) - 2
    return (*left, (" " + glyphs.rule * max(rule, 0) + " ", "faint"), *key)


def _scale(begin: float, span: float, width: int) -> Line:
    """Times of day under the strip, each where it begins; `now` at its end."""
    form = "%H:%M" if span <= _DAY_S else "%m-%d %H:%M"
    cells = [" "] * width
    step = next((one for one in _LABEL_STEPS_S if one * width >= span * _LABEL_EVERY), _LABEL_STEPS_S[-1])
    offset = time.localtime(begin).tm_gmtoff
    at = begin + -(begin + offset) % step
    while (cell := int((at - begin) / span * width)) < width - 12:
        text = time.strftime(form, time.localtime(at))
        cells[cell : cell + len(text)] = text
        at += step
    cells[width - 3 :] = "now"
    return ((fit("".join(cells), width), "dim"),)
