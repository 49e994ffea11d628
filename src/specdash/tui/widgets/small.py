"""What a terminal below 80x24 gets: the state, the cause, the key figures, and the size that is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.formatting import clean, compact, fit, percent, rate
from specdash.tui.layout import MINIMUM_HEIGHT, MINIMUM_WIDTH
from specdash.tui.spans import Line, figure, wrap
from specdash.tui.widgets.banner import ROLES, worst
from specdash.tui.widgets.header import state_line, trouble
from specdash.tui.widgets.panel import LinesWidget
from specdash.tui.widgets.warnings import all_warnings

if TYPE_CHECKING:
    from specdash.tui.view import View
    from specdash.tui.widgets.header import Situation


class SmallNotice(LinesWidget):
    """The whole screen of a small terminal."""

    def show(self, view: View, situation: Situation) -> None:
        """Draw this view."""
        self.glyphs = view.glyphs
        self.set_lines(small_lines(view, situation, self.app.size.width, self.app.size.height))


def small_lines(view: View, situation: Situation, width: int, height: int) -> list[Line]:
    """State, cause, figures, and what to do."""
    backend = view.picture.backend
    acceptance = backend.speculation.acceptance.window
    lines: list[Line] = [tuple(state_line(view, situation))]
    trial = view.picture.trial
    if trial is not None:
        tone = "accent" if trial.alive else "warn bold"
        lines += [((text, tone),) for text in wrap(clean(trial.words, 200), width, 2)]
    loud = trouble(view)
    if active := view.picture.alerts.active:
        loud = clean(view.picture.alerts.cause, 400), ROLES[worst(active)]
    if loud is not None:
        lines += [((text, f"{loud[1]} bold"),) for text in wrap(loud[0], width, 3)]
    lines += [
        (("acceptance ", "dim"), *figure(acceptance, percent(acceptance.value, 1), "", "acceptance")),
        (("prefill    ", "dim"), *figure(backend.prefill, rate(backend.prefill.value), "tok/s", "prefill")),
        (("decode     ", "dim"), *figure(backend.decode, rate(backend.decode.value), "tok/s", "decode")),
        (("warnings   ", "dim"), (compact(all_warnings(view.picture.log)), "text")),
    ]
    needs = f"needs {MINIMUM_WIDTH}x{MINIMUM_HEIGHT}, this terminal is {width}x{height}"
    return [*lines[: max(height - 1, 1)], ((fit(needs, width), "warn"),)]
