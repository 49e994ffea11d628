"""`specdash backend run` on real engines: the same env gives the same server, and it stops in time, always."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.core.errors import ExitCode
from specdash.core.records import RunRecord
from support.asking import ask
from support.ended import gone
from support.engines import RunningBackend, engine_env, running_backend, with_draft
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENGINES = [
    pytest.param("xllamacpp", marks=pytest.mark.engine),
    pytest.param("llama-server", marks=pytest.mark.llama_server),
]

BUILD_DIFFERENCES = {"is_sleeping", "cors_proxy_enabled", "build_info"}
"""Keys of /props that come and go between builds; both builds tested here have them, older ones may not."""


def speculating(models: dict[str, Path], engine: str, **more: str) -> dict[str, str]:
    return with_draft(models, **{"LLAMA_PARALLEL": "2", **engine_env(engine), **more})


def engine_pid(backend: RunningBackend) -> int:
    children = psutil.Process(backend.process.pid).children()
    assert len(children) == 1
    return children[0].pid


@contextlib.contextmanager
def endless_client(backend: RunningBackend) -> Iterator[None]:
    """A client that streams a very long answer and never hangs up by itself."""
    body = json.dumps({"prompt": "the speculative", "n_predict": 100000, "stream": True, "ignore_eos": True})
    request = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with socket.create_connection(("127.0.0.1", backend.port), timeout=10) as client:
        client.sendall(request)
        assert client.recv(10)
        yield


@pytest.mark.llama_server
@pytest.mark.engine
def test_both_engines_answer_props_and_slots_alike_for_the_same_env(models: dict[str, Path], tmp_path: Path) -> None:
    answers = {}
    for engine in ("xllamacpp", "llama-server"):
        with running_backend(speculating(models, engine, LLAMA_ALIAS="tiny"), tmp_path / engine) as backend:
            answers[engine] = (backend.get("/props"), backend.get("/slots"))
    (props, slots), (other_props, other_slots) = answers["xllamacpp"], answers["llama-server"]
    assert props.keys() - BUILD_DIFFERENCES == other_props.keys() - BUILD_DIFFERENCES
    for key in ("total_slots", "model_path", "model_alias", "endpoint_slots", "endpoint_metrics", "chat_template"):
        assert props[key] == other_props[key], key
    assert (props["total_slots"], props["model_path"], props["model_alias"]) == (2, str(models["target"]), "tiny")
    assert props["default_generation_settings"] == other_props["default_generation_settings"]
    assert slots == other_slots
    assert [(slot["n_ctx"], slot["speculative"]) for slot in slots] == [(2048, True)] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_it_speculates_with_its_trace_log_and_record_and_shows_no_key(
    models: dict[str, Path], tmp_path: Path, engine: str
) -> None:
    with running_backend(speculating(models, engine, LLAMA_API_KEY="hush-hush"), tmp_path) as backend:
        record = RunRecord.from_json(backend.wait_record().read_text())
        assert record is not None
        assert (record.pid, record.url) == (engine_pid(backend), backend.url)
        assert abs(psutil.Process(record.pid).create_time() - record.pid_started) < 0.1
        assert dict(record.parameters)["spec-draft-n-max"] == "8"
        assert (record.log, record.api_key_env) == (str(backend.log), "LLAMA_API_KEY")
        assert backend.wait_record().stat().st_mode & 0o777 == 0o600
        assert backend.wait_record().parent.stat().st_mode & 0o777 == 0o700
        with pytest.raises(urllib.error.HTTPError, match="401"):
            backend.get("/slots")
        assert backend.get("/slots", key="hush-hush")[0]["speculative"] is True
        engine_process = psutil.Process(engine_pid(backend))
        assert "hush-hush" not in " ".join(engine_process.cmdline()) + backend.wait_record().read_text()
        assert engine_process.environ()["LLAMA_TRACE"] == "1"
        body = {"prompt": "the speculative", "n_predict": 120, "temperature": 0}
        timings = ask(f"{backend.url}/completion", body, key="hush-hush")["timings"]
        # As the tiny draft model has it.
        assert (timings["draft_n"], timings["draft_n_accepted"]) == (126, 103)
    assert backend.process.returncode == ExitCode.OK
    assert backend.records() == []
    assert backend.log.read_bytes() == backend.stderr.read_bytes()
    assert b"LLAMA_TRACE = 1" in backend.log.read_bytes()
    assert b"draft tokens" in backend.log.read_bytes()
    assert b"hush-hush" not in backend.log.read_bytes()
    assert gone(record.pid)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, ExitCode.OK), (signal.SIGINT, ExitCode.INTERRUPTED)])
def test_it_stops_in_bounded_time_while_a_client_is_connected(
    models: dict[str, Path], tmp_path: Path, engine: str, number: int, code: int
) -> None:
    env = speculating(
        models, engine, LLAMA_STOP_TIMEOUT="1", LLAMA_CTX_SIZE="65536", LLAMA_EXTRA_ARGS="--context-shift"
    )
    with running_backend(env, tmp_path) as backend, endless_client(backend):
        pid = engine_pid(backend)
        before = time.monotonic()
        assert backend.stop(number) == code
        assert time.monotonic() - before < 1 + 1 + 5
        assert gone(pid)
        assert backend.records() == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES[:1])
def test_the_engine_dies_with_a_parent_that_was_killed(models: dict[str, Path], tmp_path: Path, engine: str) -> None:
    with running_backend(speculating(models, engine), tmp_path) as backend:
        pid = engine_pid(backend)
        backend.process.kill()
        backend.process.wait(10)
        until(lambda: gone(pid))


@pytest.mark.parametrize("engine", ENGINES[:1])
def test_an_engine_that_was_killed_is_reported(models: dict[str, Path], tmp_path: Path, engine: str) -> None:
    with running_backend(speculating(models, engine), tmp_path) as backend:
        backend.wait_record()
        os.kill(engine_pid(backend), signal.SIGKILL)
        assert backend.process.wait(20) == ExitCode.FAILED
    last = backend.stderr.read_text().splitlines()[-1]
    assert last.startswith(f"specdash: {engine} ended with signal SIGKILL: ")
    assert backend.records() == []


@pytest.mark.llama_server
def test_an_argument_the_binary_does_not_know_is_refused_before_it_starts(
    models: dict[str, Path], tmp_path: Path
) -> None:
    backend = RunningBackend(speculating(models, "llama-server", LLAMA_EXTRA_ARGS="--no-such-flag"), tmp_path)
    assert backend.process.wait(30) == ExitCode.BAD_INPUT
    (line,) = backend.stderr.read_text().splitlines()
    assert line.startswith("specdash: LLAMA_EXTRA_ARGS: llama-server ")
    assert line.endswith(" has no --no-such-flag; remove it, or use a newer llama.cpp")
    assert not backend.log.exists()


@pytest.mark.llama_server
def test_a_value_the_binary_refuses_is_reported_in_one_line(models: dict[str, Path], tmp_path: Path) -> None:
    backend = RunningBackend(speculating(models, "llama-server", LLAMA_EXTRA_ARGS="--numa nowhere"), tmp_path)
    assert backend.process.wait(30) == ExitCode.FAILED
    last = backend.stderr.read_text().splitlines()[-1]
    assert "llama-server ended with exit code 1: error while handling argument" in last


@pytest.mark.slow
@pytest.mark.engine
def test_a_reader_that_stalls_never_stalls_the_server(models: dict[str, Path], tmp_path: Path) -> None:
    """Our stderr is a pipe nobody reads: the log still gets everything and requests still end."""
    with running_backend(speculating(models, "xllamacpp", LLAMA_LOG_VERBOSITY="5"), tmp_path) as backend:
        backend.stop()
        command = [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(backend.env_file)]
        env = {**os.environ, "XDG_STATE_HOME": str(backend.state)}
        with subprocess.Popen([*command, "--log-file", str(backend.log)], stderr=subprocess.PIPE, env=env) as stalled:
            backend.process = stalled
            backend.wait_ready()
            for _ in range(3):
                assert backend.complete("the speculative", 300)["tokens_predicted"] == 300
            assert backend.log.stat().st_size > 128 * 1024
            assert backend.stop() == ExitCode.OK
