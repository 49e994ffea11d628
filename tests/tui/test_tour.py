"""The demo's tour: its steps in order, each with its line, its traffic and what it does; a key skips, one ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.tui.action_table import DEFAULT_KEYS, FooterScreen
from specdash.tui.arming import Arming
from specdash.tui.screens.apply import ApplyScreen
from specdash.tui.screens.tune import CARD, TuneScreen
from specdash.tui.tour import STEPS, Tour, TourLine
from tui.drawn import block, is_open
from tui.driven import SIZES, dashboard, opened, press
from tui.fake_console import FakeConsole
from tui.waiting import answered, until

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from specdash.tui.app import Dashboard


class Touring:
    """A tour on a dashboard whose time is the test's, and what it asked of the traffic."""

    def __init__(self, scene: str = "busy") -> None:
        self.now = 0.0
        self.traffic: list[tuple[str, ...]] = []
        self.console = FakeConsole()
        self.tour = Tour(self.traffic.append, lambda: self.now)
        self.app: Dashboard = dashboard(scene, console=self.console, arming=Arming(), tour=self.tour)

    def line(self) -> str:
        """What the tour says on the screen on top."""
        lines = list(self.app.screen.query(TourLine))
        assert len(lines) <= 1
        return " ".join(block(lines[0].lines).split()) if lines else ""

    async def at_step(self, pilot: Pilot[None], number: int) -> None:
        """Wait until this step is told, skipping those before it. The first begins when the screen has been drawn."""
        await until(pilot, lambda: f"TOUR 1/{len(STEPS)}" in self.line())
        for passed in range(2, number + 1):
            await press(pilot, "n")
            await until(pilot, lambda passed=passed: f"TOUR {passed}/{len(STEPS)}" in self.line())  # type: ignore[misc]


async def test_it_walks_from_what_pays_to_the_card_of_a_change_that_it_applied() -> None:
    touring = Touring()
    app = touring.app
    async with app.run_test(size=(120, 36)) as pilot:
        await touring.at_step(pilot, 1)
        assert "PAYS" in touring.line()
        await press(pilot, "n")
        await until(pilot, lambda: "COSTS" in touring.line())
        await press(pilot, "n")
        assert is_open(app, FooterScreen.INCIDENTS)
        await press(pilot, "n")
        assert opened(app, TuneScreen).model.changes
        await press(pilot, "n")
        assert isinstance(app.screen, ApplyScreen)
        await until(pilot, lambda: "TOUR 5/7" in touring.line())
        assert not touring.console.started
        await press(pilot, "n")
        assert touring.console.started
        await press(pilot, "n")
        assert opened(app, TuneScreen).board.side == CARD
        await press(pilot, "n")
        await until(pilot, lambda: touring.line() == "")
        assert not app.access.armed()
        assert touring.traffic == [("pattern",), ("hot",), ()]


async def test_a_step_goes_on_by_itself_when_its_time_is_over() -> None:
    touring = Touring()
    async with touring.app.run_test(size=(120, 36)) as pilot:
        for number, step in enumerate(STEPS[:4], 1):
            await until(pilot, lambda number=number: f"TOUR {number}/7" in touring.line())  # type: ignore[misc]
            touring.now += step.most_s
            touring.tour.look()
            await answered(touring.app)
            await pilot.pause()
        await until(pilot, lambda: "TOUR 5/7" in touring.line())


async def test_escape_ends_it_and_the_keys_are_the_screens_again() -> None:
    touring = Touring()
    app = touring.app
    async with app.run_test(size=(120, 36)) as pilot:
        await touring.at_step(pilot, 3)
        await press(pilot, "escape")
        assert is_open(app, FooterScreen.INCIDENTS), "it ends where it is"
        await until(pilot, lambda: touring.line() == "")
        assert touring.traffic[-1] == ()
        await press(pilot, "escape")
        assert not is_open(app, FooterScreen.INCIDENTS)


@pytest.mark.parametrize(("columns", "rows"), SIZES)
async def test_every_step_is_whole_at_the_bottom(columns: int, rows: int) -> None:
    touring = Touring()
    async with touring.app.run_test(size=(columns, rows)) as pilot:
        for number, step in enumerate(STEPS, 1):
            await until(pilot, lambda number=number: f"TOUR {number}/7" in touring.line())  # type: ignore[misc]
            line = touring.app.screen.query_one(TourLine)
            assert line.region.bottom == rows
            assert line.size.height == len(line.lines) <= (2 if columns < 120 else 1)
            words = touring.line().replace(" n next esc ends the tour", "")
            assert words.endswith(step.text.format(keys=DEFAULT_KEYS))
            await press(pilot, "n")
