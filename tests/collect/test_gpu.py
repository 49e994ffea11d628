"""GPU readings: the real NVML where it is, the reason where it is not, and every driver fault survived.

Faults cannot be had from a healthy driver, so they are injected by a stand-in for the `pynvml` module.
"""

import sys
from typing import Any

import pynvml
import pytest

from specdash.collect import gpu as gpu_module
from specdash.collect.gpu import PROBES, RETRY_ABSENT_S, STATIC_PROBES, GpuCollector, reasons_in_words
from specdash.core.readings import FailureKind, Gpu, GpuProcess, Gpus, Reading, ReadingStatus, Source
from support.driver_library import DriverLibrary, error, healthy, number, processes, structure
from support.faulty_nvml import FaultyNvml


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


def test_the_real_nvml_gives_gpus_or_the_reason_why_not() -> None:
    readings: list[Reading[Gpus]] = []
    pause = GpuCollector(readings.append).step(1.0)
    (reading,) = readings
    assert reading.source is Source.GPU
    if reading.value is None:
        assert reading.failure is not None
        assert reading.failure.kind is FailureKind.UNAVAILABLE
        assert reading.failure.detail
        assert pause >= 2.0
    else:
        assert reading.value.gpus[0].name
        assert reading.value.gpus[0].memory_total_bytes


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


def test_every_field_of_the_observation_is_filled_by_one_probe() -> None:
    fields = [name for probe in (*PROBES, *STATIC_PROBES) for name in probe.fields]
    assert sorted(fields) == sorted(set(Gpu.__struct_fields__) - {"index"})


def test_what_hardly_ever_changes_is_asked_once_a_minute(bench: Bench, nvml: FaultyNvml) -> None:
    bench.step()
    for _ in range(20):
        bench.step(1.0)
    asked = {name: nvml.calls.count(name) for name in set(nvml.calls)}
    assert asked["nvmlDeviceGetUtilizationRates"] == 21
    assert asked["nvmlDeviceGetName"] == 1
    assert asked["nvmlInit"] == 1


def test_a_power_limit_that_is_set_by_hand_is_seen_within_a_minute(bench: Bench, nvml: FaultyNvml) -> None:
    nvml.faults["nvmlDeviceGetEnforcedPowerLimit"] = pynvml.NVML_ERROR_NO_DATA
    bench.step()
    seen = [bench.gpu.power_limit_watts]
    nvml.faults.clear()
    bench.step(60.0)
    seen.append(bench.gpu.power_limit_watts)
    nvml.values["nvmlDeviceGetEnforcedPowerLimit"] = 250_000
    bench.step(60.0)
    assert [*seen, bench.gpu.power_limit_watts] == [None, 700.0, 250.0]


@pytest.mark.parametrize("probe", [*PROBES, *STATIC_PROBES], ids=lambda probe: probe.fields[0])
@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_a_field_that_the_gpu_does_not_support_is_unknown_and_alone_so(probe: Any, error: int) -> None:
    whole, part = Bench(FaultyNvml()), Bench(FaultyNvml())
    whole.step()
    before = len(whole.nvml.calls)
    probe.ask(whole.nvml, 0)
    part.nvml.faults[whole.nvml.calls[before]] = error
    part.step()
    affected = {name for other in (*PROBES, *STATIC_PROBES) for name in other.fields if getattr(part.gpu, name) is None}
    assert set(probe.fields) <= affected
    # The two clocks are one function of NVML; everything else stands alone.
    assert affected - set(probe.fields) <= {"sm_clock_mhz", "memory_clock_mhz"}


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_UNKNOWN,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNINITIALIZED,
    ],
)
def test_a_driver_error_ends_the_session_and_a_new_one_recovers(bench: Bench, nvml: FaultyNvml, error: int) -> None:
    bench.step()
    nvml.faults["nvmlDeviceGetUtilizationRates"] = error
    pause = bench.step(1.0)
    assert "driver error" in bench.failure
    assert nvml.sessions == 0
    assert pause == 2.0
    nvml.faults.clear()
    bench.step(pause)
    assert bench.gpu.utilisation == 0.75
    assert nvml.sessions == 1


