"""First contact: no server is found, or several are."""

import pytest

from specdash.collect.targets import TargetLook
from specdash.core.target import Target
from specdash.tui.screens.connect import ChooseApp, ConnectApp, TargetsScreen, connect_lines, target_lines
from tui.drawn import block
from tui.driven import dashboard, page, press, said
from tui.fake_state import FakeState
from tui.waiting import until

FIRST, SECOND = "http://127.0.0.1:21801", "http://127.0.0.1:21802"
LOOKS = [
    TargetLook(Target(FIRST, origin="process 1 (llama-server)"), "ok", True, "llama.cpp b11549", "qwen.gguf", False),
    TargetLook(Target(SECOND, origin="[red]process 2[/red]"), "unauthorized", True, needs_key=True),
]


def test_the_page_says_where_it_looked_and_what_to_do() -> None:
    page = block(connect_lines(80, [("http://127.0.0.1:8080", "connection refused")], looking=True))
    assert "http://127.0.0.1:8080" in page
    assert "connection refused" in page
    assert "specdash --url" in page
    assert "specdash demo" in page


async def test_the_page_ends_with_what_it_found() -> None:
    answers = iter([None, "a server"])
    app = ConnectApp[str]([], look=lambda: next(answers), interval_s=0.01)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value == "a server"


async def test_q_quits_without_a_server() -> None:
    app = ConnectApp[str]([("here", "[red]nothing[/red]")])
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
    assert app.return_value is None


def test_the_choice_says_of_each_server_how_it_is_and_of_the_selected_one_the_rest() -> None:
    first, second = (block(target_lines(LOOKS, index, 76)) for index in (0, 1))
    assert "> 1  http://127.0.0.1:21801        ok                  qwen.gguf" in first
    assert "2  http://127.0.0.1:21802        wants a key         --" in first
    assert "process 1 (llama-server)" in first
    assert "--api-key-env" not in first
    assert "[red]process 2[/red]" in second
    assert "--api-key-env" in second


@pytest.mark.parametrize(
    ("keys", "taken"), [(("enter",), FIRST), (("down", "enter"), SECOND), (("2",), SECOND), (("9", "escape"), None)]
)
async def test_a_server_is_taken_by_arrows_or_its_number(keys: tuple[str, ...], taken: str | None) -> None:
    app = ChooseApp(LOOKS, lambda: LOOKS)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*keys)
    assert (app.return_value.url if app.return_value is not None else None) == taken


async def test_a_click_takes_the_server_in_that_line() -> None:
    app = ChooseApp(LOOKS, lambda: LOOKS)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.click("#page", offset=(10, 4))
    assert app.return_value is not None
    assert app.return_value.url == SECOND


async def test_a_newer_look_leaves_the_selection_at_its_server() -> None:
    app = ChooseApp(LOOKS, lambda: LOOKS)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("down")
        screen = app.screen
        assert isinstance(screen, TargetsScreen)
        screen.take_looks(list(reversed(LOOKS)))
        await pilot.press("enter")
    assert app.return_value is not None
    assert app.return_value.url == SECOND


async def test_a_dashboard_ends_for_the_server_that_is_taken_instead_and_stays_for_its_own() -> None:
    state = FakeState("busy")
    watched = Target(state.picture(0.0, 0.0).backend.url, origin="here")
    looks = [TargetLook(watched, "ok", True), LOOKS[1]]
    app = dashboard(state, look_around=lambda: looks)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "c")
        assert "watched now" in page(app)
        await press(pilot, "enter")
        assert app.screen is app.overview
        await press(pilot, "c", "2")
    assert app.chosen_target is LOOKS[1].target


async def test_a_dashboard_of_one_server_says_so() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "c")
        assert "watches one server only" in said(app)
