"""The program that takes a GPU's memory, on a CUDA driver of C whose memory the test gives out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu.memory_holder import MIB, Cuda, CudaError, holding

LIBCUDA = r"""
#include <stddef.h>
static size_t left = (size_t)LEFT << 20;
int cuInit(unsigned flags) { return NO_DEVICE ? 100 : 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &left; left -= 500ul << 20; return 0; }
int cuCtxSetCurrent(void *context) { return context == &left ? 0 : 201; }
int cuMemGetInfo_v2(size_t *available, size_t *total) { *available = left; *total = (size_t)LEFT << 20; return 0; }
int cuMemAlloc_v2(unsigned long long *at, size_t size) {
    if (size > left || size > (1000ul << 20)) return 2;
    left -= size; *at = 42; return 0;
}
"""
"""Its context takes 500 MiB, and no piece of what is free is larger than 1000 MiB."""


def libcuda(folder: Path, *, left_mib: int, has_device: bool = True) -> Path:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    (folder / "cuda.c").write_text(LIBCUDA)
    library = folder / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-DLEFT={left_mib}", f"-DNO_DEVICE={int(not has_device)}",
         "-o", str(library), str(folder / "cuda.c")],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return library


def test_another_process_holds_all_but_what_is_to_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libcuda(tmp_path, left_mib=143_000)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with holding(100) as held:
        assert psutil.Process(held.pid).status() != psutil.STATUS_ZOMBIE
        assert held.bytes == (143_000 - 500 - 100) * MIB
        assert held.free == 100 * MIB
    assert not psutil.pid_exists(held.pid), "and gives it back with its end"


def test_it_ends_with_the_program_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libcuda(tmp_path, left_mib=1000)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    program = (
        "from gpu.memory_holder import holding\nimport os\nwith holding(9) as h: print(h.pid, flush=True); os._exit(0)"
    )
    tools = str(Path(__file__).parents[2] / "tools")
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": tools, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    orphan = int(done.stdout)
    assert psutil.wait_procs([psutil.Process(orphan)] if psutil.pid_exists(orphan) else [], timeout=10)[1] == []


def test_a_gpu_that_has_less_than_is_to_be_left_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libcuda(tmp_path, left_mib=560)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with holding(100) as held:
        assert (held.bytes, held.free) == (0, 60 * MIB)


def test_without_a_driver_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What cannot be loaded stands before a driver that may be there.
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(CudaError, match="no CUDA driver"), holding(10):
        pass


@pytest.mark.parametrize(
    ("has_device", "device", "said"), [(False, 0, "cuInit failed with 100"), (True, 1, "cuDeviceGet failed with 101")]
)
def test_a_gpu_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_device: bool, device: int, said: str
) -> None:
    libcuda(tmp_path, left_mib=1000, has_device=has_device)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(CudaError, match=said), holding(10, device):
        pass


def test_a_driver_that_breaks_is_no_full_one() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: 719 if name == "cuMemAlloc_v2" else 0

    with pytest.raises(CudaError, match="719"):
        Cuda(Broken(), 0).take(MIB)
