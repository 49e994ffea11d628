"""Warning classes of the log: how many, how fast, how long ago, and one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.formatting import age, clean, clock, compact, count, fit, rate
from specdash.tui.layout import PanelId
from specdash.tui.spans import Line, wrap
from specdash.tui.widgets.panel import Panel, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.picture import LogPicture, WarningPicture
    from specdash.tui.view import View

SEVERITY_ROLES = {"error": "bad", "warning": "warn", "notice": "dim"}
_ORDER = {"error": 0, "warning": 1, "notice": 2}
_ALWAYS = "find_slot"
_RECENT_S = 60.0
_STORM_PER_MINUTE = 600.0


class WarningsPanel(Panel):
    """One line a class, the gravest first; find_slot never falls off the list."""

    def __init__(self) -> None:
        super().__init__(PanelId.WARNINGS)

    def key_figure(self, view: View) -> Line:
        """All warnings, coloured by the gravest class of the last minute."""
        warnings, total = view.picture.log.warnings, all_warnings(view.picture.log)
        if not total:
            return ((count(total), "dim" if total is None else "text bold"),)
        recent = [warning for warning in warnings if warning.last_age_s <= _RECENT_S]
        role = SEVERITY_ROLES.get(min(recent, key=_severity).severity, "text") if recent else "text"
        return ((count(total), f"{role} bold"),)

    def aside(self, view: View) -> Line:
        """All classes together, per minute."""
        current = [warning for warning in view.picture.log.warnings if warning.per_minute]
        if not current:
            return ()
        role = SEVERITY_ROLES.get(min(current, key=_severity).severity, "text")
        return ((rate(sum(warning.per_minute for warning in current)), f"{role} bold"), ("/min", "dim"))

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The classes; where there is room, samples below the first ones."""
        log = view.picture.log
        if not log.warnings:
            if log.since_wall is not None:
                return message(f"no warnings since {clock(log.since_wall)}", height)
            return message("no warnings" if log.lines else log.reason or "no log lines yet", height)
        shown = in_order(log.warnings, height)
        spare = height - len(shown) - (len(shown) < len(log.warnings))
        lines: list[Line] = []
        for warning in shown:
            lines.append(_class_line(warning, width, view))
            for text in wrap(clean(warning.sample), width - 4, 1 if spare > 0 else 0):
                lines.append((("    ", "text"), (text, "dim")))
                spare -= 1
        if len(shown) < len(log.warnings):
            lines.append(((f"  {len(log.warnings) - len(shown)} more classes", "dim"),))
        return lines


def all_warnings(log: LogPicture) -> int | None:
    """Lines of all classes together; None where no log is known, or not all of it."""
    totals = [warning.total for warning in log.warnings]
    return sum(one for one in totals if one is not None) if log.lines and None not in totals else None


def _severity(warning: WarningPicture) -> tuple[int, float]:
    return _ORDER.get(warning.severity, 3), warning.last_age_s


def in_order(warnings: Sequence[WarningPicture], room: int) -> list[WarningPicture]:
    """The classes that fit into `room` lines, gravest and latest first, find_slot kept whatever comes before it."""
    ordered = sorted(warnings, key=_severity)
    if len(ordered) <= room:
        return ordered
    shown = ordered[: max(room - 1, 1)]
    pinned = next((warning for warning in ordered if warning.warning.startswith(_ALWAYS)), None)
    if pinned is not None and pinned not in shown:
        shown[-1] = pinned
    return shown


def alarming(warnings: Sequence[WarningPicture]) -> WarningPicture | None:
    """The class that the header should shout about: a recent error, or a storm of anything."""
    loud = [
        warning
        for warning in warnings
        if warning.last_age_s <= _RECENT_S and (warning.severity == "error" or warning.per_minute >= _STORM_PER_MINUTE)
    ]
    return min(loud, key=_severity, default=None)


def _class_line(warning: WarningPicture, width: int, view: View) -> Line:
    role = SEVERITY_ROLES.get(warning.severity, "text")
    mark = view.glyphs.note if warning.severity == "notice" else view.glyphs.alert
    roomy = width >= 46
    total = fit(count(warning.total) if roomy else compact(warning.total), 11 if roomy else 6, right=True)
    speed = fit(f"{rate(warning.per_minute)}/m" if warning.per_minute else "", 9, right=True)
    last = fit(age(warning.last_age_s), 5, right=True)
    title = fit(clean(warning.title), width - 2 - len(total) - len(speed) - len(last))
    fresh = warning.last_age_s <= _RECENT_S
    return (
        (f"{mark} ", role),
        (title, role if fresh and warning.severity != "notice" else "text"),
        (total, "text bold"),
        (speed, role),
        (last, "dim"),
    )
