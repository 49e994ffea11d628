"""`specdash backend run` where nothing can be recorded: it serves all the same, and says once what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdash.backend.launch import free_port
from specdash.core.errors import ExitCode
from specdash.core.records import RunRecord
from support.asking import ask
from support.engines import write_env
from support.help_engine import scripted_engine
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting a full disk needs root"
)
FULL = 'mount -t tmpfs -o size=64k tmpfs "$0" && cat /dev/zero > "$0/fill" 2>/dev/null; exec "$@"'


class FullDisk:
    """A backend on a scripted engine whose state directory is a disk of its own, without a byte left."""

    def __init__(self, directory: Path, models: dict[str, Path]) -> None:
        self.state, self.stderr, self.env_file = directory / "state", directory / "stderr", directory / "backend.env"
        self.state.mkdir()
        self.port = free_port("127.0.0.1")
        self.values = {**scripted_engine(directory), "LLAMA_MODEL": str(models["target"]), "LLAMA_PORT": str(self.port)}
        self.write()
        run = [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(self.env_file)]
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [shutil.which("unshare") or "", "-m", "sh", "-c", FULL, str(self.state), *run],
                env={**os.environ, "XDG_STATE_HOME": str(self.state)},
                stderr=stderr,
            )

    def write(self, **changes: str) -> None:
        write_env(self.env_file, {**self.values, **changes})

    def props(self) -> dict[str, object]:
        """What the server says of itself."""
        found: list[dict[str, object]] = []

        def answers() -> bool:
            with contextlib.suppress(OSError, json.JSONDecodeError):
                found.append(ask(f"http://127.0.0.1:{self.port}/props", timeout=5))
            return bool(found)

        until(answers, 30, self.said)
        return found[0]

    def said(self) -> str:
        return self.stderr.read_text(encoding="utf-8")

    @property
    def disk(self) -> Path:
        """The disk as the backend sees it."""
        return Path(f"/proc/{self.process.pid}/root{self.state}")

    def records(self) -> list[RunRecord | None]:
        return [RunRecord.from_json(file.read_text()) for file in self.disk.rglob("run/*.json")]


@pytest.fixture
def full(tmp_path: Path, models: dict[str, Path]) -> Iterator[FullDisk]:
    disk = FullDisk(tmp_path, models)
    try:
        yield disk
    finally:
        if disk.process.poll() is None:
            disk.process.kill()
            disk.process.wait(10)


def test_it_runs_takes_a_change_says_once_what_cannot_be_recorded_and_records_when_there_is_room(
    full: FullDisk,
) -> None:
    assert full.props()["total_slots"] == 1
    until(lambda: "no run record can be written" in full.said(), 10, full.said)
    assert full.records() == []
    full.write(LLAMA_PARALLEL="3")
    full.process.send_signal(signal.SIGUSR1)
    until(lambda: full.props()["total_slots"] == 3, 30, full.said)
    (full.disk / "fill").unlink()
    until(lambda: len(full.records()) == 1, 30, full.said)
    full.process.terminate()
    assert full.process.wait(20) == ExitCode.OK, full.said()
    assert full.said().count("no run record can be written") == 1
    assert "Traceback" not in full.said()
