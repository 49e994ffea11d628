"""GPU readings: every field of a GPU, the reason where there is none, and every driver fault survived.

Faults cannot be had from a healthy driver, so they are injected by a stand-in for the `pynvml` module.
"""

import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from specdash.collect import gpu as gpu_module
from specdash.collect.gpu import (
    PROBES,
    RETRY_ABSENT_S,
    STATIC_PROBES,
    Absence,
    GpuCollector,
    GpuLooks,
    gpus_on_the_bus,
    look,
    reasons_in_words,
)
from specdash.core.readings import FailureKind, Gpu, GpuProcess, Gpus, Reading
from support.driver_library import healthy
from support.faulty_nvml import FaultyNvml

CLOCKS = {"sm_clock_mhz", "memory_clock_mhz"}
"""Fields of one function of NVML."""


class Bench:
    """A collector with its clock and what it published."""

    def __init__(self, nvml: Any) -> None:
        self.now = 100.0
        self.nvml = nvml
        self.readings: list[Reading[Gpus]] = []
        self.collector = GpuCollector(
            self.readings.append,
            lambda: frozenset({10}),
            nvml=nvml,
            clock=lambda: self.now,
            name_of=lambda pid: f"p{pid}",
        )

    def step(self, after: float = 0.0) -> float:
        self.now += after
        return self.collector.step(1.0)

    @property
    def gpu(self) -> Gpu:
        value = self.readings[-1].value
        assert value is not None, self.readings[-1].failure
        return value.gpus[0]

    @property
    def failure(self) -> str:
        failure = self.readings[-1].failure
        assert failure is not None
        assert failure.kind is FailureKind.UNAVAILABLE
        return failure.detail


@pytest.fixture
def nvml() -> FaultyNvml:
    return FaultyNvml()


@pytest.fixture
def bench(nvml: FaultyNvml) -> Bench:
    return Bench(nvml)


def test_all_fields_of_a_healthy_gpu(bench: Bench) -> None:
    bench.step()
    assert bench.gpu == Gpu(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-1",
        utilisation=0.75,
        memory_utilisation=0.2,
        memory_used_bytes=10 << 30,
        memory_total_bytes=80 << 30,
        memory_free_bytes=69 << 30,
        power_watts=250.5,
        power_limit_watts=700.0,
        temperature_celsius=61.0,
        sm_clock_mhz=1500,
        memory_clock_mhz=1500,
        throttle_reasons=("power cap",),
        processes=(GpuProcess(10, 1 << 30, "p10", True), GpuProcess(11, None, "p11", False)),
    )


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


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED])
def test_a_driver_error_ends_the_session_and_a_new_one_recovers(bench: Bench, nvml: FaultyNvml, error: int) -> None:
    bench.step()
    nvml.faults = {"nvmlDeviceGetUtilizationRates": error, "nvmlShutdown": pynvml.NVML_ERROR_UNKNOWN}
    pauses = [bench.step(1.0) for _ in range(8)]
    assert "driver error" in bench.failure
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60], "attempts grow rarer"
    nvml.faults.clear()
    bench.step(60.0)
    assert bench.gpu.utilisation == 0.75


def test_one_lost_gpu_does_not_hide_the_others() -> None:
    bench = Bench(FaultyNvml(gpus=2))
    bench.step()
    bench.nvml.lost = {1}
    bench.step(1.0)
    value = bench.readings[-1].value
    assert value is not None
    assert value.gpus[0].utilisation == 0.75
    assert value.gpus[1] == Gpu(index=1)
    assert bench.nvml.sessions == 0, "a new session may bring it back"
    bench.step(1.0)
    assert bench.nvml.sessions == 1, "and the next attempt comes later"
    bench.nvml.lost = set()
    bench.step(60.0)
    value = bench.readings[-1].value
    assert value is not None
    assert value.gpus[1].utilisation == 0.75


def test_without_the_library_of_the_driver_the_package_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "LIBRARY", "libnvidia-ml.so.of-no-driver")
    monkeypatch.delitem(sys.modules, "pynvml")
    bench = Bench(None)
    assert bench.step() == RETRY_ABSENT_S
    assert "no driver" in bench.failure
    assert "pynvml" not in sys.modules
    bench = Bench(FaultyNvml())
    bench.nvml.faults["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert bench.step() == RETRY_ABSENT_S
    assert "not loaded" in bench.failure
    bench.nvml.faults.clear()
    bench.step(30.0)
    assert bench.gpu.name == "NVIDIA H200", "one that is loaded later is seen then"


def test_the_whole_reading_of_a_healthy_gpu_through_the_real_package() -> None:
    with healthy().opened() as nvml:
        bench = Bench(nvml)
        bench.step()
    assert bench.gpu.memory_left_bytes == 134153 << 20, "618 MiB less than total minus used"
    assert bench.gpu.uuid == "GPU-67ad81fc-b9e4-fd02-6e39-ac30327586d3"
    assert bench.gpu.processes == (GpuProcess(4711, 8 << 30, "p4711"), GpuProcess(4712, None, "p4712"))
    assert None not in {getattr(bench.gpu, name) for name in Gpu.__struct_fields__}


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, ("power cap",)),
        (0x61, ("thermal slowdown (software)", "thermal slowdown (hardware)")),
        (0x8000_0004, ("power cap", "unknown reason 0x80000000")),
    ],
)
def test_throttle_reasons_in_words(bits: int, words: tuple[str, ...]) -> None:
    assert reasons_in_words(bits) == words


