"""GPUs looked at when somebody wants to know."""

from specdash.collect.gpu import GpuLooks
from support.faulty_nvml import FaultyNvml


def test_gpus_are_told_together_by_what_matters_of_each() -> None:
    nvml = FaultyNvml(gpus=2)
    nvml.values["nvmlDeviceGetTemperatureV"] = lambda index, _: 50 + index
    nvml.values["nvmlDeviceGetClockInfo"] = lambda index, _: 1500 - 300 * index
    seen = GpuLooks(nvml=nvml).look()
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
    assert looks.look().celsius == 83
    assert nvml.sessions == 1


def test_what_one_of_them_does_not_tell_makes_no_sum() -> None:
    nvml = FaultyNvml(gpus=2)
    nvml.lost.add(1)
    seen = GpuLooks(nvml=nvml).look()
    assert (seen.used_bytes, seen.watts) == (None, None)
    assert (seen.celsius, seen.free_bytes) == (61, 69 << 30)
    assert seen.words == ("NVIDIA H200, 700 W", "unknown, -- W")


def test_without_a_gpu_there_is_a_reason_and_nothing_else() -> None:
    seen = GpuLooks(nvml=FaultyNvml(gpus=0)).look()
    assert "NVML shows no GPU" in seen.absent
    assert (seen.gpus, seen.words) == ((), ())
    assert (seen.free_bytes, seen.used_bytes, seen.utilisation) == (None, None, None)
