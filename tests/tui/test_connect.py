"""The page that is shown when no server is found."""

from __future__ import annotations

from specdash.tui.screens.connect import ConnectApp, connect_lines
from tui.drawn import block


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
        await pilot.pause(0.3)
    assert app.return_value == "a server"


async def test_q_quits_without_a_server() -> None:
    app = ConnectApp[str]([("here", "[red]nothing[/red]")])
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
    assert app.return_value is None
