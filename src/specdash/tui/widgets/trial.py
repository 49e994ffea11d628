"""The line below the header while settings are tried on the server: whose restarts these are, on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.picture import BackendState
from specdash.tui.formatting import age, clean, fit

if TYPE_CHECKING:
    from specdash.core.trials import TrialNote
    from specdash.tui.spans import Glyphs, Line
    from specdash.tui.view import View

AWAY = (BackendState.DOWN, BackendState.STALE, BackendState.LOADING, BackendState.RESTARTED)
"""How a server looks that is started anew."""
_MEANING = "restarts and failed starts are its own"
_WORDY = 100


def is_tried(view: View) -> bool:
    """Whether settings are tried on the server now, so that what they do to it is nobody's fault."""
    trial = view.picture.trial
    return trial is not None and trial.alive


def trial_line(trial: TrialNote, wall: float, width: int, glyphs: Glyphs) -> Line:
    """Who tries what, how far that is, and where to see more; in yellow where it was cut short."""
    words = clean(trial.words, 200)
    words = words[:1].upper() + words[1:]
    if not trial.alive:
        return ((fit(f" {glyphs.alert} {words}", width), "banner.warn"),)
    hint = "  T shows it " if trial.what == "tune" else " "
    since = f"  for {age(max(wall - trial.at, 0.0))}" if width >= _WORDY else ""
    room = width - len(since) - len(hint)
    left = f" {glyphs.busy} {words}"
    meaning = f"{left}: {_MEANING}"
    return ((fit(meaning if len(meaning) <= room else left, room) + since + hint, "banner.accent"),)
