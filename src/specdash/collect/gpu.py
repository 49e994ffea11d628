"""NVIDIA GPUs through NVML: every field with its own time to live and failures, and a fresh start after a driver error.

`nvml` is the `pynvml` module (package nvidia-ml-py) or, in fault tests, something that behaves like it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from specdash.core.observations import Gpu, GpuProcess, Gpus
from specdash.core.readings import FailureKind, Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RETRY_ABSENT_S = 30.0
"""Seconds between looks for an NVML that is not there."""

FIRST_RETRY_S = 2.0
LAST_RETRY_S = 60.0
"""Back-off after driver errors."""

FOREVER_S = float("inf")

THROTTLE_REASONS: tuple[tuple[int, str], ...] = (
    (0x002, "application clock setting"),
    (0x004, "power cap"),
    (0x008, "hardware slowdown"),
    (0x010, "sync boost"),
    (0x020, "thermal slowdown (software)"),
    (0x040, "thermal slowdown (hardware)"),
    (0x080, "power brake"),
    (0x100, "display clock setting"),
)
"""Bits of nvmlClocksEventReasons in words. Bit 0, idle, limits nothing that anybody misses."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One NVML question: the fields that it fills, in order, and how long its answer is good for.

    Fields that `Gpu` does not have are told by `GpuCollector.told`.
    """

    fields: tuple[str, ...]
    ttl_s: float
    ask: Callable[[Any, Any], tuple[Any, ...]]


def _utilisation(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu / 100.0, rates.memory / 100.0


def _memory(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    # Version 1 counts what the driver reserves as used.
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    return memory.used, memory.total


def _processes(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return (tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in running),)


PROBES: tuple[Probe, ...] = (
    Probe(("utilisation", "memory_utilisation"), 1.0, _utilisation),
    Probe(("memory_used_bytes", "memory_total_bytes"), 1.0, _memory),
    Probe(("power_watts",), 1.0, lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,)),
    Probe(("sm_clock_mhz",), 2.0, lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)),
    Probe(("memory_clock_mhz",), 2.0, lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),)),
    Probe(
        ("throttle_reasons",),
        2.0,
        lambda nvml, gpu: (reasons_in_words(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),),
    ),
    Probe(
        ("temperature_celsius",),
        5.0,
        lambda nvml, gpu: (float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),),
    ),
    Probe(("processes",), 5.0, _processes),
    Probe(("power_limit_watts",), FOREVER_S, lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000.0,)),
    Probe(("name",), FOREVER_S, lambda nvml, gpu: (_text(nvml.nvmlDeviceGetName(gpu)),)),
    Probe(("uuid",), FOREVER_S, lambda nvml, gpu: (_text(nvml.nvmlDeviceGetUUID(gpu)),)),
)

ENERGY = Probe(("energy_joules",), 1.0, lambda nvml, gpu: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000.0,))
"""Since the driver was loaded. Volta and newer."""
FREE = Probe(
    ("memory_free_bytes",), 1.0, lambda nvml, gpu: (nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).free,)
)
"""Less than total minus used: the driver reserves some."""

_OF_GPU = frozenset(one.name for one in fields(Gpu))

FIELD_ERRORS = (
    "NVMLError_NotSupported",
    "NVMLError_NoPermission",
    "NVMLError_InvalidArgument",
    "NVMLError_FunctionNotFound",
    "NVMLError_ArgumentVersionMismatch",
    "NVMLError_NoData",
    "NVMLError_NotFound",
    "NVMLError_InsufficientSize",
)
"""Errors that concern one question; every other one means that the driver session is no good any more."""


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """Active clock-limit reasons; bits that this table does not know are named by number."""
    known = 1
    words: list[str] = []
    for bit, name in THROTTLE_REASONS:
        known |= bit
        if bits & bit:
            words.append(name)
    if unknown := bits & ~known:
        words.append(f"unknown reason {unknown:#x}")
    return tuple(words)


@dataclass(slots=True)
class _Device:
    index: int
    handle: Any
    """None for a GPU that the driver has lost."""
    fields: dict[str, Any] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)


class GpuCollector:
    """Publishes GPU readings. `step` is to be called again after the seconds it returns."""

    def __init__(
        self,
        publish: Callable[[Reading[Any]], None],
        backend_pids: Callable[[], frozenset[int]] = frozenset,
        *,
        nvml: Any = None,
        clock: Callable[[], float] = time.monotonic,
        name_of: Callable[[int], str | None] | None = None,
        probes: Sequence[Probe] = PROBES,
    ) -> None:
        self._publish = publish
        self._backend_pids = backend_pids
        self._nvml = nvml
        self._clock = clock
        self._name_of = name_of or _process_name
        self._probes = probes
        self._names: dict[int, str | None] = {}
        self._devices: list[_Device] | None = None
        self._driver: str | None = None
        self._errors = 0
        self._revive_at = FOREVER_S

    def step(self, interval_s: float) -> float:
        """Publish what NVML says, or why it says nothing."""
        try:
            nvml = self._nvml = self._nvml or _import_nvml()
        except ImportError:
            return self._absent("the package nvidia-ml-py is not installed", RETRY_ABSENT_S)
        try:
            gpus = self._gpus(nvml)
        except nvml.NVMLError as error:
            return self._driver_failed(nvml, error)
        self._errors = 0
        if not gpus:
            self._stop(nvml)
            return self._absent("NVML shows no GPU", RETRY_ABSENT_S)
        self._publish(Reading.known(Source.GPU, self._clock(), Gpus(gpus, self._driver)))
        return max(interval_s, 1.0)

    def told(self, name: str) -> tuple[Any, ...]:
        """What each GPU said last of a field; None for one that does not tell."""
        return tuple(device.fields.get(name) if device.handle is not None else None for device in self._devices or ())

    def _gpus(self, nvml: Any) -> tuple[Gpu, ...]:
        if self._devices is not None and self._clock() >= self._revive_at:
            self._stop(nvml)
        devices = self._devices if self._devices is not None else self._start(nvml)
        gpus: list[Gpu] = []
        for device in devices:
            try:
                gpus.append(self._gpu(nvml, device))
            except nvml.NVMLError:
                # A new session did not help this GPU; the others shall not be lost with it.
                if not self._errors or len(devices) == 1:
                    raise
                device.handle = None
                self._revive_at = self._clock() + LAST_RETRY_S
                gpus.append(Gpu(device.index))
        return tuple(gpus)

    def _start(self, nvml: Any) -> list[_Device]:
        nvml.nvmlInit()
        self._devices = []
        self._revive_at = FOREVER_S
        try:
            self._driver = _text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            self._driver = None
        self._devices = [self._device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        return self._devices

    def _device(self, nvml: Any, index: int) -> _Device:
        try:
            return _Device(index, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError:
            self._revive_at = self._clock() + LAST_RETRY_S
            return _Device(index, None)

    def _stop(self, nvml: Any) -> None:
        self._devices = None
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            # A session that is lost cannot always be closed; starting anew is what helps.
            return

    def _driver_failed(self, nvml: Any, error: Exception) -> float:
        started = self._devices is not None
        if started:
            self._stop(nvml)
        if not started and _is(nvml, error, "NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
            return self._absent(_why_absent(nvml, error), RETRY_ABSENT_S)
        self._errors += 1
        pause = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** (min(self._errors, 10) - 1))
        return self._absent(f"driver error: {error}; trying again in {pause:.0f} s", pause)

    def _absent(self, why: str, pause: float) -> float:
        self._publish(Reading.unknown(Source.GPU, self._clock(), FailureKind.UNAVAILABLE, why))
        return pause

    def _gpu(self, nvml: Any, device: _Device) -> Gpu:
        if device.handle is None:
            return Gpu(device.index)
        now = self._clock()
        for probe in self._probes:
            key = probe.fields[0]
            if now >= device.due.get(key, now):
                self._ask(nvml, device, probe)
                # A little less than the time to live, or a look that comes early would skip a whole round.
                device.due[key] = now + 0.9 * probe.ttl_s
        known = {name: value for name, value in device.fields.items() if name in _OF_GPU}
        if (processes := known.get("processes")) is not None:
            known["processes"] = self._named(processes)
        return Gpu(index=device.index, **known)

    def _ask(self, nvml: Any, device: _Device, probe: Probe) -> None:
        try:
            device.fields.update(zip(probe.fields, probe.ask(nvml, device.handle), strict=True))
        except nvml.NVMLError as error:
            if not _is(nvml, error, *FIELD_ERRORS):
                raise
            for name in probe.fields:
                device.fields.pop(name, None)

    def _named(self, processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
        ours = self._backend_pids()
        self._names = {
            process.pid: self._names[process.pid] if process.pid in self._names else self._name_of(process.pid)
            for process in processes
        }
        return tuple(
            GpuProcess(process.pid, process.memory_bytes, self._names[process.pid], process.pid in ours)
            for process in processes
        )


def _import_nvml() -> Any:
    import pynvml

    return pynvml


def _is(nvml: Any, error: Exception, *names: str) -> bool:
    return isinstance(error, tuple(kind for name in names if (kind := getattr(nvml, name, None)) is not None))


def _why_absent(nvml: Any, error: Exception) -> str:
    if _is(nvml, error, "NVMLError_LibraryNotFound"):
        return "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"
    return "the NVIDIA driver is not loaded"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _process_name(pid: int) -> str | None:
    import psutil

    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None
