"""Every record of a driver's answers in tests/data/nvml, read and drawn as specdash does it on a machine with a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdash.collect.gpu import GpuCollector, GpuLooks, look
from specdash.core.readings import Gpus, Reading, ReadingStatus
from specdash.insight.picture import GpuPicture
from specdash.system.text import percent, size_pair
from specdash.tui.widgets.board import gpu_lines
from support.recorded_nvml import RecordedNvml, phases, play

RECORDS = sorted((Path(__file__).parents[1] / "data" / "nvml").glob("*.json"))
PHASES = [(file, phase) for file in RECORDS for phase in phases(file)]


@pytest.fixture(params=PHASES, ids=[f"{file.stem}-{phase}" for file, phase in PHASES])
def driver(request: pytest.FixtureRequest) -> RecordedNvml:
    file, phase = request.param
    return play(file, phase)


def observed(driver: RecordedNvml) -> Gpus:
    readings: list[Reading[Gpus]] = []
    own = frozenset(driver.processes.values())
    GpuCollector(readings.append, lambda: own, nvml=driver, name_of=lambda pid: f"p{pid}").step(1.0)
    assert readings[0].value is not None, readings[0].failure
    return readings[0].value


def test_the_collector_understands_every_answer(driver: RecordedNvml) -> None:
    seen = observed(driver)
    assert seen.driver_version
    for gpu in seen.gpus:
        assert gpu.name
        assert gpu.uuid is not None
        assert set(gpu.uuid) <= set("GPU-0123456789"), "no card's own number belongs into a test"
        assert gpu.utilisation is not None
        assert 0 <= gpu.utilisation <= 1
        used, free, total = gpu.memory_used_bytes, gpu.memory_free_bytes, gpu.memory_total_bytes
        assert used is not None
        assert free is not None
        assert total is not None
        assert used + free <= total
        assert gpu.power_watts is not None
        assert gpu.power_limit_watts is not None
        assert 0 < gpu.power_watts <= 1.2 * gpu.power_limit_watts
        assert gpu.temperature_celsius is not None
        assert 0 < gpu.temperature_celsius < 110
        assert gpu.sm_clock_mhz
        assert gpu.memory_clock_mhz
        assert gpu.throttle_reasons is not None
        assert not [
            throttle_reason for throttle_reason in gpu.throttle_reasons if throttle_reason.startswith("unknown")
        ]
        for process in gpu.processes or ():
            assert process.memory_bytes is None or process.memory_bytes <= total


def test_the_panel_shows_it(driver: RecordedNvml) -> None:
    seen = observed(driver)
    lines = gpu_lines(GpuPicture(seen.gpus, None, ReadingStatus.KNOWN), 70)
    shown = "\n".join("".join(text for text, _ in line) for line in lines)
    for gpu in seen.gpus:
        assert percent(gpu.utilisation) in shown
        assert size_pair(gpu.memory_used_bytes, gpu.memory_total_bytes) in shown
        assert f"{gpu.temperature_celsius:.0f} °C" in shown
        assert f"/{gpu.power_limit_watts:.0f} W" in shown


def test_the_doctor_and_the_tuner_understand_them_too(driver: RecordedNvml) -> None:
    found = look(driver)
    assert found.absence is None
    assert found.cuda is not None
    assert all(gpu.compute is not None and gpu.memory_bytes for gpu in found.gpus)
    looked = GpuLooks(nvml=driver).look()
    assert looked.free_bytes is not None
