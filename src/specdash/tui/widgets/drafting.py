"""Whether the server speculates, in one bar that is read in two seconds; and with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.speculation import spec_type
from specdash.core.start_check import Drafting
from specdash.tui.formatting import age, clean, fit
from specdash.tui.spans import BLANK, Line, line_width, wrap
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from specdash.insight.picture import Picture
    from specdash.tui.spans import Glyphs
    from specdash.tui.view import View

ROLES = {
    Drafting.YES: "good",
    Drafting.READY: "accent",
    Drafting.OFF: "dim",
    Drafting.FAILED: "warn",
    Drafting.UNKNOWN: "dim",
}
_WORDS = {
    Drafting.YES: "SPECULATING",
    Drafting.READY: "READY, nothing drafted yet",
    Drafting.OFF: "OFF, as asked",
    Drafting.FAILED: "RUNNING WITHOUT SPECULATION",
    Drafting.UNKNOWN: "NOT KNOWN whether it speculates",
}
_BAR_LINES = 2
_LABEL = 9


class DraftingBar(LinesWidget):
    """The state, its cause, the next step, the types in force and their parameters."""

    def __init__(self) -> None:
        super().__init__(id="drafting")
        self.tall = False
        """Whether there is room for a bar of three lines and for what each type is."""

    def show(self, view: View) -> None:
        """Draw this view."""
        self.glyphs = view.glyphs
        self.set_lines(drafting_lines(view, self.size.width or self.app.size.width, tall=self.tall))


def drafting_glyph(state: Drafting, glyphs: Glyphs) -> str:
    """A shape per state, so that colour is never the only difference."""
    shapes = {
        Drafting.YES: glyphs.live,
        Drafting.READY: glyphs.stale,
        Drafting.OFF: glyphs.note,
        Drafting.FAILED: glyphs.alert,
    }
    return shapes.get(state, glyphs.unknown)


def failure_words(picture: Picture) -> str | None:
    """`RUNNING WITHOUT SPECULATION: <cause>`, None unless that is so. Where no start was checked, the log says so."""
    drafting = picture.views.drafting
    because = drafting.because
    if drafting.state is not Drafting.FAILED:
        because = picture.backend.speculation.problem
        if not because or drafting.state is not Drafting.UNKNOWN:
            return None
    words = _WORDS[Drafting.FAILED]
    return clean(f"{words}: {because}" if because else words, 400)


def drafting_lines(view: View, width: int, *, tall: bool) -> list[Line]:
    """The bar; below it what to do, the types and their parameters."""
    drafting = view.picture.views.drafting
    state, because = drafting.state, clean(drafting.because, 400)
    if state is Drafting.UNKNOWN and not because:
        because = clean(view.picture.backend.reason, 400)
    role = f"banner.{ROLES[state]}"
    words = f"{drafting_glyph(state, view.glyphs)} {_WORDS[state]}"
    names = _chain(view)
    if state in (Drafting.YES, Drafting.READY) and names:
        words += f"  {names}"
    if state is Drafting.FAILED and because:
        words += f" because {because}"
    checked = f"checked {age(drafting.checked_age_s)} ago" if drafting.checked_age_s is not None else ""
    texts = wrap(words, width - 2, _BAR_LINES)
    if len(texts) == 1 and checked and len(texts[0]) + len(checked) + 4 <= width:
        texts[0] = texts[0] + " " * (width - 2 - len(texts[0]) - len(checked)) + checked
    if tall:
        texts = ["", *texts, ""]
    lines: list[Line] = [((" " + fit(text, width - 1), role),) for text in texts]
    if because and state is not Drafting.FAILED:
        lines += _labelled("because", because, "dim", width, 1 + tall)
    if drafting.fix:
        lines += _labelled("do", clean(drafting.fix, 400), "text bold", width, 2)
    lines += _in_force(view, width, tall=tall)
    return [*lines, BLANK] if tall else lines


def _labelled(label: str, text: str, role: str, width: int, most: int) -> list[Line]:
    parts = wrap(text, width - _LABEL - 2, most)
    return [((f" {label if index == 0 else '':<{_LABEL}}", "accent"), (part, role)) for index, part in enumerate(parts)]


def _chain(view: View) -> str:
    return ", ".join(clean(name, 24) for name in view.picture.backend.speculation.types or ())


def _in_force(view: View, width: int, *, tall: bool) -> list[Line]:
    """The parameters, and where there is room what each type does and when it pays, in the engine's order."""
    speculation = view.picture.backend.speculation
    known = [found for name in speculation.types or () if (found := spec_type(name)) is not None]
    lines: list[Line] = []
    for index, one in enumerate(known if tall else ()):
        name = f"{index + 1} {one.name}" if len(known) > 1 else one.name
        pays = f". Pays when {one.pays_when}" if one.pays_when else ""
        label = fit(f" {name}", max(_LABEL + 1, len(name) + 3))
        for row, text in enumerate(wrap(one.meaning + pays, width - len(label) - 1, 2)):
            lines.append(((label if row == 0 else " " * len(label), "accent bold"), (text, "dim")))
    told = [(key, value) for key, value in speculation.parameters if key != "spec-type"]
    if not told:
        return lines
    line: Line = ((f" {'with':<{_LABEL}}", "accent"),)
    for key, value in told:
        pair: Line = ((f"{_short(key)} ", "dim"), (f"{clean(value.rsplit('/', 1)[-1], 40)}  ", "text"))
        if line_width(line) + line_width(pair) > width and line_width(line) > _LABEL + 1:
            break
        line = (*line, *pair)
    return [*lines, line]


def _short(key: str) -> str:
    return clean(key, 40).removeprefix("spec-").removeprefix("draft-")
