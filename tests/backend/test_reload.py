"""An env file that is edited by hand: SIGUSR1 to `specdash backend run` swaps the engine when what it says can run, and
where it does not start, now or at the next start, the last version that served runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from msgspec.structs import replace

from specdash.backend.env_store import Backups
from specdash.control.deployment import Service
from specdash.core.changes import Role
from specdash.core.errors import ExitCode
from specdash.core.records import RunRecord
from support.engines import RunningBackend, engine_env, running_backend, with_draft, write_env
from support.help_engine import scripted_engine
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


ENGINES = [
    pytest.param("xllamacpp", marks=pytest.mark.engine),
    pytest.param("llama-server", marks=pytest.mark.llama_server),
]
CANNOT_BE_READ, HAS_A_WRONG_VALUE = "what is this\n", "LLAMA_DRAFT_MAX=0\n"
SETTLE_S = 0.3
"""Long enough for a swap that must not happen to be seen."""


class Swapping:
    """A backend whose env file is rewritten."""

    def __init__(self, backend: RunningBackend, values: dict[str, str], directory: Path) -> None:
        self.backend = backend
        self.env_file = directory / "backend.env"
        self.good = self.env_file.read_bytes()
        self.read_from = 0
        """So much of `stderr` is of other tests."""
        self.values = {"LLAMA_PORT": str(backend.port), "LLAMA_START_PROBE": "0", **values}

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.env_file.read_bytes()).hexdigest()

    @property
    def record(self) -> RunRecord:
        """The record there is, without what comes later: the check of the start, and why a reload was refused."""
        return replace(self.whole_record, start_check=None, refused=None)

    @property
    def whole_record(self) -> RunRecord:
        """All of it; between two engines there is none, and this waits."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                found = RunRecord.from_json(self.backend.wait_record().read_text())
                assert found is not None
                return found

    @property
    def stderr(self) -> str:
        return self.backend.stderr.read_text(encoding="utf-8")[self.read_from :]

    def write(self, **changes: str | None) -> None:
        self.values = {key: value for key, value in {**self.values, **changes}.items() if value is not None}
        write_env(self.env_file, self.values)

    def ask(self) -> None:
        self.backend.process.send_signal(signal.SIGUSR1)

    def swap(self, **changes: str | None) -> RunRecord:
        """Change the file, ask, and wait for the record of the engine that runs by it."""
        before = self.record
        self.write(**changes)
        self.ask()
        until(lambda: self.record.pid != before.pid)
        self.backend.wait_ready()
        return self.record

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.backend.state)}

    def stop_checked(self) -> None:
        """Once the version that runs is known as a good one."""
        self.backend.wait_checked()
        assert self.backend.stop() == ExitCode.OK

    def start_with(self, added: str) -> None:
        self.env_file.write_bytes(self.good + added.encode())
        self.backend.start_again()

    def alerts(self) -> list[dict[str, Any]]:
        """Those of an edit that is not in force, as a snapshot shows them."""
        command = [sys.executable, "-m", "specdash", "snapshot", "--json", "--url", self.backend.url]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=True)
        active: list[dict[str, Any]] = json.loads(done.stdout)["alerts"]["active"]
        return [alert for alert in active if alert["rule"] == "edit_refused"]

    def assert_the_last_good_version_runs(self, added: str, because: str) -> None:
        self.backend.wait_ready()
        until(lambda: self.whole_record.refused is not None)
        assert self.record.env_digest == hashlib.sha256(self.good).hexdigest()
        assert because in str(self.whole_record.refused)
        assert self.env_file.read_bytes() == self.good + added.encode()
        assert "the last good settings run again" in self.stderr
        assert "the last good settings run again" in self.backend.log.read_text()
        service = Service(Role.BACKEND, self.env_file, {"XDG_STATE_HOME": str(self.backend.state)})
        assert f"{self.env_file} as it was edited is not in force" in service.refusal()
        assert because in service.refusal()


@contextlib.contextmanager
def swapping(models: dict[str, Path], directory: Path, engine: dict[str, str], **more: str) -> Iterator[Swapping]:
    values = with_draft(models, **{**engine, **more})
    with running_backend(values, directory) as backend:
        item = Swapping(backend, values, directory)
        yield item


