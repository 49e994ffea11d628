"""Acceptance: the chart, window, lifetime and live figures, how far into a draft the target follows it, and whether
that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import Source, Status
from specdash.core.start_check import Drafting
from specdash.insight.charts import Metric
from specdash.tui.formatting import UNKNOWN, bar, clean, column_bar, compact, decimal, fit, percent
from specdash.tui.layout import PanelId
from specdash.tui.spans import BLANK, Line, Span, figure, line_width, wrap
from specdash.tui.widgets import speedup
from specdash.tui.widgets.chart import Chart
from specdash.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from specdash.insight.picture import Measured, SpeculationPicture
    from specdash.tui.view import View

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
        return (
            ("lifetime ", "dim"),
            _plain(acceptance.lifetime, percent(acceptance.lifetime.value, 1)),
            ("  live ", "dim"),
            _plain(acceptance.live, percent(acceptance.live.value)),
        )

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The chart at the left, figures and per-position bars at the right; whether it pays beside or below them,
        where there is room for more than a line. Where it runs without speculation, what to do instead."""
        if view.picture.views.drafting.state is Drafting.FAILED:
            self.chart.lines(view, width, height, None, "")
            if self.chart.empty:
                return _what_to_do(view, width, height)
        if height >= _ROOMY and speedup.is_told(view):
            below = speedup.detail_lines(view, width - 2, height - _UPPER_LEAST - 1)
            upper = self._upper(view, width, height - len(below) - 1, told=True)
            return [*upper, BLANK, *((("  ", "text"), *line) for line in below)]
        if width >= _THREE_ABREAST and height >= _THREE_HIGH and speedup.is_told(view):
            room = width - _PAYING_WIDTH - 2
            left = self._upper(view, room, height, told=True)
            right = speedup.detail_lines(view, _PAYING_WIDTH, height)
            return [
                (*(left[y] if y < len(left) else ((" " * room, "text"),)), *_after(left, y, room), *line)
                for y, line in enumerate([*right, *[BLANK] * (height - len(right))])
            ]
        return self._upper(view, width, height, told=False)

    def _upper(self, view: View, width: int, height: int, *, told: bool) -> list[Line]:
        """Chart, figures and bars; with a line on whether it pays unless that is told elsewhere."""
        side = min(max(_SIDE_WIDTH, width * 2 // 5), width - _CHART_LEAST - 2)
        if side < 20:
            return self._chart(view, width, height)
        chart = self._chart(view, width - side - 2, height)
        right = [] if told or not speedup.is_told(view) else [speedup.compact_line(view, side)]
        right += speculation_lines(view, side, height - len(right))
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


def _plain(measured: Measured, text: str) -> Span:
    return (text, "text" if measured.status is Status.KNOWN else "dim")


def _why_empty(view: View) -> str:
    if view.picture.backend.speculation.active is False:
        return "the server is not speculating"
    return view.why(Source.METRICS, "nothing drafted in this window")


def _what_to_do(view: View, width: int, height: int) -> list[Line]:
    """The fix; above it the cause, where the header has no room for it: an alert's banner stands in its place."""
    drafting, alerts = view.picture.views.drafting, view.picture.alerts
    lines: list[Line] = []
    is_told = not alerts.active or (drafting.because in alerts.cause and len(alerts.cause) <= _READABLE)
    if drafting.because and not is_told:
        lines += [(("  ", "text"), (part, "warn")) for part in wrap(clean(drafting.because, 300), width - 4, 2)]
    for index, part in enumerate(wrap(clean(drafting.fix, 300), width - 8, 3)):
        lines.append((("  do  " if index == 0 else "      ", "accent"), (part, "text bold")))
    lines.append((("  m   ", "accent"), ("what it was to speculate with, and what works without", "dim")))
    return ([BLANK, *lines] if height > len(lines) else lines)[:height]


def speculation_lines(view: View, width: int, height: int) -> list[Line]:
    """Mean accepted length, gain and totals, then the bars."""
    speculation = view.picture.backend.speculation
    gain = speculation.tokens_per_decode
    fresh = speculation.acceptance.window.status is Status.KNOWN
    lines: list[Line] = [
        (
            ("mean length ", "dim"),
            (decimal(speculation.mean_accepted_length), "text bold" if fresh else "dim"),
            ("  tok/decode ", "dim"),
            _plain(gain, decimal(gain.value)),
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
    return lines + position_lines(speculation, width, height - len(lines), ascii_only=view.glyphs.ascii_only)


def position_lines(speculation: SpeculationPicture, width: int, height: int, *, ascii_only: bool) -> list[Line]:
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
            *_flat_bars(shares, None if held else lifetime, width, held, ascii_only=ascii_only),
        ]
    return _upright_bars(shares, width, height, held, heading, ascii_only=ascii_only)


def _without_empty_tail(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Positions that no draft has reached say nothing; the first empty one stays, to show where it ends."""
    end = len(shares)
    while end > 1 and shares[end - 1] <= 0 and shares[end - 2] <= 0:
        end -= 1
    return shares[:end]


def _flat_bars(
    shares: tuple[float, ...], lifetime: tuple[float, ...] | None, width: int, held: bool, *, ascii_only: bool
) -> list[Line]:
    room = max(width - 3 - 7 - 11, 8)
    lines: list[Line] = []
    for index, share in enumerate(shares):
        filled, rest = bar(share, room, ascii_only=ascii_only)
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


def _upright_bars(
    shares: tuple[float, ...], width: int, height: int, held: bool, heading: str, *, ascii_only: bool
) -> list[Line]:
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
    bars = [column_bar(share, rows, ascii_only=ascii_only) for share in shares[:fitting]]
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
