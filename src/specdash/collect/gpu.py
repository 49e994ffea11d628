"""NVIDIA GPUs through NVML: each field fails alone, and a new session follows a driver error.

`nvml` is the `pynvml` module (package nvidia-ml-py) or, in fault tests, something that behaves like it.
"""

from __future__ import annotations

import ctypes
import math
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

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
    """One NVML question and the fields of `Gpu` that it fills, in order."""

    fields: tuple[str, ...]
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
    Probe(("utilisation", "memory_utilisation"), _utilisation),
    Probe(("memory_used_bytes", "memory_total_bytes", "memory_free_bytes"), _memory),
    Probe(("power_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,)),
    Probe(("sm_clock_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)),
    Probe(("memory_clock_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),)),
    Probe(("throttle_reasons",), _throttle_reasons),
    Probe(("temperature_celsius",), _temperature),
    Probe(("processes",), _processes),
)
STATIC_PROBES: tuple[Probe, ...] = (
    Probe(("power_limit_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000.0,)),
    Probe(("name",), lambda nvml, gpu: (_text(nvml.nvmlDeviceGetName(gpu)),)),
    Probe(("uuid",), lambda nvml, gpu: (_text(nvml.nvmlDeviceGetUUID(gpu)),)),
)
"""Asked once in `STATIC_S`."""

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


def read(nvml: Any, gpu: Any, probes: Iterable[Probe]) -> dict[str, Any]:
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


class GpuCollector:
    """Publishes GPU readings. `step` is to be called again after the seconds it returns."""

    def __init__(
        self,
        publish: Callable[[Reading[Any]], None],
        backend_pids: Callable[[], frozenset[int]] = frozenset,
        *,
        nvml: Any = None,
        clock: Callable[[], float] = time.monotonic,
        name_of: Callable[[int], str | None] = process_name,
    ) -> None:
        self._publish = publish
        self._backend_pids = backend_pids
        self._nvml = nvml
        self._clock = clock
        self._name_of = name_of
        self._names: dict[int, str | None] = {}
        self._is_open = False
        self._handles: dict[int, Any] = {}
        self._static: dict[int, dict[str, Any]] = {}
        self._static_due = self._revive_at = -math.inf
        self._lost: set[int] = set()
        """Those with which not even a new session helps; looked for again with another one at `_revive_at`."""
        self._errors = 0

    def step(self, interval_s: float) -> float:
        """Publish what NVML says, or why it says nothing."""
        try:
            nvml = self._nvml = self._nvml or _import_nvml()
        except ImportError:
            return self._absent("the package nvidia-ml-py is not installed", RETRY_ABSENT_S)
        except NoDriverError as error:
            return self._absent(str(error), RETRY_ABSENT_S)
        was_open = self._is_open
        try:
            gpus = self._gpus(nvml)
        except nvml.NVMLError as error:
            self._close(nvml)
            if not was_open and (why := _why_absent(nvml, error)):
                return self._absent(why, RETRY_ABSENT_S)
            self._errors += 1
            pause = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** (min(self._errors, 10) - 1))
            return self._absent(f"driver error: {error}; trying again in {pause:.0f} s", pause)
        self._errors = 0
        if not gpus:
            self._close(nvml)
            return self._absent("NVML shows no GPU", RETRY_ABSENT_S)
        self._publish(Reading.known(Source.GPU, self._clock(), Gpus(gpus)))
        return max(interval_s, 1.0)

    def _gpus(self, nvml: Any) -> tuple[Gpu, ...]:
        now = self._clock()
        passed_over = frozenset(self._lost)
        if self._lost and now >= self._revive_at:
            self._close(nvml)
        if not self._is_open:
            nvml.nvmlInit()
            self._is_open, self._handles, self._static_due, passed_over = True, {}, now, frozenset()
        # A little less than the time to live, or a look that comes early would skip a whole round.
        probes = PROBES if now < self._static_due else (*PROBES, *STATIC_PROBES)
        self._static_due = self._static_due if now < self._static_due else now + 0.9 * STATIC_S
        count, found = nvml.nvmlDeviceGetCount(), []
        for index in range(count):
            fields: dict[str, Any] = {}
            try:
                if index not in passed_over:
                    fields = self._fields(nvml, index, probes)
                    self._lost.discard(index)
            except nvml.NVMLError:
                # It is not there, or a new session did not help it; the others shall not be lost with it.
                if index in self._handles and index not in self._lost and (not self._errors or count == 1):
                    raise
                self._lost.add(index)
                self._revive_at = now + LAST_RETRY_S
            found.append(Gpu(index, **fields))
        return tuple(found)

    def _fields(self, nvml: Any, index: int, probes: Iterable[Probe]) -> dict[str, Any]:
        if index not in self._handles:
            self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
        fields = read(nvml, self._handles[index], probes)
        static = {name: fields[name] for probe in STATIC_PROBES for name in probe.fields if name in fields}
        self._static[index] = static or self._static.get(index, {})
        if (running := fields["processes"]) is not None:
            ours = self._backend_pids()
            for row in running:
                if row.pid not in self._names:
                    self._names[row.pid] = self._name_of(row.pid)
            fields["processes"] = tuple(
                GpuProcess(row.pid, row.memory_bytes, self._names[row.pid], row.pid in ours) for row in running
            )
        return {**self._static[index], **fields}

    def _close(self, nvml: Any) -> None:
        self._is_open = False
        # A session that is lost cannot always be closed; another one is what helps.
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def _absent(self, why: str, pause: float) -> float:
        self._publish(Reading.unknown(Source.GPU, self._clock(), FailureKind.UNAVAILABLE, why))
        return pause


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
    return "the NVIDIA driver is not loaded" if _is(nvml, error, "NVMLError_DriverNotLoaded") else ""


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


Number = TypeVar("Number", int, float)


class GpuLook(Struct, frozen=True):
    """All GPUs at one moment, and what matters of them together. What no driver tells is None."""

    gpus: tuple[Gpu, ...] = ()
    absent: str = ""
    """Why there is none."""
    free_bytes: int | None = None
    """Of the one with the least."""
    used_bytes: int | None = None
    """Of all together, as `watts`."""
    watts: float | None = None
    utilisation: float | None = None
    """Of the busiest, 0 to 1."""
    celsius: float | None = None
    """Of the hottest."""
    clock_mhz: int | None = None
    """Of the slowest."""
    words: tuple[str, ...] = ()
    """Name and power limit of each, as a stored result depends on them."""


class GpuLooks:
    """Looks through NVML for measurements. For one thread at a time."""

    def __init__(self, *, nvml: Any = None) -> None:
        """`nvml` is as in `collect.gpu`."""
        self._said: list[Reading[Any]] = []
        self._collector = GpuCollector(self._said.append, nvml=nvml)

    def look(self) -> GpuLook:
        """What the GPUs say now."""
        self._collector.step(1.0)
        said = self._said.pop()
        if not isinstance(said.value, Gpus):
            return GpuLook(absent=said.failure.detail if said.failure is not None else "")
        gpus = said.value.gpus
        limits = ["--" if gpu.power_limit_watts is None else f"{gpu.power_limit_watts:.0f}" for gpu in gpus]
        return GpuLook(
            gpus,
            free_bytes=min(_known(gpu.memory_free_bytes for gpu in gpus), default=None),
            used_bytes=_sum([gpu.memory_used_bytes for gpu in gpus]),
            watts=_sum([gpu.power_watts for gpu in gpus]),
            utilisation=max(_known(gpu.utilisation for gpu in gpus), default=None),
            celsius=max(_known(gpu.temperature_celsius for gpu in gpus), default=None),
            clock_mhz=min(_known(gpu.sm_clock_mhz for gpu in gpus), default=None),
            words=tuple(f"{gpu.name or 'unknown'}, {limit} W" for gpu, limit in zip(gpus, limits, strict=True)),
        )


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


def look(nvml: Any = None, pci: Path = PCI) -> Driver:
    """What the driver says now; never raises."""
    try:
        nvml = nvml or _import_nvml()
        nvml.nvmlInit()
    except ImportError:
        return Driver(absence=Absence.NO_PACKAGE, detail="the package nvidia-ml-py is not installed")
    except NoDriverError:
        return _no_driver(pci)
    except nvml.NVMLError as error:
        return _absent(nvml, error, pci)
    version, cuda = (
        _asked(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        _asked(nvml, lambda: int(nvml.nvmlSystemGetCudaDriverVersion())),
    )
    known = version, None if cuda is None else (cuda // 1000, cuda % 1000 // 10)
    try:
        gpus = tuple(_gpu(nvml, index) for index in range(int(nvml.nvmlDeviceGetCount())))
    except nvml.NVMLError as error:
        return Driver(*known, (), Absence.ERROR, f"driver error: {error}")
    finally:
        _asked(nvml, nvml.nvmlShutdown)
    if gpus:
        return Driver(*known, gpus)
    return Driver(*known, (), Absence.HIDDEN, "the driver shows no GPU; in a container, start it with --gpus all")


def _gpu(nvml: Any, index: int) -> DriverGpu:
    handle = _asked(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return DriverGpu(index)
    # One at a time: what a broken driver does not say to one of them, it may say to the next.
    name = _asked(nvml, lambda: _text(nvml.nvmlDeviceGetName(handle)))
    memory = _asked(nvml, lambda: _memory(nvml, handle)[1])
    compute = _asked(nvml, lambda: tuple(map(int, nvml.nvmlDeviceGetCudaComputeCapability(handle))))
    return DriverGpu(index, name, memory, compute)


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
