"""The before/after card: what the newest apply changed in practice, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len

from specdash.core.readings import Source
from specdash.insight.experiments import ExperimentVerdict, MeasureName
from specdash.system.text import UNKNOWN, clean, duration, gain, rate
from specdash.tui.spans import GLYPHS, Line, Span, fit, wrap
from specdash.tui.widgets.panel import TitledPanel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.experiments import ExperimentCard, ExperimentSide, MeasureComparison
    from specdash.tui.view import View

NOTHING = "nothing was applied yet"
_HINT = "The requests before and after the next change that is applied are compared here."
_ROLES = {
    ExperimentVerdict.BETTER: "good",
    ExperimentVerdict.WORSE: "bad",
    ExperimentVerdict.UNCLEAR: "text",
    ExperimentVerdict.TOO_FEW: "dim",
}
_SHORT = {ExperimentVerdict.UNCLEAR: "unclear", ExperimentVerdict.TOO_FEW: "too few"}
_NAMES = {
    MeasureName.ACCEPTANCE: "acceptance %",
    MeasureName.DECODE: "decode tok/s",
    MeasureName.PREFILL: "prefill tok/s",
    MeasureName.TTFT: "TTFT",
}
_SHORT_NAMES = {MeasureName.ACCEPTANCE: "accept %", MeasureName.DECODE: "decode", MeasureName.PREFILL: "prefill"}
"""Their unit stands above them."""


class ExperimentCardView(TitledPanel):
    """The card as a panel; without an apply it says so."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 the name is Textual's
        super().__init__("Before/after", id=id)

    def redraw(self) -> None:
        """Build title and body."""
        if self.view is not None:
            self.panel_title = title(self.view.picture.experiment)
        super().redraw()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """A row per measure, then what makes the comparison unfair."""
        return card_lines(view, width, height)


def title(card: ExperimentCard | None) -> str:
    """`apply 7 · DRAFT_MAX 4 → 12 · 3 min ago`."""
    if card is None:
        return "Before/after"
    mark = card.mark
    parts = [mark.name, clean(mark.text.replace("→", " → "), 60), f"{duration(mark.age_s)} ago"]
    if mark.record.profile:
        parts.insert(1, clean(mark.record.profile, 30))
    return " · ".join(parts)


def card_lines(view: View, width: int, height: int) -> list[Line]:
    """The card below its title in at most `height` lines."""
    card = view.picture.experiment
    if card is None:
        reason = view.why(Source.APPLIES, NOTHING)
        texts = [*wrap(reason, width - 2, 1), *wrap(_HINT, width - 2, 2)][:height]
        return [((f"  {text}", "dim"),) for text in texts]
    form = _form(card.measures, width)
    lines = _table(card.measures, form, width)
    left = height - len(lines)
    for caveat in card.caveats:
        texts = wrap(caveat, width - 2, max(min(left, 2), 0))
        lines += [((f"{GLYPHS.alert if not at else ' '} {text}", "warn"),) for at, text in enumerate(texts)]
        left -= len(texts)
    if left > 0 and not form.has_source:
        lines.append(((fit(_sources(card.measures), width).rstrip(), "dim"),))
    return lines[:height]


class _Form(Struct, frozen=True):
    """How much of a row is shown: more or less, from wide to narrow."""

    gap: int
    has_source: bool = False
    has_quartiles: bool = True
    is_exact: bool = True
    """Changes with a decimal, and names and verdicts in full."""
    is_full: bool = True


_FORMS = (
    _Form(3, has_source=True),
    _Form(2, has_source=True),
    _Form(2),
    _Form(2, is_exact=False),
    _Form(1, is_exact=False, is_full=False),
    _Form(1, is_exact=False, is_full=False, has_quartiles=False),
)


def _form(measures: Sequence[MeasureComparison], width: int) -> _Form:
    """The fullest form whose rows fit, else the shortest."""
    for form in _FORMS:
        widths = _widths([_cells(measure, form, measures) for measure in measures])
        if sum(widths) + form.gap * (len(widths) - 1) <= width:
            return form
    return _FORMS[-1]


