"""The program, driven by keys."""

from pathlib import Path

import pytest
from textual.filter import NoColor
from textual.widgets import Input

from specdash.tui.action_table import ACTIONS, LEVELS, PANEL_ACTIONS, FooterScreen
from specdash.tui.app import Dashboard
from specdash.tui.layout import PanelId
from specdash.tui.screens.base import DashboardScreen
from specdash.tui.screens.modal import HelpScreen
from specdash.tui.spans import PALETTES, THEME_NAMES
from specdash.tui.widgets.logs import LogPanel
from specdash.tui.widgets.panel import TitledPanel
from support.clock import Clock
from tui.drawn import block, screen
from tui.driven import SIZES, dashboard, press
from tui.fake_console import FakeConsole
from tui.fake_state import HOSTILE, LOG_LINES, SCENES, FakeState
from tui.fake_tuner import FakeTuner
from tui.waiting import until


def shown(app: Dashboard) -> set[PanelId]:
    """Panels on the screen."""
    return {panel.panel for panel in app.overview.board.panels.values() if panel.display and panel.size.height}


def log_of(app: Dashboard) -> LogPanel:
    """The log panel."""
    return app.overview.board.log_panel


OPENED_BY = {
    FooterScreen.TUNE: "e",
    FooterScreen.TUNER: "T",
    FooterScreen.INCIDENTS: "i",
    FooterScreen.SPECULATION: "m",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", FooterScreen)
async def test_every_key_of_every_action_does_something_and_breaks_nothing(place: FooterScreen, tmp_path: Path) -> None:
    here = [item for item in ACTIONS if place in (item.places or (FooterScreen.OVERVIEW,))]
    for action, key in [(item, key) for item in here for key in item.keys]:
        app = dashboard(screenshots=tmp_path, console=FakeConsole(), tuner=FakeTuner())
        calls: list[str] = []
        name = "action_" + action.handler.removeprefix("screen.").split("(")[0]
        async with app.run_test(size=(120, 36)) as pilot:
            if place in OPENED_BY:
                await press(pilot, OPENED_BY[place])
            owner = app.screen if action.handler.startswith("screen.") else app
            original = getattr(owner, name)

            def spy(*arguments: object, original: object = original, calls: list[str] = calls) -> object:
                calls.append("called")
                return original(*arguments)  # type: ignore[operator]

            setattr(owner, name, spy)
            await press(pilot, key)
        assert calls == ["called"], (action.id, key)
        assert app._exception is None


WALKS = (
    "i:incidents i:overview i escape:overview",
    "p i:incidents escape:proxy p e i:incidents p:proxy i e:tune i:incidents i:proxy m p:proxy i p:proxy",
    "p:proxy p:overview p escape:overview m:speculation m:overview m escape:overview",
    "p m:speculation i:incidents m:speculation e m:speculation p:proxy p:overview",
    "T:tuner escape:overview T p:proxy T e:tune T i:incidents T m:speculation",
    "e T:tuner e:tune e i T:tuner i:incidents i m T:tuner m:speculation m:overview",
)
"""Keys, and behind a colon the screen that is looked at then."""


@pytest.mark.parametrize("walk", WALKS)
async def test_a_key_opens_its_screen_above_those_of_lower_levels_and_leaves_it_again(walk: str) -> None:
    app = dashboard("alerts", console=FakeConsole(), tuner=FakeTuner("running"))
    async with app.run_test(size=(120, 36)) as pilot:
        for key, _, place in (step.partition(":") for step in walk.split()):
            await press(pilot, key)
            assert not place or app.shown.place == place
            assert app.shown is app.screen
            levels = [LEVELS[screen.place] for screen in app.screen_stack if isinstance(screen, DashboardScreen)]
            assert levels == sorted(set(levels)), "what has to give way is closed"


@pytest.mark.parametrize("digit", [str(n) for n in range(1, 10)])
async def test_a_digit_hides_its_panel_and_shows_it_again(digit: str) -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        before = shown(app)
        await press(pilot, digit)
        assert len(before - shown(app)) == 1
        await press(pilot, digit)
        assert shown(app) == before


async def test_a_digit_shows_a_panel_that_80x24_leaves_out() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "5")
        assert PanelId.REQUESTS in shown(app)
        await press(pilot, "0")
        assert PanelId.REQUESTS not in shown(app)


async def test_zoom_gives_the_focused_panel_the_board_and_gives_it_back() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        everything = shown(app)
        await press(pilot, "tab", "tab", "z")
        assert shown(app) == {PanelId.GAIN}
        await press(pilot, "escape")
        assert shown(app) == everything


async def test_space_freezes_the_display_while_time_goes_on() -> None:
    clock = Clock(10_000.0)
    state = FakeState(moving=True)
    app = dashboard(state, clock=clock)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "space")
        frozen, asked = screen(app).splitlines()[3:], state.pictures
        clock.now += 30.0
        app.refresh_view()
        assert screen(app).splitlines()[3:] == frozen
        assert state.pictures == asked
        assert "PAUSED 30s" in screen(app)
        await press(pilot, "space")
        assert "PAUSED" not in screen(app)
        assert screen(app).splitlines()[3:] != frozen


