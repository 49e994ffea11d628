"""The drafter: how far into a draft the target follows it, against what was published and against the break-even."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.start_check import Drafting
from specdash.tui.formatting import UNKNOWN, clean, decimal, fit, percent, window
from specdash.tui.spans import BLANK, Line, line_width
from specdash.tui.widgets.part import PLENTY, TextPart, marked_bar, sentences

if TYPE_CHECKING:
    from specdash.insight.drafter_picture import DrafterPicture, ReferenceCurve
    from specdash.tui.view import View

MEASURED = "measured"
_COLUMN = 30
_GAP = 3
_WIDE_COLUMN = 52
_USUAL_ROWS = 16
_ROOMY = 90
_LEAST_BAR = 8
_THICK = 3
Row = tuple[str, float, float | None]
"""Position or span of positions, counted from 1, the mean share, and the mean published one."""


class DrafterPanel(TextPart):
    """Acceptance by draft position."""

    def __init__(self) -> None:
        super().__init__("Drafter", id="drafter")

    def key_figure(self, view: View) -> Line:
        """The type, and its acceptance."""
        one = view.picture.views.drafter
        if one.type is None:
            is_known = view.picture.views.drafting.state is not Drafting.UNKNOWN
            return ((UNKNOWN, "dim"), ("  nothing drafts" if is_known else "", "dim"))
        name: Line = ((clean(one.type, 24), "accent bold"),)
        if one.acceptance is None:
            why = "nothing drafts" if _is_off(view) else "nothing drafted yet"
            return (*name, (f"  {UNKNOWN}", "dim"), (f"  {why}", "dim"))
        return (*name, (f"  {percent(one.acceptance, 1)}", "acceptance bold"), (" accepted", "dim"))

    def aside(self, view: View) -> Line:
        """Over which time."""
        one = view.picture.views.drafter
        if not one.per_position_basis or one.acceptance is None:
            return ()
        is_lifetime = one.per_position_basis == "lifetime"
        when = "since the start" if is_lifetime else f"last {window(view.picture.window_s)}"
        return ((f"all types of the chain, {when}" if one.of_chain else when, "dim"),)

    def least(self, view: View) -> int:
        """See `Part`."""
        del view
        return 8

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Lengths, clamps, all positions together, then bar by bar; what to make of it."""
        one, ascii_only = view.picture.views.drafter, view.glyphs.ascii_only
        if not one.per_position and (one.type is None or _is_off(view)):
            return []
        upper = [*length_lines(one, width), *_clamp_lines(one, width)]
        if one.acceptance is not None:
            upper.append(_overall(one, width, ascii_only=ascii_only))
        usual = _usual_rows(one, width)
        legend = _legend(one, width)
        verdict = sentences(clean(one.verdict, 400), width, 3, "text bold")
        if height - len(upper) - len(legend) - len(verdict) < usual:
            legend = legend[:1]
        room = height - len(upper) - len(legend) - len(verdict)
        while room < usual and len(verdict) > 1:
            verdict, room = sentences(clean(one.verdict, 400), width, len(verdict) - 1, "text bold"), room + 1
        basis = _basis(one, width)
        if room >= usual + len(basis) and (height >= PLENTY or room > usual + len(basis) + 1):
            verdict, room = [*verdict, *basis], room - len(basis)
        bars = position_lines(one, width, usual if height >= PLENTY else room, ascii_only=ascii_only)
        if bars and room >= len(bars) + 2 and height < PLENTY:
            bars = [BLANK, *bars, BLANK]
        return [*upper, *bars, *legend, *verdict]


def _is_off(view: View) -> bool:
    return view.picture.views.drafting.state in (Drafting.OFF, Drafting.FAILED)


def _basis(one: DrafterPicture, width: int) -> list[Line]:
    """What the break-even rests on, where it is not measured."""
    if one.break_even_acceptance is None or one.break_even_basis in ("", MEASURED):
        return []
    return sentences(f"break-even: {clean(one.break_even_basis, 200)}", width, 2)