def _table(measures: Sequence[MeasureComparison], form: _Form, width: int) -> list[Line]:
    heads = [
        "" if form.is_full else "tok/s",
        "before",
        "n",
        "after",
        "n",
        "change, 95 %",
        *(["from"] if form.has_source else []),
    ]
    rows = [_cells(measure, form, measures) for measure in measures]
    widths = _widths(rows)
    gap = " " * form.gap
    lines = [_line([(text, "dim") for text in heads], widths, gap)]
    lines += [_line(row, widths, gap) for row in rows]
    return [_cut(line, width) for line in lines]


def _line(cells: Sequence[Span], widths: Sequence[int], gap: str) -> Line:
    spans: list[Span] = []
    for index, ((text, role), room) in enumerate(zip(cells, widths, strict=True)):
        spans.append((fit(text, room, right=1 <= index <= 4) + gap * (index < len(widths) - 1), role))
    return tuple(spans)


def _cut(line: Line, width: int) -> Line:
    kept: list[Span] = []
    left = width
    for text, role in line:
        if left <= 0:
            break
        kept.append((text if cell_len(text) <= left else fit(text, left), role))
        left -= cell_len(text)
    return tuple(kept)


def _widths(rows: Sequence[Sequence[Span]]) -> list[int]:
    """Widths of the columns: of their widest cell, and of the headings that numbers stand below."""
    least = (0, 6, 1, 5, 1, 0, 4)
    return [
        max(room, *(cell_len(text) for text, _ in cells))
        for room, cells in zip(least, zip(*rows, strict=True), strict=False)
    ]


def _cells(measure: MeasureComparison, form: _Form, measures: Sequence[MeasureComparison]) -> list[Span]:
    in_ms = measure.name is MeasureName.TTFT and max(measure.before.value or 0.0, measure.after.value or 0.0) < 1.0
    scale = 100.0 if measure.name is MeasureName.ACCEPTANCE else 1000.0 if in_ms else 1.0
    name = _NAMES[measure.name] if form.is_full else _SHORT_NAMES.get(measure.name, _NAMES[measure.name])
    if measure.name is MeasureName.TTFT:
        name += " ms" if in_ms else " s"
    role = "dim" if measure.verdict is ExperimentVerdict.TOO_FEW else "text"
    room = max(len(_change(measure, form)) for measure in measures)
    change = _change(measure, form)
    judged = f"{change:<{room}} {_words(measure, form)}" if change else _words(measure, form)
    cells: list[Span] = [
        (name, role),
        (_side(measure.before, scale, form), role),
        (str(measure.before.count), "dim"),
        (_side(measure.after, scale, form), role if role == "dim" else "text bold"),
        (str(measure.after.count), "dim"),
        (judged, _ROLES[measure.verdict]),
    ]
    return [*cells, (measure.source, "dim")] if form.has_source else cells


def _words(measure: MeasureComparison, form: _Form) -> str:
    if form.is_full:
        return measure.words
    if measure.verdict is ExperimentVerdict.TOO_FEW:
        return measure.words.removesuffix(" requests)").replace(" data", "") + ")"
    return _SHORT.get(measure.verdict, str(measure.verdict))


def _side(side: ExperimentSide, scale: float, form: _Form) -> str:
    if side.value is None:
        return UNKNOWN
    value = _plain(side.value * scale)
    if not form.has_quartiles or side.lower is None or side.upper is None:
        return value
    lower, upper = (_plain(value * scale, is_short=not form.is_exact) for value in (side.lower, side.upper))
    return f"{value} [{lower}–{upper}]"


def _change(measure: MeasureComparison, form: _Form) -> str:
    """`+12.3 % [+5.1, +19.4]`; of acceptance in percentage points."""
    if measure.change is None or measure.low is None or measure.high is None:
        return ""
    unit = " " * form.is_exact + ("%" if measure.is_relative else "pp")
    return gain(measure.change, measure.low, measure.high, 1 if form.is_exact else 0, unit)


def _plain(value: float, *, is_short: bool = False) -> str:
    """Three digits or so, in at most five characters; a short one in at most four."""
    if is_short and 9_999.5 <= value < 999_500:
        return f"{value / 1000:.0f}k"
    return rate(value).replace(",", "")


def _sources(measures: Sequence[MeasureComparison]) -> str:
    by_source: dict[str, list[str]] = {}
    for measure in measures:
        short = "TTFT" if measure.name is MeasureName.TTFT else str(measure.name)
        by_source.setdefault(measure.source, []).append(short)
    return "; ".join(f"{', '.join(names)} from {source}" for source, names in by_source.items())
