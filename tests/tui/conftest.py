"""Keys are waited for no longer than they take."""

import pytest

from tui.waiting import idle


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is waited for no longer than it takes."""
    monkeypatch.setattr("textual.app.wait_for_idle", idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", idle)
