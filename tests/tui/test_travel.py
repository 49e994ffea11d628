"""Time travel, by keys: from live into the record and back, and a dashboard that is only a replay."""

import threading
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from history.test_replay import WALL, Live, outage, serve
from specdash.control.console import SlotConsole
from specdash.core.errors import InputError
from specdash.core.log_facts import LogBatch, WarningTally
from specdash.core.readings import Source
from specdash.history.player import Player
from specdash.history.replay import ReplaySession
from specdash.tui.app import Dashboard
from specdash.tui.screens.speculation import SpeculationScreen
from specdash.tui.view import View
from specdash.tui.widgets.header import (
    HeaderSituation,
    ReplayHeader,
    header_lines,
    small_lines,
    travel_badge,
    travel_line,
)
from tui.drawn import block, screen
from tui.fake_console import FakeConsole
from tui.fake_state import FakeState
from tui.waiting import answered, until

NOW = WALL + 299.0


@pytest.fixture(scope="module")
def live() -> Live:
    return outage()


def travelling_dashboard(opened: Callable[[float | None], ReplaySession]) -> Dashboard:
    console = FakeConsole()
    return Dashboard(FakeState(), wall=lambda: NOW, theme="night", record=opened, console=console)  # type: ignore[arg-type]


def at_rest(app: Dashboard, position: float) -> Callable[[], bool]:
    return lambda: (
        app.travel.player is not None
        and not app.travel.player.seeking
        and app.travel.player.session.position == pytest.approx(position)
    )


async def test_a_step_back_shows_the_past_and_l_returns(live: Live) -> None:
    app = travelling_dashboard(lambda at: _session(live, at))
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.pause()
        assert "REPLAY" not in screen(app)
        await pilot.press("comma")
        await until(pilot, at_rest(app, NOW - 10))
        await pilot.press("comma")
        await until(pilot, at_rest(app, NOW - 20))
        await until(pilot, lambda: "REPLAY" in screen(app) and "(-20s)" in screen(app))
        assert "L live" in screen(app)
        assert app.shown.view is not None
        assert app.shown.view.picture.wall == pytest.approx(NOW - 20)
        await pilot.press("full_stop")
        await until(pilot, at_rest(app, NOW - 10))
        await pilot.press("L")
        await pilot.pause()
        assert app.travel.player is None
        assert "REPLAY" not in screen(app)


def _session(live: Live, at: float | None) -> ReplaySession:
    return ReplaySession(live.record, live.target, at=at)


@pytest.fixture(scope="module")
def logged() -> Live:
    """A server whose log was read from its beginning, for five minutes."""
    logged = Live()
    for at in range(300):
        tally = WarningTally("find_slot_non_consecutive", 2, float(at), at + 0.5, "a line")
        logged.tell(at, Source.LOG, LogBatch(lines=10, warnings=(tally,)))
        serve(logged, [at + 0.5])
    return logged


async def test_no_paint_on_the_way_to_a_moment_shows_a_total_that_is_not_its_own(logged: Live) -> None:
    loaded = threading.Event()

    def slowly(at: float | None) -> ReplaySession:
        session = _session(logged, at)
        deepen = session.deepen
        session.deepen = lambda *_: loaded.is_set() and deepen()  # type: ignore[method-assign]
        return session

    app = travelling_dashboard(slowly)
    async with app.run_test(size=(200, 50)) as pilot:
        app.travel.to(WALL + 200.5)
        await until(pilot, at_rest(app, WALL + 200.5))
        await until(pilot, lambda: "LOADING RECORD" in screen(app) and "-- lines" in screen(app))
        shown = screen(app)
        assert "-- finished" in shown
        assert "Warnings  --" in shown
        assert "REPLAY" not in shown
        loaded.set()
        await until(pilot, lambda: "REPLAY" in screen(app) and "2,010 lines" in screen(app))
        assert "Warnings  402" in screen(app)


async def test_the_header_has_one_state_and_green_is_only_now(live: Live) -> None:
    app = travelling_dashboard(lambda at: _session(live, at))
    words = ("LIVE", "PAUSED", "REPLAY", "LOADING")

    def states() -> list[str]:
        return [word for word in words if word in screen(app).splitlines()[0]]

    def greens() -> list[str]:
        return [text for text, role in app.overview.header.lines[0] if "good" in role]

    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: states() == ["LIVE"])
        assert [text.strip() for text in greens()] == ["● LIVE"]
        await pilot.press("space")
        await until(pilot, lambda: states() == ["PAUSED"])
        assert greens() == []
        await pilot.press("space", "comma")
        await until(pilot, at_rest(app, NOW - 10))
        await until(pilot, lambda: states() == ["REPLAY"])
        assert greens() == []
        assert "was live" in screen(app)
        await pilot.press("L")
        await until(pilot, lambda: states() == ["LIVE"])


def test_a_terminal_too_small_for_the_header_tells_the_same_state() -> None:
    state = FakeState()
    view = View(state.picture(NOW, NOW, 300.0), state)
    travel = ReplayHeader(NOW - 60, NOW, NOW - 600, NOW)
    for situation, word in (
        (HeaderSituation(NOW), "LIVE"),
        (HeaderSituation(NOW, paused_s=3.0), "PAUSED"),
        (HeaderSituation(NOW, travel=travel), "REPLAY"),
        (HeaderSituation(NOW, travel=replace(travel, loading=True)), "LOADING RECORD"),
        (HeaderSituation(NOW, opening="02:00:00"), "LOADING RECORD 02:00:00"),
    ):
        first = small_lines(view, situation, 60, 20)[0]
        assert first[0][0].strip(" ●◔").startswith(word)
        assert first[0][0] == header_lines(view, situation, 100)[0][0][0]
        assert ("good" in first[0][1]) == (word == "LIVE")


