"""Acceptance: the chart, window, lifetime and live figures, how far into a draft the target follows it, and what the
verdict on it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import ReadingStatus, Source
from specdash.core.records import Drafting
from specdash.insight.charts import Metric
from specdash.insight.picture import Basis
from specdash.insight.speedup.verdict import verdict
from specdash.system.text import UNKNOWN, clean, compact, duration, number, percent, rate, times
from specdash.tui.layout import PanelId
from specdash.tui.spans import BLANK, Line, Span, bar, column_bar, figure, fit, line_width, sparkline, wrap
from specdash.tui.widgets.chart import Chart
from specdash.tui.widgets.panel import Column, Panel, table
from specdash.tui.widgets.speculation.verdict import verdict_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.log_facts import SpeculativeStatistics
    from specdash.insight.picture import MeasuredFigure, SpeculationPicture, SpeedUpPicture
    from specdash.tui.view import View


# Is speculation paying: the whole of it where there is room; the verdict itself stands above all panels.

_NAME = 14
_LABEL = 12
_GAUGE_LEAST, _GAUGE_MOST = 16, 60
_WORDY = 72


def interval_words(speedup: SpeedUpPicture) -> str:
    """`[1.70–2.00]`, empty where it is not known."""
    if speedup.low is None or speedup.high is None:
        return ""
    return f"[{speedup.low:.2f}–{speedup.high:.2f}]"


def is_told(view: View) -> bool:
    """Whether there is anything to say: a server that does not speculate gains nothing by it."""
    speedup = view.picture.speedup
    return speedup.value is not None or view.picture.backend.speculation.active is not False


def _basis(speedup: SpeedUpPicture) -> str:
    return "" if speedup.basis is Basis.UNKNOWN else str(speedup.basis)


def detail_lines(view: View, width: int, height: int) -> list[Line]:
    """Verdict, what it rests on, break-even, and how it is by type; in that order, as much as there is room for."""
    speedup = view.picture.speedup
    lines: list[Line] = [_verdict_line(view, width)]
    lines += [((text, "dim"),) for text in wrap(clean(speedup.why, 400), width, 2)]
    lines += _figures(speedup, width)
    types = _types(speedup.by_type, width)
    gap = [BLANK] if height - len(lines) > len(types) else []
    # A table is not cut down to its heading.
    if height - len(lines) - len(gap) >= 2:
        lines += [*gap, *types]
    return lines[:height]


def _verdict_line(view: View, width: int) -> Line:
    speedup = view.picture.speedup
    words, role = verdict(view.picture).short, f"{verdict_role(view)} bold"
    if speedup.value is None:
        return ((fit(words, width).rstrip(), role),)
    is_measured = speedup.basis is Basis.MEASURED
    basis = "measured against a recorded baseline" if is_measured else "an estimate: no recorded baseline"
    if width < _WORDY:
        basis = _basis(speedup)
    words = f"{words}  {times(speedup.value)} {interval_words(speedup)}".rstrip()
    basis_role = "warn" if speedup.basis is Basis.ESTIMATED else "dim"
    return (
        (fit(words, min(len(words), width)), role),
        (fit(f"  {basis}", max(width - len(words), 0)).rstrip(), basis_role),
    )


def _figures(speedup: SpeedUpPicture, width: int) -> list[Line]:
    """Rates side by side; where break-even lies, and on which side of it the steps are now."""
    lines: list[Line] = []
    if speedup.decode_rate is not None and speedup.baseline_rate is not None:
        rates: Line = (
            (fit("decode", _LABEL), "dim"),
            (f"{rate(speedup.decode_rate)} tok/s", "text bold"),
            (f"  without {rate(speedup.baseline_rate)}", "text"),
        )
        lines.append(rates)
    least, now = speedup.break_even_length, speedup.mean_accepted_length
    if least is None:
        return lines
    accept = f"  ({percent(speedup.break_even_acceptance)} accepted)" if speedup.break_even_acceptance else ""
    words: Line = (
        (fit("break-even", _LABEL), "dim"),
        (f"{number(least, 2)} tok/step", "warn bold"),
        (f"  now {number(now, 2)}" if now is not None else "", ("good" if (now or 0) >= least else "bad") + " bold"),
    )
    lines.append((*words, (accept if line_width(words) + len(accept) <= width else "", "dim")))
    if now is not None and width - _LABEL >= _GAUGE_LEAST:
        gauge = _gauge(least, now, min(width - _LABEL - 2, _GAUGE_MOST))
        lines.append(((" " * _LABEL, "text"), *gauge))
    return lines


def _gauge(least: float, now: float, width: int) -> Line:
    """Tokens per step from 1 on: the way up to break-even is loss, beyond it gain; a mark is where the steps are."""
    top = max(now, least) * 1.1
    scale = (width - 1) / max(top - 1.0, 1e-9)
    even, here = (min(max(round((value - 1.0) * scale), 0), width - 1) for value in (least, now))
    cells: list[Span] = [("─", "bad" if x < even else "good") for x in range(width)]
    cells[even] = ("┃", "warn bold")
    cells[here] = ("●", ("good" if now >= least else "bad") + " bold")
    return tuple(cells)


def _types(types: Sequence[SpeculativeStatistics], width: int) -> list[Line]:
    """One implementation of the chain a line, with its acceptance per position as columns."""
    if not types:
        return []

    def positions(type_figures: SpeculativeStatistics) -> Span:
        shares = [round(share * 100) for share in (type_figures.acceptance_per_position or ())[:16]]
        return sparkline(shares, 100), "acceptance"

    columns: list[Column[SpeculativeStatistics]] = [
        Column("by type", _NAME, lambda type_figures: (clean(type_figures.type, 40), "text"), 0, right=False),
        Column("drafts", 6, lambda type_figures: (compact(type_figures.drafts_generated), "dim"), 3),
        Column("accepted", 8, lambda type_figures: (percent(type_figures.acceptance), "text"), 0),
        Column("length", 6, lambda type_figures: (number(type_figures.length, 2), "text"), 1),
        Column("drafting", 8, lambda type_figures: (number(type_figures.seconds, 1, "s"), "text"), 4),
        Column("positions", 9, positions, 2, right=False, stretch=True),
    ]
    return table(columns, types, width - 1)


_SIDE_WIDTH = 43
_CHART_LEAST = 26
_THREE_ABREAST, _THREE_HIGH = 128, 9
_PAYING_WIDTH = 46
_ROOMY = 16
_UPPER_LEAST = 7
_READABLE = 60
"""Letters of a cause that the banner shows also where the screen is narrow."""


class AcceptancePanel(Panel):
    """Share of drafted tokens that the target accepted."""

    def __init__(self) -> None:
        super().__init__(PanelId.ACCEPTANCE)
        self.chart = Chart(Metric.ACCEPTANCE, "acceptance")

    def key_figure(self, view: View) -> Line:
        """Acceptance over the window; or that there can be none, for which types it was wanted."""
        if view.picture.views.drafting.state is Drafting.FAILED:
            types = "+".join(clean(name, 24) for name in view.picture.backend.speculation.types or ())
            return (("running without speculation", "warn bold"), (f"  {types}" if types else "", "dim"))
        window = view.picture.backend.speculation.acceptance.window
        return figure(window, percent(window.value, 1), "", "acceptance")

    def aside(self, view: View) -> Line:
        """The two other acceptances."""
        if view.picture.views.drafting.state is Drafting.FAILED:
            return ()
        acceptance = view.picture.backend.speculation.acceptance
        young: Line = (
            ((f"chart {duration(view.span_s, short=True)}  ", "dim"),) if view.span_s < view.picture.window_s else ()
        )
        return (
            *young,
            ("lifetime ", "dim"),
            _plain(acceptance.lifetime, percent(acceptance.lifetime.value, 1)),
            ("  live ", "dim"),
            _plain(acceptance.live, percent(acceptance.live.value)),
        )

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The chart at the left, figures and per-position bars at the right; what the verdict rests on beside or
        below them, where there is room. Where it runs without speculation, what to do instead."""
        if view.picture.views.drafting.state is Drafting.FAILED:
            self.chart.lines(view, width, height, None, "")
            if self.chart.empty:
                return _what_to_do(view, width, height)
        if height >= _ROOMY and is_told(view):
            below = detail_lines(view, width - 2, height - _UPPER_LEAST - 1)
            upper = self._upper(view, width, height - len(below) - 1)
            return [*upper, BLANK, *((("  ", "text"), *line) for line in below)]
        if width >= _THREE_ABREAST and height >= _THREE_HIGH and is_told(view):
            room = width - _PAYING_WIDTH - 2
            left = self._upper(view, room, height)
            right = detail_lines(view, _PAYING_WIDTH, height)
            return [
                (*(left[y] if y < len(left) else ((" " * room, "text"),)), *_after(left, y, room), *line)
                for y, line in enumerate([*right, *[BLANK] * (height - len(right))])
            ]
        return self._upper(view, width, height)

    def _upper(self, view: View, width: int, height: int) -> list[Line]:
        """Chart, figures and bars."""
        side = min(max(_SIDE_WIDTH, width * 2 // 5), width - _CHART_LEAST - 2)
        if side < 20:
            return self._chart(view, width, height)
        chart = self._chart(view, width - side - 2, height)
        right = speculation_lines(view, side, height)
        pad: Span = (" " * (width - side - 2), "text")
        return [
            (*(chart[y] if y < len(chart) else (pad,)), ("  ", "text"), *(right[y] if y < len(right) else BLANK))
            for y in range(height)
        ]

    def _chart(self, view: View, width: int, height: int) -> list[Line]:
        least = view.picture.speedup.break_even_acceptance
        lines = self.chart.lines(view, width, height, least, " break-even" if least is not None else "")
        if not lines or not self.chart.empty:
            return lines
        lines = list(lines)
        reason = _why_empty(view)
        lines[height // 2] = (lines[height // 2][0], (fit(reason, width - 5), "dim"))
        return lines


def _after(left: list[Line], y: int, room: int) -> Line:
    """The gap behind a line of the left part."""
    return ((" " * (room - line_width(left[y]) + 2 if y < len(left) else 2), "text"),)


def _plain(measured: MeasuredFigure, text: str) -> Span:
    return (text, "text" if measured.status is ReadingStatus.KNOWN else "dim")


def _why_empty(view: View) -> str:
    if view.picture.backend.speculation.active is False:
        return "the server is not speculating"
    return view.why(Source.METRICS, "no drafts in this window")


def _what_to_do(view: View, width: int, height: int) -> list[Line]:
    """The fix; above it the cause, where the header has no room for it: an alert's banner stands in its place."""
    drafting, alerts = view.picture.views.drafting, view.picture.alerts
    lines: list[Line] = []
    is_told = not alerts.active or (drafting.because in alerts.cause and len(alerts.cause) <= _READABLE)
    if drafting.because and not is_told:
        lines += [(("  ", "text"), (part, "warn")) for part in wrap(clean(drafting.because, 300), width - 4, 2)]
    for index, part in enumerate(wrap(clean(drafting.fix, 300), width - 8, 3)):
        lines.append((("  do  " if index == 0 else "      ", "accent"), (part, "text bold")))
    lines.append((("  m   ", "accent"), ("why, and what still works", "dim")))
    return ([BLANK, *lines] if height > len(lines) else lines)[:height]


def speculation_lines(view: View, width: int, height: int) -> list[Line]:
    """Mean accepted length, gain and totals, then the bars."""
    speculation = view.picture.backend.speculation
    gain = speculation.tokens_per_decode
    fresh = speculation.acceptance.window.status is ReadingStatus.KNOWN
    lines: list[Line] = [
        (
            ("mean length ", "dim"),
            (number(speculation.mean_accepted_length, 2), "text bold" if fresh else "dim"),
            ("  tok/decode ", "dim"),
            _plain(gain, number(gain.value, 2)),
        )
    ]
    if height >= 7:
        lines.append(
            (
                ("drafted ", "dim"),
                (compact(speculation.draft_tokens_total), "text"),
                ("  accepted ", "dim"),
                (compact(speculation.accepted_tokens_total), "text"),
                ("  steps ", "dim"),
                (compact(speculation.verification_steps_total), "text"),
            )
        )
    return lines + position_lines(speculation, width, height - len(lines))


def position_lines(speculation: SpeculationPicture, width: int, height: int) -> list[Line]:
    """Acceptance per draft position: one bar a line where they all fit, else upright bars, else the first ones and what
    the tail holds."""
    shares, held = speculation.acceptance_per_position_window, False
    lifetime = speculation.acceptance_per_position_lifetime
    if not shares:
        shares, held = lifetime, True
    if height < 1:
        return []
    if not shares:
        return [((f"per position {UNKNOWN}", "dim"),)]
    shares = _without_empty_tail(shares)
    heading = "per draft position" + (", lifetime" if held else "")
    if height >= 5 and height - 1 >= len(shares):
        return [
            ((heading, "dim"),),
            *_flat_bars(shares, None if held else lifetime, width, held),
        ]
    return _upright_bars(shares, width, height, held, heading)


def _without_empty_tail(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Positions that no draft has reached say nothing; the first empty one stays, to show where it ends."""
    end = len(shares)
    while end > 1 and shares[end - 1] <= 0 and shares[end - 2] <= 0:
        end -= 1
    return shares[:end]


def _flat_bars(shares: tuple[float, ...], lifetime: tuple[float, ...] | None, width: int, held: bool) -> list[Line]:
    room = max(width - 3 - 7 - 11, 8)
    lines: list[Line] = []
    for index, share in enumerate(shares):
        filled, rest = bar(share, room)
        past = lifetime[index] if lifetime is not None and index < len(lifetime) else None
        lines.append(
            (
                (f"{index + 1:>2} ", "dim"),
                (filled, ("machine" if held else "acceptance") + " track"),
                (rest, "faint track"),
                (f"{percent(share):>6} ", "dim" if held else "text"),
                (f" life {percent(past):>5}" if past is not None else "", "dim"),
            )
        )
    return lines


def _upright_bars(shares: tuple[float, ...], width: int, height: int, held: bool, heading: str) -> list[Line]:
    count = len(shares)
    step = next((cells for cells in (5, 4, 3, 2, 1) if count * cells <= width), 1)
    fitting = min(count, width // step)
    tail = shares[fitting:]
    if tail:
        heading = f"first {fitting} positions, {count - fitting} more up to {percent(max(tail))}"
    else:
        heading += f": {percent(shares[0])} to {percent(shares[-1])}" if count > 1 else f": {percent(shares[0])}"
    labels = step >= 2 and height >= 4
    rows = height - 1 - labels
    if rows < 1:
        return [((fit(heading, width), "dim"),)]
    thick = max(step - 1, 1)
    bars = [column_bar(share, rows) for share in shares[:fitting]]
    role = "machine" if held else "acceptance"
    lines: list[Line] = [((fit(heading, width), "dim"),)]
    lines += [(("".join((b[y] * thick).ljust(step) for b in bars), role),) for y in range(rows)]
    if labels:
        lines.append(((_numbers(fitting, step)[:width], "dim"),))
    return lines


def _numbers(count: int, step: int) -> str:
    """Position numbers under bars `step` cells apart; where they would touch, only every fifth."""
    cells = [" "] * (count * step + 2)
    for position in range(1, count + 1):
        text = str(position)
        if len(text) < step or position % 5 == 0:
            start = (position - 1) * step
            cells[start : start + len(text)] = text
    return "".join(cells)
