"""What a dashboard looks like comes back: at the next start, and by a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.core.config import resolve
from specdash.core.errors import UsageError
from specdash.tui.action_table import FooterScreen
from specdash.tui.layout import PanelId
from specdash.tui.palette import ActionProvider
from specdash.tui.saved_layout import LayoutStore, SavedLayouts, ScreenLayout
from tui.driven import dashboard, press, said
from tui.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.tui.app import Dashboard

EVENING = ScreenLayout("incidents", "15m", "nord", {"log": False, "machine": True}, None)


def begun(store: LayoutStore, **settings: str) -> Dashboard:
    """A dashboard as `specdash` begins it; the window is 5 minutes where nothing says otherwise."""
    app = dashboard(layouts=store)
    layout = store.first(resolve(settings, {}, None))
    if layout is not None:
        app.take_layout(layout)
    return app


async def test_the_next_dashboard_looks_as_the_last_one_did(tmp_path: Path) -> None:
    store = LayoutStore(tmp_path / "layouts.json")
    first = begun(store)
    began = first.screen_layout
    async with first.run_test(size=(120, 36)) as pilot:
        await press(pilot, "w", "t", "8", "3", "z", "i")
        shown = {panel.panel for panel in first.overview.board.visible_panels()}
    store.keep_last(began, first.screen_layout)
    second = begun(LayoutStore(store.path))
    assert second.window_s == 900.0
    assert second.theme == first.theme != dashboard().theme
    async with second.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: second.shown.place is FooterScreen.INCIDENTS)
        assert {panel.panel for panel in second.overview.board.visible_panels()} == shown
        await press(pilot, "escape", "escape")
        visible = {panel.panel for panel in second.overview.board.visible_panels()}
        assert PanelId.LOG not in visible


async def test_a_screen_that_cannot_be_opened_leaves_the_overview(tmp_path: Path) -> None:
    store = LayoutStore(tmp_path / "layouts.json")
    store.keep(ScreenLayout("tune", "1m", panels={"gone": True}, zoomed="gone"))
    app = begun(store)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert app.shown.place is FooterScreen.OVERVIEW
        assert app.window_s == 60.0
        assert said(app) == ""


async def test_a_layout_is_saved_and_taken_by_its_name_from_the_palette(tmp_path: Path) -> None:
    store = LayoutStore(tmp_path / "layouts.json")
    store.keep(EVENING, "evening")
    app = begun(store)
    async with app.run_test(size=(120, 36)) as pilot:
        others = dict(ActionProvider(app.screen)._others())
        others["Layout: evening"]()
        await until(pilot, lambda: app.shown.place is FooterScreen.INCIDENTS)
        assert app.screen_layout == EVENING
        await press(pilot, "escape", "w")
        await others["Layout: save as it is now"]()
        await press(pilot, *"night ops", "enter")
        assert "specdash --layout 'night ops'" in said(app)
    again = LayoutStore(store.path)
    assert again.saved.named["evening"] == EVENING
    assert begun(again, layout="night ops").window_s == 3600.0


@pytest.mark.parametrize("damage", [b"", b"{", b'{"named": 3}', b"\xff\xfe", b"[" * 100_000])
async def test_a_damaged_file_is_told_in_a_line_ignored_and_put_aside(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "layouts.json"
    path.write_bytes(damage)
    store = LayoutStore(path)
    app = begun(store)
    async with app.run_test(size=(120, 36)):
        assert said(app) == f"saved layouts are ignored: {path} is damaged"
    store.keep(EVENING)
    assert LayoutStore(path).saved == SavedLayouts(EVENING)
    assert path.with_suffix(".damaged").read_bytes() == damage


def test_what_another_dashboard_saved_meanwhile_stays(tmp_path: Path) -> None:
    here, there = (LayoutStore(tmp_path / "layouts.json") for _ in range(2))
    there.keep(EVENING, "evening")
    here.keep(ScreenLayout())
    assert LayoutStore(here.path).saved == SavedLayouts(ScreenLayout(), {"evening": EVENING})


@pytest.mark.parametrize(
    ("line", "file", "window", "theme"),
    [
        ({}, "", "15m", "nord"),
        ({"window": "1h"}, "", None, "nord"),
        ({}, 'theme = "day"', "15m", None),
        ({"layout": "evening"}, 'theme = "day"', "15m", "nord"),
        ({"layout": "evening", "theme": "day"}, "", "15m", None),
    ],
)
def test_what_is_set_nearer_holds_against_a_layout(
    tmp_path: Path, line: dict[str, str], file: str, window: str | None, theme: str | None
) -> None:
    store = LayoutStore(tmp_path / "layouts.json")
    store.keep(EVENING)
    store.keep(EVENING, "evening")
    layout = store.first(resolve(line, {}, file))
    assert layout is not None
    assert (layout.window, layout.theme) == (window, theme)


def test_an_option_is_not_kept_as_a_choice(tmp_path: Path) -> None:
    store = LayoutStore(tmp_path / "layouts.json")
    store.keep(EVENING)
    began = ScreenLayout(window="1h", theme="day")
    store.keep_last(began, ScreenLayout(window="1h", theme="night"))
    assert store.saved.last == ScreenLayout(window="15m", theme="night")


def test_a_name_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    store = LayoutStore(tmp_path / "layouts.json")
    store.keep(EVENING, "evening")
    with pytest.raises(UsageError, match=r"layout 'morning' \(command line --layout\).*saved ones: evening"):
        store.first(resolve({"layout": "morning"}, {}, None))
