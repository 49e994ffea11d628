"""How the screen looks, held as pictures. After a wanted change: `pytest tests/tui --snapshot-update`, and look at
them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_textual_snapshot import SVGImageExtension  # type: ignore[import-untyped]
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from specdash.tui.app import Dashboard
from specdash.tui.widgets.alerts import AlertDetail
from tui.driven import SIZES, dashboard, edit, ended, press
from tui.fake_alerts import SPECS
from tui.fake_console import FakeConsole
from tui.fake_tuner import FakeTuner

Looks = Callable[..., Awaitable[None]]

SMALL, MIDDLE, LARGE = SIZES


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
            app.clear_notifications()  # which ones are left depends on how long it took
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


OVERVIEWS = {
    "busy": SIZES,
    "alerts": [MIDDLE],
    "down": [SMALL],
    "failed": [SMALL],
    "hurting": [MIDDLE],
    "loading": [MIDDLE],
    "long_draft": [SMALL],
    "no_proxy": [MIDDLE],
    "storm": [LARGE],
    "unauthorized": [SMALL],
    "young": [SMALL],
}


@pytest.mark.parametrize("scene", OVERVIEWS)
async def test_overview(scene: str, looks: Looks) -> None:
    await looks(dashboard(scene), sizes=OVERVIEWS[scene])


async def test_tune_screen(looks: Looks) -> None:
    async def tuned(pilot: Pilot[Any]) -> None:
        await edit(pilot, "LLAMA_DRAFT_MAX", "500")
        await edit(pilot, "LLAMA_DRAFT_P_MIN", "0.8")

    await looks(dashboard("busy", console=FakeConsole()), "e", "A", sizes=[SMALL, MIDDLE], after=tuned)


async def test_an_apply_that_was_rolled_back(looks: Looks) -> None:
    async def applied(pilot: Pilot[Any]) -> None:
        await edit(pilot, "LLAMA_DRAFT_MAX", "12")
        await press(pilot, "a", "enter")
        await ended(pilot)

    app = dashboard("busy", console=FakeConsole(fails=True))
    await looks(app, "e", "A", sizes=[SMALL], after=applied)


@pytest.mark.parametrize(
    ("scene", "tuner", "keys", "size"),
    [
        pytest.param("busy", "", "p", MIDDLE, id="proxy"),
        pytest.param("proxy_held", "", "p", SMALL, id="proxy_held"),
        pytest.param("busy", "", "p down down down enter", SMALL, id="request"),
        pytest.param("alerts", "", "i", MIDDLE, id="incidents"),
        pytest.param("alerts", "", "i z", SMALL, id="an_alert_in_full"),
        pytest.param("busy", "", "z", MIDDLE, id="is_it_paying"),
        pytest.param("draft_simple", "", "m", MIDDLE, id="speculation"),
        pytest.param("checkpoints", "", "m", LARGE, id="speculation_with_checkpoints"),
        pytest.param("clamped", "", "m", SMALL, id="speculation_clamped"),
        pytest.param("routed", "", "m", MIDDLE, id="speculation_behind_a_router"),
        pytest.param("busy", "running", "T", MIDDLE, id="tuner"),
        pytest.param("busy", "failing", "T", SMALL, id="tuner_with_failures"),
        pytest.param("busy", "improved", "T", LARGE, id="tuner_improved"),
        pytest.param("busy", "", "e enter up space", MIDDLE, id="one_value_of_several"),
        pytest.param("busy", "", "e o", SMALL, id="presets"),
        pytest.param("busy", "", "question_mark", MIDDLE, id="help"),
    ],
)
async def test_a_view(scene: str, tuner: str, keys: str, size: tuple[int, int], looks: Looks) -> None:
    app = dashboard(scene, console=FakeConsole(), tuner=FakeTuner(tuner or "ready"))
    await looks(app, *keys.split(), sizes=[size])
