"""What is said of driver and GPUs, whatever is broken, missing or hidden."""

from pathlib import Path

import pynvml
import pytest

from specdash.collect.gpu import Absence, Driver, gpus_on_the_bus, look
from support.faulty_nvml import FaultyNvml


def bus(folder: Path, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    device = folder / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    return folder


def looked(nvml: FaultyNvml, pci: Path) -> Driver:
    return look(nvml, pci)


def test_driver_cuda_and_every_gpu_are_named(tmp_path: Path) -> None:
    nvml = FaultyNvml(gpus=2)
    nvml.values.update({"nvmlSystemGetCudaDriverVersion": 12080, "nvmlDeviceGetCudaComputeCapability": (9, 0)})
    found = looked(nvml, tmp_path)
    assert (found.version, found.cuda, found.absence) == ("575.1", (12, 8), None)
    assert [driver_gpu.words for driver_gpu in found.gpus] == ["NVIDIA H200 (80.0 GiB, compute 9.0)"] * 2
    assert nvml.sessions == 0, "the session is closed again"


def test_what_the_driver_does_not_tell_is_unknown_and_nothing_else_is_lost(tmp_path: Path) -> None:
    nvml = FaultyNvml()
    nvml.faults = {
        "nvmlSystemGetCudaDriverVersion": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        "nvmlDeviceGetCudaComputeCapability": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_UNKNOWN,
    }
    found = looked(nvml, tmp_path)
    assert (found.version, found.cuda) == ("575.1", None)
    assert [driver_gpu.words for driver_gpu in found.gpus] == ["NVIDIA H200"]


@pytest.mark.parametrize(
    ("error", "gpu_there", "absence", "said"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, False, Absence.NO_GPU, "no NVIDIA GPU and no driver on this machine"),
        (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            True,
            Absence.NO_DRIVER,
            "an NVIDIA GPU is there (PCI 0000:01:00.0), and",
        ),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, True, Absence.NOT_LOADED, "installed and not loaded: `modprobe nvidia`"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False, Absence.NO_GPU, "there seems to be no NVIDIA GPU"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, True, Absence.MISMATCH, "of different versions: restart"),
        (pynvml.NVML_ERROR_UNKNOWN, True, Absence.ERROR, "driver error: Unknown Error"),
    ],
)
def test_why_there_is_no_gpu_is_said_with_what_to_do(
    tmp_path: Path, error: int, gpu_there: bool, absence: Absence, said: str
) -> None:
    nvml = FaultyNvml()
    nvml.faults["nvmlInit"] = error
    found = looked(nvml, bus(tmp_path / "pci") if gpu_there else tmp_path)
    assert (found.absence, found.gpus) == (absence, ())
    assert said in found.detail


@pytest.mark.parametrize("gpu_there", [True, False])
def test_a_library_that_cannot_be_opened_is_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_there: bool
) -> None:
    monkeypatch.setattr("specdash.collect.gpu.LIBRARY", "libnvidia-ml.so.of-no-driver")
    found = look(None, bus(tmp_path / "pci") if gpu_there else tmp_path)
    assert found.absence is (Absence.NO_DRIVER if gpu_there else Absence.NO_GPU)


def test_a_driver_that_shows_no_gpu_points_at_containers(tmp_path: Path) -> None:
    found = looked(FaultyNvml(gpus=0), tmp_path)
    assert (found.absence, found.version) == (Absence.HIDDEN, "575.1")
    assert "--gpus all" in found.detail


def test_a_driver_that_fails_while_it_is_asked_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    nvml = FaultyNvml()
    nvml.faults["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert looked(nvml, tmp_path).absence is Absence.ERROR


@pytest.mark.parametrize(("vendor", "kind"), [("0x1002", "0x030000"), ("0x10de", "0x040300")])
def test_other_vendors_and_other_devices_of_nvidia_are_no_gpus(tmp_path: Path, vendor: str, kind: str) -> None:
    assert gpus_on_the_bus(bus(tmp_path / "pci", vendor, kind)) == ()
    assert gpus_on_the_bus(tmp_path / "nowhere") == ()
