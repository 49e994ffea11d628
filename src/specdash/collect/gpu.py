"""NVIDIA GPUs through NVML: every field with its own time to live and failures, and a fresh start after a driver error.

`nvml` is the `pynvml` module (package nvidia-ml-py) or, in fault tests, something that behaves like it.
"""

from __future__ import annotations

import ctypes
import math
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core.readings import FailureKind, Gpu, GpuProcess, Gpus, Reading, Source
from specdash.system.processes import name_of as process_name
from specdash.system.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


RETRY_ABSENT_S = 30.0
"""Seconds between looks for an NVML that is not there."""

FIRST_RETRY_S = 2.0
LAST_RETRY_S = 60.0
"""Back-off after driver errors."""

STATIC_S = 60.0
"""What changes by hand alone, if at all, is good for this long: `nvidia-smi -pl` sets the power limit."""

LIBRARY = "libnvidia-ml.so.1"
"""NVML itself: a part of the driver, which `pynvml` opens."""

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


class Probe(Struct, frozen=True):
    """One NVML question: the fields of `Gpu` that it fills, in order, and how long its answer is good for."""

    fields: tuple[str, ...]
    ttl_s: float
    ask: Callable[[Any, Any], tuple[Any, ...]]


def _utilisation(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu / 100.0, rates.memory / 100.0


def _memory(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    # Version 1 counts what the driver reserves as used.
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    return memory.used, memory.total, memory.free


def _throttle_reasons(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    # Drivers before 535 know the older name alone; it is to go with CUDA 14.
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return (reasons_in_words(_first_known(nvml, names, gpu)),)


def _temperature(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    # The older name is to go with CUDA 14.
    names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
    return (float(_first_known(nvml, names, gpu, nvml.NVML_TEMPERATURE_GPU)),)


def _processes(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    # The first is version 3, which drivers before 510 do not have.
    names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")
    running = _first_known(nvml, names, gpu)
    return (tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in running),)


def _first_known(nvml: Any, names: tuple[str, str], *arguments: Any) -> Any:
    """The answer to a question by its newer name, or by its older one where package or driver have only that."""
    *newer, last = [name for name in names if hasattr(nvml, name)]
    unknown = (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch, nvml.NVMLLibraryMismatchError)
    for name in newer:
        try:
            return getattr(nvml, name)(*arguments)
        except unknown:
            continue
    return getattr(nvml, last)(*arguments)


PROBES: tuple[Probe, ...] = (
    Probe(("utilisation", "memory_utilisation"), 1.0, _utilisation),
    Probe(("memory_used_bytes", "memory_total_bytes", "memory_free_bytes"), 1.0, _memory),
    Probe(("power_watts",), 1.0, lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,)),
    Probe(("sm_clock_mhz",), 2.0, lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)),
    Probe(("memory_clock_mhz",), 2.0, lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),)),
    Probe(("throttle_reasons",), 2.0, _throttle_reasons),
    Probe(("temperature_celsius",), 5.0, _temperature),
    Probe(("processes",), 5.0, _processes),
    Probe(("power_limit_watts",), STATIC_S, lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000.0,)),
    Probe(("name",), STATIC_S, lambda nvml, gpu: (_text(nvml.nvmlDeviceGetName(gpu)),)),
    Probe(("uuid",), STATIC_S, lambda nvml, gpu: (_text(nvml.nvmlDeviceGetUUID(gpu)),)),
)

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


def read(nvml: Any, gpu: Any, probes: Iterable[Probe] = PROBES) -> dict[str, Any]:
    """What one GPU says to these questions, by the fields that they fill; None where it does not support one.

    Raises NVMLError when the driver session is no good any more.
    """
    found: dict[str, Any] = {}
    for probe in probes:
        try:
            found |= zip(probe.fields, probe.ask(nvml, gpu), strict=True)
        except nvml.NVMLError as error:
            if not _is(nvml, error, *FIELD_ERRORS):
                raise
            found |= dict.fromkeys(probe.fields)
    return found


