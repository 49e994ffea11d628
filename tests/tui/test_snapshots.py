"""How the screen looks, held as pictures. After a wanted change: `pytest tests/tui --snapshot-update`, and look at
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.tui.hint import HintLine
from specdash.tui.widgets.alerts import AlertDetail
from tui.driven import SIZES, dashboard, edit, ended, press
from tui.fake_alerts import SPECS
from tui.fake_console import FakeConsole
from tui.fake_tuner import FakeTuner
from tui.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from textual.pilot import Pilot

EACH_SIZE, SMALL_SIZES = (
    pytest.mark.parametrize("size", sizes, ids=lambda size: f"{size[0]}x{size[1]}") for sizes in (SIZES, SIZES[:2])
)


@pytest.fixture(autouse=True)
def still(utc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One time zone, and the same rules."""
    monkeypatch.setattr(AlertDetail, "specs", SPECS)


@pytest.fixture(autouse=True)
def unpainted() -> None:
    """Pictures are what proves the paint."""


def pressed(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    """What presses these keys, one after the other."""
    return lambda pilot: press(pilot, *keys)


@EACH_SIZE
@pytest.mark.parametrize("scene", ["busy", "down", "loading", "storm", "unauthorized", "young"])
def test_overview(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size)


def test_long_draft(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("long_draft"), terminal_size=(80, 24))


@EACH_SIZE
def test_the_first_dashboard_of_a_user(
    size: tuple[int, int], tmp_path: Path, snap_compare: Callable[..., bool]
) -> None:
    async def greeted(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: bool(pilot.app.query(HintLine)))
        await pilot.pause()

    assert snap_compare(dashboard("young", greeted=tmp_path / "greeted"), terminal_size=size, run_before=greeted)


def test_help(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("busy"), terminal_size=(120, 36), run_before=pressed("question_mark"))


@EACH_SIZE
@pytest.mark.parametrize("scene", ["busy", "no_proxy", "proxy_held", "proxy_uap"])
def test_proxy_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, run_before=pressed("p"))


def test_request(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(
        dashboard("busy"), terminal_size=(80, 24), run_before=pressed("p", "down", "down", "down", "enter")
    )


def test_overview_without_a_proxy(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("no_proxy"), terminal_size=(120, 36))


@EACH_SIZE
def test_tune_screen(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    async def tuned(pilot: Pilot[None]) -> None:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "500")
        await edit(pilot, "LLAMA_DRAFT_P_MIN", "0.8")

    assert snap_compare(dashboard("busy", console=FakeConsole()), terminal_size=size, run_before=tuned)


@EACH_SIZE
def test_a_setting_with_values_to_choose_from(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    picked = dashboard("busy", console=FakeConsole())
    assert snap_compare(picked, terminal_size=size, run_before=pressed("e", "enter", "up", "space"))


@EACH_SIZE
def test_a_value_to_be_mended(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    typed = dashboard("busy", console=FakeConsole())
    assert snap_compare(typed, terminal_size=size, run_before=pressed("e", "j", "enter", "0", "enter"))


@SMALL_SIZES
def test_an_apply_that_was_rolled_back(size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    async def applied(pilot: Pilot[None]) -> None:
        await press(pilot, "e", "A")
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a", "enter")
        await ended(pilot)

    assert snap_compare(dashboard("busy", console=FakeConsole(fails=True)), terminal_size=size, run_before=applied)


def test_presets(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("busy", console=FakeConsole()), terminal_size=(80, 24), run_before=pressed("e", "o"))


@EACH_SIZE
@pytest.mark.parametrize("scene", ["alerts", "alerts_none", "alerts_past", "unauthorized"])
def test_incidents_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, run_before=pressed("i"))


def test_an_alert_in_full(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("alerts"), terminal_size=(80, 24), run_before=pressed("i", "z"))


@EACH_SIZE
@pytest.mark.parametrize("scene", ["alerts", "hurting"])
def test_banner_and_speedup_on_the_overview(
    scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]
) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size)


def test_banner_of_a_notice(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("notice"), terminal_size=(80, 24))


@EACH_SIZE
@pytest.mark.parametrize("scene", ["busy", "estimated"])
def test_is_it_paying(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, run_before=pressed("z"))


@EACH_SIZE
@pytest.mark.parametrize(
    "scene", ["draft_simple", "checkpoints", "clamped", "failed", "off", "routed", "unknown_views"]
)
def test_speculation_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard(scene), terminal_size=size, run_before=pressed("m"))


def test_a_long_draft_in_full(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(dashboard("ngrams"), terminal_size=(120, 36), run_before=pressed("m", "z"))


@SMALL_SIZES
def test_overview_without_the_speculation_that_was_asked_for(
    size: tuple[int, int], snap_compare: Callable[..., bool]
) -> None:
    assert snap_compare(dashboard("failed"), terminal_size=size)


@EACH_SIZE
@pytest.mark.parametrize("scene", ["ready", "running", "failing", "improved", "nothing", "resumed"])
def test_tuner_screen(scene: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    tuned = dashboard("busy", console=FakeConsole(), tuner=FakeTuner(scene))
    assert snap_compare(tuned, terminal_size=size, run_before=pressed("T"))


def test_a_boot_that_failed(snap_compare: Callable[..., bool]) -> None:
    tuned = dashboard("busy", console=FakeConsole(), tuner=FakeTuner("failing"))
    keys = pressed("T", "down", "down", "down", "enter")
    assert snap_compare(tuned, terminal_size=(80, 24), run_before=keys)
