"""Is speculation paying: one line for the acceptance panel, and the whole of it where there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.speedup_picture import Basis, Paying
from specdash.tui.formatting import UNKNOWN, clean, compact, decimal, fit, percent, rate, sparkline
from specdash.tui.spans import BLANK, Line, Span, line_width, wrap
from specdash.tui.widgets.table import Column, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.speedup_picture import GroupFigures, SpeedUpPicture, TypeFigures
    from specdash.tui.view import View

ROLES = {Paying.PAYING: "good", Paying.EVEN: "warn", Paying.HURTING: "bad", Paying.UNKNOWN: "text"}
_NAME = 14
_LABEL = 12
_GAUGE_LEAST, _GAUGE_MOST = 16, 60
_WORDY = 72
_BETWEEN, _HALF_LEAST = 3, 32
_CLEAR = 0.03
"""A group's speed-up so far from 1 has the colour of a gain or a loss."""


def times(value: float | None) -> str:
    """`x1.84`."""
    return UNKNOWN if value is None else f"x{value:.2f}"


def interval_words(speedup: SpeedUpPicture) -> str:
    """`[1.70–2.00]`, empty where it is not known."""
    if speedup.low is None or speedup.high is None:
        return ""
    return f"[{speedup.low:.2f}–{speedup.high:.2f}]"


def verdict_words(verdict: Paying) -> str:
    """`PAYING`; of a figure too uncertain for a verdict `unclear yet`."""
    return "unclear yet" if verdict is Paying.UNKNOWN else str(verdict).upper()


def is_told(view: View) -> bool:
    """Whether there is anything to say: a server that does not speculate gains nothing by it."""
    speedup = view.picture.speedup
    return speedup.value is not None or view.picture.backend.speculation.active is not False


def compact_line(view: View, width: int) -> Line:
    """`x1.84 [1.70–2.00] measured  PAYING`; what hurts is a bar from side to side."""
    speedup = view.picture.speedup
    if speedup.value is None:
        return (("speed-up ", "dim"), (fit(f"{UNKNOWN} {clean(speedup.why, 200)}", max(width - 9, 1)).rstrip(), "dim"))
    verdict, role = speedup.verdict, ROLES[speedup.verdict]
    parts = [times(speedup.value), interval_words(speedup), _basis(speedup), verdict_words(verdict)]
    if verdict is Paying.HURTING:
        bar = fit("  ".join([f" {parts[3]}", parts[0], *filter(None, parts[1:3])]), width)
        return ((bar, "banner.bad"),)
    basis_role = "warn" if speedup.basis is Basis.ESTIMATED else "dim"
    line: list[Span] = [(parts[0], f"{role} bold"), (f" {parts[1]}" if parts[1] else "", "dim")]
    verdict_span: Span = (f"  {parts[3]}", f"{role} bold")
    if line_width(line) + len(parts[2]) + 1 + len(verdict_span[0]) > width:
        line = line[:1]
    return (*line, (f" {parts[2]}", basis_role), verdict_span)


def _basis(speedup: SpeedUpPicture) -> str:
    return "" if speedup.basis is Basis.UNKNOWN else str(speedup.basis)


def detail_lines(view: View, width: int, height: int) -> list[Line]:
    """Verdict, what it rests on, break-even, and how it is by context length, stretch of the answer, work and type; in
    that order, as much as there is room for."""
    speedup = view.picture.speedup
    ascii_only = view.glyphs.ascii_only
    lines: list[Line] = [_verdict_line(speedup, width)]
    lines += [((text, "dim"),) for text in wrap(clean(speedup.why, 400), width, 2)]
    lines += _figures(speedup, width, ascii_only=ascii_only)
    half = (width - _BETWEEN) // 2
    if half < _HALF_LEAST:
        return [*lines, *_stacked(_blocks(speedup, width, ascii_only=ascii_only), height - len(lines))][:height]
    context, types, work, answer = _blocks(speedup, half, ascii_only=ascii_only)
    room = height - len(lines)
    left, right = _stacked((context, work), room), _stacked((types, answer), room)
    for y in range(max(len(left), len(right))):
        first = left[y] if y < len(left) else BLANK
        pad: Span = (" " * (half + _BETWEEN - line_width(first)), "text")
        lines.append((*first, pad, *(right[y] if y < len(right) else BLANK)))
    return lines[:height]


def _blocks(speedup: SpeedUpPicture, width: int, *, ascii_only: bool) -> tuple[list[Line], ...]:
    """The tables, the most telling first."""
    return (
        _groups("by context", speedup.by_context, width),
        _types(speedup.by_type, width, ascii_only=ascii_only),
        _groups("by work", speedup.by_phase, width),
        _groups("by answer", speedup.by_generated, width),
    )


def _stacked(blocks: Sequence[list[Line]], height: int) -> list[Line]:
    """One below the other with a blank line before each where there is room; none is cut down to its heading."""
    lines: list[Line] = []
    for block in blocks:
        gap = [BLANK] if height - len(lines) > len(block) else []
        room = height - len(lines) - len(gap)
        if block and room >= min(len(block), 2):
            lines += [*gap, *block[:room]]
    return lines


