"""The machine's rules on a real server that decodes, watched by a real hub.

Only the GPU's driver is a stand-in: a GPU cannot be broken at will.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from specdash.collect import gpu
from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import shipped, with_user_limits
from support.faults import BreakableServer, Watched, watched
from support.faulty_nvml import FaultyNvml
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]

OWN = tuple(rule for rule in shipped() if rule.spec.family == "machine")
SOON = """
[gpu_unused]
limits.window_s = 4
limits.busy_share = 0.5
[gpu_throttled]
raise_after_s = 2
[gpu_shared]
raise_after_s = 1
"""
GIB = 1 << 30


def having(**fields: Any) -> Any:
    return type("Struct", (), fields)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FaultyNvml:
    """The driver that the hub's collector finds."""
    driver = FaultyNvml()
    driver.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0
    monkeypatch.setattr(gpu, "_import_nvml", lambda: driver)
    return driver


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BreakableServer]:
    with BreakableServer(tmp_path, "-ngl", "99") as running:
        yield running


def has_gpu(seen: Watched) -> bool:
    return bool(seen.picture().gpu.gpus)


def test_a_server_at_work_on_a_healthy_gpu_raises_nothing(nvml: FaultyNvml, server: BreakableServer) -> None:
    nvml.values["nvmlDeviceGetComputeRunningProcesses"] = [having(pid=server.process.pid, usedGpuMemory=GIB)]
    with watched(server.target, with_user_limits(OWN, SOON), gpu=True) as seen, server.working():
        until(lambda: has_gpu(seen))
        time.sleep(8)
        assert seen.rules_raised() <= {"server_starved"}, "tests beside this one may take its CPU"


def test_a_throttled_gpu_and_a_neighbour_on_it(nvml: FaultyNvml, server: BreakableServer) -> None:
    nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0x48
    processes = [having(pid=server.process.pid, usedGpuMemory=GIB), having(pid=1, usedGpuMemory=30 * GIB)]
    nvml.values["nvmlDeviceGetComputeRunningProcesses"] = processes
    with watched(server.target, with_user_limits(OWN, SOON), gpu=True) as seen, server.working():
        throttled = seen.until_alert("gpu_throttled")
        assert throttled.severity is AlertSeverity.CRITICAL
        assert "thermal slowdown (hardware) at 61 °C" in throttled.summary
        assert "30.0 GiB on GPU 0" in seen.until_alert("gpu_shared").summary


def test_a_server_that_decodes_on_the_cpu_although_it_was_given_a_gpu(
    nvml: FaultyNvml, server: BreakableServer
) -> None:
    nvml.values["nvmlDeviceGetUtilizationRates"] = having(gpu=0, memory=0)

    with watched(server.target, with_user_limits(OWN, SOON), gpu=True) as seen, server.working(2):
        assert "it was started with 99 layers for it" in seen.until_alert("gpu_unused").summary


def test_a_gpu_that_falls_off_the_bus_and_comes_back(nvml: FaultyNvml, server: BreakableServer) -> None:
    with watched(server.target, OWN, interval_s=1.0, gpu=True) as seen:
        until(lambda: has_gpu(seen))
        nvml.faults = dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlInit"), pynvml.NVML_ERROR_UNKNOWN)
        alert = seen.until_alert("gpu_lost")
        assert alert.severity is AlertSeverity.CRITICAL
        nvml.faults = {}
        seen.until_over("gpu_lost", 60)


def test_a_server_whose_cpus_others_take(server: BreakableServer) -> None:
    for thread in psutil.Process(server.process.pid).threads():
        os.setpriority(os.PRIO_PROCESS, thread.id, 19)
    with watched(server.target, OWN) as seen, server.working(), contextlib.ExitStack() as burning:
        for _ in range(2 * (os.cpu_count() or 1)):
            burner = burning.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            burning.callback(burner.kill)
        assert "of the CPUs" in seen.until_alert("server_starved").summary
