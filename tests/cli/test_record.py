"""`specdash record`: a real process records a server, tells what it does, and ends as a service should."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specdash.cli.record import record
from specdash.core import paths
from specdash.core.flag import Flag
from specdash.core.readings import Source
from specdash.core.target import Target
from specdash.history.store import Store
from support.fault_server import FaultServer, says

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer({"/health": says(200, '{"status": "ok"}')}) as server:
        yield server


@contextmanager
def recorder(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "specdash", "record", *words], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"ended without saying {words!r}")


def file() -> Path:
    return paths.history_file(os.environ)


def test_it_records_until_a_signal_and_ends_with_0(server: FaultServer) -> None:
    with recorder("--url", server.url) as process:
        line = said(process, "recording http")
        assert str(file()) in line
        time.sleep(2.5)
        process.send_signal(signal.SIGHUP)
        assert process.wait(10) == 0
    with Store(file()) as store:
        assert (
            len([reading for _, reading in store.readings(server.url, 0, 4e9) if reading.source is Source.HEALTH]) >= 2
        )
        assert [event.ref for event in store.events(server.url, 0, 4e9) if event.ref in ("began", "ended")] == [
            "began",
            "ended",
        ]


def test_a_server_that_is_down_is_recorded_as_down() -> None:
    with recorder("--url", "http://127.0.0.1:9", "--for", "2s") as process:
        assert process.wait(15) == 0
    with Store(file()) as store:
        health = [
            reading for _, reading in store.readings("http://127.0.0.1:9", 0, 4e9) if reading.source is Source.HEALTH
        ]
        assert health
        assert all(reading.value is None for reading in health)


def test_two_share_a_record_and_the_second_takes_over(server: FaultServer) -> None:
    with recorder("--url", server.url) as first:
        said(first, "recording http")
        with recorder("--url", server.url) as second:
            said(second, "another specdash records")
            first.kill()
            said(second, "recording http")
            time.sleep(1.5)
            second.terminate()
            assert second.wait(10) == 0
    with Store(file()) as store:
        moments = [at for at, reading in store.readings(server.url, 0, 4e9) if reading.source is Source.HEALTH]
        assert max(after - before for before, after in itertools.pairwise(moments)) < 3.0


def test_it_says_why_nothing_is_recorded_and_goes_on_when_that_is_mended(server: FaultServer) -> None:
    in_the_way = file().parent
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("not a directory")
    with recorder("--url", server.url) as process:
        assert str(in_the_way) in said(process, "not recording")
        in_the_way.unlink()
        said(process, "recording http")
        process.terminate()
        assert process.wait(10) == 0


def test_it_ends_with_10_when_nothing_could_be_recorded(server: FaultServer) -> None:
    file().parent.parent.mkdir(parents=True)
    file().parent.write_text("not a directory")
    with recorder("--url", server.url, "--for", "2s") as process:
        assert process.wait(15) == 10


def test_without_a_server_it_waits_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = [[], [], [Target("http://127.0.0.1:9")]]
    monkeypatch.setattr(record, "find_targets", lambda _: looks.pop(0))
    monkeypatch.setattr(record, "LOOK_S", 0.01)
    assert record._target({}, Flag(), None) == Target("http://127.0.0.1:9")
    assert capsys.readouterr().err.count("no llama-server found yet") == 1
    stopped = Flag()
    stopped.set()
    looks.append([])
    assert record._target({}, stopped, None) is None
