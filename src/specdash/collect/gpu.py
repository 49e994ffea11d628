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
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

from specdash.core.readings import FailureKind, Gpu, GpuProcess, Gpus, Reading, Source
from specdash.system.processes import name_of as process_name
from specdash.system.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Probes = Mapping[tuple[str, ...], Callable[[Any, Any], tuple[Any, ...]]]
    """Fields, and the NVML question that fills them, in order."""

RETRY_ABSENT_S = 30.0
"""Seconds between looks for an NVML that is not there."""
FIRST_RETRY_S = 2.0
LAST_RETRY_S = 60.0
"""Back-off after driver errors."""
STATIC_S = 60.0
"""What changes by hand alone, if at all, is good for this long: `nvidia-smi -pl` sets the power limit."""
LIBRARY = "libnvidia-ml.so.1"
"""NVML itself: a part of the driver, which `pynvml` opens."""
PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""PCI classes: VGA controller, 3D controller."""

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


def _utilisation(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu / 100.0, rates.memory / 100.0


def _memory(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    # Version 1 counts what the driver reserves as used.
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    return memory.used, memory.total, memory.free


def _processes(nvml: Any, gpu: Any) -> tuple[Any, ...]:
    running = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return (tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in running),)


MEMORY_FIELDS = ("memory_used_bytes", "memory_total_bytes", "memory_free_bytes")
PROBES: Probes = {
    ("utilisation", "memory_utilisation"): _utilisation,
    MEMORY_FIELDS: _memory,
    ("power_watts",): lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,),
    ("sm_clock_mhz",): lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),),
    ("memory_clock_mhz",): lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),),
    ("throttle_reasons",): lambda nvml, gpu: (reasons_in_words(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),),
    # Its successor, nvmlDeviceGetTemperatureV, is unknown to drivers that are in use.
    ("temperature_celsius",): lambda nvml, gpu: (float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),),
    ("processes",): _processes,
}
STATIC_PROBES: Probes = {
    ("power_limit_watts",): lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000.0,),
    ("name",): lambda nvml, gpu: (nvml.nvmlDeviceGetName(gpu),),
    ("uuid",): lambda nvml, gpu: (nvml.nvmlDeviceGetUUID(gpu),),
}
"""Asked once in `STATIC_S`."""
DRIVER_PROBES: Probes = {
    ("version",): lambda nvml, _: (nvml.nvmlSystemGetDriverVersion(),),
    ("cuda",): lambda nvml, _: (divmod(nvml.nvmlSystemGetCudaDriverVersion() // 10, 100),),
}
DOCTOR_PROBES: Probes = {
    ("name",): STATIC_PROBES["name",],
    MEMORY_FIELDS: _memory,
    ("compute",): lambda nvml, gpu: (tuple(nvml.nvmlDeviceGetCudaComputeCapability(gpu)),),
}
FIELD_ERRORS = frozenset(
    f"NVMLError_{name}"
    for name in (
        "NotSupported", "NoPermission", "InvalidArgument", "FunctionNotFound", "ArgumentVersionMismatch", "NoData",
        "NotFound", "InsufficientSize",
    )
)  # fmt: skip
"""Errors that concern one question; after any other one the driver session is broken."""


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """Active clock-limit reasons; bits that the table does not know are named by number."""
    unknown = bits & ~(1 | sum(bit for bit, _ in THROTTLE_REASONS))
    words = tuple(name for bit, name in THROTTLE_REASONS if bits & bit)
    return (*words, f"unknown reason {unknown:#x}") if unknown else words


def read(nvml: Any, gpu: Any, probes: Probes) -> dict[str, Any]:
    """What a GPU says to these questions, by the fields that they fill; None where it does not support one.

    Raises NVMLError when the driver session is broken.
    """
    found: dict[str, Any] = {}
    for fields, ask in probes.items():
        try:
            found |= zip(fields, ask(nvml, gpu), strict=True)
        except nvml.NVMLError as error:
            if type(error).__name__ not in FIELD_ERRORS:
                raise
            found |= dict.fromkeys(fields)
    return found


class Absence(StrEnum):
    """Why no GPU can be used."""

    NO_GPU = "no NVIDIA GPU"
    NO_DRIVER = "no driver"
    NOT_LOADED = "driver not loaded"
    MISMATCH = "driver and its library differ"
    HIDDEN = "no GPU shown"
    NO_PACKAGE = "package missing"
    ERROR = "driver error"


class NoGpuError(Exception):
    """There is no GPU to be read; the message says why, with what to do."""

    def __init__(self, absence: Absence, why: str) -> None:
        super().__init__(why)
        self.absence = absence


def _import_nvml() -> Any:
    # Only where the driver has what it opens: the import takes 2 to 3 MB and up to 74 ms.
    ctypes.CDLL(LIBRARY)
    import pynvml

    return pynvml


def open_session(nvml: Any = None, pci: Path = PCI) -> Any:
    """`pynvml` with an open session. Raises `NoGpuError`."""
    try:
        nvml = nvml or _import_nvml()
        nvml.nvmlInit()
    except ImportError:
        raise NoGpuError(Absence.NO_PACKAGE, "the package nvidia-ml-py is not installed") from None
    except OSError:
        _no_driver(pci)
    except nvml.NVMLError as error:
        match type(error).__name__.removeprefix("NVMLError_"):
            case "LibraryNotFound":
                _no_driver(pci)
            case "LibRmVersionMismatch":
                why = "the driver in the kernel and its library are of different versions: restart the machine"
                raise NoGpuError(Absence.MISMATCH, why) from None
            case "DriverNotLoaded":
                there = gpus_on_the_bus(pci)
                fix = "`modprobe nvidia`, or restart the machine" if there else "there seems to be no NVIDIA GPU"
                why = f"the NVIDIA driver is installed and not loaded: {fix}"
                raise NoGpuError(Absence.NOT_LOADED if there else Absence.NO_GPU, why) from None
        raise NoGpuError(Absence.ERROR, f"driver error: {error}") from None
    return nvml


def _no_driver(pci: Path) -> NoReturn:
    if there := gpus_on_the_bus(pci):
        why = f"an NVIDIA GPU is there (PCI {there[0]}), and no driver: install NVIDIA's"
        raise NoGpuError(Absence.NO_DRIVER, why) from None
    raise NoGpuError(Absence.NO_GPU, "no NVIDIA GPU and no driver on this machine") from None


def gpus_on_the_bus(pci: Path = PCI) -> list[str]:
    """PCI addresses of NVIDIA's display devices, driver or not; none where the bus cannot be read."""
    found = []
    for device in sorted(pci.glob("*")):
        with suppress(OSError):
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
            found += [device.name] if vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY) else []
    return found


