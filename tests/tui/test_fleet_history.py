"""The history of a server of the fleet: charts of what a Prometheus told, its gaps and its alerts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from specdash.collect.prometheus import PrometheusSeries
from specdash.core.errors import UnreachableError
from specdash.export.from_prometheus import FIGURES, ServerHistory, histories_of, history_range
from specdash.tui.screens.fleet import FleetApp, FleetChoice, FleetPage
from specdash.tui.widgets.chart import SCALE_WIDTH
from tui.test_fleet import PAYING, ROWS, SIZES, running, shown
from tui.waiting import until

if TYPE_CHECKING:
    from specdash.insight.fleet import FleetRow

NOW = 1_790_000_000.0
LEVELS = {"acceptance": 0.5, "decode": 40.0, "prefill": 800.0, "queue": 3.0, "gpu": 0.9, "up": 1.0}


def told(row: FleetRow, span_s: float, most: int, *, stops: float = 0.0) -> ServerHistory:
    """A history with a gap in its middle tenth, in whose second half an alert was active; it may stop early."""
    asked = history_range(NOW - span_s, NOW, most, 15.0)
    begins, ends = asked.until - span_s * 0.55, asked.until - span_s * 0.45
    times = [at for at in asked.times if not begins < at < ends and at <= asked.until - stops]
    labels = {"server": row.url, "instance": "gpu1:9538"}
    series = [
        PrometheusSeries({**labels, "series": name}, tuple((at, LEVELS[name]) for at in times)) for name in FIGURES
    ]
    alert = {**labels, "series": "alert", "rule": "speculation_hurts", "severity": "warning"}
    series.append(PrometheusSeries(alert, tuple((at, 1.0) for at in times if at >= ends)))
    (history,) = histories_of(series, asked)
    return history


@pytest.mark.parametrize("size", SIZES)
async def test_charts_have_their_figures_a_gap_and_the_alert_on_every_terminal(size: tuple[int, int]) -> None:
    asked: list[tuple[float, int]] = []

    def history(row: FleetRow, span_s: float, most: int) -> ServerHistory:
        asked.append((span_s, most))
        return told(row, span_s, most)

    async with running(FleetApp(lambda _: ROWS, history=history), size) as pilot:
        page = pilot.app.query_one(FleetPage)
        await pilot.press("G", "z")
        await until(pilot, lambda: page.history is not None)
        text = shown(pilot)
        count = page.history.range.count if page.history is not None else 0
    lines = text.splitlines()
    assert lines[0].startswith(" gpu1  last 24h, a point for ")
    for words in ("Acceptance  median 50 %", "Decode tok/s  median 40.0", "Prefill tok/s  median 800"):
        assert words in text
    assert "━" in text
    assert "q quit" in lines[-1]
    assert all(len(line) <= size[0] for line in lines)
    assert asked == [(86400.0, 2 * (size[0] - SCALE_WIDTH))]
    assert 0 < count <= 2 * (size[0] - SCALE_WIDTH)
    drawn = next(line for at, line in enumerate(lines) if "Decode" in lines[at - 1])
    middle = SCALE_WIDTH + (size[0] - SCALE_WIDTH) // 2
    chart = lines[lines.index(drawn) : lines.index(drawn) + 2]
    assert {line.ljust(size[0])[middle] for line in chart} == {" "}
    assert any(line.ljust(size[0])[middle // 2] != " " for line in chart)


async def test_the_window_goes_on_and_another_row_has_its_own_history() -> None:
    asked: list[tuple[str, float]] = []

    def history(row: FleetRow, span_s: float, most: int) -> ServerHistory:
        asked.append((row.name, span_s))
        return told(row, span_s, most)

    choice = FleetChoice(selected="gpu2")
    async with running(FleetApp(lambda _: ROWS, choice, history=history)) as pilot:
        page = pilot.app.query_one(FleetPage)
        for key in ("z", "w", "w", "down"):
            await pilot.press(key)
            await until(pilot, lambda: page.history is not None)
        assert asked == [("gpu2", 86400.0), ("gpu2", 604800.0), ("gpu2", 2592000.0), ("gpu1", 2592000.0)]
        assert "last 30d" in shown(pilot)
        await pilot.press("escape")
        assert "worst first" in shown(pilot)


async def test_a_server_without_figures_is_dated_and_why_there_is_no_history_is_said() -> None:
    async with running(FleetApp(lambda _: [PAYING], history=lambda *asked: told(*asked, stops=20000.0))) as pilot:
        page = pilot.app.query_one(FleetPage)
        await pilot.press("z")
        await until(pilot, lambda: page.history is not None)
        assert "no figures since " in shown(pilot)

    def fails(*_: object) -> ServerHistory:
        raise UnreachableError("Prometheus at http://p does not answer")

    async with running(FleetApp(lambda _: [PAYING], history=fails)) as pilot:
        await pilot.press("z")
        await until(pilot, lambda: "does not answer" in shown(pilot))


async def test_a_prometheus_that_hangs_does_not_keep_the_screen_waiting() -> None:
    goes_on = threading.Event()

    def waits(row: FleetRow, span_s: float, most: int) -> ServerHistory:
        goes_on.wait(20.0)
        return told(row, span_s, most)

    async with running(FleetApp(lambda _: ROWS, history=waits)) as pilot:
        await pilot.press("z")
        assert "asking Prometheus" in shown(pilot)
        await pilot.press("escape")
        assert "worst first" in shown(pilot)
        goes_on.set()


async def test_without_a_prometheus_it_is_said_where_history_comes_from() -> None:
    async with running(FleetApp(lambda _: ROWS)) as pilot:
        await pilot.press("z")
        assert "worst first" in shown(pilot)
        assert any("--prometheus" in note.message for note in pilot.app._notifications)