@pytest.fixture
def scripted(models: dict[str, Path], tmp_path: Path) -> Iterator[Swapping]:
    with swapping(models, tmp_path, scripted_engine(tmp_path)) as item:
        yield item


@pytest.fixture
def served(scripted: Swapping) -> Swapping:
    """A backend that has served once, and is down."""
    scripted.stop_checked()
    return scripted


@pytest.fixture(scope="module")
def shared_run(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapping]:
    directory = tmp_path_factory.mktemp("shared")
    with swapping(models, directory, scripted_engine(directory)) as item:
        yield item


@pytest.fixture
def swappable(shared_run: Swapping) -> Swapping:
    """A run that no test ends, for all that only swap its engine."""
    shared_run.read_from += len(shared_run.stderr)
    return shared_run


def test_the_new_engine_runs_by_the_changed_file_and_the_record_says_so(scripted: Swapping) -> None:
    old = scripted.record
    assert (old.env_digest, old.runner_pid) == (scripted.digest, scripted.backend.process.pid)
    new = scripted.swap(LLAMA_DRAFT_MAX="12")
    assert (new.env_digest, new.runner_pid) == (scripted.digest, scripted.backend.process.pid)
    assert new.env_digest != old.env_digest
    assert dict(new.parameters)["spec-draft-n-max"] == "12"
    assert (new.url, new.log, new.env_file) == (old.url, old.log, str(scripted.env_file))
    assert not psutil.pid_exists(old.pid)
    assert len(scripted.backend.records()) == 1
    assert scripted.backend.stop() == ExitCode.OK
    assert scripted.backend.records() == []
    assert_the_log_goes_on_with_a_line_between_the_engines(scripted, scripted.digest)


