"""A dashboard driven by keys, its time standing still, and what it shows and says."""

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec.structs import replace
from textual.pilot import Pilot

from specdash.tui.app import Dashboard
from specdash.tui.layout import Rect
from specdash.tui.screens.apply import ApplyScreen
from specdash.tui.screens.base import DashboardScreen
from specdash.tui.screens.modal import PageScreen
from specdash.tui.screens.tune import TuneScreen
from specdash.tui.view import View
from tui.drawn import painted
from tui.fake_state import FakeState
from tui.waiting import answered, until

Screen = TypeVar("Screen", bound=DashboardScreen)
NOW, WALL = 10_000.0, 1_790_000_000.0
SIZES = [(80, 24), (120, 36), (200, 50)]


def view(scene: str = "busy", **changes: Any) -> View:
    """One scene, with these parts of its picture changed."""
    state = FakeState(scene)
    return View(replace(state.picture(NOW, WALL), **changes), state)


def dashboard(state: FakeState | str = "busy", **options: object) -> Dashboard:
    """A dashboard of a scene, or of a state of the test's own."""
    options = {"clock": lambda: NOW, "wall": lambda: WALL, "theme": "night"} | options
    return Dashboard(FakeState(state) if isinstance(state, str) else state, **options)  # type: ignore[arg-type]


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys one by one, and wait for what follows from each, threads included."""
    for key in keys:
        await pilot.press(key)
        await answered(pilot.app)
        await pilot.pause()


def opened(app: Dashboard, kind: type[Screen]) -> Screen:
    """The screen that is looked at, which is of this kind."""
    assert isinstance(app.shown, kind)
    return app.shown


def shown(app: Dashboard) -> str:
    """Everything that the screen shows."""
    screen = app.shown
    parts = [part for part in screen.painted() if part.display and part.size.height]
    return "\n".join(map(painted, (screen.header, *parts, screen.footer)))


def page(app: Dashboard) -> str:
    """What the page above the screen shows."""
    screen = app.screen
    assert isinstance(screen, PageScreen)
    return painted(screen.page)


def said(app: Dashboard) -> str:
    """Everything that was notified."""
    return "\n".join(notification.message for notification in app._notifications)


def cells(places: Iterable[Rect], width: int, height: int) -> set[tuple[int, int]]:
    """The cells that parts cover; no part lies over another, is empty in width, or reaches outside."""
    taken: set[tuple[int, int]] = set()
    for place in places:
        assert place.x >= 0
        assert place.y >= 0
        assert place.width > 0
        assert place.x + place.width <= width
        assert place.y + place.height <= height
        own = {(x, y) for x in range(place.x, place.x + place.width) for y in range(place.y, place.y + place.height)}
        assert not own & taken
        taken |= own
    return taken


async def edit(pilot: Pilot[None], key: str, value: str) -> None:
    """Give a setting a value, as a person does."""
    table = opened(pilot.app, TuneScreen).board.keys  # type: ignore[arg-type]
    table.chosen = key
    table.redraw()
    await press(pilot, "enter", *value, "enter")


async def ended(pilot: Pilot[None]) -> None:
    """Wait for the end of the apply that is shown, and for what follows."""
    screen = pilot.app.screen
    assert isinstance(screen, ApplyScreen)
    assert screen.running is not None
    screen.running.join(10)
    await until(pilot, lambda: screen._told)
    await answered(pilot.app)
    await pilot.pause()
