"""The rows of many servers: sorted, filtered, opened."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from textual import events
from textual.pilot import Pilot

from specdash.core.readings import ReadingStatus
from specdash.insight.fleet import FleetRow
from specdash.insight.picture import BackendState, MeasuredFigure
from specdash.insight.speedup.verdict import Verdict, VerdictKind
from specdash.tui.screens.fleet import FleetApp, FleetChoice, FleetPage
from tui.drawn import painted
from tui.driven import SIZES
from tui.waiting import until


def known(value: float) -> MeasuredFigure:
    return MeasuredFigure(value, ReadingStatus.KNOWN)


PAYING = FleetRow(
    "gpu1",
    "http://gpu1:8080",
    "qwen3-32b.gguf",
    BackendState.LIVE,
    verdict=Verdict(VerdictKind.PAYS, "PAYS 1.6×"),
    acceptance=known(0.67),
    decode=known(57.6),
    prefill=known(812.0),
    context_used=4096,
    context_size=8192,
    gpu=0.93,
    busy=1,
    slots=4,
    queue=0.0,
)
COSTING = replace(
    PAYING,
    name="gpu2",
    verdict=Verdict(VerdictKind.COSTS, "COSTS 23 %"),
    acceptance=known(0.31),
    decode=known(28.8),
    warnings=2,
    cause="Speculation costs: it is slower",
)
GONE = FleetRow(
    "[red]gpu3",
    "http://gpu3:8080",
    None,
    BackendState.DOWN,
    "nothing listens on the port",
    verdict=Verdict(VerdictKind.UNCLEAR, "CAN'T TELL YET (needs the server)"),
    critical=1,
)
ROWS = [PAYING, COSTING, GONE]


def shown(pilot: Pilot[FleetRow]) -> str:
    return painted(pilot.app.query_one(FleetPage))


@asynccontextmanager
async def running(app: FleetApp, size: tuple[int, int] = (120, 36)) -> AsyncIterator[Pilot[FleetRow]]:
    """The app with its first rows."""
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.query_one(FleetPage).shown)
        yield pilot


def names(pilot: Pilot[FleetRow]) -> list[str]:
    return [row.name for row in pilot.app.query_one(FleetPage).shown]


@pytest.mark.parametrize("size", SIZES)
async def test_a_row_has_the_figures_of_a_server_on_every_terminal(size: tuple[int, int]) -> None:
    async with running(FleetApp(lambda _: ROWS), size) as pilot:
        page = shown(pilot)
        lines = page.splitlines()
    assert lines[0].startswith(" 3 servers  1 away  1 costs  1 pays  3 alerts  worst first")
    assert lines[3].startswith("> [red]gpu3")
    for text in ("✖ down", "COSTS 23 %", "PAYS 1.6×", "67%", "57.6", "812", "50%", "93%", "✖1", "▲2"):
        assert text in page
    assert all(len(line) <= size[0] for line in lines)
    assert "q quit" in lines[-1]
    assert ("Speculation costs" in lines[4]) is (size[0] == 200)


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ((), ["[red]gpu3", "gpu2", "gpu1"]),
        (("right",), ["[red]gpu3", "gpu1", "gpu2"]),
        (("right", "exclamation_mark"), ["gpu2", "gpu1", "[red]gpu3"]),
        (("right",) * 4, ["gpu1", "gpu2", "[red]gpu3"]),
        (("right",) * 4 + ("exclamation_mark",), ["gpu2", "gpu1", "[red]gpu3"]),
        (("right", "left"), ["[red]gpu3", "gpu2", "gpu1"]),
    ],
)
async def test_the_arrows_sort_by_a_column_and_what_is_unknown_stays_last(
    keys: tuple[str, ...], order: list[str]
) -> None:
    async with running(FleetApp(lambda _: ROWS)) as pilot:
        await pilot.press(*keys)
        assert names(pilot) == order


async def test_a_click_on_a_heading_sorts_by_it_and_a_second_one_the_other_way_round() -> None:
    async with running(FleetApp(lambda _: ROWS)) as pilot:
        at = shown(pilot).splitlines()[2].index("dec/s")
        await pilot.click(FleetPage, offset=(at, 2))
        assert names(pilot)[0] == "gpu1"
        await pilot.click(FleetPage, offset=(at, 2))
        assert names(pilot)[0] == "gpu2"


async def test_the_filter_lets_through_what_has_the_words_and_escape_takes_one_thing_back_at_a_time() -> None:
    choice = FleetChoice()
    async with running(FleetApp(lambda _: ROWS, choice)) as pilot:
        await pilot.press("slash", *"SLOWER", "enter")
        assert names(pilot) == ["gpu2"]
        assert "filter: SLOWER (1 of 3)" in shown(pilot)
        await pilot.press("right", "escape")
        assert (choice.words, choice.order) == ("", "server")
        await pilot.press("escape")
        assert choice.order == ""
        assert pilot.app.is_running
        await pilot.press("escape")
    assert pilot.app.return_value is None


async def test_keys_typed_right_behind_the_one_that_opens_the_filter_belong_to_it() -> None:
    choice = FleetChoice()
    async with running(FleetApp(lambda _: ROWS, choice)) as pilot:
        for key in ("slash", *"gpu2", "enter"):
            pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: choice.words == "gpu2")


async def test_columns_of_gpus_are_there_where_anything_is_known_of_one() -> None:
    rows = [replace(row, gpu=None) for row in ROWS]
    async with running(FleetApp(lambda _: rows), (200, 50)) as pilot:
        assert "gpu " not in shown(pilot).splitlines()[2]
        rows[0] = replace(PAYING, vram_used=20e9, vram_size=80e9)
        pilot.app.query_one(FleetPage).take(rows)
        heading = shown(pilot).splitlines()[2]
        assert "gpu" in heading.split()
        assert "vram" in heading.split()
        assert "25%" in shown(pilot)


async def test_enter_opens_the_selected_row_which_stays_selected_wherever_it_goes() -> None:
    choice, rows = FleetChoice(), list(ROWS)
    app = FleetApp(lambda _: rows, choice)
    async with running(app, (80, 24)) as pilot:
        await pilot.press("down")
        rows[0], rows[1] = (
            replace(PAYING, critical=9),
            replace(COSTING, name="gpu2", verdict=PAYING.verdict, warnings=0),
        )
        app.query_one(FleetPage).take(rows)
        await pilot.press("enter")
    assert app.return_value is not None
    assert app.return_value.name == "gpu2"


async def test_a_click_selects_a_row_and_another_opens_it() -> None:
    app = FleetApp(lambda _: ROWS)
    async with running(app, (80, 24)) as pilot:
        await pilot.click(FleetPage, offset=(5, 5))
        await pilot.click(FleetPage, offset=(5, 5))
    assert app.return_value is not None
    assert app.return_value.name == "gpu1"


async def test_rows_that_are_seen_are_asked_for_fresh() -> None:
    asked: list[frozenset[str]] = []

    def rows(seen: object) -> list[FleetRow]:
        asked.append(seen)  # type: ignore[arg-type]
        return [replace(PAYING, name=f"gpu{number:03d}") for number in range(200)]

    app = FleetApp(rows)
    async with running(app, (80, 24)):
        app.query_one(FleetPage).take(rows(frozenset()))
        app.action_page(1)
        app._tick()
    assert "gpu000" in asked[-1]
    assert len(asked[-1]) == 24 - 6
