"""How the screen looks, held as pictures. After a wanted change: `pytest tests/tui --snapshot-update`, and look at
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.tui import plot
from specdash.tui.app import Dashboard
from tui.fake_state import FakeState

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = ((80, 24), (120, 36), (200, 50))


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """One time zone, and charts from the first paint on."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    plot.load()


def dashboard(scene: str) -> Dashboard:
    """A scene at one moment."""
    return Dashboard(FakeState(scene), clock=lambda: 10_000.0, wall=lambda: 1_790_000_000.0, theme="night")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", ["busy", "down", "storm", "unauthorized"])
def test_overview(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size)


def test_long_draft(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("long_draft"), terminal_size=(80, 24))


def test_help(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("busy"), terminal_size=(120, 36), press=["question_mark"])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", ["busy", "proxy_held", "proxy_uap"])
def test_proxy_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, press=["p"])


def test_request(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("busy"), terminal_size=(80, 24), press=["p", "down", "down", "down", "enter"])


def test_overview_without_a_proxy(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("no_proxy"), terminal_size=(120, 36))