async def test_events_are_jumped_to_and_moments_asked_for(live: Live) -> None:
    app = travelling_dashboard(lambda at: _session(live, at))
    moments = sorted({event.at for event in _session(live, None).events})
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("less_than_sign")
        await until(pilot, at_rest(app, moments[-1]))
        await pilot.press("less_than_sign")
        await until(pilot, at_rest(app, moments[-2]))
        await pilot.press("greater_than_sign")
        await until(pilot, at_rest(app, moments[-1]))
        await pilot.press("J", *"3m", "enter")
        await until(pilot, at_rest(app, NOW - 180))
        app.travel.to(WALL + 65)
        await until(pilot, at_rest(app, WALL + 65))
        await until(pilot, lambda: "was down" in screen(app))


async def test_space_plays_and_plus_is_faster(live: Live) -> None:
    app = travelling_dashboard(lambda at: _session(live, at))
    async with app.run_test(size=(140, 40)) as pilot:
        app.travel.to(WALL + 100)
        await until(pilot, at_rest(app, WALL + 100))
        interval = app.interval_s
        await pilot.press("plus", "plus", "plus", "space")
        assert app.travel.player is not None
        assert app.travel.player.speed == 10.0
        assert app.interval_s == interval
        await until(pilot, lambda: app.travel.player is not None and app.travel.player.session.position > WALL + 103)
        await pilot.press("space")
        assert not app.travel.player.playing
        assert app.paused_at is None


async def test_the_past_cannot_be_changed(live: Live) -> None:
    app = travelling_dashboard(lambda at: _session(live, at))
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("A")
        assert app.access.armed()
        await pilot.press("comma")
        await until(pilot, at_rest(app, NOW - 10))
        assert not app.access.armed()
        await pilot.press("A")
        assert not app.access.armed()


async def test_the_speculation_screen_shows_the_past_and_its_slots_stay_as_they_are(live: Live) -> None:
    app = travelling_dashboard(lambda at: _session(live, at))
    app.slot_console = SlotConsole(lambda: live.target)
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("m", "A", "comma")
        await until(pilot, at_rest(app, NOW - 10))
        await until(pilot, lambda: app.shown.view is not None and app.shown.view.picture.wall < NOW - 5)
        assert isinstance(app.shown, SpeculationScreen)
        bar = block(app.shown.board.drafting.lines)
        assert "SPECULATING" in bar
        await pilot.press("X")
        assert isinstance(app.screen, SpeculationScreen)
        assert any("press A to arm" in notification.message for notification in app._notifications)


async def test_nothing_recorded_is_said_and_live_goes_on() -> None:
    def nothing(_: float | None) -> ReplaySession:
        raise InputError("no record; one is written while specdash runs")

    app = travelling_dashboard(nothing)
    said: list[str] = []
    async with app.run_test(size=(140, 40)) as pilot:
        app.notify = lambda message, **_: said.append(message)  # type: ignore[method-assign]
        await pilot.press("comma")
        await until(pilot, lambda: bool(said))
        assert said == ["no record; one is written while specdash runs"]
        assert app.travel.player is None


async def test_the_screen_does_not_wait_for_the_record(live: Live) -> None:
    may_open = threading.Event()

    def slowly(at: float | None) -> ReplaySession:
        assert may_open.wait(20)
        return _session(live, at)

    app = travelling_dashboard(slowly)
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("comma", "comma", "comma")
        assert app.travel.player is None
        await pilot.pause()
        assert "LOADING RECORD" in screen(app).splitlines()[0]
        assert "LIVE" not in screen(app).splitlines()[0]
        may_open.set()
        await until(pilot, at_rest(app, NOW - 30))


async def test_going_live_while_the_record_is_opened_calls_it_off(live: Live) -> None:
    opened: list[ReplaySession] = []

    may_open = threading.Event()

    def slowly(at: float | None) -> ReplaySession:
        assert may_open.wait(20)
        opened.append(_session(live, at))
        return opened[0]

    app = travelling_dashboard(slowly)
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("comma", "L")
        may_open.set()
        await until(pilot, lambda: bool(opened))
        await answered(app)
        await pilot.pause()
        assert app.travel.player is None


async def test_a_dashboard_of_a_replay_has_no_live(live: Live) -> None:
    session = _session(live, WALL + 65)
    app = Dashboard(session, wall=lambda: NOW + 86400 * 3, theme="night", replay=Player(session))
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: "REPLAY" in screen(app))
        assert "was down" in screen(app)
        assert "L live" not in screen(app)
        await pilot.press("L")
        assert app.travel.player is not None
        assert app.travel.player.session is session
    app.travel.player.close()


@pytest.mark.parametrize("width", [60, 80, 140, 200])
def test_the_strip_fits_every_width(live: Live, width: int) -> None:
    session = _session(live, WALL + 65)
    for position in (session.first, WALL + 65, session.last):
        travel = ReplayHeader(position, NOW, session.first, session.last, events=session.events)
        line = travel_line(travel, 60.0, width)
        assert sum(len(text) for text, _ in line) == width
        assert "█" in "".join(text for text, _ in line)


def test_the_badge_says_when_and_how_long_ago() -> None:
    now = time.mktime((2026, 3, 10, 15, 30, 0, 0, 0, -1))
    then = time.mktime((2026, 3, 10, 2, 13, 45, 0, 0, -1))
    assert (
        travel_badge(ReplayHeader(then, now, then, now, playing=True, speed=5.0)) == " REPLAY 02:13:45 (-13h16m) ▶ 5x "
    )
    assert travel_badge(ReplayHeader(then - 86400, now, then, now)) == " REPLAY 03-09 02:13:45 (-1d13h) ⏸ "
