"""Which GPUs the settings use: matched by UUID, because CUDA and NVML number them in different orders.

NVML lists a small GPU first (by PCI bus), CUDA the large one (fastest first).
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from backend.judgement.conftest import cuda_order
from specdash.backend import engines
from specdash.backend.engines import Device, used_gpus
from specdash.backend.rules.machine import free_on
from specdash.backend.settings import settings_from_env
from specdash.core.readings import Gpu, Gpus
from support import known_engines

if TYPE_CHECKING:
    from pathlib import Path

    from backend.judgement.conftest import Check, Machine

GIB = 1024**3
ALL = {"LLAMA_GPU_LAYERS": "all"}
ALONE = {"LLAMA_ARG_SPLIT_MODE": "none"}
SMALL, LARGE = "GPU-1660", "GPU-4090"
SEEN = Gpus(
    (
        Gpu(0, "GTX 1660", SMALL, memory_free_bytes=1024, memory_total_bytes=6 * GIB, processes=()),
        Gpu(1, "RTX 4090", LARGE, memory_free_bytes=20 * GIB, memory_total_bytes=24 * GIB, processes=()),
    )
)
CUDA = cuda_order(LARGE, SMALL)


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        ({}, [LARGE, SMALL]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [LARGE]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [SMALL]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [SMALL, LARGE]),
        ({"CUDA_VISIBLE_DEVICES": SMALL}, [SMALL]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, [LARGE]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        (ALONE, [LARGE]),
        ({**ALONE, "LLAMA_MAIN_GPU": "1"}, [SMALL]),
        ({**ALONE, "LLAMA_MAIN_GPU": "0", "CUDA_VISIBLE_DEVICES": "1,0"}, [SMALL]),
        ({"LLAMA_DEVICE": "CUDA1"}, [SMALL]),
        ({"LLAMA_DEVICE": "CUDA1,CUDA0"}, [SMALL, LARGE]),
        ({"LLAMA_DEVICE": "none"}, []),
        ({"LLAMA_GPU_LAYERS": "0"}, []),
    ],
)
def test_gpus_are_those_that_cuda_means(wanted: dict[str, str], uuids: list[str], machine: Machine) -> None:
    machine.gpus(SEEN, CUDA)
    settings = settings_from_env({"LLAMA_MODEL": "m.gguf", **wanted})
    found = used_gpus(settings, None, {})
    assert [used.gpu.uuid for used in found if used.gpu is not None] == uuids


@pytest.mark.parametrize(
    ("wanted", "severity"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, "info"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "error"),
        (ALONE, "info"),
        ({**ALONE, "LLAMA_MAIN_GPU": "1"}, "error"),
        ({"LLAMA_DEVICE": "CUDA0"}, "info"),
        ({"LLAMA_DEVICE": "CUDA1"}, "error"),
    ],
)
def test_memory_is_measured_on_the_gpu_that_is_used(
    wanted: dict[str, str], severity: str, backend: Check, machine: Machine
) -> None:
    machine.gpus(SEEN, CUDA)
    assert backend({**ALL, **wanted}).one("gpu-memory").severity == severity


def test_the_figure_is_nvmls_and_the_engines_own_only_where_nvml_has_none(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, tmp_path: Path
) -> None:
    machine.gpus(SEEN, CUDA)
    listed = (Device("CUDA0", "RTX 4090", 24 * GIB, 19 * GIB), Device("Vulkan0", "Radeon", 16 * GIB, 15 * GIB))
    monkeypatch.setattr(engines, "list_devices", lambda *_: listed)
    engine = known_engines.engine(str(tmp_path / "none"))
    settings = settings_from_env({"LLAMA_MODEL": "m.gguf", "LLAMA_DEVICE": "CUDA0,Vulkan0"})
    found = used_gpus(settings, engine, {})
    assert [free_on([used], frozenset())[0] for used in found] == [20 * GIB, 15 * GIB]


_DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, device ? 0x11 : 0xab, 16); return 0; }
"""

_CC = shutil.which("cc")


@pytest.mark.skipif(_CC is None, reason="needs a C compiler")
def test_the_order_is_asked_of_the_driver_in_the_servers_environment(tmp_path: Path) -> None:
    (tmp_path / "cuda.c").write_text(_DRIVER, encoding="utf-8")
    library = str(tmp_path / "libcuda.so.1")
    subprocess.run([_CC or "", "-shared", "-fPIC", "-o", library, str(tmp_path / "cuda.c")], check=True, timeout=60)
    found = engines.cuda_gpus({"LD_LIBRARY_PATH": str(tmp_path)})
    assert found == ("GPU-abababab-abab-abab-abab-abababababab", "GPU-11111111-1111-1111-1111-111111111111")
    assert engines.cuda_gpus({"LD_LIBRARY_PATH": str(tmp_path / "absent")}) == ()
