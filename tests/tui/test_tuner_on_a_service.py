"""The tuner's screen on a real service: it starts a run that outlives it, and another one sees it and stops it; the
service is left as it was."""

import time
from collections.abc import Iterator

import pytest

from specdash.control.console import Console
from specdash.tui.app import Dashboard
from specdash.tui.tuner_model import TunerModel
from specdash.tune.run.console import TunerConsole
from specdash.tune.run.status import RunState
from support.deployment import Rig, running_deployment
from tui.driven import page, press, said, shown
from tui.fake_state import FakeState
from tui.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A service, and no run of the tuner left on it."""
    with running_deployment("daemon") as item:
        yield item
        tuner = TunerConsole(item.env)
        run = tuner.look().run
        if run is not None and run.alive:
            tuner.stop(run)
        until = time.monotonic() + 60
        while (run := tuner.look().run) is not None and tuner.alive(run) and time.monotonic() < until:
            time.sleep(0.1)


def dashboard(rig: Rig) -> Dashboard:
    """On the rig's service."""
    console = Console(lambda: rig.deployment, drain_timeout_s=10, health_timeout_s=30, env=rig.env)
    return Dashboard(FakeState("busy"), theme="night", console=console, tuner=TunerConsole(rig.env))


async def test_a_run_that_was_started_here_outlives_the_dashboard_and_another_one_stops_it(rig: Rig) -> None:
    before = rig.file().read_bytes()
    app = dashboard(rig)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T")
        await until(pilot, lambda: app.kept(TunerModel).plan is not None)
        assert "READY" in shown(app)
        assert "LLAMA_DRAFT_MAX" in shown(app)
        await press(pilot, "A", "r")
        assert "with 12 restarts?" in page(app)
        await press(pilot, "enter")
        await until(pilot, lambda: app.kept(TunerModel).under_way)
        assert said(app).count("did not begin") == 0
    run = TunerConsole(rig.env).look().run
    assert run is not None
    assert run.alive
    other = dashboard(rig)
    async with other.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T")
        await until(pilot, lambda: other.kept(TunerModel).under_way)
        await press(pilot, "A", "E")
        assert "specdash-backend" in page(other)
        await press(pilot, "enter")
        await until(pilot, lambda: other.kept(TunerModel).state is RunState.STOPPED)
        await until(pilot, lambda: not TunerConsole.alive(run), 30)
    rig.assert_settled(version=before)
