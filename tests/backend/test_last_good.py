"""An env file that was edited by hand and does not start: a runner that starts runs the last version that served."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.env_store import Backups
from specdash.collect.discover import recorded_target, with_record
from specdash.control.deployment import Service
from specdash.core.changes import Role
from specdash.core.errors import ExitCode
from specdash.core.records import RunRecord
from support.engines import RunningBackend, engine_env, running_backend, with_draft, write_env
from support.help_engine import scripted_engine
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


LLAMA_SERVER = pytest.param("llama-server", marks=pytest.mark.llama_server)
XLLAMACPP = pytest.param("xllamacpp", marks=pytest.mark.engine)
CANNOT_BE_READ, HAS_A_WRONG_VALUE = "what is this\n", "LLAMA_DRAFT_MAX=0\n"
ITS_ENGINE_ENDS = "LLAMA_EXTRA_ARGS='--numa nowhere'\n"


class Edited:
    """A backend that has served once, whose env file is edited while it is down."""

    def __init__(self, backend: RunningBackend) -> None:
        self.backend = backend
        self.good = backend.env_file.read_bytes()

    def start_with(self, added: str) -> None:
        self.backend.env_file.write_bytes(self.good + added.encode())
        self.backend.start_again()

    @property
    def record(self) -> RunRecord:
        found = RunRecord.from_json(self.backend.wait_record().read_text())
        assert found is not None
        return found

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.backend.state)}

    def alerts(self) -> list[dict[str, Any]]:
        """Those of this rule that a snapshot shows."""
        command = [sys.executable, "-m", "specdash", "snapshot", "--json", "--url", self.backend.url]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=True)
        active: list[dict[str, Any]] = json.loads(done.stdout)["alerts"]["active"]
        return [alert for alert in active if alert["rule"] == "edit_refused"]

    def assert_the_last_good_version_runs(self, added: str, because: str) -> None:
        self.backend.wait_ready()
        until(lambda: self.record.refused is not None)
        assert self.record.env_digest == hashlib.sha256(self.good).hexdigest()
        assert because in str(self.record.refused)
        assert self.backend.env_file.read_bytes() == self.good + added.encode()
        assert "the last good settings run again" in self.backend.stderr.read_text()
        assert "the last good settings run again" in self.backend.log.read_text()
        service = Service(Role.BACKEND, self.backend.env_file, {"XDG_STATE_HOME": str(self.backend.state)})
        assert f"{self.backend.env_file} as it was edited is not in force" in service.refusal()
        assert because in service.refusal()


def served_once(values: dict[str, str], directory: Path) -> Iterator[Edited]:
    with running_backend(values, directory) as backend:
        backend.wait_checked()
        assert backend.stop() == ExitCode.OK
        yield Edited(backend)


@pytest.fixture
def scripted(models: dict[str, Path], tmp_path: Path) -> Iterator[Edited]:
    yield from served_once(with_draft(models, **scripted_engine(tmp_path)), tmp_path)


@pytest.mark.parametrize(
    ("engine", "added", "because"),
    [
        (*XLLAMACPP.values, HAS_A_WRONG_VALUE, "LLAMA_DRAFT_MAX=0"),
        (*LLAMA_SERVER.values, CANNOT_BE_READ, "no '='"),
        (*LLAMA_SERVER.values, ITS_ENGINE_ENDS, "its engine ended with exit code 1"),
    ],
)
@pytest.mark.engine
@pytest.mark.llama_server
def test_a_real_engine_runs_by_the_last_good_version(
    models: dict[str, Path], tmp_path: Path, engine: str, added: str, because: str
) -> None:
    for edited in served_once(with_draft(models, **engine_env(engine)), tmp_path):
        edited.start_with(added)
        edited.assert_the_last_good_version_runs(added, because)
        assert edited.backend.complete("the speculative", 30)["timings"]["draft_n"] > 0


@pytest.mark.parametrize(
    ("added", "because"),
    [
        (CANNOT_BE_READ, "no '='"),
        (HAS_A_WRONG_VALUE, "LLAMA_DRAFT_MAX=0"),
        ("LLAMA_BIN=/nowhere\n", "LLAMA_BIN=/nowhere"),
        ("LLAMA_ALIAS=exits\n", "failed to load the model of the test"),
    ],
)
def test_whatever_keeps_the_edited_file_from_starting(scripted: Edited, added: str, because: str) -> None:
    scripted.start_with(added)
    scripted.assert_the_last_good_version_runs(added, because)


def test_a_mended_file_is_in_force_with_the_next_reload(scripted: Edited) -> None:
    scripted.start_with(HAS_A_WRONG_VALUE)
    scripted.assert_the_last_good_version_runs(HAS_A_WRONG_VALUE, "LLAMA_DRAFT_MAX=0")
    mended = scripted.good + b"LLAMA_DRAFT_MAX=9\n"
    scripted.backend.env_file.write_bytes(mended)
    scripted.backend.process.send_signal(signal.SIGUSR1)
    until(lambda: scripted.record.env_digest == hashlib.sha256(mended).hexdigest())
    assert scripted.record.refused is None


def test_the_dashboard_raises_an_alert_until_the_file_is_mended(scripted: Edited) -> None:
    scripted.start_with(HAS_A_WRONG_VALUE)
    scripted.assert_the_last_good_version_runs(HAS_A_WRONG_VALUE, "LLAMA_DRAFT_MAX=0")
    (alert,) = scripted.alerts()
    assert alert["severity"] == "warning"
    assert "is not in force, the last good settings run" in alert["summary"]
    assert "LLAMA_DRAFT_MAX=0" in alert["summary"]
    assert alert["summary"].startswith("mend it, then `specdash services restart backend`")
    scripted.backend.env_file.write_bytes(scripted.good)
    assert scripted.alerts() == []


def test_a_dashboard_that_is_open_sees_an_edit_that_a_reload_refuses(scripted: Edited) -> None:
    scripted.start_with("")
    scripted.backend.wait_checked()
    target = recorded_target(scripted.backend.url, scripted.env)
    assert target is not None

    def refused() -> str:
        return with_record(target, scripted.env).refused

    assert refused() == ""
    scripted.backend.env_file.write_bytes(scripted.good + HAS_A_WRONG_VALUE.encode())
    scripted.backend.process.send_signal(signal.SIGUSR1)
    until(lambda: "LLAMA_DRAFT_MAX=0" in refused())
    scripted.backend.env_file.write_bytes(scripted.good)
    assert refused() == ""


def test_the_version_that_failed_is_not_kept_and_the_good_one_runs_the_next_time_too(scripted: Edited) -> None:
    for _ in range(2):
        scripted.start_with("LLAMA_ALIAS=exits\n")
        scripted.assert_the_last_good_version_runs("LLAMA_ALIAS=exits\n", "its engine ended")
        scripted.backend.wait_checked()
        assert scripted.backend.stop() == ExitCode.OK


def test_without_a_version_that_served_it_ends_as_before(models: dict[str, Path], tmp_path: Path) -> None:
    values = with_draft(models, **scripted_engine(tmp_path), LLAMA_DRAFT_MAX="0")
    assert RunningBackend(values, tmp_path).process.wait(30) == ExitCode.BAD_INPUT


def test_a_version_that_served_once_and_does_not_any_more_ends_as_before(scripted: Edited) -> None:
    scripted.start_with("")
    scripted.backend.wait_ready()
    assert scripted.backend.stop() == ExitCode.OK
    Path(scripted.backend.env_file.parent / "scripted-llama-server").unlink()
    scripted.start_with("")
    assert scripted.backend.process.wait(30) != ExitCode.OK
    scripted.start_with(HAS_A_WRONG_VALUE)
    assert scripted.backend.process.wait(30) == ExitCode.BAD_INPUT


def test_the_last_good_version_of_a_file_is_kept_once_private_and_counts_as_no_backup(tmp_path: Path) -> None:
    kept, file = Backups(tmp_path / "backups"), write_env(tmp_path / "a.env", {"LLAMA_API_KEY": "hush"})
    assert kept.good(Role.BACKEND, file) is None
    for data in (b"one", b"two"):
        kept.keep_good(Role.BACKEND, file, data)
        assert kept.good(Role.BACKEND, file) == data
    assert kept.good(Role.BACKEND, tmp_path / "b.env") is None
    (stored,) = (tmp_path / "backups/backend").iterdir()
    assert stored.stat().st_mode & 0o777 == 0o600
    assert kept.list(Role.BACKEND) == ()