def assert_the_log_goes_on_with_a_line_between_the_engines(scripted: Swapping, digest: str) -> None:
    lines = scripted.backend.log.read_text().splitlines()
    assert [line for line in lines if "speculate" not in line] == [
        "main: loading model",
        "main: server is listening, with n-max 8",
        "it ends",
        f"specdash: engine swapped: llama-server 4242 (scripted), env {digest[:12]}, spec-draft-n-max 8 -> 12",
        "main: loading model",
        "main: server is listening, with n-max 12",
        "it ends",
    ]
    assert scripted.backend.log.read_text() == scripted.stderr
    assert not scripted.backend.log.with_name("server.log.1").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"LLAMA_DRAFT_MAX": "0"}, "LLAMA_DRAFT_MAX=0"),
        ({"LLAMA_MODEL": "/nowhere.gguf"}, "/nowhere.gguf"),
        ({"LLAMA_BIN": "/nowhere"}, "LLAMA_BIN=/nowhere"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_in_one_line_and_the_engine_goes_on(
    swappable: Swapping, change: dict[str, str], reason: str
) -> None:
    before, good = swappable.record, dict(swappable.values)
    swappable.write(**change)
    swappable.ask()
    until(lambda: "reload refused" in swappable.stderr)
    time.sleep(SETTLE_S)
    (line,) = [line for line in swappable.stderr.splitlines() if "reload refused" in line]
    assert line.startswith(f"specdash: reload refused (env {swappable.digest[:12]}): ")
    assert reason in line
    assert reason in str(swappable.whole_record.refused)
    assert swappable.record == before
    assert swappable.backend.get("/health") == {"status": "ok"}
    assert swappable.swap(**good).pid != before.pid


def test_a_port_of_somebody_else_is_refused_and_any_port_means_the_one_it_has(swappable: Swapping) -> None:
    before = swappable.record
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        swappable.write(LLAMA_PORT=str(port))
        swappable.ask()
        until(lambda: f"port {port} is in use" in swappable.stderr)
        assert swappable.record == before
        assert swappable.backend.get("/health") == {"status": "ok"}
    for change in ({"LLAMA_PORT": "0"}, {"LLAMA_DRAFT_MAX": "9"}):
        after = swappable.swap(**change)
        assert (after.url, after.log) == (before.url, before.log)


@pytest.mark.slow
def test_an_engine_that_ignores_sigterm_is_killed_in_bounded_time(swappable: Swapping) -> None:
    before = swappable.swap(LLAMA_ALIAS="stubborn", LLAMA_STOP_TIMEOUT=None)
    asked = time.monotonic()
    swappable.swap(LLAMA_ALIAS="tame")
    assert time.monotonic() - asked < 1 + 1 + 5
    assert not psutil.pid_exists(before.pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_stop_during_a_swap_ends_all(models: dict[str, Path], tmp_path: Path, number: int) -> None:
    env = scripted_engine(tmp_path)
    with swapping(models, tmp_path, env, LLAMA_ALIAS="stubborn", LLAMA_STOP_TIMEOUT="0.2") as item:
        before = item.record
        item.write(LLAMA_DRAFT_MAX="12")
        item.ask()
        time.sleep(SETTLE_S)
        assert item.record == before
        assert item.backend.stop(number) == (ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.OK)
        assert item.backend.records() == []
        assert not psutil.pid_exists(before.pid)
        assert "engine swapped" not in item.stderr


def test_a_stop_while_a_swap_is_planned_ends_all_at_once(models: dict[str, Path], tmp_path: Path) -> None:
    with swapping(models, tmp_path, scripted_engine(tmp_path, version_s=0.0)) as item:
        scripted_engine(tmp_path, version_s=10.0)
        item.ask()
        time.sleep(SETTLE_S)
        asked = time.monotonic()
        assert item.backend.stop() == ExitCode.OK
        assert time.monotonic() - asked < 5


@pytest.mark.slow
def test_a_request_during_a_swap_is_done_after_it_when_the_file_differs_then(swappable: Swapping) -> None:
    before = swappable.swap(LLAMA_DRAFT_MAX="8", LLAMA_ALIAS="stubborn", LLAMA_STOP_TIMEOUT="0.2")
    swappable.read_from += len(swappable.stderr)
    swappable.write(LLAMA_DRAFT_MAX="12")
    for _ in range(3):
        swappable.ask()
        time.sleep(0.05)
    until(lambda: "it was told to end" in swappable.stderr)
    swappable.write(LLAMA_DRAFT_MAX="14", LLAMA_ALIAS="tame")
    swappable.ask()
    until(lambda: swappable.record.env_digest == swappable.digest and swappable.record.pid != before.pid)
    time.sleep(SETTLE_S)
    swapped = [line for line in swappable.stderr.splitlines() if "engine swapped" in line]
    assert [line.rsplit(", ", 1)[1] for line in swapped] == ["spec-draft-n-max 8 -> 12", "spec-draft-n-max 12 -> 14"]


def test_another_log_file_is_taken_and_the_old_one_says_where(models: dict[str, Path], tmp_path: Path) -> None:
    logs = tmp_path / "one.log", tmp_path / "other.log"
    with swapping(models, tmp_path, scripted_engine(tmp_path), LLAMA_LOG_FILE=str(logs[0])) as item:
        item.swap(LLAMA_LOG_FILE=str(logs[1]))
        assert item.backend.stop() == ExitCode.OK
    assert f"specdash: the log goes on in {logs[1]}" in logs[0].read_text()
    assert logs[1].read_text().startswith("it ends\nspecdash: engine swapped: ")


def test_settings_of_the_environment_cannot_be_read_again(models: dict[str, Path], tmp_path: Path) -> None:
    env = {**os.environ, **scripted_engine(tmp_path), "LLAMA_MODEL": str(models["target"]), "LLAMA_PORT": "0"}
    stderr = tmp_path / "stderr"
    with stderr.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "specdash", "backend", "run"], stderr=file, env=env)
    try:
        until(lambda: "server is listening" in stderr.read_text())
        time.sleep(SETTLE_S)
        process.send_signal(signal.SIGUSR1)
        until(lambda: "reload refused (env unreadable): the settings come from the environment" in stderr.read_text())
        process.terminate()
        assert process.wait(10) == ExitCode.OK
    finally:
        process.kill()
        process.wait(5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_real_engine_speculates_by_the_new_values_after_a_swap(
    models: dict[str, Path], tmp_path: Path, engine: str
) -> None:
    body = b'{"prompt": "the speculative", "n_predict": 100000, "stream": true, "ignore_eos": true}'
    context = {"LLAMA_CTX_SIZE": "65536", "LLAMA_EXTRA_ARGS": "--context-shift"}
    with swapping(models, tmp_path, engine_env(engine), **context) as item:
        with socket.create_connection(("127.0.0.1", item.backend.port), timeout=10) as client:
            # A client that stays does not keep the old engine.
            client.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            assert client.recv(10)
            asked = time.monotonic()
            record = item.swap(LLAMA_DRAFT_MAX="3")
            assert time.monotonic() - asked < 1 + 1 + 5
        assert dict(record.parameters)["spec-draft-n-max"] == "3"
        assert [slot["speculative"] for slot in item.backend.get("/slots")] == [True]
        assert item.backend.complete("the speculative", 60)["timings"]["draft_n"] > 0
        record = item.swap(LLAMA_SPEC_TYPE="none")
        assert [slot["speculative"] for slot in item.backend.get("/slots")] == [False]
        assert item.backend.stop() == ExitCode.OK
        assert not psutil.pid_exists(record.pid)


def test_a_request_that_comes_while_the_run_starts_does_not_end_it(models: dict[str, Path], tmp_path: Path) -> None:
    env = {
        **scripted_engine(tmp_path, version_s=0.6),
        "LLAMA_MODEL": str(models["target"]),
        "LLAMA_CTX_SIZE": "512",
    }
    backend = RunningBackend(env, tmp_path)
    try:
        until(lambda: bool(psutil.Process(backend.process.pid).children()))
        backend.process.send_signal(signal.SIGUSR1)
        backend.wait_ready()
        assert backend.stop() == ExitCode.OK
    finally:
        backend.process.kill()
        backend.process.wait(5)


@pytest.mark.parametrize(
    ("added", "because"),
    [
        (CANNOT_BE_READ, "no '='"),
        (HAS_A_WRONG_VALUE, "LLAMA_DRAFT_MAX=0"),
        ("LLAMA_BIN=/nowhere\n", "LLAMA_BIN=/nowhere"),
        ("LLAMA_ALIAS=exits\n", "failed to load the model of the test"),
    ],
)
def test_whatever_keeps_the_edited_file_from_starting_does_so_the_next_time_too(
    served: Swapping, added: str, because: str
) -> None:
    for _ in range(2):
        served.start_with(added)
        served.assert_the_last_good_version_runs(added, because)
        served.stop_checked()


def test_the_dashboard_raises_an_alert_until_the_file_is_mended_and_reloaded(served: Swapping) -> None:
    served.start_with(HAS_A_WRONG_VALUE)
    served.assert_the_last_good_version_runs(HAS_A_WRONG_VALUE, "LLAMA_DRAFT_MAX=0")
    (alert,) = served.alerts()
    assert alert["severity"] == "warning"
    assert alert["summary"].startswith("mend it, then `specdash services restart backend`")
    assert "is not in force, the last good settings run" in alert["summary"]
    assert "LLAMA_DRAFT_MAX=0" in alert["summary"]
    mended = served.good + b"LLAMA_DRAFT_MAX=9\n"
    served.env_file.write_bytes(mended)
    served.backend.process.send_signal(signal.SIGUSR1)
    until(lambda: served.whole_record.env_digest == hashlib.sha256(mended).hexdigest())
    assert served.whole_record.refused is None
    assert served.alerts() == []


def test_without_a_version_that_served_it_ends_as_before(models: dict[str, Path], tmp_path: Path) -> None:
    values = with_draft(models, **scripted_engine(tmp_path), LLAMA_DRAFT_MAX="0")
    assert RunningBackend(values, tmp_path).process.wait(30) == ExitCode.BAD_INPUT


def test_a_version_that_served_once_and_does_not_any_more_ends_as_before(served: Swapping) -> None:
    served.start_with("")
    served.backend.wait_ready()
    assert served.backend.stop() == ExitCode.OK
    Path(served.env_file.parent / "scripted-llama-server").unlink()
    served.start_with("")
    assert served.backend.process.wait(30) != ExitCode.OK
    served.start_with(HAS_A_WRONG_VALUE)
    assert served.backend.process.wait(30) == ExitCode.BAD_INPUT


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
