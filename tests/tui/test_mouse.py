"""What a click does: the way to a panel, a row or an action beside its key."""

from typing import Any, TypeVar

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from specdash.core.changes import Role
from specdash.tui.action_table import FooterScreen
from specdash.tui.app import Dashboard
from specdash.tui.arming import Arming
from specdash.tui.screens.modal import HelpScreen, PresetsScreen
from specdash.tui.screens.proxy import ProxyScreen, RequestScreen
from specdash.tui.screens.speculation import SpeculationScreen
from specdash.tui.screens.tune import TuneScreen
from support.clock import Clock
from tui.drawn import text
from tui.driven import SIZES, dashboard, opened, press
from tui.fake_console import FakeConsole
from tui.fake_tuner import FakeTuner
from tui.waiting import answered

Page = TypeVar("Page", bound="Screen[Any]")


def top(app: Dashboard, kind: type[Page]) -> Page:
    """What stands above the screen, which is of this kind."""
    page = app.screen
    assert isinstance(page, kind)
    return page


async def click_in_footer(pilot: Pilot[None], app: Dashboard, words: str) -> None:
    footer = app.shown.footer
    await pilot.click(footer, offset=(text(footer.lines[0]).index(words) + 1, 0))
    await answered(app)
    await pilot.pause()


async def test_a_click_on_an_entry_of_the_footer_does_what_its_key_does() -> None:
    app = dashboard(console=FakeConsole(), tuner=FakeTuner("ready"))
    async with app.run_test(size=(200, 50)) as pilot:
        await press(pilot)
        await click_in_footer(pilot, app, "space pause")
        assert app.paused_at is not None
        await click_in_footer(pilot, app, "e tune")
        assert app.shown.place is FooterScreen.TUNE
        await click_in_footer(pilot, app, "arm")
        assert app.access.armed()
        await click_in_footer(pilot, app, "? help")
        top(app, HelpScreen)


async def test_whoever_clicks_is_there_and_stays_armed() -> None:
    clock = Clock(10_000.0)
    app = dashboard(console=FakeConsole(), arming=Arming(idle_s=60.0), clock=clock)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "A")
        clock.now += 50.0
        await pilot.click(opened(app, TuneScreen).board.keys, offset=(5, 3))
        clock.now += 50.0
        assert app.access.armed()
        clock.now += 50.0
        assert not app.access.armed()


@pytest.mark.parametrize(("columns", "rows"), SIZES[::2])
async def test_every_entry_of_the_footer_is_under_its_own_words(columns: int, rows: int) -> None:
    app = dashboard(console=FakeConsole(), tuner=FakeTuner("ready"))
    done: list[str] = []

    async def note(action: str, *_: object) -> bool:
        done.append(action)
        return True

    async with app.run_test(size=(columns, rows)) as pilot:
        await press(pilot)
        footer = app.shown.footer
        app.run_action = note  # type: ignore[assignment]
        labelled = [action for action in app.keys.actions if (label := action.label(FooterScreen.OVERVIEW)) is not None]
        for action in labelled:
            label = action.label(FooterScreen.OVERVIEW)
            entry = f"{app.keys[action.id]} {label.text if label else ''}"
            if entry in text(footer.lines[0]):
                done.clear()
                await click_in_footer(pilot, app, entry)
                assert done == [action.handler]


async def test_a_click_selects_a_row_and_a_double_click_opens_it() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "p")
        table = opened(app, ProxyScreen).board.requests
        await pilot.click(table, offset=(5, 4))
        await pilot.pause()
        second = table.selected
        assert second is table._rows[2]
        assert app.screen is app.shown
        await pilot.click(table, offset=(5, 3), times=2)
        await pilot.pause()
        top(app, RequestScreen)
        assert table.selected is table._rows[1]


async def test_the_tune_screens_title_leads_to_the_other_service_and_a_click_takes_the_selected_preset() -> None:
    app = dashboard(console=FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        tune = opened(app, TuneScreen)
        await pilot.click(tune.board.keys, offset=(12, 0))
        assert tune.model.role is Role.PROXY
        await press(pilot, "o")
        top(app, PresetsScreen)
        await pilot.click("#page", offset=(4, 2))
        await pilot.pause()
        assert app.screen is tune


async def test_the_panels_without_a_place_are_brought_by_a_click_on_their_names() -> None:
    app = dashboard("draft_simple")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "m")
        speculation = opened(app, SpeculationScreen)
        before = speculation.focused
        await pilot.click("#more", offset=(8, 0))
        await pilot.pause()
        assert speculation.focused is not before
