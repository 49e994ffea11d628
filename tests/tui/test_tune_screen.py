"""The tune screen, driven by keys: read-only until armed, checked while it is edited, applied step by step."""

import threading
from typing import Any

import pytest
from textual.events import Key

from specdash.core.changes import Role
from specdash.tui.action_table import FooterScreen
from specdash.tui.app import Dashboard
from specdash.tui.arming import Arming
from specdash.tui.screens.apply import ApplyScreen
from specdash.tui.screens.tune import CARD, CHECKS, HELP, KEYS, TuneScreen, arrange
from specdash.tui.widgets.tuner.tune import TuneModel
from tui import driven
from tui.drawn import block, is_open
from tui.driven import SIZES, cells, edit, ended, opened, page, press, said, shown
from tui.fake_console import FakeConsole
from tui.waiting import until


def dashboard(console: FakeConsole | None, scene: str = "busy", **options: Any) -> Dashboard:
    """A dashboard of services."""
    return driven.dashboard(scene, console=console, **options)


async def test_values_now_and_last_good_stand_side_by_side() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        line = next(line for line in shown(app).splitlines() if "LLAMA_DRAFT_MAX" in line)
        assert line.split()[1:3] == ["4", "3"]
        assert "running" in shown(app)
        assert "sk-very-secret" not in shown(app)
        await press(pilot, "e")
        assert not is_open(app, FooterScreen.TUNE)


async def test_without_services_the_screen_does_not_open() -> None:
    app = dashboard(None)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        assert not is_open(app, FooterScreen.TUNE)


async def test_an_edit_is_pending_checked_at_once_and_outlives_the_screen() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "escape", "e")
        assert "1 pending" in shown(app)
        assert "may be applied" in shown(app)
        await edit(pilot, "LLAMA_DRAFT_MAX", "500")
        assert "refused: 1 error" in shown(app)
        assert "use at most 64" in shown(app)
        await press(pilot, "u")
        assert "nothing pending" in shown(app)


def line_of(app: Dashboard, words: str) -> int:
    """The line of the table that has these words."""
    return next(y for y, line in enumerate(shown(app).splitlines()) if words in line)


async def test_a_setting_is_edited_in_its_row_which_says_what_is_there_and_what_is_allowed() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=SIZES[0]) as pilot:
        await press(pilot, "e", "j", "enter")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            assert app.shown.prompt is not None
            assert app.shown.prompt.region.y == line_of(app, "LLAMA_DRAFT_MAX                4 →")
            assert app.shown.prompt.region.width > 20
            assert app.shown.prompt.value == "4"
            assert "whole number, 1 to 1024 tokens" in shown(app)


async def test_a_value_out_of_range_stays_in_the_field_to_be_mended() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "e")
        await edit(pilot, "LLAMA_DRAFT_MIN", "2")
        await edit(pilot, "LLAMA_DRAFT_MAX", "0")
        assert app.shown.prompt is not None
        assert app.shown.prompt.value == "0"
        assert line_of(app, "LLAMA_DRAFT_MAX=0: must be from 1 to 1024") == line_of(app, "4 →") + 1
        await press(pilot, "backspace", "9")
        assert "must be from" not in shown(app)
        await press(pilot, "enter")
        assert app.kept(TuneModel).wanted[Role.BACKEND] == {"LLAMA_DRAFT_MIN": "2", "LLAMA_DRAFT_MAX": "9"}


async def test_escape_gives_the_old_value_back_and_loses_nothing_else() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "e")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await edit(pilot, "LLAMA_DRAFT_MAX", "many")
        await press(pilot, "escape")
        assert app.shown.prompt is None
        assert app.kept(TuneModel).wanted[Role.BACKEND] == {"LLAMA_DRAFT_MAX": "12"}
        assert app.shown.focused is opened(app, TuneScreen).board.keys


async def test_a_chain_of_spec_types_is_put_together_from_a_list_that_typing_filters() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "e", "enter")
        assert "[x] draft-simple  now a small model" in shown(app)
        await press(pilot, *"table")
        assert "ngram-mod" in shown(app)
        assert "ngram-cache" not in shown(app)
        await press(pilot, "space")
        assert "enter takes ngram-mod,draft-simple" in shown(app)
        await press(pilot, "enter")
        assert app.kept(TuneModel).wanted[Role.BACKEND] == {"LLAMA_SPEC_TYPE": "ngram-mod,draft-simple"}


async def test_a_switch_is_written_as_the_env_file_writes_it() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "e", "b", "enter", "down", "enter")
        assert app.kept(TuneModel).wanted[Role.PROXY] == {"PROXY_LOOP_BREAKER": "off"}


async def test_a_value_is_chosen_by_a_click() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "e", "enter")
        await pilot.click(offset=(10, line_of(app, "[ ] ngram-mod")))
        await press(pilot, "enter")
        assert app.kept(TuneModel).wanted[Role.BACKEND] == {"LLAMA_SPEC_TYPE": "ngram-mod"}


async def test_nothing_is_applied_while_it_is_read_only() -> None:
    console = FakeConsole()
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a", "R")
        assert not isinstance(app.screen, ApplyScreen)
        assert console.started == []
        assert any("press A" in note.message for note in app._notifications)


async def test_a_locked_dashboard_cannot_be_armed() -> None:
    app = dashboard(FakeConsole(), arming=Arming(locked=True))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "A")
        assert not app.access.armed()
        assert "stays read-only" in said(app)
        assert "locked read-only" in block(app.overview.header.lines)


