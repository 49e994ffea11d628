"""`y` copies what the cursor is on, by OSC 52, and never a secret."""

import pytest

from tui.driven import dashboard, press, said
from tui.fake_console import FakeConsole
from tui.fake_state import FakeState


async def test_the_line_of_the_log_that_was_found_else_the_lowest() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "y")
        panel = app.overview.log_panel
        assert app.clipboard == panel.buffer.shown[-1]
        panel.match = 0
        await press(pilot, "y")
        assert app.clipboard == panel.buffer.shown[0]


async def test_a_setting_is_a_line_of_the_env_file_and_a_secret_stays_one() -> None:
    app = dashboard(console=FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "e", "y")
        assert app.clipboard.startswith("LLAMA_SPEC_TYPE=")
        await press(pilot, "v")
        table = app.shown.moving
        table.chosen = "LLAMA_API_KEY"  # type: ignore[attr-defined]
        await press(pilot, "y")
        assert app.clipboard in ("LLAMA_API_KEY=", "LLAMA_API_KEY=***")


@pytest.mark.parametrize("screen", ["p", "i"])
async def test_what_a_screen_of_rows_has_selected_or_that_there_is_nothing(screen: str) -> None:
    app = dashboard(FakeState("alerts" if screen == "i" else "busy"))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, screen, "y")
        assert app.shown.copied == app.clipboard
        assert app.clipboard or "nothing to copy here" in said(app)