def test_attempts_at_a_broken_driver_grow_rarer(bench: Bench, nvml: FaultyNvml) -> None:
    nvml.faults["nvmlInit"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    pauses = [bench.step(1.0) for _ in range(8)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    assert all(reading.status is ReadingStatus.UNKNOWN for reading in bench.readings)


def test_one_lost_gpu_does_not_hide_the_others() -> None:
    bench = Bench(FaultyNvml(gpus=2))
    bench.step()
    bench.nvml.lost = {1}
    bench.step(1.0)
    assert "driver error" in bench.failure
    bench.step(2.0)
    value = bench.readings[-1].value
    assert value is not None
    assert value.gpus[0].utilisation == 0.75
    assert value.gpus[1] == Gpu(index=1)
    bench.nvml.lost = set()
    bench.step(120.0)
    value = bench.readings[-1].value
    assert value is not None
    assert value.gpus[1].utilisation == 0.75


def test_a_mig_gpu_tells_no_load_and_is_there_all_the_same(bench: Bench, nvml: FaultyNvml) -> None:
    nvml.faults["nvmlDeviceGetUtilizationRates"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    nvml.faults["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_NO_PERMISSION
    nvml.faults["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_NO_PERMISSION
    bench.step()
    gpu = bench.gpu
    assert (gpu.utilisation, gpu.memory_used_bytes, gpu.memory_left_bytes, gpu.processes) == (None, None, None, None)
    assert (gpu.name, gpu.power_watts) == ("NVIDIA H200", 250.5)


def test_without_the_library_of_the_driver_the_package_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "LIBRARY", "libnvidia-ml.so.of-no-driver")
    monkeypatch.delitem(sys.modules, "pynvml")
    bench = Bench(None)
    assert bench.step() == RETRY_ABSENT_S
    assert "no NVIDIA driver on this machine" in bench.failure
    assert "pynvml" not in sys.modules


def test_with_the_library_the_package_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "LIBRARY", None)  # the program itself: there is always that
    assert gpu_module._import_nvml() is pynvml


def told_by_the_package(field: str, library: DriverLibrary) -> Any:
    probe = next(probe for probe in PROBES if field in probe.fields)
    with library.opened() as nvml:
        return dict(zip(probe.fields, probe.ask(nvml, None), strict=True))[field]


@pytest.mark.parametrize("version", ["_v2", "_v3"])
def test_memory_that_the_driver_does_not_tell_of_a_process_is_unknown(version: str) -> None:
    answers = processes((4711, 3 << 30), (4712, 2**64 - 1))
    library = DriverLibrary(**{f"nvmlDeviceGetComputeRunningProcesses{version}": answers})
    assert told_by_the_package("processes", library) == (GpuProcess(4711, 3 << 30), GpuProcess(4712, None))


@pytest.mark.parametrize("word", ["Throttle", "Event"])
def test_what_limits_the_clocks_by_the_name_that_the_driver_has(word: str) -> None:
    library = DriverLibrary(**{f"nvmlDeviceGetCurrentClocks{word}Reasons": number(0x41)})
    assert told_by_the_package("throttle_reasons", library) == ("thermal slowdown (hardware)",)


def test_the_temperature_by_the_name_that_the_driver_has() -> None:
    library = DriverLibrary(nvmlDeviceGetTemperature=number(57))
    assert told_by_the_package("temperature_celsius", library) == 57.0
    both = DriverLibrary(nvmlDeviceGetTemperature=number(57), nvmlDeviceGetTemperatureV=structure(temperature=58))
    assert told_by_the_package("temperature_celsius", both) == 58.0
    refusing = error(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    other = DriverLibrary(nvmlDeviceGetTemperature=number(57), nvmlDeviceGetTemperatureV=refusing)
    assert told_by_the_package("temperature_celsius", other) == 57.0


def test_the_whole_reading_of_a_healthy_gpu_through_the_real_package() -> None:
    with healthy().opened() as nvml:
        bench = Bench(nvml)
        bench.step()
    assert bench.gpu.memory_left_bytes == 134153 << 20, "618 MiB less than total minus used"
    assert bench.gpu.uuid == "GPU-67ad81fc-b9e4-fd02-6e39-ac30327586d3"
    assert bench.gpu.processes == (GpuProcess(4711, 8 << 30, "p4711"), GpuProcess(4712, None, "p4712"))
    assert None not in {getattr(bench.gpu, name) for name in Gpu.__struct_fields__}


def test_a_package_without_the_older_names_still_asks() -> None:
    class Newer(FaultyNvml):
        def __getattr__(self, name: str) -> Any:
            if name in ("nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons"):
                raise AttributeError(name)
            return super().__getattr__(name)

    bench = Bench(Newer())
    bench.step()
    assert (bench.gpu.temperature_celsius, bench.gpu.throttle_reasons) == (61.0, ("power cap",))


def test_without_a_driver_the_reason_is_said_and_looked_at_again_later(bench: Bench, nvml: FaultyNvml) -> None:
    nvml.faults["nvmlInit"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert bench.step() == RETRY_ABSENT_S
    assert "no NVIDIA driver" in bench.failure
    nvml.faults["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert bench.step(30.0) == RETRY_ABSENT_S
    assert "not loaded" in bench.failure
    nvml.faults.clear()
    bench.step(30.0)
    assert bench.gpu.name == "NVIDIA H200"


def test_a_driver_without_gpus_says_so() -> None:
    bench = Bench(FaultyNvml(gpus=0))
    assert bench.step() == RETRY_ABSENT_S
    assert bench.failure == "NVML shows no GPU"


def test_a_session_that_cannot_be_closed_is_no_obstacle(bench: Bench, nvml: FaultyNvml) -> None:
    bench.step()
    nvml.faults = {"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_UNKNOWN, "nvmlShutdown": pynvml.NVML_ERROR_UNKNOWN}
    bench.step(1.0)
    assert "driver error" in bench.failure


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
