"""The dashboard records what it sees, into the place that its environment names, and writes bundles of it."""

import json
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specdash.cli.options import resolved_settings
from specdash.cli.watch import Collecting
from specdash.core.config import Resolved
from specdash.core.readings import Source
from specdash.core.target import Target
from specdash.history.store import Store
from specdash.insight.picture import BackendState
from specdash.insight.state import TargetState
from support.fault_server import FaultServer, says
from support.recording import env_of, file_of, hurry
from support.waiting import until


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer({"/health": says(200, '{"status": "ok"}')}) as server:
        yield server


def collecting(server: FaultServer, directory: Path, **changed: Any) -> Collecting:
    settings = resolved_settings(None) | {name: Resolved(value, "test") for name, value in changed.items()}
    return Collecting(Target(server.url), None, settings, env_of(directory))


def test_what_is_seen_is_recorded_with_charts_and_changes_of_state(server: FaultServer, tmp_path: Path) -> None:
    live = collecting(server, tmp_path)
    live.start()
    try:
        until(lambda: file_of(tmp_path).exists() and live._recorder is not None and live._recorder.is_recording)
        with Store(file_of(tmp_path)) as store:
            until(lambda: any(reading.source is Source.HEALTH for _, reading in store.readings(server.url, 0, 4e9)))
        assert live.recording_trouble == ""
    finally:
        live.stop()
    with Store(file_of(tmp_path)) as store:
        assert [event.ref for event in store.events(server.url, 0, 4e9)][-1] == "ended"


def test_the_screen_is_told_when_the_server_turns_up_and_when_it_goes_and_not_at_each_look(
    server: FaultServer, tmp_path: Path
) -> None:
    server.routes["/props"] = says(200, '{"total_slots":1}')
    server.routes["/metrics"] = says(200, "llamacpp:n_decode_total 5\n")
    server.routes["/slots"] = says(200, '[{"id":0,"is_processing":false}]')
    live = collecting(server, tmp_path, record=False)
    news: list[tuple[object, ...]] = []
    live.on_news = lambda: news.append(live._state.headline if live._state is not None else ())
    live.start()
    try:
        until(lambda: any(BackendState.LIVE in headline for headline in news) and server.count("/metrics") > 4)
        server.close()
        until(lambda: BackendState.DOWN in news[-1])
    finally:
        live.stop()
    assert all(before != after for before, after in pairwise(news))


def test_without_the_setting_nothing_is_written(server: FaultServer, tmp_path: Path) -> None:
    live = collecting(server, tmp_path, record=False)
    live.start()
    try:
        until(lambda: live.picture(0.0, 0.0).backend.url and server.count("/health") > 1)
        assert live.recording_trouble == ""
    finally:
        live.stop()
    assert not file_of(tmp_path).exists()


def test_why_nothing_is_recorded_is_there_for_the_screen(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    (tmp_path / "specdash").write_text("in the way")
    live = collecting(server, tmp_path)
    live.start()
    try:
        until(lambda: live.recording_trouble)
        assert str(tmp_path / "specdash") in live.recording_trouble
        until(lambda: server.count("/health") > 0)
    finally:
        live.stop()


def test_the_bundle_is_of_the_server_that_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    target = Target("http://127.0.0.1:9", origin="test")
    live = Collecting(target, None, resolved_settings(None))
    live._state = TargetState(target)
    path = live.write_incident()
    assert path.is_relative_to(tmp_path / "state")
    with tarfile.open(path) as bundle:
        names = [member.name for member in bundle.getmembers() if member.name.endswith("manifest.json")]
        manifest = bundle.extractfile(names[0])
        assert manifest is not None
        assert "127.0.0.1:9" in json.dumps(json.load(manifest))
    assert live.recording_trouble == ""
