"""Whatever happens to the recorder or its disk, the record opens, and little is missing."""

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from specdash.core.readings import Source
from specdash.history.recorder import Recorder
from specdash.history.store import Store
from support.recording import URL, counters, file_of, hurry, loaded_recorder, recording, value
from support.waiting import until

MISSING_S = 2.0
MOUNT, UMOUNT = (shutil.which(name) or "/bin/false" for name in ("mount", "umount"))


def killed_under_load(directory: Path, runs_s: float) -> tuple[float, float]:
    """Run a recorder under load, kill it; the Unix times of its first reading and of its death."""
    process = loaded_recorder(directory)
    try:
        assert process.stdout is not None
        began = 0.0
        for line in process.stdout:
            _, at, _, *problem = line.split()
            assert not problem
            began = began or float(at)
            if time.time() - began >= runs_s:
                break
        died = time.time()
        process.send_signal(signal.SIGKILL)
        return began, died
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def check(directory: Path, began: float, died: float) -> int:
    """Hold the record to its promise; how many readings of this run it has."""
    with Store(file_of(directory)) as store:
        assert not store.check()
        assert not store.damaged
        span = store.span(URL) or (began, began)
        assert died - max(began, span[1]) <= MISSING_S
        recent = list(store.readings(URL, began - 0.1, died + 1.0))
        assert [at for at, _ in recent] == sorted(at for at, _ in recent)
        numbers = [value(reading).prompt_tokens for _, reading in recent if reading.source is Source.METRICS]
        assert numbers == [float(number) for number in range(len(numbers))]
        return len(numbers)


def test_a_killed_recorder_leaves_a_record_that_opens_with_at_most_two_seconds_missing(tmp_path: Path) -> None:
    assert check(tmp_path, *killed_under_load(tmp_path, 1.4)) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forty_killed_recorders(tmp_path: Path) -> None:
    at_once = 4

    def kill(lane: int) -> int:
        place = tmp_path / str(lane)
        place.mkdir()
        for round_number in range(lane, 40, at_once):
            check(place, *killed_under_load(place, 0.05 + 0.075 * (round_number * 37 % 40)))
        with Store(file_of(place)) as store:
            return len([event for event in store.events(URL, 0, 4e9) if event.ref == "began"])

    with ThreadPoolExecutor(at_once) as pool:
        assert sum(pool.map(kill, range(at_once))) > 30


@contextmanager
def small_disk(directory: Path, size: str = "1m") -> Iterator[Path]:
    """A real file system of so many bytes; skips where none may be mounted."""
    directory.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no file system may be mounted here")
    try:
        yield directory
    finally:
        subprocess.run([UMOUNT, "-l", str(directory)], check=False)


def test_a_full_disk_is_told_and_recording_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    with small_disk(tmp_path / "disk") as disk:
        with recording(disk) as recorder:
            recorder.on_reading(counters(1.0))
            until(lambda: recorder.is_recording)
            ballast = disk / "ballast"
            _fill(ballast)
            until(lambda: problem_met(recorder))
            assert "full" in recorder.problem
            assert str(disk) in recorder.problem
            recorder.on_reading(counters(3.0))
            ballast.unlink()
            until(lambda: not recorder.problem and recorder.is_recording)
            recorder.on_reading(counters(4.0))
        with Store(file_of(disk)) as store:
            assert not store.check()
            found = [value(reading).prompt_tokens for _, reading in store.readings(URL, 0, 4e9)]
            assert found[0] == 1.0
            assert 3.0 in found
            assert found[-1] == 4.0
            assert any("full" in event.detail for event in store.events(URL, 0, 4e9))


def problem_met(recorder: Recorder) -> str:
    recorder.on_reading(counters(2.0))
    return recorder.problem


def _fill(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        for size in (65536, 4096, 512, 1):
            with suppress(OSError):
                while True:
                    os.write(descriptor, b"x" * size)
    finally:
        os.close(descriptor)


def test_a_disk_that_is_full_from_the_beginning_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    with small_disk(tmp_path / "disk", "16k") as disk:
        _fill(disk / "ballast")
        with recording(disk) as recorder:
            recorder.on_reading(counters(1.0))
            until(lambda: recorder.problem)
            (disk / "ballast").unlink()
            subprocess.run([MOUNT, "-o", "remount,size=4m", str(disk)], check=True)
            until(lambda: recorder.is_recording and not recorder.problem)
        with Store(file_of(disk)) as store:
            assert len(list(store.readings(URL, 0, 4e9))) == 1


def test_a_file_that_may_not_grow_is_a_problem_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with recording(tmp_path) as recorder:
            recorder.on_reading(counters(1.0))
            until(lambda: recorder.is_recording)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
            until(lambda: problem_met(recorder))
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            until(lambda: not recorder.problem)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    with Store(file_of(tmp_path)) as store:
        assert not store.check()


def test_a_directory_that_may_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    with small_disk(tmp_path / "disk") as disk:
        subprocess.run([MOUNT, "-o", "remount,ro", str(disk)], check=True)
        with recording(disk) as recorder:
            recorder.on_reading(counters(1.0))
            until(lambda: recorder.problem)
            assert "Read-only" in recorder.problem
            subprocess.run([MOUNT, "-o", "remount,rw", str(disk)], check=True)
            until(lambda: recorder.is_recording and not recorder.problem)


@pytest.mark.parametrize("damage", ["text", "header", "middle"])
def test_a_damaged_record_is_moved_aside_and_a_new_one_begun(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    path = file_of(tmp_path)
    with recording(tmp_path) as recorder:
        for number in range(500):
            recorder.on_reading(counters(number * 1.37))
        until(lambda: recorder.is_recording)
    if damage == "text":
        path.write_text("what is this?\n" * 100)
    else:
        data = bytearray(path.read_bytes())
        start = 0 if damage == "header" else 1024
        data[start:] = os.urandom(len(data) - start)
        path.write_bytes(bytes(data))
    was = path.read_bytes()
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(-1.0))
        until(lambda: recorder.is_recording and not recorder.problem)
    aside = path.with_name("history.db.corrupt-1")
    assert aside.read_bytes()[:900] == was[:900]
    with Store(path) as store:
        assert -1.0 in [value(reading).prompt_tokens for _, reading in store.readings(URL, 0, 4e9)]
        assert "the record was damaged; it is kept as history.db.corrupt-1" in [
            event.title for event in store.events(URL, 0, 4e9)
        ]
