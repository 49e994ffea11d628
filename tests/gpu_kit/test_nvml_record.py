"""What a driver answered can be played again: the same readings come out, and no number of its owner's is in it."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from gpu.nvml_record import NvmlRecord, look
from specdash.core.readings import Gpu, GpuProcess, Gpus
from support.driver_library import error, healthy, number
from support.faulty_nvml import FaultyNvml
from support.recorded_nvml import NotRecordedError, RecordedNvml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.readings import Reading

SERVER = 4711


def without_numbers(readings: Sequence[Reading[Any]]) -> list[tuple[Gpu, ...]]:
    found = []
    for reading in readings:
        assert isinstance(reading.value, Gpus), reading.failure
        found.append(tuple(replace(gpu, uuid=None, processes=_unnumbered(gpu)) for gpu in reading.value.gpus))
    return found


def gpus_of(readings: Sequence[Reading[Any]]) -> tuple[Gpu, ...]:
    (first, *_) = readings
    assert isinstance(first.value, Gpus), first.failure
    return first.value.gpus


def _unnumbered(gpu: Gpu) -> tuple[GpuProcess, ...] | None:
    return gpu.processes and tuple(replace(process, pid=0, name=None) for process in gpu.processes)


def recorded(record: NvmlRecord) -> dict[str, Any]:
    """As it comes out of a file."""
    plain: dict[str, Any] = json.loads(json.dumps(record.to_json()))
    return plain


def test_the_structures_of_the_real_package_come_back_as_they_were() -> None:
    record = NvmlRecord()
    record.name("server", SERVER)
    with healthy(nvmlDeviceGetPowerUsage=error(pynvml.NVML_ERROR_NOT_SUPPORTED)).opened() as nvml:
        seen = look(record.listening(nvml, "idle"))
    with healthy(nvmlDeviceGetPowerUsage=number(650_250)).opened() as nvml:
        loaded = look(record.listening(nvml, "load"))
    played = recorded(record)
    assert without_numbers(look(RecordedNvml(played, "idle"))) == without_numbers(seen)
    assert without_numbers(look(RecordedNvml(played, "load"))) == without_numbers(loaded)
    (first,) = without_numbers(seen)[0]
    assert (first.power_watts, first.memory_free_bytes, first.utilisation) == (None, 134153 << 20, 0.97)
    (again,) = without_numbers(loaded)[0]
    assert again.power_watts == 650.25


def test_processes_and_gpus_have_other_numbers_in_it() -> None:
    record = NvmlRecord()
    record.name("server", SERVER)
    with healthy().opened() as nvml:
        (seen,) = gpus_of(look(record.listening(nvml, "idle")))
    text = json.dumps(record.to_json())
    assert "67ad81fc" not in text
    assert "4711" not in text
    assert "4712" not in text
    played = RecordedNvml(recorded(record), "idle")
    (gpu,) = gpus_of(look(played))
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert [(process.pid, process.memory_bytes) for process in gpu.processes or ()] == [(1001, 8 << 30), (1002, None)]
    assert played.processes == {"server": 1001}
    assert [process.pid for process in seen.processes or ()] == [SERVER, 4712], "what it listens to hears nothing of it"


def test_answers_come_in_their_order_and_the_last_one_stays() -> None:
    record, nvml = NvmlRecord(), FaultyNvml()
    listening = record.listening(nvml, "load")
    listening.nvmlDeviceGetPowerUsage(0)
    nvml.values["nvmlDeviceGetPowerUsage"] = 300_000
    listening.nvmlDeviceGetPowerUsage(0)
    nvml.faults["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        listening.nvmlDeviceGetPowerUsage(0)
    played = RecordedNvml(recorded(record), "load")
    assert [played.nvmlDeviceGetPowerUsage(0) for _ in range(2)] == [250_500, 300_000]
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            played.nvmlDeviceGetPowerUsage(0)


def test_a_question_that_was_not_asked_has_no_answer() -> None:
    played = RecordedNvml({"processes": {}, "phases": {"idle": []}}, "idle")
    with pytest.raises(NotRecordedError, match="nvmlDeviceGetPowerUsage"):
        played.nvmlDeviceGetPowerUsage(0)


class Inner(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 8), ("pid", ctypes.c_uint)]


class Both(ctypes.Union):
    _fields_ = [("number", ctypes.c_ulonglong), ("half", ctypes.c_uint)]


class Outer(Inner):
    _fields_ = [("parts", Inner * 2), ("either", Both), ("ratio", ctypes.c_double)]


def test_any_structure_of_c_is_told_by_its_fields() -> None:
    outer = Outer(name=b"h200", pid=SERVER, parts=(Inner(b"a", 1), Inner(b"b", SERVER)), ratio=0.1 + 0.2)
    outer.either.number = 2**64 - 1
    inner = {"structure": "Inner", "fields": {"name": {"bytes": "a"}, "pid": 1002}}
    other = {"structure": "Inner", "fields": {"name": {"bytes": "b"}, "pid": 1001}}
    either = {"structure": "Both", "fields": {"number": 2**64 - 1, "half": 2**32 - 1}}
    whole = json.loads(json.dumps(NvmlRecord().plain(outer)))
    assert whole["structure"] == "Outer"
    assert whole["fields"] == {
        "name": {"bytes": "h200"}, "pid": 1001, "parts": [inner, other], "either": either, "ratio": 0.1 + 0.2,
    }  # fmt: skip


def test_a_pointer_is_told_by_the_order_in_which_it_was_seen() -> None:
    record, numbers = NvmlRecord(), [ctypes.c_int(1), ctypes.c_int(2)]
    first, second = (ctypes.pointer(c_int) for c_int in numbers)
    again = ctypes.pointer(numbers[0])
    assert [record.plain(pointer)["handle"] for pointer in (first, second, again)] == [0, 1, 0]
