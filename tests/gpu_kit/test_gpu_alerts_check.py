"""The alerts of a full GPU, measured: the driver is injected, the other process only seems to take memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpu.checks import gpu_alerts as check
from gpu.kit import Kit
from gpu.memory_holder import MIB, CudaError, Held
from gpu.report import Report, Result
from specdash.backend.demo import TARGET_MODEL, bundled_model
from specdash.collect import gpu as collecting
from support.engines import llama_server_binary
from support.faulty_nvml import FaultyNvml

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]

TOTAL = 80 << 30
FULL = """#!/bin/sh
case " $* " in
  *" --port "*)
    echo 'load_tensors: loading model tensors' >&2
    printf 'ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 0: ' >&2
    echo 'cudaMalloc failed: out of memory' >&2
    echo 'srv    load_model: failed to load model' >&2
    echo 'srv  llama_server: exiting due to model loading error' >&2
    exit 1 ;;
esac
exec {binary} "$@"
"""
"""An engine that answers for itself, and finds no memory on its GPU."""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setattr(Kit, "model", lambda *_: bundled_model(TARGET_MODEL))
    for name in ("work", "out"):
        (tmp_path / name).mkdir()
    return Kit(tmp_path / "kit", tmp_path / "work", tmp_path / "out", Path(llama_server_binary()))


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "gpu_alerts.json", "gpu_alerts", "")


def results(report: Report) -> dict[str, Result]:
    return {finding.what: finding.result for finding in report.findings}


def test_a_gpu_that_is_taken_by_another_process_raises_its_alerts_in_time(
    kit: Kit, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FaultyNvml()
    driver.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0
    driver.values["nvmlDeviceGetComputeRunningProcesses"] = [SimpleNamespace(pid=1, usedGpuMemory=70 << 30)]

    @contextlib.contextmanager
    def holding(leave_mib: int) -> Iterator[Held]:
        memory = {"used": TOTAL - (leave_mib + 600) * MIB, "total": TOTAL, "free": leave_mib * MIB}
        driver.values["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(**memory)
        yield Held(1, 70 << 30, leave_mib * MIB)
        del driver.values["nvmlDeviceGetMemoryInfo"]

    monkeypatch.setattr(collecting, "_import_nvml", lambda: driver)
    monkeypatch.setattr(check, "holding", holding)
    check._taken(kit, report)
    found = results(report)
    # `specdash check` is a process of its own, and sees no GPU here.
    assert {what for what, result in found.items() if result is Result.FAILED} == {
        "specdash check warns of that, and of nothing else about the GPU"
    }
    assert found["150 MiB left on the GPU are told"] is Result.PASSED
    assert found["30 MiB left on the GPU are critical"] is Result.PASSED
    assert found["another process on the server's GPU is told"] is Result.SKIPPED, "the server is not seen on the GPU"


def test_a_holder_that_fails_is_a_finding(kit: Kit, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def holding(leave_mib: int) -> Any:
        raise CudaError("no CUDA driver")

    monkeypatch.setattr(collecting, "_import_nvml", FaultyNvml)
    monkeypatch.setattr(check, "holding", holding)
    check._taken(kit, report)
    assert results(report)["another process takes the GPU's memory"] is Result.FAILED


def test_a_start_that_finds_no_memory_on_the_gpu_is_explained(
    tmp_path: Path, kit: Kit, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "llama-server"
    engine.write_text(FULL.format(binary=kit.llama_server))
    engine.chmod(0o755)
    monkeypatch.setattr(check, "holding", lambda _: contextlib.nullcontext())
    check._start_without_memory(Kit(kit.kit, kit.work, kit.out, engine), report)
    found = results(report)
    assert found.pop("preflight refuses it before") is Result.FAILED, "there is no GPU here"
    assert set(found.values()) == {Result.PASSED}, report.findings
    assert len(found) == 3
