"""A real server, recorded by the real recorder: played again, its record shows what live showed."""

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.test_fidelity import backend, run_requests
from history.test_replay import differences, shown
from specdash.collect.hub import Hub
from specdash.core import paths
from specdash.core.readings import Reading, Source
from specdash.history.recorder import Recorder
from specdash.history.replay import ReplaySession, open_session
from specdash.history.store import Store
from specdash.insight.state import TargetState

pytestmark = pytest.mark.engine
WINDOW_S = 60.0
TEXTS = r"\.log\.(warnings\..*\.sample|unrecognised)|\.backend\.uptime_seconds"
"""Texts of the log are made anew before they are stored; lines that say nothing are not, nor their time stamps."""


ROUNDED = 0.02
"""The log's time stamps are kept to the millisecond: speeds over a tenth of a second differ by as much."""


class Seen:
    """What live showed right after each look at the server's health, and that it was at Unix time."""

    def __init__(self, state: TargetState) -> None:
        self.state = state
        self.moments: list[tuple[float, dict[str, Any]]] = []

    def on_reading(self, reading: Reading[Any]) -> None:
        if reading.source is Source.HEALTH:
            wall = reading.at + time.time() - time.monotonic()
            self.moments.append((wall, shown(self.state.picture(reading.at, wall, WINDOW_S))))


def unlike(session: ReplaySession, expected: dict[str, Any], but: str) -> list[str]:
    """Where the replay shows something else than was expected, but for paths that match."""
    found = differences(expected, shown(session.picture(window_s=WINDOW_S)), tolerance=0.005, relative=ROUNDED)
    return [name for name in found if not re.match(r"\.time$|" + but, name.partition(":")[0])]


def test_a_recorded_run_of_a_real_server_plays_as_it_was(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with backend(tmp_path) as target:
        recorder = Recorder(target, env=env)
        state = TargetState(target, observer=recorder)
        seen = Seen(state)
        recorder.start()
        with Hub(target, [state.apply, recorder.on_reading, seen.on_reading], gpu=False, env=env):
            time.sleep(2.0)
            run_requests(target.url, range(10))
            time.sleep(6.0)
        recorder.close()
        assert recorder.problem == ""
        live, offset = state.target, time.time() - time.monotonic()
    session = open_session(paths.history_file(env), live)
    with Store(paths.history_file(env)) as store:
        looks = [
            wall
            for wall, reading in store.readings(session.name, session.first, session.last + 1.0)
            if reading.source is Source.HEALTH
        ]
    assert len(looks) == len(seen.moments)
    session.seek(session.first)
    assert len(looks) >= 4
    for look, (wall, expected) in zip(looks, seen.moments, strict=True):
        assert look == pytest.approx(wall, abs=0.005)
        session.advance(look)
        found = unlike(session, expected, TEXTS)
        if found:
            # Two collectors may publish in another order than that in which they looked, a moment apart.
            session.advance(look + 0.004)
            found = unlike(session, expected, TEXTS)
        assert found == []
    # A moment later, all that was said within the last second is in both.
    session.advance(session.last)
    picture = session.picture(window_s=WINDOW_S)
    last = state.picture(picture.wall - offset, picture.wall, WINDOW_S)
    assert picture.backend.requests_finished == last.backend.requests_finished == 10
    assert picture.log.lines == last.log.lines
    assert picture.backend.counters == last.backend.counters
    session.close()
