"""The line of a user's first dashboard: there once, gone with the first key, and none where nothing can be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.core.paths import greeted_file
from specdash.tui.hint import HintLine, is_first
from tui.drawn import block
from tui.driven import SIZES, dashboard, press
from tui.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.tui.app import Dashboard


def hint(app: Dashboard) -> str:
    """What it says, "" while it is not there."""
    return " ".join(block(line.lines) for line in app.overview.query(HintLine))


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_dashboard_names_three_keys_until_one_is_pressed(size: tuple[int, int], tmp_path: Path) -> None:
    app = dashboard(greeted=greeted_file({"XDG_STATE_HOME": str(tmp_path)}))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: bool(hint(app)))
        await pilot.pause()
        assert hint(app).strip().endswith("? all keys  ·  m why it pays or not  ·  e what is set")
        assert app.overview.query_one(HintLine).region.bottom == size[1]
        await press(pilot, "w")
        assert hint(app) == ""
        assert app.window_s == 900.0, "the key has done its own work, too"


def test_no_other_dashboard_of_the_user_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "specdash" / "greeted"
    assert [is_first(path), is_first(path)] == [True, False]


def test_where_nothing_can_be_kept_it_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, where a directory would be")
    assert not is_first(tmp_path / "state" / "greeted")
