"""GPU readings: every field of a GPU, the reason where there is none, and every driver fault survived.

Faults cannot be had from a healthy driver, so they are injected by a stand-in for the `pynvml` module.
"""

import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from collect.seen import Seen
from specdash.collect import gpu as gpu_module
from specdash.collect.gpu import (
    PROBES,
    RETRY_ABSENT_S,
    STATIC_PROBES,
    Absence,
    GpuCollector,
    GpuLooks,
    look,
    reasons_in_words,
)
from specdash.core.readings import Gpu, GpuProcess, Gpus, Source
from support.driver_library import healthy
from support.faulty_nvml import FaultyNvml

CLOCKS = {"sm_clock_mhz", "memory_clock_mhz"}
"""Fields of one function of NVML."""


class Bench(Seen):
    """A collector with its clock and what it published."""

    def __init__(self, nvml: Any) -> None:
        super().__init__()
        self.now, self.nvml = 100.0, nvml
        self.collector = GpuCollector(
            self.take,
            lambda: frozenset({4711}),
            nvml=nvml,
            clock=lambda: self.now,
            name_of=lambda pid: f"p{pid}",
        )

    def step(self, after: float = 0.0) -> float:
        self.now += after
        return self.collector.step(1.0)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        found: Gpus = self.last(Source.GPU)
        return found.gpus

    @property
    def gpu(self) -> Gpu:
        return self.gpus[0]


@pytest.fixture
def nvml() -> FaultyNvml:
    return FaultyNvml()


@pytest.fixture
def bench(nvml: FaultyNvml) -> Bench:
    return Bench(nvml)


def test_all_fields_of_a_healthy_gpu_through_the_real_package() -> None:
    with healthy().opened() as nvml:
        bench = Bench(nvml)
        bench.step()
    assert bench.gpu == Gpu(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-67ad81fc-b9e4-fd02-6e39-ac30327586d3",
        utilisation=0.97,
        memory_utilisation=0.41,
        memory_used_bytes=9000 << 20,
        memory_total_bytes=143771 << 20,
        memory_free_bytes=134153 << 20,
        power_watts=412.345,
        power_limit_watts=700.0,
        temperature_celsius=44.0,
        sm_clock_mhz=1980,
        memory_clock_mhz=1980,
        throttle_reasons=("power cap",),
        processes=(GpuProcess(4711, 8 << 30, "p4711", True), GpuProcess(4712, None, "p4712", False)),
    )
    assert bench.gpu.memory_left_bytes == 134153 << 20, "618 MiB less than total minus used"


def test_what_hardly_ever_changes_is_asked_once_a_minute(bench: Bench, nvml: FaultyNvml) -> None:
    nvml.faults["nvmlDeviceGetEnforcedPowerLimit"] = pynvml.NVML_ERROR_NO_DATA
    bench.step()
    for _ in range(20):
        bench.step(1.0)
    assert [nvml.calls.count(f"nvml{name}") for name in ("Init", "DeviceGetName", "DeviceGetPowerUsage")] == [1, 1, 21]
    seen = [bench.gpu.power_limit_watts]
    nvml.faults.clear()
    for limit in (700_000, 250_000):
        nvml.values["nvmlDeviceGetEnforcedPowerLimit"] = limit
        bench.step(60.0)
        seen.append(bench.gpu.power_limit_watts)
    assert seen == [None, 700.0, 250.0]


def test_a_field_that_the_gpu_does_not_support_is_unknown_and_alone_so(bench: Bench, nvml: FaultyNvml) -> None:
    bench.step()
    asked = {name for name in nvml.calls if name.startswith("nvmlDeviceGet")}
    for name in asked - {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}:
        nvml.faults = {name: pynvml.NVML_ERROR_NOT_SUPPORTED}
        bench.step(60.0)
        unknown = {field for field in Gpu.__struct_fields__ if getattr(bench.gpu, field) is None}
        assert unknown
        assert any(unknown in ({*fields}, CLOCKS) for fields in (*PROBES, *STATIC_PROBES)), name


def test_a_driver_error_ends_the_session_and_a_new_one_recovers(bench: Bench, nvml: FaultyNvml) -> None:
    bench.step()
    nvml.faults = dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlShutdown"), pynvml.NVML_ERROR_GPU_IS_LOST)
    pauses = [bench.step(1.0) for _ in range(8)]
    assert "driver error" in bench.detail(Source.GPU)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60], "attempts grow rarer"
    nvml.faults.clear()
    bench.step(60.0)
    assert bench.gpu.utilisation == 0.75


def test_one_lost_gpu_does_not_hide_the_others() -> None:
    bench = Bench(FaultyNvml(gpus=2))
    bench.step()
    bench.nvml.lost = {1}
    bench.step(1.0)
    assert (bench.gpu.utilisation, bench.gpus[1]) == (0.75, Gpu(index=1))
    assert bench.nvml.sessions == 0, "a new session may bring it back"
    bench.step(1.0)
    assert bench.nvml.sessions == 1, "and the next attempt comes later"
    bench.nvml.lost = set()
    bench.step(60.0)
    assert bench.gpus[1].utilisation == 0.75