async def test_a_frozen_display_can_still_be_looked_around_in() -> None:
    app = dashboard(FakeState(moving=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "space", "5")
        await until(pilot, lambda: "finished" in screen(app))


async def test_w_walks_through_the_windows_and_plus_minus_through_the_rates() -> None:
    heard: list[float] = []
    app = dashboard(on_interval=heard.append)
    async with app.run_test(size=(120, 36)) as pilot:
        windows = []
        for _ in range(4):
            await press(pilot, "w")
            windows.append(app.window_s)
        await press(pilot, "minus", "minus", "minus", "plus")
    assert windows == [900.0, 3600.0, 60.0, 300.0]
    assert heard == [2.0, 5.0, 2.0]


async def test_t_walks_through_the_themes() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        seen = []
        for _ in THEME_NAMES:
            await press(pilot, "t")
            seen.append(app.theme)
    assert set(seen) == set(THEME_NAMES)


async def test_a_theme_of_textual_is_taken_by_its_name_and_through_the_palette() -> None:
    app = dashboard(theme="nord")
    async with app.run_test(size=(80, 24)) as pilot:
        assert app.palette.colors["background"] == "#2e3440"
        await press(pilot, "colon", *"dracula", "enter", "enter")
        assert app.theme == app.palette.name == "dracula"
        assert app.overview.header.palette is app.palette
        await press(pilot, "t")
        assert app.theme == THEME_NAMES[0]


def test_every_colour_of_every_theme_is_one_that_can_be_drawn() -> None:
    for palette in PALETTES.values():
        for role in PALETTES["night"].colors:
            assert palette.style(role).color is not None


async def test_the_palette_lists_every_action_and_runs_the_chosen_one() -> None:
    from textual.widgets import OptionList

    app = dashboard()
    async with app.run_test(size=(120, 60)) as pilot:
        await press(pilot, "colon")
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: len(options.options) >= len(ACTIONS))
        listed = "\n".join(str(option.prompt) for option in options.options)
        for action in ACTIONS:
            assert action.description in listed
        await press(pilot, *"pause the")
        await until(pilot, lambda: 0 < len(options.options) < len(ACTIONS))
        await press(pilot, "enter", "enter")
        await until(pilot, lambda: app.paused_at is not None)


async def test_help_opens_names_the_focused_panel_and_closes() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "tab", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        assert "Acceptance (focused)" in str(app.export_screenshot()).replace("&#160;", " ")
        await press(pilot, "escape")
        assert not app.screen.query("#help-page")


@pytest.mark.parametrize(
    ("keys", "panel"),
    [
        ("tab", "panel-log"),
        ("i", "incidents-alerts"),
        ("e", "tune-keys"),
        ("p", "proxy-requests"),
        ("T", "tuner-plan"),
    ],
)
async def test_help_begins_with_what_works_on_the_focused_panel(keys: str, panel: str) -> None:
    app = dashboard("alerts", console=FakeConsole(), tuner=FakeTuner("ready"))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, *keys.split(","))
        if panel == "panel-log":
            app.overview.log_panel.focus()
            await pilot.pause()
        focused = app.shown.focused
        assert isinstance(focused, TitledPanel)
        assert focused.id == panel
        await press(pilot, "question_mark")
        assert isinstance(app.screen, HelpScreen)
        page = block(app.screen.page.lines).splitlines()
        assert page[2] == f"{focused.panel_title} (focused)"
        first = "\n".join(page[2 : page.index("", 2)])
        own = app.keys.of(PANEL_ACTIONS[panel])
        assert all(action.description in first for action in own)
        assert block(app.screen.lines(400, 50)).count(own[0].description) == 1


async def test_every_panel_with_keys_of_its_own_is_on_a_screen() -> None:
    app = dashboard("alerts", console=FakeConsole(), tuner=FakeTuner("ready"))
    seen = set()
    async with app.run_test(size=(120, 36)) as pilot:
        for key in ("escape", "p", "p", "m", "m", "i", "e", "T"):
            await press(pilot, key)
            seen |= {panel.id for panel in app.shown.query(TitledPanel)}
    assert set(PANEL_ACTIONS) <= seen


async def test_s_saves_an_svg_and_says_where(tmp_path: Path) -> None:
    app = dashboard(screenshots=tmp_path / "new")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await press(pilot, "s")
    (saved,) = (tmp_path / "new").glob("*.svg")
    assert "Acceptance" in saved.read_text(encoding="utf-8")


async def test_a_screenshot_that_cannot_be_saved_is_told_and_kills_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    app = dashboard(screenshots=tmp_path / "file" / "below")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "s")
        assert any("cannot save" in notification.message for notification in app._notifications)