def _verdict_line(speedup: SpeedUpPicture, width: int) -> Line:
    if speedup.value is None:
        return (("speed-up ", "text"), (UNKNOWN, "dim"))
    is_measured = speedup.basis is Basis.MEASURED
    basis = "measured against a recorded baseline" if is_measured else "an estimate: no recorded baseline"
    if width < _WORDY:
        basis = _basis(speedup)
    parts = f"{times(speedup.value)} {interval_words(speedup)}".rstrip()
    if speedup.verdict is Paying.HURTING:
        words = f" {verdict_words(speedup.verdict)}  {parts}  slower than without speculation; {basis}"
        return ((fit(words, width), "banner.bad"),)
    verdict, role = verdict_words(speedup.verdict), ROLES[speedup.verdict]
    basis_role = "warn" if speedup.basis is Basis.ESTIMATED else "dim"
    return (
        (verdict, f"{role} bold"),
        (f"  {parts}", f"{role} bold"),
        (fit(f"  {basis}", max(width - len(verdict) - len(parts) - 2, 0)).rstrip(), basis_role),
    )


def _figures(speedup: SpeedUpPicture, width: int, *, ascii_only: bool) -> list[Line]:
    """Rates side by side; where break-even lies, and on which side of it the steps are now."""
    lines: list[Line] = []
    if speedup.decode_rate is not None and speedup.baseline_rate is not None:
        share = f"  drafting takes {percent(speedup.draft_share)} of it" if speedup.draft_share is not None else ""
        rates: Line = (
            (fit("decode", _LABEL), "dim"),
            (f"{rate(speedup.decode_rate)} tok/s", "text bold"),
            (f"  without {rate(speedup.baseline_rate)}", "text"),
        )
        lines.append((*rates, (share if line_width(rates) + len(share) <= width else "", "dim")))
    least, now = speedup.break_even_length, speedup.mean_accepted_length
    if least is None:
        return lines
    accept = f"  ({percent(speedup.break_even_acceptance)} accepted)" if speedup.break_even_acceptance else ""
    words: Line = (
        (fit("break-even", _LABEL), "dim"),
        (f"{decimal(least)} tok/step", "warn bold"),
        (f"  now {decimal(now)}" if now is not None else "", ("good" if (now or 0) >= least else "bad") + " bold"),
    )
    lines.append((*words, (accept if line_width(words) + len(accept) <= width else "", "dim")))
    if now is not None and width - _LABEL >= _GAUGE_LEAST:
        gauge = _gauge(least, now, min(width - _LABEL - 2, _GAUGE_MOST), ascii_only=ascii_only)
        lines.append(((" " * _LABEL, "text"), *gauge))
    return lines


def _gauge(least: float, now: float, width: int, *, ascii_only: bool) -> Line:
    """Tokens per step from 1 on: the way up to break-even is loss, beyond it gain; a mark is where the steps are."""
    top = max(now, least) * 1.1
    scale = (width - 1) / max(top - 1.0, 1e-9)
    even, here = (min(max(round((value - 1.0) * scale), 0), width - 1) for value in (least, now))
    cells: list[Span] = [("-" if ascii_only else "─", "bad" if x < even else "good") for x in range(width)]
    cells[even] = ("|" if ascii_only else "┃", "warn bold")
    cells[here] = ("o" if ascii_only else "●", ("good" if now >= least else "bad") + " bold")
    return tuple(cells)


def _speedup_span(value: float | None) -> Span:
    if value is None:
        return UNKNOWN, "dim"
    role = "good" if value > 1 + _CLEAR else "bad" if value < 1 - _CLEAR else "text"
    return times(value), f"{role} bold"


def _groups(title: str, groups: Sequence[GroupFigures], width: int) -> list[Line]:
    """One group a line."""
    if not groups:
        return []
    columns: list[Column[GroupFigures]] = [
        Column(title, _NAME, lambda one: (clean(one.name, 40), "text"), 0, right=False),
        Column("requests", 8, lambda one: (compact(one.requests), "dim"), 4),
        Column("accepted", 8, lambda one: (percent(one.acceptance), "text"), 2),
        Column("length", 6, lambda one: (decimal(one.mean_accepted_length), "text"), 3),
        Column("tok/s", 6, lambda one: (rate(one.decode_rate), "text"), 1),
        Column("speed-up", 8, lambda one: _speedup_span(one.speedup), 0),
    ]
    return table(columns, groups, width - 1)


def _types(types: Sequence[TypeFigures], width: int, *, ascii_only: bool) -> list[Line]:
    """One implementation of the chain a line, with its acceptance per position as columns."""
    if not types:
        return []

    def positions(one: TypeFigures) -> Span:
        shares = [round(share * 100) for share in one.acceptance_per_position[:16]]
        return sparkline(shares, 100, ascii_only=ascii_only), "acceptance"

    columns: list[Column[TypeFigures]] = [
        Column("by type", _NAME, lambda one: (clean(one.type, 40), "text"), 0, right=False),
        Column("drafts", 6, lambda one: (compact(one.drafts), "dim"), 3),
        Column("accepted", 8, lambda one: (percent(one.acceptance), "text"), 0),
        Column("length", 6, lambda one: (decimal(one.mean_accepted_length), "text"), 1),
        Column("drafting", 8, lambda one: (f"{one.seconds:.1f} s" if one.seconds is not None else UNKNOWN, "text"), 4),
        Column("positions", 9, positions, 2, right=False, stretch=True),
    ]
    return table(columns, types, width - 1)
