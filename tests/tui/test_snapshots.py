"""How the screen looks, held as pictures. After a wanted change: `pytest tests/tui --snapshot-update`, and look at
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.tui import plot
from specdash.tui.app import Dashboard
from specdash.tui.widgets.alerts import AlertDetail
from tui.fake_alerts import SPECS
from tui.fake_console import FakeConsole
from tui.fake_state import FakeState
from tui.fake_tuner import FakeTuner
from tui.test_tune_screen import edit, ended, press

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

SIZES = ((80, 24), (120, 36), (200, 50))


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """One time zone, and charts from the first paint on."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    plot.load()
    monkeypatch.setattr(AlertDetail, "specs", SPECS)


def dashboard(scene: str, console: FakeConsole | None = None, tuner: FakeTuner | None = None) -> Dashboard:
    """A scene at one moment."""
    return Dashboard(
        FakeState(scene),
        clock=lambda: 10_000.0,
        wall=lambda: 1_790_000_000.0,
        theme="night",
        console=console,  # type: ignore[arg-type]
        tuner=tuner,  # type: ignore[arg-type]
    )


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


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_tune_screen(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    async def tuned(pilot: Pilot[None]) -> None:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "500")
        await edit(pilot, "LLAMA_DRAFT_P_MIN", "0.8")

    assert snap_compare(dashboard("busy", FakeConsole()), terminal_size=size, run_before=tuned)


@pytest.mark.parametrize("size", SIZES[:2], ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_apply_that_was_rolled_back(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    async def applied(pilot: Pilot[None]) -> None:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a", "enter")
        await ended(pilot)

    assert snap_compare(dashboard("busy", FakeConsole(fails=True)), terminal_size=size, run_before=applied)


def test_presets(snap_compare: Callable[..., bool]) -> None:
    async def opened(pilot: Pilot[None]) -> None:
        await press(pilot, "e", "o")

    assert snap_compare(dashboard("busy", FakeConsole()), terminal_size=(80, 24), run_before=opened)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", ["alerts", "alerts_none", "alerts_past"])
def test_incidents_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, press=["i"])


def test_an_alert_in_full(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("alerts"), terminal_size=(80, 24), press=["i", "z"])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", ["alerts", "hurting"])
def test_banner_and_speedup_on_the_overview(
    scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]
) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size)


def test_banner_of_a_notice(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("notice"), terminal_size=(80, 24))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", ["busy", "estimated"])
def test_is_it_paying(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, press=["z"])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", ["draft_simple", "checkpoints", "clamped", "failed", "routed", "unknown_views"])
def test_speculation_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, press=["m"])


def test_a_long_draft_in_full(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("ngrams"), terminal_size=(120, 36), press=["m", "z"])


@pytest.mark.parametrize("size", SIZES[:2], ids=lambda size: f"{size[0]}x{size[1]}")
def test_overview_without_the_speculation_that_was_asked_for(
    size: tuple[int, int], snap_compare: Callable[..., bool]
) -> None:
    assert snap_compare(dashboard("failed"), terminal_size=size)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", ["ready", "running", "failing", "improved", "nothing", "resumed"])
def test_tuner_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    async def looked(pilot: Pilot[None]) -> None:
        await press(pilot, "T")

    tuned = dashboard("busy", FakeConsole(), FakeTuner(scene))
    assert snap_compare(tuned, terminal_size=size, run_before=looked)


def test_a_boot_that_failed(snap_compare: Callable[..., bool]) -> None:
    async def looked(pilot: Pilot[None]) -> None:
        await press(pilot, "T", "down", "down", "down", "enter")

    tuned = dashboard("busy", FakeConsole(), FakeTuner("failing"))
    assert snap_compare(tuned, terminal_size=(80, 24), run_before=looked)
