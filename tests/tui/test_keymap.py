"""The user's keys: they do what the table's did, and everything that names a key names them."""

import pytest

from specdash.core.config import Resolved
from specdash.tui.action_table import ACTIONS, KeyTable, read_keys
from specdash.tui.screens.apply import ApplyScreen
from specdash.tui.screens.modal import HelpScreen, help_lines
from specdash.tui.screens.tune import TuneScreen
from tui.drawn import block
from tui.driven import dashboard, opened, page, press, said, shown
from tui.fake_console import FakeConsole
from tui.fake_tuner import FakeTuner
from tui.waiting import until


def keys(**chosen: str) -> KeyTable:
    return read_keys(Resolved({name.replace("__", "."): text for name, text in chosen.items()}, "config.toml"))


async def test_a_moved_key_does_what_the_old_one_did_and_the_old_one_nothing() -> None:
    app = dashboard(keys=keys(pause="f5,ä", proxy="space"))
    async with app.run_test(size=(120, 36)) as pilot:
        for key in ("f5", "ä"):
            await press(pilot, key)
            assert app.paused_at is not None
            await press(pilot, key)
            assert app.paused_at is None
        await press(pilot, "p")
        assert app.shown is app.overview
        await press(pilot, "space")
        assert app.shown is not app.overview


async def test_two_actions_change_keys_with_each_other() -> None:
    app = dashboard(keys=keys(incidents="m", speculation="i"))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i")
        assert app.shown.place == "speculation"
        await press(pilot, "i", "m")
        assert app.shown.place == "incidents"


async def test_pages_take_the_users_keys_too() -> None:
    console = FakeConsole()
    app = dashboard(
        console=console, keys=keys(arm="ctrl+a", tune__apply="ctrl+g", open="ctrl+e", back="backspace", help="f1")
    )
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "f1")
        assert isinstance(app.screen, HelpScreen)
        assert "backspace closes" in page(app)
        await press(pilot, "backspace", "e", "ctrl+g")
        assert "press ctrl+a to arm first" in said(app)
        await press(pilot, "ctrl+a")
        table = opened(app, TuneScreen).board.keys
        table.chosen = "LLAMA_DRAFT_MAX"
        table.redraw()
        await press(pilot, "ctrl+e", "8", "enter", "ctrl+g")
        assert isinstance(app.screen, ApplyScreen)
        assert "ctrl+e applies, backspace goes back" in page(app)
        await press(pilot, "enter")
        assert not console.started
        await press(pilot, "ctrl+e")
        assert console.started


async def test_footer_help_palette_panels_and_hints_name_the_users_keys() -> None:
    from textual.widgets import OptionList

    table = keys(arm="ctrl+a", incidents="ö", panel__log="ü", tuner__start="ß", palette="ctrl+x", move__up="ctrl+k")
    app = dashboard("alerts", console=FakeConsole(), tuner=FakeTuner("ready"), keys=table)
    async with app.run_test(size=(200, 50)) as pilot:
        await press(pilot)
        overview = shown(app)
        assert "ö incidents" in overview
        assert "ö: what to do" in overview
        assert "ü Log" in overview
        await press(pilot, "question_mark")
        assert "ctrl+a  " in page(app)
        whole = block(help_lines(76, None, keys=table))
        assert all(f"{action.shown_keys}  " in whole for action in table.actions)
        await press(pilot, "escape", "T")
        assert "ß run" in shown(app)
        assert "ctrl+k↓ boot" in shown(app)
        assert "press ctrl+a to arm, ß to start" in shown(app)
        await press(pilot, "ctrl+x")
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: len(options.options) >= len(ACTIONS))
        assert any("(ctrl+a)" in str(option.prompt) for option in options.options)


def test_the_key_of_a_removed_action_is_ignored_with_what_to_use_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(jump="ctrl+o").keymap == {}
    assert capsys.readouterr().err == (
        "specdash: config.toml: keys: jump was removed and is ignored: tab moves the focus from panel to panel\n"
    )
