"""What the real `pynvml` opens, with the structures of C: a scripted driver in place of libnvidia-ml.so.1."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pynvml

OK = 0


class DriverLibrary:
    """Knows the functions that are given, and no others, as a driver of its age does."""

    def __init__(self, **functions: Callable[..., int]) -> None:
        self.__dict__.update(functions)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """`pynvml` with this library in it."""
        with (
            mock.patch.object(pynvml, "nvmlLib", self),
            mock.patch.object(pynvml, "_nvmlGetFunctionPointer_cache", {}),
        ):
            yield pynvml


def number(value: int) -> Callable[..., int]:
    """A function whose last argument points to a number."""

    def ask(*arguments: Any) -> int:
        arguments[-1]._obj.value = value
        return OK

    return ask


def text(value: str) -> Callable[..., int]:
    """A function that fills a buffer, which is followed by its size."""

    def ask(*arguments: Any) -> int:
        arguments[-2].value = value.encode()
        return OK

    return ask


def structure(**values: int) -> Callable[..., int]:
    """A function whose last argument points to a structure."""

    def ask(*arguments: Any) -> int:
        for name, value in values.items():
            setattr(arguments[-1]._obj, name, value)
        return OK

    return ask


def error(code: int) -> Callable[..., int]:
    """A function that fails."""
    return lambda *_: code


def processes(*found: tuple[int, int]) -> Callable[..., int]:
    """nvmlDeviceGetComputeRunningProcesses: asked for the number first, then with an array to fill."""

    def ask(_: Any, count: Any, into: Any) -> int:
        count._obj.value = len(found)
        if into is None:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if found else OK
        for at, (pid, used) in enumerate(found):
            into[at].pid, into[at].usedGpuMemory = pid, used
        return OK

    return ask


def _handle(index: Any, into: Any) -> int:
    # A driver's handles are pointers to what nobody may look into.
    into._obj.contents = ctypes.cast(0x1000 + index.value, type(into._obj)).contents
    return OK


def _compute(_: Any, major: Any, minor: Any) -> int:
    major._obj.value, minor._obj.value = 9, 0
    return OK


def healthy(**others: Callable[..., int]) -> DriverLibrary:
    """A driver of 2026 with one GPU; `others` are functions that answer otherwise."""
    mib = 1 << 20
    functions: dict[str, Callable[..., int]] = {
        "nvmlInitWithFlags": error(OK),
        "nvmlShutdown": error(OK),
        "nvmlSystemGetDriverVersion": text("580.65.06"),
        "nvmlSystemGetCudaDriverVersion": number(13000),
        "nvmlDeviceGetCount_v2": number(1),
        "nvmlDeviceGetHandleByIndex_v2": _handle,
        "nvmlDeviceGetName": text("NVIDIA H200"),
        "nvmlDeviceGetUUID": text("GPU-67ad81fc-b9e4-fd02-6e39-ac30327586d3"),
        "nvmlDeviceGetUtilizationRates": structure(gpu=97, memory=41),
        "nvmlDeviceGetMemoryInfo_v2": structure(
            total=143771 * mib, used=9000 * mib, free=134153 * mib, reserved=618 * mib
        ),
        "nvmlDeviceGetPowerUsage": number(412_345),
        "nvmlDeviceGetTotalEnergyConsumption": number(2**40 + 7),
        "nvmlDeviceGetEnforcedPowerLimit": number(700_000),
        "nvmlDeviceGetTemperature": number(44),
        "nvmlDeviceGetClockInfo": number(1980),
        "nvmlDeviceGetCurrentClocksEventReasons": number(0x4),
        "nvmlDeviceGetComputeRunningProcesses_v3": processes((4711, 8 << 30), (4712, 2**64 - 1)),
        "nvmlDeviceGetCudaComputeCapability": _compute,
    }
    return DriverLibrary(**{**functions, **others})
