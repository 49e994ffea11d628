"""The banner below the header: the likely cause of what is wrong, in one line on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.alerts import AlertSeverity
from specdash.tui.formatting import age, clean, fit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.alerts import Alert
    from specdash.tui.spans import Glyphs, Line
    from specdash.tui.view import View

ROLES = {AlertSeverity.CRITICAL: "bad", AlertSeverity.WARNING: "warn", AlertSeverity.NOTICE: "accent"}
_WORDY = 100


def glyph(severity: AlertSeverity, glyphs: Glyphs) -> str:
    """A shape per severity, so that colour is never the only difference."""
    shapes = {AlertSeverity.CRITICAL: glyphs.down, AlertSeverity.WARNING: glyphs.alert}
    return shapes.get(severity, glyphs.note)


def lead(view: View) -> Alert | None:
    """The alert that names the likely cause; None when nothing is wrong."""
    alerts = view.picture.alerts
    found = (one for one in alerts.active if one.key == alerts.cause_key)
    return next(found, alerts.active[0] if alerts.active else None)


def worst(alerts: Iterable[Alert]) -> AlertSeverity:
    """The gravest severity among these; there must be one."""
    return max((one.severity for one in alerts), key=lambda one: one.rank)


def banner_line(view: View, width: int, *, on_incidents: bool = False) -> Line | None:
    """The likely cause in one sentence, in the colour of the gravest alert; since when, how many more alerts there are,
    and the key to press; None when nothing is wrong. What does not fit is cut off the sentence."""
    alert = lead(view)
    if alert is None:
        return None
    alerts = view.picture.alerts
    severity = worst(alerts.active)
    role = ROLES[severity]
    style = f"banner.{role}" if severity is not AlertSeverity.NOTICE else f"{role} bold track"
    word = f"{severity.upper()}  " if width >= _WORDY else ""
    more = f"  +{len(alerts.active) - 1} more" if len(alerts.active) > 1 else ""
    since = f"  {age(view.picture.wall - alert.since)}" if width >= _WORDY else ""
    hint = "" if on_incidents else "  i: what to do" if width >= _WORDY else "  press i"
    right = f"{since}{more}{hint} "
    left = f" {glyph(severity, view.glyphs)} {word}"
    sentence = clean(alerts.cause or f"{alert.title}: {alert.summary}", 400)
    return ((left + fit(sentence, max(width - len(left) - len(right), 0)) + right, style),)
