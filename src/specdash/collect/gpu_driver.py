"""The NVIDIA driver, its CUDA version and its GPUs, looked at once; or why there are none.

NVML tells what the driver sees. Where there is no driver, the PCI bus still tells whether there is a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.collect import gpu

if TYPE_CHECKING:
    from collections.abc import Callable

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


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """One GPU. Fields that the driver does not tell are None; `compute` is the CUDA compute capability."""

    index: int
    name: str | None = None
    memory_bytes: int | None = None
    compute: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        """Name, memory and capability, as far as they are known."""
        memory = None if self.memory_bytes is None else f"{self.memory_bytes / 1024**3:.1f} GiB"
        compute = None if self.compute is None else f"compute {self.compute[0]}.{self.compute[1]}"
        more = ", ".join(part for part in (memory, compute) if part is not None)
        return f"{self.name or f'GPU {self.index}'}{f' ({more})' if more else ''}"


@dataclass(frozen=True, slots=True)
class Driver:
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
        nvml = nvml or gpu._import_nvml()  # noqa: SLF001 - the one place that imports it, which tests replace
    except ImportError:
        return Driver(absence=Absence.NO_PACKAGE, detail="the package nvidia-ml-py is not installed")
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
    memory = _asked(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).total)
    compute = _asked(nvml, lambda: tuple(map(int, nvml.nvmlDeviceGetCudaComputeCapability(handle))))
    name = _asked(nvml, lambda: _text(nvml.nvmlDeviceGetName(handle)))
    return DriverGpu(index, name, memory, compute if compute is not None and len(compute) == 2 else None)


def _asked(nvml: Any, ask: Callable[[], Any]) -> Any:
    """What NVML answers, None where it fails or answers nothing of use."""
    try:
        return ask()
    except (nvml.NVMLError, TypeError, ValueError):
        return None


def _absent(nvml: Any, error: Exception, pci: Path) -> Driver:
    there = gpus_on_the_bus(pci)
    if gpu._is(nvml, error, "NVMLError_LibraryNotFound"):  # noqa: SLF001 - see above
        if there:
            said = f"an NVIDIA GPU is there (PCI {there[0]}), and no driver: install NVIDIA's"
            return Driver(absence=Absence.NO_DRIVER, detail=said)
        return Driver(absence=Absence.NO_GPU, detail="no NVIDIA GPU and no driver on this machine")
    if gpu._is(nvml, error, "NVMLError_DriverNotLoaded"):  # noqa: SLF001 - see above
        said = "the NVIDIA driver is installed and not loaded"
        fix = "`modprobe nvidia`, or restart the machine" if there else "there seems to be no NVIDIA GPU"
        return Driver(absence=Absence.NOT_LOADED if there else Absence.NO_GPU, detail=f"{said}: {fix}")
    if gpu._is(nvml, error, "NVMLError_LibRmVersionMismatch"):  # noqa: SLF001 - see above
        said = "the driver in the kernel and its library are of different versions: restart the machine"
        return Driver(absence=Absence.MISMATCH, detail=said)
    return Driver(absence=Absence.ERROR, detail=f"driver error: {error}")


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


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