def _usual_rows(one: DrafterPicture, width: int) -> int:
    """Lines of bars where there is room for all: one a position; on a narrow screen, where every line counts, less."""
    abreast = 1 if width >= _ROOMY else _abreast(width)
    return min(-(-len(without_empty_tail(one.per_position)) // abreast), _USUAL_ROWS // abreast)


def _abreast(width: int) -> int:
    return max((width + _GAP) // (_COLUMN + _GAP), 1)


def length_lines(one: DrafterPicture, width: int) -> list[Line]:
    """How long drafts are, were asked to be, and had best be."""
    spans: Line = ()
    if one.effective_length is not None:
        spans = (("drafts ", "dim"), (str(one.effective_length), "text bold"))
        if one.asked_length is not None and one.asked_length != one.effective_length:
            block = f", block {one.block_size}" if one.block_size is not None else ""
            spans = (*spans, (" of ", "dim"), (f"{one.asked_length} asked", "warn bold"), (block, "warn"))
        else:
            spans = (*spans, (" tokens", "dim"))
    elif one.asked_length is not None:
        spans = (("drafts up to ", "dim"), (str(one.asked_length), "text bold"))
    parts: list[Line] = [spans] if spans else []
    if one.mean_accepted_length is not None:
        parts.append((("length ", "dim"), (decimal(one.mean_accepted_length), "text bold"), (" a step", "dim")))
    if one.best_length is not None:
        settled = one.best_length == one.effective_length
        gain = f" +{percent(one.best_gain)}" if one.best_gain and not settled else ""
        told: Line = (("best length ", "dim"), (str(one.best_length), "good bold" if settled else "gain bold"))
        parts.append((*told, (gain, "gain")))
    return _flow(parts, width)


def _flow(parts: list[Line], width: int) -> list[Line]:
    """Parts side by side, in as many lines as it takes."""
    lines: list[Line] = []
    for part in parts:
        if lines and line_width(lines[-1]) + 3 + line_width(part) <= width:
            lines[-1] = (*lines[-1], ("   ", "text"), *part)
        else:
            lines.append(part)
    return lines


def _clamp_lines(one: DrafterPicture, width: int) -> list[Line]:
    if one.effective_length is not None and one.asked_length is not None and one.effective_length < one.asked_length:
        # The line above says as much in fewer words.
        return []
    return [line for text in one.clamps[:2] for line in sentences(clean(text, 300), width, 2, "warn")]


def _overall(one: DrafterPicture, width: int, *, ascii_only: bool) -> Line:
    """All drafted tokens together, with the break-even marked."""
    least = one.break_even_acceptance
    basis = "" if one.break_even_basis == MEASURED else " est."
    tail = f"break-even {percent(least)}{basis}" if least is not None else ""
    room = max(width - 4 - 7 - len(tail) - 2, _LEAST_BAR)
    pays = least is None or one.acceptance is None or one.acceptance >= least
    mark = "| " if ascii_only else "┃ "
    return (
        ("all ", "dim"),
        *marked_bar(one.acceptance, least, room, "acceptance" if pays else "bad", ascii_only=ascii_only),
        (f"{percent(one.acceptance):>6} ", "text bold" if pays else "bad bold"),
        *(((mark, "gain"), (tail, "dim")) if tail else ()),
    )


def drawn_reference(one: DrafterPicture) -> ReferenceCurve | None:
    """The published curve that is marked beside the bars: the nearest that has positions."""
    return next((curve for curve in one.references if curve.per_position), None)


def _legend(one: DrafterPicture, width: int) -> list[Line]:
    """Whose curve is marked beside the bars; then, in their order, what else was published."""
    marked = drawn_reference(one)
    ordered = sorted(one.references, key=lambda curve: curve is not marked)
    lines: list[Line] = []
    for curve in ordered:
        figures = [f"length {decimal(curve.mean_accepted_length)}"] if curve.mean_accepted_length is not None else []
        figures += [f"{percent(curve.acceptance)} accepted"] if curve.acceptance is not None else []
        source = [f"({clean(curve.source, 80)})"] if curve.source else []
        text = "  ".join([clean(curve.name, 80), *figures, *source])
        is_marked = curve is marked and bool(one.per_position)
        lead = ("┃ published  " if is_marked else "  published  ") if not lines else " " * 13
        lines.append(((lead, "gain" if is_marked else "dim"), (fit(text, max(width - 13, 8)).rstrip(), "dim")))
    return lines


def position_lines(one: DrafterPicture, width: int, height: int, *, ascii_only: bool) -> list[Line]:
    """One bar a draft position, in as many columns as it takes; where even that does not do, neighbours share one."""
    shares = without_empty_tail(one.per_position)
    if not shares or height < 1:
        return []
    most = _abreast(width)
    rows = rows_for(one, height * most)
    columns = next((n for n in range(1, most + 1) if -(-len(rows) // n) <= height), most)
    cells = (width - _GAP * (columns - 1)) // columns
    deep = -(-len(rows) // columns)
    label = max(len(name) for name, _, _ in rows)
    drawn = [_bar_line(row, label, cells, one.per_position_basis, ascii_only=ascii_only) for row in rows]
    lines: list[Line] = []
    for y in range(deep):
        line: Line = ()
        for x in range(columns):
            if x * deep + y < len(drawn):
                pad = " " * (x * (cells + _GAP) - line_width(line))
                line = (*line, (pad, "text"), *drawn[x * deep + y])
        lines.append(line)
    if columns == 1 and height >= _THICK * deep - 1 and height < PLENTY and not ascii_only:
        lines = [half for line in lines for half in (line, _unlabelled(line), BLANK)][:-1]
    return lines


def _unlabelled(line: Line) -> Line:
    """The lower half of a thick bar: the same without words."""
    return tuple((text if "track" in role else " " * len(text), role) for text, role in line)


def without_empty_tail(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Positions that no draft has reached say nothing; the first empty one stays, to show where it ends."""
    end = len(shares)
    while end > 1 and shares[end - 1] <= 0 and shares[end - 2] <= 0:
        end -= 1
    return shares[:end]


def rows_for(one: DrafterPicture, most: int) -> list[Row]:
    """Every position, where `most` rows hold them; else the picture's bins; else neighbours together."""
    shares = without_empty_tail(one.per_position)
    spans = [(at, at) for at in range(len(shares))]
    if len(spans) > most and one.bins:
        spans = [(bin_.first, min(bin_.last, len(shares) - 1)) for bin_ in one.bins if bin_.first < len(shares)]
    while len(spans) > most:
        spans = [(pair[0][0], pair[-1][1]) for pair in (spans[at : at + 2] for at in range(0, len(spans), 2))]
    curve = drawn_reference(one)
    published = curve.per_position if curve is not None else ()
    rows: list[Row] = []
    for first, last in spans:
        own, theirs = shares[first : last + 1], published[first : last + 1]
        name = str(first + 1) if first == last else f"{first + 1}-{last + 1}"
        rows.append((name, sum(own) / len(own), sum(theirs) / len(theirs) if len(theirs) == len(own) else None))
    return rows


def _bar_line(row: tuple[str, float, float | None], label: int, width: int, basis: str, *, ascii_only: bool) -> Line:
    name, share, published = row
    told = f" {percent(published):>5}" if published is not None and width >= _WIDE_COLUMN else ""
    room = max(width - label - 1 - 6 - (6 if width >= _WIDE_COLUMN else 0), _LEAST_BAR)
    role = "machine" if basis == "lifetime" else "acceptance"
    return (
        (f"{name:>{label}} ", "dim"),
        *marked_bar(share, published, room, role, ascii_only=ascii_only),
        (f"{percent(share):>6}", "text"),
        (told, "gain"),
    )
