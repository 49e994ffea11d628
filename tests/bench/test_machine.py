"""The state of the machine around a measurement."""

import json

from specdash.bench.compare.machine import MachineState, MachineWatch, during_json
from specdash.core.readings import Gpu
from support.faulty_nvml import FaultyNvml
from support.waiting import until


def test_clocks_power_and_heat_are_told_before_and_after() -> None:
    nvml = FaultyNvml(gpus=2)
    with MachineWatch(nvml=nvml) as watch:
        nvml.values["nvmlDeviceGetTemperature"] = 83
    told = json.loads(json.dumps(watch.as_json()))
    before, after = told["before"]["gpus"][1], told["after"]["gpus"][1]
    assert (before["sm_clock_mhz"], before["power_watts"], before["power_limit_watts"]) == (1500, 250.5, 700.0)
    assert (before["temperature_celsius"], after["temperature_celsius"]) == (61.0, 83.0), "asked anew at the end"
    assert watch.states[0].watts == 501.0
    assert told["during"]["clock_limits"] == ["power cap"]
    assert "processes" not in before, "other people's processes are nobody's business"


def test_it_looks_again_and_again_meanwhile() -> None:
    with MachineWatch(0.01, nvml=FaultyNvml()) as watch:
        until(lambda: len(watch.states) >= 5, 20)
    assert watch.as_json()["during"]["looks"] == len(watch.states)


def test_without_a_gpu_the_reason_is_told_and_the_processor_is_still_looked_at() -> None:
    nvml = FaultyNvml(gpus=0)
    with MachineWatch(nvml=nvml) as watch:
        pass
    assert watch.states[0].gpus == ()
    assert "shows no GPU" in watch.states[0].gpu_absent
    assert watch.states[0].cpu_load_1m is not None
    assert watch.states[0].watts is None


def test_extremes_and_the_middle_are_of_what_is_known() -> None:
    states = [MachineState(0.0, cpu_mhz=value, gpus=(Gpu(0, sm_clock_mhz=clock),))
              for value, clock in ((1000.0, 1200), (None, None), (3000.0, 1800), (2000.0, 1500))]  # fmt: skip
    told = during_json(states)
    assert told["cpu_mhz"] == {"low": 1000.0, "median": 2000.0, "high": 3000.0}
    assert told["gpu0_sm_clock_mhz"] == {"low": 1200, "median": 1500, "high": 1800}
    assert "watts" not in told