def test_a_measurement_sees_the_gpus_together_by_what_matters_of_each() -> None:
    nvml = FaultyNvml(gpus=2)
    nvml.values["nvmlDeviceGetTemperature"] = lambda index, _: 50 + index
    nvml.values["nvmlDeviceGetClockInfo"] = lambda index, _: 1500 - 300 * index
    looks = GpuLooks(nvml=nvml)
    seen = looks.look()
    assert (seen.celsius, seen.clock_mhz, seen.utilisation, seen.watts) == (51.0, 1200, 0.75, 501.0)
    assert (seen.free_bytes, seen.used_bytes) == (69 << 30, 20 << 30), "the driver's reserve is not free"
    assert seen.words == ("NVIDIA H200, 700 W", "NVIDIA H200, 700 W")
    assert ([gpu.index for gpu in seen.gpus], seen.absent) == ([0, 1], "")
    nvml.lost.add(1)
    seen = looks.look()
    assert (seen.celsius, seen.free_bytes) == (50.0, 69 << 30)
    assert (seen.used_bytes, seen.watts) == (None, None), "a part is no sum"
    assert seen.words == ("NVIDIA H200, 700 W", "unknown, -- W")
    seen = GpuLooks(nvml=FaultyNvml(gpus=0)).look()
    assert "shows no GPU" in seen.absent
    assert (seen.gpus, seen.words, seen.free_bytes) == ((), (), None)


def bus(folder: Path, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    device = folder / "pci/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    return folder / "pci"


def test_the_doctor_names_driver_cuda_and_every_gpu_as_far_as_they_are_known(tmp_path: Path) -> None:
    nvml = FaultyNvml(gpus=2)
    found = look(nvml, tmp_path)
    assert (found.version, found.cuda, found.absence) == ("575.1", (12, 8), None)
    assert [driver_gpu.words for driver_gpu in found.gpus] == ["NVIDIA H200 (80.0 GiB, compute 9.0)"] * 2
    assert nvml.sessions == 0, "the session is closed again"
    nvml.faults = {
        "nvmlSystemGetCudaDriverVersion": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        "nvmlDeviceGetCudaComputeCapability": pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
    nvml.lost = {1}
    found = look(nvml, tmp_path)
    assert (found.version, found.cuda) == ("575.1", None)
    assert [driver_gpu.words for driver_gpu in found.gpus] == ["NVIDIA H200 (80.0 GiB)", "GPU 1"]


@pytest.mark.parametrize(
    ("fault", "gpu_there", "absence", "words"),
    [
        ("LIBRARY_NOT_FOUND", False, Absence.NO_GPU, "no NVIDIA GPU and no driver on this machine"),
        ("LIBRARY_NOT_FOUND", True, Absence.NO_DRIVER, "an NVIDIA GPU is there (PCI 0000:01:00.0), and"),
        ("DRIVER_NOT_LOADED", True, Absence.NOT_LOADED, "installed and not loaded: `modprobe nvidia`"),
        ("DRIVER_NOT_LOADED", False, Absence.NO_GPU, "there seems to be no NVIDIA GPU"),
        ("LIB_RM_VERSION_MISMATCH", True, Absence.MISMATCH, "of different versions: restart"),
        ("UNKNOWN", True, Absence.ERROR, "driver error: Unknown Error"),
    ],
)
def test_why_there_is_no_gpu_is_named_with_what_to_do(
    tmp_path: Path, fault: str, gpu_there: bool, absence: Absence, words: str
) -> None:
    nvml = FaultyNvml()
    nvml.faults["nvmlInit"] = getattr(pynvml, f"NVML_ERROR_{fault}")
    found = look(nvml, bus(tmp_path) if gpu_there else tmp_path)
    assert (found.absence, found.gpus) == (absence, ())
    assert words in found.detail


def test_a_driver_that_shows_no_gpu_points_at_containers_and_one_that_fails_is_an_error(tmp_path: Path) -> None:
    found = look(FaultyNvml(gpus=0), tmp_path)
    assert (found.absence, found.version) == (Absence.HIDDEN, "575.1")
    assert "--gpus all" in found.detail
    nvml = FaultyNvml()
    nvml.faults["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert look(nvml, tmp_path).absence is Absence.ERROR


@pytest.mark.parametrize(("vendor", "kind"), [("0x1002", "0x030000"), ("0x10de", "0x040300")])
def test_other_vendors_and_other_devices_of_nvidia_are_no_gpus(tmp_path: Path, vendor: str, kind: str) -> None:
    assert gpus_on_the_bus(bus(tmp_path, vendor, kind)) == []
    assert gpus_on_the_bus(tmp_path / "nowhere") == []