async def test_armed_is_said_loudly_on_every_screen() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "A")
        assert "ARMED 60s" in block(app.overview.header.lines)
        await press(pilot, "e")
        assert "ARMED" in shown(app)
        await press(pilot, "A")
        assert "read-only" in shown(app)


async def test_an_apply_shows_the_diff_first_then_each_step_then_how_it_ended() -> None:
    console = FakeConsole()
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a")
        assert "4 → 12" in page(app)
        assert console.started == []
        await press(pilot, "enter")
        await ended(pilot)
        assert "drain" in page(app)
        assert "2 requests ended" in page(app)
        assert "APPLIED; the backend did not answer for 4.2" in page(app)
        await press(pilot, "escape")
        assert "nothing pending" in shown(app)
        assert console.values[Role.BACKEND]["LLAMA_DRAFT_MAX"] == "12"


async def test_a_failed_apply_says_the_step_the_reason_and_the_log_and_keeps_the_changes_pending() -> None:
    app = dashboard(FakeConsole(fails=True))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a", "enter")
        await ended(pilot)
        for words in ("ROLLED BACK", "health: the engine ended with exit code 1", "out of memory"):
            assert words in page(app)
        await press(pilot, "escape")
        assert "1 pending" in shown(app)


async def test_a_running_apply_is_shown_cannot_be_left_and_can_be_cancelled() -> None:
    console = FakeConsole(wait=threading.Event())
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a", "enter")
        await until(pilot, lambda: "43 %" in page(app))
        await press(pilot, "escape")
        assert isinstance(app.screen, ApplyScreen)
        await press(pilot, "E")
        await ended(pilot)
        assert console.cancelled
        assert "ROLLED BACK" in page(app)


async def test_a_refused_plan_cannot_be_begun() -> None:
    console = FakeConsole()
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "500")
        await press(pilot, "a", "enter")
        assert "refused" in page(app)
        assert console.started == []


async def test_one_key_rolls_back_what_was_applied_last() -> None:
    console = FakeConsole()
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "A", "R")
        assert "4 → 3" in page(app)
        await press(pilot, "enter")
        await ended(pilot)
        assert console.values[Role.BACKEND]["LLAMA_DRAFT_MAX"] == "3"


async def test_with_nothing_applied_a_roll_back_says_so() -> None:
    app = dashboard(FakeConsole(last_good=None))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "A", "R")
        assert not isinstance(app.screen, ApplyScreen)
        assert any("nothing was applied yet" in note.message for note in app._notifications)


async def test_a_preset_makes_its_values_pending_and_applies_nothing() -> None:
    console = FakeConsole()
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "o")
        assert "long coding sessions" in page(app)
        assert "LLAMA_DRAFT_MIN" in page(app)
        await press(pilot, "enter")
        assert "2 pending from agentic-continuity" in shown(app)
        assert console.started == []


async def test_the_other_service_and_every_setting() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(200, 50)) as pilot:
        await press(pilot, "e", "b")
        assert "PROXY_LOOP_BREAKER" in shown(app)
        before = len(app.kept(TuneModel).rows())
        await press(pilot, "v")
        assert len(app.kept(TuneModel).rows()) > before + 20


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", [CHECKS, CARD])
def test_the_parts_fill_the_screen_without_overlap(size: tuple[int, int], side: str) -> None:
    width, height = size[0], size[1] - 3
    places = arrange(width, height, side)
    assert cells(places.values(), width, height)
    assert KEYS in places
    assert side in places
    assert places[KEYS].height >= 8
    assert HELP in places or side == CARD


async def test_keys_typed_right_behind_the_one_that_opens_the_prompt_belong_to_it() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "j")
        for key, character in (("enter", "\r"), ("9", "9"), ("enter", "\r")):
            app.post_message(Key(key, character))
        await until(pilot, lambda: app.kept(TuneModel).wanted.get(Role.BACKEND) == {"LLAMA_DRAFT_MAX": "9"})


async def test_v_takes_what_the_verdict_says_is_faster_to_the_tune_screen_and_applies_nothing() -> None:
    console = FakeConsole()
    app = dashboard(console, scene="hurting")
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "V")
        assert app.kept(TuneModel).wanted[Role.BACKEND] == {"LLAMA_SPEC_TYPE": "none"}
        assert isinstance(app.shown, TuneScreen)
        assert console.started == []
        await press(pilot, "V")
        assert isinstance(app.shown, TuneScreen)


async def test_v_says_so_where_no_setting_is_known_to_be_faster() -> None:
    app = dashboard(FakeConsole(), scene="busy")
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "V")
        assert "no faster setting is known" in said(app)


async def test_a_value_written_otherwise_is_known_in_the_list() -> None:
    console = FakeConsole()
    console.values[Role.BACKEND] |= {"LLAMA_SPEC_TYPE": "ngram_mod,draft", "LLAMA_FLASH_ATTN": "true"}
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "enter")
        assert "[x] ngram-mod     now" in shown(app)
        assert "[x] draft-simple  now" in shown(app)
        await press(pilot, "enter")
        assert app.kept(TuneModel).changes == ()
        opened(app, TuneScreen).board.keys.chosen = "LLAMA_FLASH_ATTN"
        await press(pilot, "enter")
        assert "> on   now always" in shown(app)