class _Device(Struct):
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
        self._name_of = name_of or process_name
        self._probes = probes
        self._names: dict[int, str | None] = {}
        self._devices: list[_Device] | None = None
        self._driver: str | None = None
        self._errors = 0
        self._revive_at = math.inf

    def step(self, interval_s: float) -> float:
        """Publish what NVML says, or why it says nothing."""
        try:
            nvml = self._nvml = self._nvml or _import_nvml()
        except ImportError:
            return self._absent("the package nvidia-ml-py is not installed", RETRY_ABSENT_S)
        except NoDriverError as error:
            return self._absent(str(error), RETRY_ABSENT_S)
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
        self._revive_at = math.inf
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
        due = [probe for probe in self._probes if now >= device.due.get(probe.fields[0], now)]
        device.fields |= read(nvml, device.handle, due)
        # A little less than the time to live, or a look that comes early would skip a whole round.
        device.due |= {probe.fields[0]: now + 0.9 * probe.ttl_s for probe in due}
        known = dict(device.fields)
        if (processes := known.get("processes")) is not None:
            known["processes"] = self._named(processes)
        return Gpu(index=device.index, **known)

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


class NoDriverError(Exception):
    """There is no NVML to be opened."""


def _import_nvml() -> Any:
    """`pynvml`, where the driver has what it opens: its import takes 2 to 3 MB and up to 74 ms.

    Raises ImportError, and NoDriverError.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoDriverError(_NO_DRIVER) from error
    import pynvml

    return pynvml


def _is(nvml: Any, error: Exception, *names: str) -> bool:
    return isinstance(error, tuple(kind for name in names if (kind := getattr(nvml, name, None)) is not None))


_NO_DRIVER = f"no NVIDIA driver on this machine ({LIBRARY} not found)"


def _why_absent(nvml: Any, error: Exception) -> str:
    if _is(nvml, error, "NVMLError_LibraryNotFound"):
        return _NO_DRIVER
    return "the NVIDIA driver is not loaded"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# GPUs looked at when somebody wants to know, everything asked anew, for measurements: nothing here runs by itself.


Number = TypeVar("Number", int, float)
_PROBES = tuple(replace(probe, ttl_s=0.0) for probe in PROBES if probe.fields != ("processes",))


class GpuLook(Struct, frozen=True):
    """All GPUs at one moment, without their processes. What no driver tells is None."""

    gpus: tuple[Gpu, ...] = ()
    absent: str = ""
    """Why there is none."""

    @property
    def free_bytes(self) -> int | None:
        """Of the one with the least."""
        return min(_known(gpu.memory_free_bytes for gpu in self.gpus), default=None)

    @property
    def utilisation(self) -> float | None:
        """Of the busiest, 0 to 1."""
        return max(_known(gpu.utilisation for gpu in self.gpus), default=None)

    @property
    def used_bytes(self) -> int | None:
        """Of all together."""
        return _sum([gpu.memory_used_bytes for gpu in self.gpus])

    @property
    def watts(self) -> float | None:
        """Of all together."""
        return _sum([gpu.power_watts for gpu in self.gpus])

    @property
    def celsius(self) -> float | None:
        """Of the hottest."""
        return max(_known(gpu.temperature_celsius for gpu in self.gpus), default=None)

    @property
    def clock_mhz(self) -> int | None:
        """Of the slowest."""
        return min(_known(gpu.sm_clock_mhz for gpu in self.gpus), default=None)

    @property
    def words(self) -> tuple[str, ...]:
        """Name and power limit of each, as a stored result depends on them."""
        return tuple(
            f"{gpu.name or 'unknown'}, {'--' if gpu.power_limit_watts is None else f'{gpu.power_limit_watts:.0f}'} W"
            for gpu in self.gpus
        )


class GpuLooks:
    """Looks through NVML. What cannot be looked at is absent, with the reason. For one thread at a time."""

    def __init__(self, *, nvml: Any = None) -> None:
        """`nvml` is as in `collect.gpu`."""
        self._said: Reading[Any] | None = None
        self._collector = GpuCollector(self._take, nvml=nvml, probes=_PROBES)

    def look(self) -> GpuLook:
        """What the GPUs say now."""
        self._collector.step(1.0)
        said = self._said
        value = said.value if said is not None else None
        if not isinstance(value, Gpus):
            return GpuLook(absent=said.failure.detail if said is not None and said.failure is not None else "")
        return GpuLook(value.gpus)

    def _take(self, reading: Reading[Any]) -> None:
        self._said = reading


def _known(values: Iterable[Number | None]) -> list[Number]:
    return [value for value in values if value is not None]


def _sum(values: Sequence[Number | None]) -> Number | None:
    """None where one is not known: a part is no sum."""
    known = _known(values)
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


# The NVIDIA driver, its CUDA version and its GPUs, looked at once; or why there are none.
#
# NVML tells what the driver sees. Where there is no driver, the PCI bus still tells whether there is a GPU.


PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""PCI classes: VGA controller, 3D controller."""


