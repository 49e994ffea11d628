"""Time charts with a small scale at the left, and marks where something happened; drawn again only when they would look
different."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import ReadingStatus, Source
from specdash.insight.charts import CHARTS, Metric
from specdash.system.text import compact, duration, number, percent, rate
from specdash.tui import plot
from specdash.tui import plot as marks
from specdash.tui.layout import PanelId
from specdash.tui.spans import Line, figure, fit
from specdash.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.insight.picture import MeasuredFigure
    from specdash.tui.view import View

SCALE_WIDTH = 5


class Chart:
    """One chart's lines, remembered by what they were drawn from."""

    def __init__(self, metric: Metric, role: str, *, late: int = 1) -> None:
        """`late` as in `plot.plot`."""
        self.spec = CHARTS[metric]
        self._late = late
        self.role = role
        self.empty = True
        self.highest: float | None = None
        self._columns: tuple[float | None, ...] = ()
        self._key: object = None
        self._lines: list[Line] = []

    def lines(
        self, view: View, width: int, height: int, guide: float | None = None, guide_text: str = ""
    ) -> list[Line]:
        """The chart `width` cells wide, scale included, and `height` lines high; with a horizontal line at `guide`."""
        plot_width = width - SCALE_WIDTH
        if plot_width < 8 or height < 2:
            return []
        columns = view.columns(self.spec.metric, plot.column_count(plot_width, view.span_s))
        if columns != self._columns:
            self._columns = columns
            known = [value for value in columns if value is not None]
            self.empty = not known
            self.highest = max(known, default=None)
        high = plot.top_of(columns, self.spec.high)
        low = self.spec.low or 0.0
        levels = plot.levels(columns, height, low, high)
        found = marks.marks_of(view.picture, len(columns), view.span_s)
        (line,) = plot.levels((guide,), height, low, high)
        key = (levels, width, high, height, found, line, guide_text)
        if key == self._key:
            return self._lines
        body = plot.plot(levels, plot_width, height, self.role, late=self._late)
        if line is not None:
            body = list(marks.guide(body, line, guide_text, self.role))
        drawn = marks.overlay(body, found, len(columns), self.role)
        blank = self.empty and self.spec.high is None
        scale = [" " * SCALE_WIDTH] * height if blank else self._scale(low, high, height)
        self._key = key
        self._lines = [((label, "dim"), *line) for label, line in zip(scale, drawn, strict=True)]
        return self._lines

    def _scale(self, low: float, high: float, height: int) -> list[str]:
        labels = [" " * SCALE_WIDTH] * height
        labels[0] = self._label(high)
        labels[-1] = self._label(low)
        if height >= 5 and height % 2 == 1:
            labels[height // 2] = self._label((low + high) / 2)
        return labels

    def _label(self, value: float) -> str:
        if self.spec.unit == "%":
            text = percent(value, unit="%")
        elif value < 10 and value != int(value):
            text = number(value, 1)
        else:
            text = _round_number(value)
        return fit(text, SCALE_WIDTH - 1, right=True) + " "


def _round_number(value: float) -> str:
    """`1.5k` for 1500 and `5k` for 5000: a scale needs no trailing zeros."""
    text = compact(value)
    digits, suffix = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + suffix


class ChartPanel(Panel):
    """A panel that is one chart: prefill, decode, or tokens per decode."""

    def __init__(
        self,
        panel: PanelId,
        metric: Metric,
        measured: Callable[[View], MeasuredFigure],
        shown: Callable[[float | None], str],
    ) -> None:
        super().__init__(panel)
        self.chart = Chart(metric, panel.value)
        self.measured = measured
        self.shown = shown

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The chart, or in its first line why it is empty."""
        lines = self.chart.lines(view, width, height)
        if lines and self.chart.empty:
            lines = list(lines)
            reason = view.why(Source.METRICS, "no activity in this window")
            lines[height // 2] = (lines[height // 2][0], (reason, "dim"))
        return lines

    def key_figure(self, view: View) -> Line:
        """The current value."""
        measured = self.measured(view)
        return figure(measured, self.shown(measured.value), self.chart.spec.unit, self.panel.value)

    def aside(self, view: View) -> Line:
        """How far back the chart goes, and the highest value in sight."""
        if self.chart.highest is None:
            return ()
        span, most = f"{duration(view.span_s, short=True)} ", f" max {self.shown(self.chart.highest)}"
        # Beside a figure that is held and dated there is no room for both.
        return ((span + (most if self.measured(view).status is ReadingStatus.KNOWN else ""), "dim"),)


def prefill_panel() -> ChartPanel:
    """Prompt tokens per second."""
    return ChartPanel(PanelId.PREFILL, Metric.PREFILL, lambda view: view.picture.backend.prefill, rate)


def decode_panel() -> ChartPanel:
    """Generated tokens per second."""
    return ChartPanel(PanelId.DECODE, Metric.DECODE, lambda view: view.picture.backend.decode, rate)


def gain_panel() -> ChartPanel:
    """Generated tokens per target decode call."""
    return ChartPanel(
        PanelId.GAIN,
        Metric.TOKENS_PER_DECODE,
        lambda view: view.picture.backend.speculation.tokens_per_decode,
        lambda value: number(value, 2),
    )
