"""The machine's rules on a real server that decodes, watched by a real hub.

Only the GPU's driver is a stand-in: a GPU cannot be broken at will.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specdash.collect import gpu
from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import shipped, with_user_limits
from support.faults import BreakableServer, watched
from support.faulty_nvml import FaultyNvml

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]

OWN = tuple(rule for rule in shipped() if rule.family == "machine")
SOON = """
[gpu_throttled]
raise_after_s = 2
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


def test_a_throttled_gpu(nvml: FaultyNvml, server: BreakableServer) -> None:
    nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0x48
    processes = [having(pid=server.process.pid, usedGpuMemory=GIB)]
    nvml.values["nvmlDeviceGetComputeRunningProcesses"] = processes
    with watched(server.target, with_user_limits(OWN, SOON), gpu=True) as seen, server.working():
        throttled = seen.until_alert("gpu_throttled")
        assert throttled.severity is AlertSeverity.CRITICAL
        assert "thermal slowdown (hardware) at 61 °C" in throttled.summary


def test_a_server_whose_cpus_others_take(server: BreakableServer) -> None:
    for thread in psutil.Process(server.process.pid).threads():
        os.setpriority(os.PRIO_PROCESS, thread.id, 19)
    with watched(server.target, OWN) as seen, server.working(), contextlib.ExitStack() as burning:
        for _ in range(2 * (os.cpu_count() or 1)):
            burner = burning.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            burning.callback(burner.kill)
        assert "of the CPUs" in seen.until_alert("cpu_starved").summary
