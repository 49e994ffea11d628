"""Keys are waited for no longer than they take, no terminal is painted."""

from __future__ import annotations

import pytest
from textual.screen import Screen

from tui.waiting import idle


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is waited for no longer than it takes."""
    monkeypatch.setattr("textual.app.wait_for_idle", idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", idle)


@pytest.fixture(autouse=True)
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at what these tests would paint on a terminal that is not there, a third of their work: they
    look at what widgets hold. Pictures, and what presses every key, paint (they override this).
    """

    def skip(screen: Screen[object]) -> None:
        screen._dirty_widgets.clear()
        screen._compositor._dirty_regions.clear()
        screen.app._update_mouse_over(screen)

    monkeypatch.setattr(Screen, "_compositor_refresh", skip)
