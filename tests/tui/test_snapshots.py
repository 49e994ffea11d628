"""How the screen looks, held as pictures. After a wanted change: `pytest tests/tui --snapshot-update`, and look at
them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pytest_textual_snapshot import SVGImageExtension  # type: ignore[import-untyped]

from specdash.tui.widgets.alerts import AlertDetail
from tui.driven import SIZES, dashboard, edit, ended, press
from tui.fake_alerts import SPECS
from tui.fake_console import FakeConsole
from tui.fake_tuner import FakeTuner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from syrupy.assertion import SnapshotAssertion
    from textual.pilot import Pilot

    from specdash.tui.app import Dashboard

    Looks = Callable[..., Awaitable[None]]

SMALL, MIDDLE, _ = SIZES


@pytest.fixture(autouse=True)
def still(utc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One time zone, and the same rules."""
    monkeypatch.setattr(AlertDetail, "specs", SPECS)


@pytest.fixture
def looks(snapshot: SnapshotAssertion, tmp_path: Path) -> Looks:
    """A dashboard, once its keys were pressed, looks as it did, at one size after the other."""
    pictures = snapshot.use_extension(SVGImageExtension)

    async def compared(
        app: Dashboard,
        *keys: str,
        sizes: list[tuple[int, int]] = SIZES,
        after: Callable[[Pilot[Any]], Awaitable[None]] | None = None,
    ) -> None:
        async with app.run_test(size=sizes[0], notifications=True) as pilot:
            await press(pilot, *keys)
            if after is not None:
                await after(pilot)
            for width, height in sizes:
                await pilot.resize_terminal(width, height)
                # A part's height may follow from what the first paint at this size says.
                for rest_s in (0.05, 0.5, 2.0):
                    await pilot.pause(rest_s)
                    picture = app.export_screenshot(title=app.title, simplify=True)
                    if pictures(name=f"{width}x{height}") == picture:
                        break
                else:
                    now = tmp_path / f"{width}x{height}.svg"
                    now.write_text(picture, "utf-8")
                    pytest.fail(f"it looks like {now} now")

    return compared


@pytest.mark.parametrize("scene", ["alerts", "busy", "down", "hurting", "loading", "storm", "unauthorized", "young"])
async def test_overview(scene: str, looks: Looks) -> None:
    await looks(dashboard(scene))


async def test_overview_without_the_speculation_that_was_asked_for(looks: Looks) -> None:
    await looks(dashboard("failed"), sizes=[SMALL, MIDDLE])


@pytest.mark.parametrize("scene", ["busy", "no_proxy", "proxy_held", "proxy_uap"])
async def test_proxy_screen(scene: str, looks: Looks) -> None:
    await looks(dashboard(scene), "p")


@pytest.mark.parametrize("scene", ["alerts", "alerts_none", "alerts_past", "unauthorized"])
async def test_incidents_screen(scene: str, looks: Looks) -> None:
    await looks(dashboard(scene), "i")


@pytest.mark.parametrize("scene", ["busy", "estimated"])
async def test_is_it_paying(scene: str, looks: Looks) -> None:
    await looks(dashboard(scene), "z")


@pytest.mark.parametrize(
    "scene", ["draft_simple", "checkpoints", "clamped", "failed", "off", "routed", "unknown_views"]
)
async def test_speculation_screen(scene: str, looks: Looks) -> None:
    await looks(dashboard(scene), "m")


@pytest.mark.parametrize("scene", ["ready", "running", "failing", "improved", "nothing", "resumed"])
async def test_tuner_screen(scene: str, looks: Looks) -> None:
    await looks(dashboard("busy", console=FakeConsole(), tuner=FakeTuner(scene)), "T")


async def test_tune_screen(looks: Looks) -> None:
    async def tuned(pilot: Pilot[Any]) -> None:
        await edit(pilot, "LLAMA_DRAFT_MAX", "500")
        await edit(pilot, "LLAMA_DRAFT_P_MIN", "0.8")

    await looks(dashboard("busy", console=FakeConsole()), "e", "A", after=tuned)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(("up", "space"), id="one_of_several"),
        pytest.param(("escape", "j", "enter", "0", "enter"), id="to_be_mended"),
    ],
)
async def test_a_value(keys: tuple[str, ...], looks: Looks) -> None:
    await looks(dashboard("busy", console=FakeConsole()), "e", "enter", *keys)


async def test_an_apply_that_was_rolled_back(looks: Looks) -> None:
    async def applied(pilot: Pilot[Any]) -> None:
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a", "enter")
        await ended(pilot)

    app = dashboard("busy", console=FakeConsole(fails=True))
    await looks(app, "e", "A", sizes=[SMALL, MIDDLE], after=applied)


@pytest.mark.parametrize(
    ("scene", "keys", "size"),
    [
        pytest.param("alerts", "i z", SMALL, id="an_alert_in_full"),
        pytest.param("busy", "T down down down enter", SMALL, id="a_boot_that_failed"),
        pytest.param("busy", "e o", SMALL, id="presets"),
        pytest.param("busy", "p down down down enter", SMALL, id="request"),
        pytest.param("busy", "question_mark", MIDDLE, id="help"),
        pytest.param("long_draft", "", SMALL, id="long_draft"),
        pytest.param("ngrams", "m z", MIDDLE, id="a_long_draft_in_full"),
        pytest.param("no_proxy", "", MIDDLE, id="overview_without_a_proxy"),
        pytest.param("notice", "", SMALL, id="banner_of_a_notice"),
    ],
)
async def test_a_view(scene: str, keys: str, size: tuple[int, int], looks: Looks) -> None:
    app = dashboard(scene, console=FakeConsole(), tuner=FakeTuner("failing"))
    await looks(app, *keys.split(), sizes=[size])
