"""GPUs looked at when somebody wants to know."""

from __future__ import annotations

import pynvml

from specdash.collect.gpu import GpuLooks
from support.faulty_nvml import FaultyNvml


def test_gpus_are_told_together_by_what_matters_of_each() -> None:
    nvml = FaultyNvml(gpus=2)
    nvml.values["nvmlDeviceGetTotalEnergyConsumption"] = lambda index: 1000 * (index + 1)
    nvml.values["nvmlDeviceGetTemperatureV"] = lambda index, _: 50 + index
    nvml.values["nvmlDeviceGetClockInfo"] = lambda index, _: 1500 - 300 * index
    seen = GpuLooks(nvml=nvml).look()
    assert seen.energy_joules == 3.0
    assert (seen.celsius, seen.clock_mhz, seen.utilisation, seen.watts) == (51.0, 1200, 0.75, 501.0)
    assert (seen.free_bytes, seen.used_bytes) == (69 << 30, 20 << 30), "the driver's reserve is not free"
    assert seen.words == ("NVIDIA H200, 700 W", "NVIDIA H200, 700 W")
    assert [gpu.index for gpu in seen.gpus] == [0, 1]
    assert seen.absent == ""


def test_every_look_asks_anew_in_one_session() -> None:
    nvml = FaultyNvml()
    looks = GpuLooks(nvml=nvml)
    assert looks.look().celsius == 61
    nvml.values["nvmlDeviceGetTemperatureV"] = 83
    nvml.values["nvmlDeviceGetTotalEnergyConsumption"] = 9_000
    again = looks.look()
    assert (again.celsius, again.energy_joules) == (83, 9.0)
    assert nvml.sessions == 1
    assert "nvmlDeviceGetComputeRunningProcesses" not in nvml.calls, "nobody's processes are wanted"


def test_what_one_of_them_does_not_tell_makes_no_sum() -> None:
    nvml = FaultyNvml(gpus=2)
    nvml.lost.add(1)
    seen = GpuLooks(nvml=nvml).look()
    assert (seen.energy_joules, seen.used_bytes, seen.watts) == (None, None, None)
    assert (seen.celsius, seen.free_bytes) == (61, 69 << 30)
    assert seen.words == ("NVIDIA H200, 700 W", "unknown, -- W")


def test_a_driver_without_energy_counters_tells_the_rest() -> None:
    nvml = FaultyNvml()
    nvml.faults["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    seen = GpuLooks(nvml=nvml).look()
    assert seen.energy_joules is None
    assert seen.watts == 250.5


def test_without_a_gpu_there_is_a_reason_and_nothing_else() -> None:
    seen = GpuLooks(nvml=FaultyNvml(gpus=0)).look()
    assert "NVML shows no GPU" in seen.absent
    assert (seen.gpus, seen.words) == ((), ())
    assert (seen.energy_joules, seen.free_bytes, seen.used_bytes, seen.utilisation) == (None, None, None, None)
