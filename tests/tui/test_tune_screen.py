"""The tune screen, driven by keys: read-only until armed, checked while it is edited, applied step by step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from textual.events import Key

from specdash.core.changes import Role
from specdash.tui import plot
from specdash.tui.app import Dashboard
from specdash.tui.arming import Arming
from specdash.tui.screens.apply import ApplyScreen
from specdash.tui.screens.presets import PresetsScreen
from specdash.tui.screens.tune import CARD, CHECKS, HELP, KEYS, TuneScreen, arrange
from tui.drawn import block
from tui.fake_console import FakeConsole
from tui.fake_state import FakeState
from tui.waiting import answered

if TYPE_CHECKING:
    from textual.pilot import Pilot

SIZES = [(80, 24), (120, 36), (200, 50)]


@pytest.fixture(autouse=True)
def charts() -> None:
    """Charts are drawn from the first paint on."""
    plot.load()


def dashboard(console: FakeConsole | None, *, locked: bool = False, scene: str = "busy") -> Dashboard:
    """A dashboard whose time stands still."""
    return Dashboard(
        FakeState(scene),
        clock=lambda: 10_000.0,
        wall=lambda: 1_790_000_000.0,
        theme="night",
        console=console,  # type: ignore[arg-type]
        arming=Arming(locked=locked),
    )


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys one by one, and wait for what follows from each, threads included."""
    for key in keys:
        await pilot.press(key)
        await answered(pilot.app)
        await pilot.pause()


def opened(app: Dashboard) -> TuneScreen:
    """The tune screen, which is open."""
    assert app.tune is not None
    return app.tune


def shown(app: Dashboard) -> str:
    """Everything that the tune screen shows."""
    screen = opened(app)
    parts = [part for part in screen.board.parts if part.size.height]
    return "\n".join(block(part.lines) for part in (screen.header, *parts, screen.footer))


def page(app: Dashboard) -> str:
    """What the page above it shows."""
    screen = app.screen
    assert isinstance(screen, ApplyScreen | PresetsScreen)
    return block(screen.page.lines)


async def edit(pilot: Pilot[None], key: str, value: str) -> None:
    """Give a setting a value, as a person does."""
    table = opened(pilot.app).board.keys  # type: ignore[arg-type]
    table.chosen = key
    table.redraw()
    await press(pilot, "enter", *value, "enter")


async def ended(pilot: Pilot[None]) -> None:
    """Wait for the end of the apply that is shown, and for what follows."""
    screen = pilot.app.screen
    assert isinstance(screen, ApplyScreen)
    assert screen.running is not None
    assert screen.running.join(10)
    for _ in range(4):
        await pilot.pause(0.1)
    await answered(pilot.app)
    await pilot.pause()


async def test_values_now_and_last_good_stand_side_by_side() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        line = next(line for line in shown(app).splitlines() if "LLAMA_DRAFT_MAX" in line)
        assert line.split()[1:3] == ["4", "3"]
        assert "running" in shown(app)
        assert "sk-very-secret" not in shown(app)
        await press(pilot, "e")
        assert app.tune is None


async def test_without_services_the_screen_does_not_open() -> None:
    app = dashboard(None)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        assert app.tune is None


async def test_an_edit_is_pending_and_checked_at_once() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        assert "1 pending" in shown(app)
        assert "may be applied" in shown(app)
        await edit(pilot, "LLAMA_DRAFT_MAX", "500")
        assert "refused: 1 error" in shown(app)
        assert "use at most 64" in shown(app)
        await press(pilot, "u")
        assert "nothing pending" in shown(app)


async def test_a_value_out_of_range_never_becomes_pending() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        await edit(pilot, "LLAMA_DRAFT_MAX", "0")
        assert app.tune_model.count == 0
        assert any("1 to 1024" in note.message for note in app._notifications)


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
    app = dashboard(FakeConsole(), locked=True)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "A")
        assert not app.arming.armed(10_000.0)
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
        await pilot.pause(0.2)
        assert "43 %" in page(app)
        await press(pilot, "escape")
        assert isinstance(app.screen, ApplyScreen)
        await press(pilot, "c")
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


@pytest.mark.parametrize(("key", "said"), [("y", "finish"), ("R", "roll back")])
async def test_an_apply_that_was_cut_short_is_shown_and_can_be_ended_either_way(key: str, said: str) -> None:
    console = FakeConsole(cut_short="apply 6 stopped after write")
    app = dashboard(console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        assert "apply 6 stopped after write" in shown(app)
        await press(pilot, "A", key, "enter")
        await ended(pilot)
        assert console.started == [said]


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


async def test_pending_changes_outlive_the_screen() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "escape", "e")
        assert "1 pending" in shown(app)


async def test_the_other_service_and_every_setting() -> None:
    app = dashboard(FakeConsole())
    async with app.run_test(size=(200, 50)) as pilot:
        await press(pilot, "e", "b")
        assert "PROXY_LOOP_BREAKER" in shown(app)
        before = len(app.tune_model.rows())
        await press(pilot, "v")
        assert len(app.tune_model.rows()) > before + 20


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", [CHECKS, CARD])
def test_the_parts_fill_the_screen_without_overlap(size: tuple[int, int], side: str) -> None:
    width, height = size[0], size[1] - 3
    places = arrange(width, height, side)
    cells = [
        (x, y)
        for place in places.values()
        for x in range(place.x, place.x + place.width)
        for y in range(place.y, place.y + place.height)
    ]
    assert len(cells) == len(set(cells))
    assert all(x < width and y < height for x, y in cells)
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
        await pilot.pause(0.2)
        assert app.tune_model.pending[Role.BACKEND] == {"LLAMA_DRAFT_MAX": "9"}


async def test_a_dashboard_that_starts_after_an_apply_was_cut_short_says_so_on_every_screen() -> None:
    app = dashboard(FakeConsole(cut_short="apply 6 stopped after write"))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.look_for_unfinished()
        await answered(app)
        await pilot.pause()
        assert "APPLY CUT SHORT" in block(app.overview.header.lines)
        assert any("apply 6 stopped after write" in note.message for note in app._notifications)
