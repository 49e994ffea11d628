"""The incidents screen, driven by keys: what is wrong, what to do, go there, take the fix, write the bundle."""

import threading
from pathlib import Path

import pytest

from specdash.core.changes import Role
from specdash.core.errors import SpecdashError
from specdash.insight.picture import Picture
from specdash.tui.action_table import FooterScreen
from specdash.tui.screens.incidents import RAISED_S, IncidentsScreen, arrange
from specdash.tui.screens.tune import TuneScreen
from specdash.tui.widgets.alerts import ALERTS, DETAIL, STRIP, AlertDetail
from specdash.tui.widgets.tuner.tune import TuneModel
from tui.drawn import block, is_open
from tui.driven import dashboard, opened, press, said, shown
from tui.fake_alerts import SPECS, with_alerts, zero_acceptance
from tui.fake_console import FakeConsole
from tui.fake_state import FakeState
from tui.waiting import answered


@pytest.fixture(autouse=True)
def runbooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runbooks of the fake alerts."""
    monkeypatch.setattr(AlertDetail, "specs", SPECS)


async def test_the_screen_says_the_cause_what_to_do_and_the_fix() -> None:
    app = dashboard("alerts")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "i")
        text = shown(app)
        assert "3 active" in text
        assert "0 of 4,096 draft tokens were accepted" in text
        assert "LLAMA_SPEC_TYPE removed" in text
        assert "Switch speculation off" in text
        assert "Slot hangs (slot 3)" in text


async def test_the_selection_moves_and_the_detail_follows_it() -> None:
    app = dashboard("alerts")
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i")
        for key, title in (
            ("down", "slot 3 is busy"),
            ("j", "/slots answers 501"),
            ("G", "12,400"),
            ("g", "0 of 4,096"),
        ):
            await press(pilot, key)
            assert title in block(opened(app, IncidentsScreen).board.detail.lines)
        await pilot.click(opened(app, IncidentsScreen).board.table, offset=(5, 3))
        assert "slot 3 is busy" in block(opened(app, IncidentsScreen).board.detail.lines)


async def test_zoom_shows_the_whole_runbook_and_movement_scrolls_it() -> None:
    app = dashboard("alerts")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "i")
        assert "Each draft costs time" not in shown(app)
        await press(pilot, "z")
        assert "Each draft costs time" in shown(app)
        assert "Acceptance %" not in shown(app)
        await press(pilot, "pagedown")
        assert "Acceptance %" in shown(app)
        await press(pilot, "g")
        assert "0 of 4,096" in shown(app).split("Not one draft token is accepted", 2)[2]
        await press(pilot, "escape")
        assert "3 active" in shown(app)
        await press(pilot, "tab", "end")
        assert "Acceptance %" in shown(app)
        await press(pilot, "escape")
        assert not is_open(app, FooterScreen.INCIDENTS)


class Changing(FakeState):
    """Alerts come and go."""

    active: tuple[object, ...] = ()

    def picture(self, now: float, wall: float, window_s: float = 300.0) -> Picture:
        """With these alerts."""
        return with_alerts(super().picture(now, wall, window_s), self.active, ())  # type: ignore[arg-type]


async def test_who_reads_an_alert_stays_with_it_when_a_graver_one_comes() -> None:
    from msgspec.structs import replace

    from tui.fake_alerts import hung_slot

    state, wall = Changing("busy"), 1_790_000_000.0
    state.active = (hung_slot(wall),)
    app = dashboard(state)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i", "z")
        state.active = (zero_acceptance(wall), hung_slot(wall))
        app.refresh_view()
        await pilot.pause()
        assert "slot 3 is busy" in block(opened(app, IncidentsScreen).board.detail.lines)
        state.active = (replace(hung_slot(wall), ended=wall),)
        app.refresh_view()
        await pilot.pause()
        assert "over since" in block(opened(app, IncidentsScreen).board.detail.lines)


async def test_enter_goes_to_the_time_of_the_alert() -> None:
    went: list[float] = []
    app = dashboard("alerts")
    app.travel.to = went.append  # type: ignore[assignment, method-assign]
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i", "down", "enter")
        assert went == [1_790_000_000.0 - 48.0 + RAISED_S]
        assert not is_open(app, FooterScreen.INCIDENTS)


async def test_f_takes_the_fix_to_the_tune_screen_as_pending_and_applies_nothing() -> None:
    console = FakeConsole()
    app = dashboard("alerts", console=console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i", "V")
        assert app.kept(TuneModel).wanted[Role.BACKEND] == {"LLAMA_SPEC_TYPE": None, "LLAMA_DRAFT_MAX": "0"}
        assert isinstance(app.shown, TuneScreen)
        assert app.shown.board.keys.chosen == "LLAMA_SPEC_TYPE"
        assert "2 pending" in block(app.shown.board.keys.lines)
        assert app.kept(TuneModel).plan is not None
        assert console.started == []
        assert "not applied" in said(app)
        await press(pilot, "escape")
        assert app.shown.place is FooterScreen.INCIDENTS


async def test_f_says_so_where_there_is_no_fix_or_no_service() -> None:
    app = dashboard("alerts", console=FakeConsole())
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i", "down", "V")
        assert "no one-key fix" in said(app)
        assert not is_open(app, FooterScreen.TUNE)
    app = dashboard("alerts")
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i", "V")
        assert "no services to tune" in said(app)
        assert isinstance(app.screen, IncidentsScreen)


async def test_a_bundle_is_written_in_a_thread_and_told_with_its_path() -> None:
    threads: list[str] = []

    def write() -> Path:
        threads.append(threading.current_thread().name)
        return Path("/state/incidents/one.tar.gz")

    app = dashboard("alerts", incident=write)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "I")
        assert "/state/incidents/one.tar.gz" in said(app)
        assert threads
        assert threads[0] != threading.main_thread().name


async def test_a_bundle_that_fails_is_told_with_the_reason_and_can_be_tried_again() -> None:
    calls: list[int] = []

    def write() -> Path:
        calls.append(1)
        raise SpecdashError("the disk is full")

    app = dashboard("alerts", incident=write)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i", "I")
        assert "the disk is full" in said(app)
        await press(pilot, "I")
        assert len(calls) == 2
        assert app._exception is None


async def test_one_bundle_is_written_at_a_time_and_without_a_writer_the_command_is_named() -> None:
    wait, calls = threading.Event(), []

    def write() -> Path:
        calls.append(1)
        wait.wait(10)
        return Path("/x")

    app = dashboard("alerts", incident=write)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("I")
        await pilot.pause()
        await pilot.press("I")
        await pilot.pause()
        wait.set()
        await answered(app)
        assert len(calls) == 1
    app = dashboard("alerts")
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "I")
        assert "specdash incident" in said(app)


async def test_with_nothing_wrong_it_says_so_and_what_is_not_judged_and_why() -> None:
    app = dashboard("alerts_none")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "i", "enter", "V", "down")
        text = shown(app)
        assert "Nothing is wrong." in text
        assert "no fresh data from gpu" in text
        assert "GPU is throttled, GPU is lost" in text
        assert "KV cache is full" in " ".join(text.split())
        assert isinstance(app.screen, IncidentsScreen)


async def test_a_frozen_screen_keeps_its_alerts_when_it_is_opened_and_left() -> None:
    app = dashboard("alerts")
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "i", "space", "i", "i")
        assert "3 active" in shown(app)


async def test_why_nothing_is_recorded_is_told_on_every_screen() -> None:
    app = dashboard(recording=lambda: "not recording: history.db: the disk is full")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "not recording" in block(app.overview.header.lines)
        await pilot.resize_terminal(120, 36)
        await pilot.pause()
        assert "not recording: history.db: the disk is full" in block(app.overview.header.lines)
        await press(pilot, "i")
        assert "the disk is full" in shown(app)


@pytest.mark.parametrize("width", [80, 110, 200])
@pytest.mark.parametrize("height", [18, 30, 46])
@pytest.mark.parametrize("alerts", [0, 1, 5, 200])
def test_all_parts_have_room_and_fill_the_screen(width: int, height: int, alerts: int) -> None:
    places = arrange(width, height, alerts)
    assert set(places) == {ALERTS, STRIP, DETAIL}
    assert sum(place.height for place in places.values()) == height
    assert places[DETAIL].height >= 8
    assert arrange(width, height, alerts, zoomed=True)[DETAIL].height == height