async def test_find_marks_the_newest_match_and_n_walks_around() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "slash", *"find_slot", "enter")
        log = log_of(app)
        assert len(log.buffer.matches()) == 4
        assert log.match == log.buffer.matches()[-1]
        await press(pilot, "N")
        assert log.match == log.buffer.matches()[-2]
        await press(pilot, "n", "n")
        assert log.match == log.buffer.matches()[0]
        assert "find_slot" in "\n".join("".join(part for part, _ in line) for line in log.lines[1:])
        await press(pilot, "escape")
        assert not log.buffer.needle


async def test_a_filter_can_be_inverted_switched_off_and_called_off() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        log = log_of(app)
        await press(pilot, "f", *"find_slot", "enter")
        assert len(log.buffer.shown) == 4
        await press(pilot, "exclamation_mark")
        assert len(log.buffer.shown) == 36
        await press(pilot, "F")
        assert len(log.buffer.shown) == 40
        await press(pilot, "f", "escape")
        assert log.buffer.filter == "find_slot"
        assert not app.query(Input)


async def test_the_log_leaves_detail_out_says_so_and_shows_it_at_a_key_and_to_who_looks_for_it() -> None:
    app = dashboard(FakeState(detail="accepted  2/ 4 draft tokens"))
    async with app.run_test(size=(80, 24)) as pilot:
        log = log_of(app)
        assert "detail left out, F shows it" in block(log.lines)
        assert "draft tokens" not in block(log.lines)
        await press(pilot, "F")
        assert "with detail, F leaves it out" in block(log.lines)
        assert "draft tokens" in block(log.lines)
        await press(pilot, "F", "slash", *"draft tokens", "enter")
        assert len(log.buffer.matches()) == 1
        await press(pilot, "escape")
        assert "draft tokens" not in block(log.lines)


async def test_keys_typed_into_the_prompt_are_text_and_not_commands() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "slash", *"q1z w")
        assert app.screen.query_one(Input).value == "q1z w"
        assert app.overview.board.zoomed is None


async def test_scrolling_up_leaves_the_end_and_new_lines_do_not_move_the_view() -> None:
    state = FakeState()
    app = dashboard(state)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "8", "8", "k", "k", "pageup")
        seen = log_of(app).lines[1:]
        state.lines += LOG_LINES
        app.refresh_view()
        assert log_of(app).lines[1:] == seen
        await press(pilot, "G")
        assert log_of(app).bottom is None


@pytest.mark.slow
async def test_every_scene_draws_at_every_size() -> None:
    state = FakeState()
    app = dashboard(state)
    async with app.run_test(size=SIZES[0]) as pilot:
        for size in (*SIZES, (60, 15), (20, 4)):
            await pilot.resize_terminal(*size)
            for scene in SCENES:
                state.scene = scene
                app.refresh_view()
                await pilot.pause()
                for panel in app.overview.board.visible_panels():
                    for line in panel.lines:
                        assert "None" not in "".join(part for part, _ in line), (scene, size)
    assert app._exception is None


async def test_text_from_outside_is_never_markup_and_never_obeyed() -> None:
    state = FakeState("hostile", lines=(HOSTILE, "[bold]x[/bold]", "x" * 10_000_000, "\x1b[2J" * 1000))
    app = dashboard(state)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        whole = screen(app)
        assert "[red]not markup[/red]" in whole
        assert "[bold]x[/bold]" in whole
        assert "\x1b" not in whole
        app.export_screenshot().encode("utf-8")


async def test_resizing_back_and_forth_keeps_working() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        for size in ((200, 50), (80, 24), (40, 10), (120, 36), (200, 50)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            await pilot.pause()
        assert shown(app) == set(PanelId)
        assert all(panel.lines for panel in app.overview.board.panels.values())


async def test_below_80x24_the_screen_says_what_it_needs_and_keeps_the_figures() -> None:
    app = dashboard(FakeState("down"))
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.pause()
        notice = "\n".join("".join(part for part, _ in line) for line in app.overview.notice.lines)
        assert "needs 80x24, this terminal is 60x15" in notice
        assert "DOWN" in notice
        assert "connection refused" in notice
        assert "67.2 %" in notice


async def test_a_tick_that_changes_nothing_repaints_nothing_but_the_clock() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        painted: list[str] = []
        for panel in app.overview.board.panels.values():
            original = panel.refresh

            def spy(*regions: object, original: object = original, name: str = str(panel.id), **rest: object) -> object:
                painted.append(name)
                return original(*regions, **rest)  # type: ignore[operator]

            panel.refresh = spy  # type: ignore[method-assign, assignment]
        app.refresh_view()
        assert painted == []


async def test_without_colour_the_words_still_tell_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = dashboard(FakeState("down"), theme=None)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.theme == "terminal"
        assert any(isinstance(line_filter, NoColor) for line_filter in app._filters)
        assert "DOWN" in screen(app)