def test_without_the_library_of_the_driver_the_package_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "LIBRARY", "libnvidia-ml.so.of-no-driver")
    monkeypatch.delitem(sys.modules, "pynvml")
    bench = Bench(None)
    assert bench.step() == RETRY_ABSENT_S
    assert "no driver" in bench.detail(Source.GPU)
    assert "pynvml" not in sys.modules
    bench = Bench(FaultyNvml())
    bench.nvml.faults["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert bench.step() == RETRY_ABSENT_S
    assert "not loaded" in bench.detail(Source.GPU)
    bench.nvml.faults.clear()
    bench.step(30.0)
    assert bench.gpu.name == "NVIDIA H200", "one that is loaded later is seen then"


def test_throttle_reasons_in_words() -> None:
    assert reasons_in_words(0x1) == ()
    assert reasons_in_words(0x61) == ("thermal slowdown (software)", "thermal slowdown (hardware)")
    assert reasons_in_words(0x8000_0004) == ("power cap", "unknown reason 0x80000000")


def test_a_measurement_sees_the_gpus_together_by_what_matters_of_each() -> None:
    nvml = FaultyNvml(gpus=2)
    looks = GpuLooks(nvml=nvml)
    seen = looks.look()
    assert (seen.utilisation, seen.watts) == (0.75, 501.0)
    assert (seen.free_bytes, seen.used_bytes) == (69 << 30, 20 << 30), "the driver's reserve is not free"
    assert seen.words == ("NVIDIA H200, 700 W", "NVIDIA H200, 700 W")
    assert ([gpu.index for gpu in seen.gpus], seen.absent) == ([0, 1], "")
    nvml.lost.add(1)
    seen = looks.look()
    assert seen.free_bytes == 69 << 30
    assert (seen.used_bytes, seen.watts) == (None, None), "a part is no sum"
    assert seen.words == ("NVIDIA H200, 700 W", "unknown, -- W")
    seen = GpuLooks(nvml=FaultyNvml(gpus=0)).look()
    assert "shows no GPU" in seen.absent
    assert (seen.gpus, seen.words, seen.free_bytes) == ((), (), None)


def test_the_doctor_names_every_gpu_as_far_as_it_is_known_and_closes_its_session(tmp_path: Path) -> None:
    nvml = FaultyNvml(gpus=2)
    nvml.faults = {
        "nvmlSystemGetCudaDriverVersion": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        "nvmlDeviceGetCudaComputeCapability": pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
    nvml.lost = {1}
    found = look(nvml, tmp_path)
    assert (found.version, found.cuda, found.absence, nvml.sessions) == ("575.1", None, None, 0)
    assert [driver_gpu.words for driver_gpu in found.gpus] == ["NVIDIA H200 (80.0 GiB)", "GPU 1"]


@pytest.mark.parametrize(
    ("asked", "fault", "on_the_bus", "absence", "words"),
    [
        ("Init", "LIBRARY_NOT_FOUND", None, Absence.NO_GPU, "no NVIDIA GPU and no driver on this machine"),
        # Another vendor's, and another device of NVIDIA's.
        ("Init", "LIBRARY_NOT_FOUND", ("0x1002", "0x030000"), Absence.NO_GPU, "no NVIDIA GPU and no driver"),
        ("Init", "LIBRARY_NOT_FOUND", ("0x10de", "0x040300"), Absence.NO_GPU, "no NVIDIA GPU and no driver"),
        ("Init", "LIBRARY_NOT_FOUND", ("0x10de", "0x030200"), Absence.NO_DRIVER, "is there (PCI 0000:01:00.0), and"),
        ("Init", "DRIVER_NOT_LOADED", ("0x10de", "0x030000"), Absence.NOT_LOADED, "not loaded: `modprobe nvidia`"),
        ("Init", "DRIVER_NOT_LOADED", None, Absence.NO_GPU, "there seems to be no NVIDIA GPU"),
        ("Init", "LIB_RM_VERSION_MISMATCH", None, Absence.MISMATCH, "of different versions: restart"),
        ("Init", "UNKNOWN", None, Absence.ERROR, "driver error: Unknown Error"),
        ("DeviceGetCount", "GPU_IS_LOST", None, Absence.ERROR, "driver error"),
        ("", "", None, Absence.HIDDEN, "--gpus all"),
    ],
)
def test_why_there_is_no_gpu_is_named_with_what_to_do(
    tmp_path: Path, asked: str, fault: str, on_the_bus: tuple[str, str] | None, absence: Absence, words: str
) -> None:
    nvml = FaultyNvml(gpus=0)
    if fault:
        nvml.faults[f"nvml{asked}"] = getattr(pynvml, f"NVML_ERROR_{fault}")
    if on_the_bus is not None:
        device = tmp_path / "0000:01:00.0"
        device.mkdir()
        for name, text in zip(("vendor", "class"), on_the_bus, strict=True):
            (device / name).write_text(f"{text}\n")
    found = look(nvml, tmp_path)
    assert (found.absence, found.gpus) == (absence, ())
    assert words in found.detail