def close_session(nvml: Any) -> None:
    """End the session. One that is lost cannot always be closed; another one is what helps."""
    with suppress(nvml.NVMLError):
        nvml.nvmlShutdown()


def read_all(nvml: Any, fields_of: Callable[[int], dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """The fields of each GPU of a session, None for one that does not answer. Raises `NoGpuError` where none does."""
    found: list[dict[str, Any] | None] = []
    failed = None
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            found.append(None)
            try:
                found[index] = fields_of(index)
            except nvml.NVMLError as error:
                failed = error
    except nvml.NVMLError as error:
        failed = error
    if any(fields is not None for fields in found):
        return found
    if failed is not None:
        raise NoGpuError(Absence.ERROR, f"driver error: {failed}")
    raise NoGpuError(Absence.HIDDEN, "the driver shows no GPU; in a container, start it with --gpus all")


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
        self._publish, self._backend_pids = publish, backend_pids
        self._nvml, self._clock, self._name_of = nvml, clock, name_of
        self._session: Any = None
        self._static: dict[int, dict[str, Any]] = {}
        self._static_due = self._revive_at = -math.inf
        self._errors = 0

    def step(self, interval_s: float) -> float:
        """Publish what NVML says, or why it says nothing."""
        try:
            self._session = self._session or open_session(self._nvml)
            gpus = self._gpus(self._session)
        except NoGpuError as error:
            self._close()
            why, pause = str(error), RETRY_ABSENT_S
            if error.absence is Absence.ERROR:
                pause = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._errors, 10))
                why += f"; trying again in {pause:.0f} s"
                self._errors += 1
            self._publish(Reading.unknown(Source.GPU, self._clock(), FailureKind.UNAVAILABLE, why))
            return pause
        self._errors = 0
        self._publish(Reading.known(Source.GPU, self._clock(), Gpus(gpus)))
        return max(interval_s, 1.0)

    def _gpus(self, nvml: Any) -> tuple[Gpu, ...]:
        now = self._clock()
        if now >= self._static_due:
            # A little less than the time to live, or a look that comes early would skip a whole round.
            self._static, self._static_due = {}, now + 0.9 * STATIC_S
        found = read_all(nvml, lambda index: self._fields(nvml, index))
        if None in found and now >= self._revive_at:
            # A new session may bring the lost one back.
            self._revive_at = now + LAST_RETRY_S
            self._close()
        return tuple(Gpu(index, **fields or {}) for index, fields in enumerate(found))

    def _fields(self, nvml: Any, index: int) -> dict[str, Any]:
        gpu, ours = nvml.nvmlDeviceGetHandleByIndex(index), self._backend_pids()
        fields = read(nvml, gpu, PROBES)
        if index not in self._static:
            self._static[index] = read(nvml, gpu, STATIC_PROBES)
        if fields["processes"] is not None:
            fields["processes"] = tuple(
                GpuProcess(row.pid, row.memory_bytes, self._name_of(row.pid), row.pid in ours)
                for row in fields["processes"]
            )
        return {**self._static[index], **fields}

    def _close(self) -> None:
        session, self._session, self._static_due = self._session, None, -math.inf
        if session is not None:
            close_session(session)


