"""The comparison with nvidia-smi finds what differs, and only that: the driver is injected, nvidia-smi scripted."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu import smi
from gpu.checks import nvml as check
from gpu.kit import Kit
from gpu.report import Report, Result
from specdash.backend.demo import TARGET_MODEL, bundled_model
from specdash.collect import gpu as collecting
from specdash.core.readings import Gpu
from support.engines import llama_server_binary
from support.faulty_nvml import FaultyNvml
from support.recorded_nvml import phases
from support.scripted_smi import GPU, install

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEN = Gpu(
    0, "NVIDIA H200", "GPU-1", 0.75, 0.2, 10 << 30, 80 << 30, 69 << 30, 250.5, 700.0, 61.0, 1500, 1500, ("power cap",)
)  # fmt: skip


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "bin"


def differing(folder: Path, said: Mapping[str, str], *seen: Gpu) -> dict[str, str]:
    install(folder, {**GPU, **said})
    known = smi.known_names()
    (row,) = smi.query([name for comparison in smi.COMPARISONS if (name := smi.name_of(comparison, known))])
    return {field: how for field, how in smi.differences(row, seen or (SEEN,), known).items() if how}


def test_what_both_say_does_not_differ(on_path: Path) -> None:
    assert differing(on_path, {}) == {}


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"name": "NVIDIA H100"}, "name"),
        ({"uuid": "GPU-2"}, "uuid"),
        ({"utilization.gpu": "77"}, "utilisation"),
        ({"utilization.memory": "0"}, "memory_utilisation"),
        ({"memory.used": "11264"}, "memory_used_bytes"),
        ({"memory.total": "80896"}, "memory_total_bytes"),
        ({"memory.free": "71680"}, "memory_free_bytes"),
        ({"power.draw": "240.00"}, "power_watts"),
        ({"enforced.power.limit": "650.00"}, "power_limit_watts"),
        ({"temperature.gpu": "63"}, "temperature_celsius"),
        ({"clocks.sm": "1980"}, "sm_clock_mhz"),
        ({"clocks.mem": "1501"}, "memory_clock_mhz"),
        ({"clocks_event_reasons.active": "0x0000000000000000"}, "throttle_reasons"),
        ({"clocks_event_reasons.active": "0x0000000000000044"}, "throttle_reasons"),
        ({"power.draw": "[N/A]"}, "power_watts"),
    ],
)
def test_what_differs_is_found_alone(on_path: Path, said: dict[str, str], field: str) -> None:
    assert set(differing(on_path, said)) == {field}


def test_a_value_that_moves_lies_between_what_was_read_around_it(on_path: Path) -> None:
    before, after = replace(SEEN, power_watts=100.0, throttle_reasons=()), replace(SEEN, power_watts=400.0)
    assert differing(on_path, {"power.draw": "310.00"}, before, after) == {}
    assert differing(on_path, {"clocks_event_reasons.active": "0x1"}, before, after) == {}
    assert set(differing(on_path, {"power.draw": "410.00"}, before, after)) == {"power_watts"}


def test_what_neither_tells_is_no_difference_and_what_one_of_them_tells_is(on_path: Path) -> None:
    virtual = replace(SEEN, power_watts=None)
    assert differing(on_path, {"power.draw": "[N/A]"}, virtual) == {}
    assert differing(on_path, {}, virtual) == {"power_watts": "nvidia-smi tells 250.50, specdash nothing"}


def test_an_older_nvidia_smi_is_asked_by_its_own_names(on_path: Path) -> None:
    older = {name: value for name, value in GPU.items() if name != "clocks_event_reasons.active"}
    install(on_path, {**older, "clocks_throttle_reasons.active": "0x0000000000000040"})
    known = smi.known_names()
    (row,) = smi.query([name for comparison in smi.COMPARISONS if (name := smi.name_of(comparison, known))])
    assert [field for field, how in smi.differences(row, [SEEN], known).items() if how] == ["throttle_reasons"]


def test_processes_without_a_known_size_and_none_at_all(on_path: Path) -> None:
    install(on_path)
    assert smi.compute_apps() == {10: 1 << 30, 11: None}
    install(on_path, apps=["No running processes found"])
    assert smi.compute_apps() == {}


def test_energy_is_the_area_under_the_power() -> None:
    assert check.integral([(0.0, 100.0), (1.0, 300.0), (3.0, 300.0)]) == 800.0


class Meter(FaultyNvml):
    """A driver whose counter goes with its power."""

    def __init__(self, watts: float) -> None:
        super().__init__()
        self.watts = watts
        self.values = {"nvmlSystemGetCudaDriverVersion": 13000, "nvmlDeviceGetCudaComputeCapability": (9, 0)}

    def answer(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name == "nvmlDeviceGetTotalEnergyConsumption":
            return int(time.monotonic() * self.watts * 1000)
        return super().answer(name, arguments, options)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "nvml.json", "nvml", "")


def run(kit: Kit, report: Report, driver: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Result]:
    monkeypatch.setattr(collecting, "_import_nvml", lambda: driver)
    monkeypatch.setattr(Kit, "model", lambda *_: bundled_model(TARGET_MODEL))
    monkeypatch.setattr(check, "FLAGS", ("-ngl", "99", "-c", "4096", "-np", "1", "-t", "1", "--metrics"))
    monkeypatch.setattr(check, "ENERGY_S", 4.0)
    monkeypatch.setattr(check, "PROMPT_TOKENS", 200)
    monkeypatch.setattr(check, "ROUNDS", dict.fromkeys(check.ROUNDS, 1))
    check.run(kit, report)
    report.end()
    return {finding.what: finding.result for finding in report.findings}


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    for name in ("work", "out"):
        (tmp_path / name).mkdir()
    return Kit(tmp_path / "kit", tmp_path / "work", tmp_path / "out", Path(llama_server_binary()))


@pytest.mark.slow
@pytest.mark.llama_server
def test_the_whole_check_with_a_real_server_on_an_injected_gpu(
    on_path: Path, kit: Kit, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(on_path)
    found = run(kit, report, Meter(250.5), monkeypatch)
    # The snapshot is a process of its own, and sees that there is no GPU here.
    assert {what for what, result in found.items() if result is Result.FAILED} == {"the snapshot has the GPU"}
    assert found["NVML's energy counter is the sum of its power while the server decodes"] is Result.PASSED
    assert found["the processes on the GPU"] is Result.SKIPPED, "the injected driver has not the server's number"
    assert phases(kit.out / "nvml.json") == ["idle", "decode", "burst"]
    assert json.loads((kit.out / "nvml.json").read_text())["processes"] == {"server": 1003}


@pytest.mark.slow
@pytest.mark.llama_server
def test_what_is_wrong_with_the_readings_fails_the_check(
    on_path: Path, kit: Kit, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(on_path, {**GPU, "memory.free": "71680"})
    found = run(kit, report, Meter(300.0), monkeypatch)
    failed = {what for what, result in found.items() if result is Result.FAILED}
    assert "memory_free_bytes is what nvidia-smi says, idle and at work" in failed
    assert "NVML's energy counter is the sum of its power while the server decodes" in failed


def test_without_a_gpu_it_says_why_there_is_none(kit: Kit, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "LIBRARY", "libnvidia-ml.so.of-no-driver")
    check.run(replace(kit, cpu=True), report)
    assert [finding.result for finding in report.findings] == [Result.PASSED, Result.SKIPPED]
    assert "no" in str(report.findings[0].measured)