class Absence(StrEnum):
    """Why no GPU can be used."""

    NO_GPU = "no NVIDIA GPU"
    NO_DRIVER = "no driver"
    NOT_LOADED = "driver not loaded"
    MISMATCH = "driver and its library differ"
    HIDDEN = "no GPU shown"
    NO_PACKAGE = "package missing"
    ERROR = "driver error"


class DriverGpu(Struct, frozen=True):
    """One GPU. Fields that the driver does not tell are None; `compute` is the CUDA compute capability."""

    index: int
    name: str | None = None
    memory_bytes: int | None = None
    compute: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """Name, memory and capability, as far as they are known."""
        memory = None if self.memory_bytes is None else size(self.memory_bytes)
        compute = None if self.compute is None else f"compute {self.compute[0]}.{self.compute[1]}"
        more = ", ".join(part for part in (memory, compute) if part is not None)
        return f"{self.name or f'GPU {self.index}'}{f' ({more})' if more else ''}"


class Driver(Struct, frozen=True):
    """What the driver says. `cuda` is the newest CUDA version that it runs, as (12, 8)."""

    version: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[DriverGpu, ...] = ()
    absence: Absence | None = None
    detail: str = ""
    """Why there is no GPU, in words with what to do; empty where there is one."""


def _compute(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    return ((int(major), int(minor)),)


_IDENTITY = (
    *(probe for name in ("name", "memory_total_bytes") for probe in PROBES if name in probe.fields),
    Probe(("compute",), STATIC_S, _compute),
)


def look(nvml: Any = None, pci: Path = PCI) -> Driver:
    """What the driver says now; never raises."""
    try:
        nvml = nvml or _import_nvml()
    except ImportError:
        return Driver(absence=Absence.NO_PACKAGE, detail="the package nvidia-ml-py is not installed")
    except NoDriverError:
        return _no_driver(pci)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _absent(nvml, error, pci)
    try:
        version = _asked(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion()))
        cuda = _asked(nvml, lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion()))
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            return Driver(version, cuda, (), Absence.ERROR, f"driver error: {error}")
        gpus = tuple(_gpu(nvml, index) for index in range(count))
    finally:
        _asked(nvml, nvml.nvmlShutdown)
    if gpus:
        return Driver(version, cuda, gpus)
    return Driver(
        version, cuda, (), Absence.HIDDEN, "the driver shows no GPU; in a container, start it with --gpus all"
    )


def _gpu(nvml: Any, index: int) -> DriverGpu:
    handle = _asked(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return DriverGpu(index)
    # One at a time: what a broken driver does not say to one of them, it may say to the next.
    name, memory, compute = (_asked(nvml, partial(read, nvml, handle, [probe])) or {} for probe in _IDENTITY)
    return DriverGpu(index, name.get("name"), memory.get("memory_total_bytes"), compute.get("compute"))


def _asked(nvml: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (nvml.NVMLError, TypeError, ValueError):
        return None


def _absent(nvml: Any, error: Exception, pci: Path) -> Driver:
    if _is(nvml, error, "NVMLError_LibraryNotFound"):
        return _no_driver(pci)
    there = gpus_on_the_bus(pci)
    if _is(nvml, error, "NVMLError_DriverNotLoaded"):
        said = "the NVIDIA driver is installed and not loaded"
        fix = "`modprobe nvidia`, or restart the machine" if there else "there seems to be no NVIDIA GPU"
        return Driver(absence=Absence.NOT_LOADED if there else Absence.NO_GPU, detail=f"{said}: {fix}")
    if _is(nvml, error, "NVMLError_LibRmVersionMismatch"):
        said = "the driver in the kernel and its library are of different versions: restart the machine"
        return Driver(absence=Absence.MISMATCH, detail=said)
    return Driver(absence=Absence.ERROR, detail=f"driver error: {error}")


def _no_driver(pci: Path) -> Driver:
    if there := gpus_on_the_bus(pci):
        said = f"an NVIDIA GPU is there (PCI {there[0]}), and no driver: install NVIDIA's"
        return Driver(absence=Absence.NO_DRIVER, detail=said)
    return Driver(absence=Absence.NO_GPU, detail="no NVIDIA GPU and no driver on this machine")


def gpus_on_the_bus(pci: Path = PCI) -> tuple[str, ...]:
    """PCI addresses of NVIDIA's display devices, driver or not; none where the bus cannot be read."""
    found = []
    try:
        devices = sorted(pci.iterdir())
    except OSError:
        return ()
    for device in devices:
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            found.append(device.name)
    return tuple(found)


def _cuda(number: Any) -> tuple[int, int]:
    return int(number) // 1000, int(number) % 1000 // 10
