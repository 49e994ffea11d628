"""`specdash doctor` says what is reachable, what is missing, and which switch would light which panel."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from support.fault_server import FaultServer, free_port, says
from support.faulty_nvml import FaultyNvml
from support.outside import say

DATA = Path(__file__).parents[1] / "data" / "http"
DISABLED = says(501, '{"error":{"message":"disabled","code":501}}')
DENIED = says(401, '{"error":{"message":"Invalid API Key","code":401}}')

TRACED_LOG = """\
0.00.001.000 I srv  llama_server: verbosity = 3 (adjust with the `-lv N` CLI arg)
0.00.118.730 I slot   operator(): id  0 | task 0 | accepted  3/ 8 draft tokens
"""


@pytest.fixture
def server() -> Iterator[FaultServer]:
    routes = {
        "/health": says(200, '{"status":"ok"}'),
        "/props": says(200, (DATA / "props.json").read_bytes()),
        "/metrics": says(200, (DATA / "metrics_after_1.txt").read_bytes()),
        "/slots": says(200, (DATA / "slots_fresh.json").read_bytes()),
    }
    with FaultServer(routes) as running:
        yield running


def report(*arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = say("doctor", "--json", *arguments)
    return code, json.loads(out)


def switches(found: dict[str, Any]) -> str:
    return "\n".join(entry["switch"] for entry in found["missing"])


def states(found: dict[str, Any]) -> dict[str, str]:
    return {entry["path"]: entry["state"] for entry in found["endpoints"]}


def test_a_server_with_everything_on(server: FaultServer, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(TRACED_LOG.replace("= 3", "= 4"))
    code, found = report("--url", server.url, "--log", str(log))
    assert code == 0
    assert found["schema"] == 1
    assert found["reachable"] is True
    assert states(found) == {"/health": "ok", "/props": "ok", "/metrics": "ok", "/slots": "ok"}
    assert all(entry["latency_ms"] > 0 for entry in found["endpoints"])
    assert found["log"]["verbosity"] == 4
    assert found["log"]["llama_trace"] is True
    for flag in ("--metrics", "--no-slots", "--log-file", "LLAMA_TRACE", "-lv 4", "--api-key"):
        assert flag not in switches(found)


def test_everything_that_is_off_has_a_switch_and_names_its_panels(server: FaultServer, tmp_path: Path) -> None:
    server.routes.update({"/metrics": DISABLED, "/slots": DISABLED})
    log = tmp_path / "server.log"
    log.write_text(TRACED_LOG.splitlines()[0] + "\n")
    code, found = report("--url", server.url, "--log", str(log))
    assert code == 0
    assert states(found)["/metrics"] == "disabled"
    for flag in ("--metrics", "--no-slots", "LLAMA_TRACE=1", "-lv 4"):
        assert flag in switches(found)
    assert all(entry["lights"] for entry in found["missing"])


def test_a_missing_log_has_a_switch(server: FaultServer) -> None:
    _, found = report("--url", server.url)
    assert found["log"]["path"] is None
    assert "--log-file" in switches(found)


def test_an_unreadable_log_is_said(server: FaultServer, tmp_path: Path) -> None:
    _, found = report("--url", server.url, "--log", str(tmp_path / "no.log"))
    assert "is not there yet" in found["log"]["failure"]


def test_nothing_there_is_exit_code_4() -> None:
    code, found = report("--url", f"127.0.0.1:{free_port()}")
    assert code == 4
    assert found["reachable"] is False
    assert set(states(found).values()) == {"connection refused"}


def test_something_else_there_is_exit_code_4(server: FaultServer) -> None:
    server.routes = dict.fromkeys(server.routes, says(200, "<html>"))
    code, found = report("--url", server.url)
    assert code == 4
    assert set(states(found).values()) == {"not understood"}


def test_a_missing_key_is_said_and_a_given_one_sent_and_never_shown(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.routes.update({"/props": DENIED, "/metrics": DENIED, "/slots": DENIED})
    code, found = report("--url", server.url)
    assert code == 0
    assert "--api-key-env" in switches(found)
    monkeypatch.setenv("MY_KEY", "hunter2")
    code, out, _ = say("doctor", "--url", server.url, "--api-key-env", "MY_KEY")
    assert code == 0
    assert "hunter2" not in out
    assert "Bearer hunter2" in server.asked("/metrics")[-1].head


def test_a_key_file_for_everybody_is_warned_of(server: FaultServer, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("K")
    key.chmod(0o644)
    _, found = report("--url", server.url, "--api-key-file", str(key))
    assert "chmod 600" in found["warnings"][0]


def test_a_sleeping_server_is_not_woken(server: FaultServer) -> None:
    server.routes["/props"] = says(200, '{"is_sleeping":true}')
    _, found = report("--url", server.url)
    assert states(found)["/slots"] == "server asleep"
    assert server.count("/slots") == 0


def test_a_router_needs_a_model(server: FaultServer) -> None:
    server.routes["/props"] = says(200, '{"role":"router"}')
    _, found = report("--url", server.url)
    assert "--model NAME" in switches(found)


def test_the_text_says_the_same(server: FaultServer) -> None:
    server.routes["/metrics"] = DISABLED
    code, out, _ = say("doctor", "--url", server.url)
    assert code == 0
    assert server.url in out
    assert "/metrics disabled" in out
    assert "start llama-server with --metrics" in out
    assert "2 slots, 2 of them speculate" in out


def test_a_proxy_that_answers_and_whose_events_can_be_read(server: FaultServer, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.touch()
    server.routes["/v1/context"] = says(200, '{"status":{"version":"0.3.0","upstream":"ok","session_count":4}}')
    named = ("--proxy-url", server.url, "--proxy-log", str(events))
    _, found = report("--url", server.url, *named)
    assert found["proxy"]["state"] == "ok"
    assert "0.3.0, upstream ok, 4 sessions" in found["proxy"]["detail"]
    assert found["proxy"]["events_failure"] is None
    assert f"events: {events} can be read" in say("doctor", "--url", server.url, *named)[1]


def test_a_proxy_that_does_not_answer_is_said_and_the_exit_code_is_the_servers(
    server: FaultServer, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, found = report("--url", server.url, "--proxy-url", url, "--proxy-log", str(tmp_path / "no.jsonl"))
    assert code == 0
    assert found["proxy"]["state"] == "connection refused"
    assert "is not there yet" in found["proxy"]["events_failure"]


def test_without_a_proxy_it_is_said_how_to_name_one(server: FaultServer) -> None:
    _, found = report("--url", server.url)
    assert found["proxy"] is None
    assert "--proxy-url" in say("doctor", "--url", server.url)[1]


def with_nvml(monkeypatch: pytest.MonkeyPatch, nvml: FaultyNvml) -> None:
    monkeypatch.setattr("specdash.collect.gpu._import_nvml", lambda: nvml)


def test_gpu_driver_and_engines_are_named_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FaultyNvml()
    with_nvml(monkeypatch, nvml)
    code, found = report("--url", f"127.0.0.1:{free_port()}")
    assert code == 4
    assert found["gpu"] == {
        "count": 1,
        "unavailable": None,
        "absence": None,
        "driver": "575.1",
        "cuda": "12.8",
        "devices": [{"index": 0, "name": "NVIDIA H200", "memory_bytes": 80 << 30, "compute": "9.0"}],
    }
    (engine,) = found["engines"]
    assert engine["chosen"]
    assert engine["verdict"]
    code, out, _ = say("doctor", "--url", f"127.0.0.1:{free_port()}")
    assert code == 4
    assert "gpu      NVIDIA H200 (80.0 GiB, compute 9.0); driver 575.1, CUDA 12.8" in out


@pytest.mark.parametrize(
    ("running", "held", "words"),
    [
        ([(os.getpid, 3 << 30), (os.getppid, 1 << 30)], 3 << 30, "visible, holds 3.0 GiB of GPU memory"),
        ([(os.getppid, 1 << 30)], 0, "visible, holds no GPU memory: it runs on the CPU"),
        ([(os.getpid, None)], None, "visible"),
        # Numbers of outside the container.
        ([(lambda: 2**22 + 5, 1 << 30)], None, "visible"),
    ],
)
def test_what_the_server_holds_on_the_gpu_is_told(
    running: list[tuple[Callable[[], int], int | None]],
    held: int | None,
    words: str,
    server: FaultServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FaultyNvml()
    rows = [SimpleNamespace(pid=pid(), usedGpuMemory=size) for pid, size in running]
    nvml.values["nvmlDeviceGetComputeRunningProcesses"] = rows
    with_nvml(monkeypatch, nvml)
    assert report("--url", server.url)[1]["process"] == {"unavailable": None, "gpu_memory_bytes": held}
    assert f"process  {words}\n" in say("doctor", "--url", server.url)[1]


def test_without_a_driver_the_reason_is_said_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FaultyNvml()
    nvml.faults["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with_nvml(monkeypatch, nvml)
    monkeypatch.setattr("specdash.collect.gpu.PCI", Path("/nowhere"))
    code, out, _ = say("doctor", "--url", f"127.0.0.1:{free_port()}")
    assert code == 4
    assert "gpu      the NVIDIA driver is installed and not loaded: " in out
    assert "how to get one that uses the GPU: docs/backend.md" in out