class GpuLook(Struct, frozen=True):
    """All GPUs at one moment, and what matters of them together. What no driver reports is None."""

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
    words: tuple[str, ...] = ()
    """Name and power limit of each, as a stored result depends on them."""


class GpuLooks:
    """Looks through NVML for measurements. For one thread at a time."""

    def __init__(self, backend_pids: Callable[[], frozenset[int]] = frozenset, *, nvml: Any = None) -> None:
        self._readings: list[Reading[Any]] = []
        self._collector = GpuCollector(self._readings.append, backend_pids, nvml=nvml)

    def look(self) -> GpuLook:
        """What the GPUs say now."""
        self._collector.step(1.0)
        reading = self._readings.pop()
        if not isinstance(reading.value, Gpus):
            return GpuLook(absent=reading.failure.detail if reading.failure is not None else "")
        gpus = reading.value.gpus
        limits = ["--" if gpu.power_limit_watts is None else f"{gpu.power_limit_watts:.0f}" for gpu in gpus]

        def together(name: str, of: Callable[[Iterable[Any]], Any]) -> Any:
            known = [value for gpu in gpus if (value := getattr(gpu, name)) is not None]
            # A part is not the sum.
            return of(known) if known and (of is not sum or len(known) == len(gpus)) else None

        return GpuLook(
            gpus,
            free_bytes=together("memory_free_bytes", min),
            used_bytes=together("memory_used_bytes", sum),
            watts=together("power_watts", sum),
            utilisation=together("utilisation", max),
            words=tuple(f"{gpu.name or 'unknown'}, {limit} W" for gpu, limit in zip(gpus, limits, strict=True)),
        )


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
    """The driver, its CUDA version and its GPUs, once; or why there are none. Never raises."""
    known: dict[str, Any] = {}
    try:
        nvml = open_session(nvml, pci)
        try:
            with suppress(nvml.NVMLError):
                known = read(nvml, None, DRIVER_PROBES)
            rows = read_all(nvml, lambda index: read(nvml, nvml.nvmlDeviceGetHandleByIndex(index), DOCTOR_PROBES))
        finally:
            close_session(nvml)
    except NoGpuError as error:
        return Driver(**known, absence=error.absence, detail=str(error))
    gpus = (
        DriverGpu(index, row["name"], row["memory_total_bytes"], row["compute"]) if row else DriverGpu(index)
        for index, row in enumerate(rows)
    )
    return Driver(**known, gpus=tuple(gpus))
