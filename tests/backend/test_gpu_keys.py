"""Keys about GPUs: read, rendered for both engines, and refused where the engine has no such device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import xllamacpp

from specdash.backend import embedded
from specdash.backend.binary import Engine
from specdash.backend.engines import Device, for_cpu, list_devices, parse_devices
from specdash.backend.plan import Circumstances, plan
from specdash.backend.settings import BackendSettings, settings_from_env
from support import known_engines as known
from support.engines import llama_server_binary
from support.help_engine import TODAY, help_engine

if TYPE_CHECKING:
    from pathlib import Path


LISTED = """\
ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA H200, compute capability 9.0, VMM: yes
Available devices:
  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)
  CUDA1: NVIDIA GeForce RTX 4090 (24564 MiB, 24100 MiB free)
"""


def settings(**env: str) -> BackendSettings:
    return settings_from_env({"LLAMA_MODEL": "m.gguf", **env})


def test_a_split_of_tensors_reaches_the_package() -> None:
    params = xllamacpp.CommonParams()
    for assignment in embedded.fit(settings(LLAMA_TENSOR_SPLIT="3,1", LLAMA_MAIN_GPU="1"))[0]:
        embedded.apply(params, *assignment)
    assert (list(params.tensor_split)[:3], params.main_gpu) == ([3.0, 1.0, 0.0], 1)


def test_the_list_of_devices_is_read() -> None:
    found = parse_devices(LISTED)
    assert found is not None
    assert [device.name for device in found] == ["CUDA0", "CUDA1"]
    assert found[0] == Device("CUDA0", "NVIDIA H200", 143771 * 2**20, 143000 * 2**20)
    assert parse_devices("Available devices:\n  (none)\n") == ()
    assert parse_devices("error: invalid argument: --list-devices") is None


def built(folder: Path, *libraries: str, holding: bytes = b"") -> Engine:
    folder.mkdir()
    program = folder / "llama-server"
    program.write_bytes(b"ELF " + holding)
    for name in libraries:
        (folder / name).write_bytes(b"library")
    return known.engine(str(program))


@pytest.mark.parametrize(
    ("libraries", "holding", "cpu"),
    [
        (("libggml-base.so", "libggml-cpu.so"), b"ggml_backend_cpu_reg", True),
        (("libggml-cpu-haswell.so", "libggml-cuda.so.0"), b"ggml_cuda_init", False),
        (("libggml-cpu.so", "libggml-vulkan.so"), b"libvulkan.so.1", False),
        ((), b"..ggml_backend_cpu_reg..libcuda.so.1..", False),
        ((), b"..ggml_backend_cpu_reg..", True),
        ((), b"a thin program", False),
    ],
)
def test_the_files_of_an_engine_tell_whether_it_was_built_for_the_cpu_alone(
    tmp_path: Path, libraries: tuple[str, ...], holding: bytes, cpu: bool
) -> None:
    assert for_cpu(built(tmp_path / "bin", *libraries, holding=holding)) is cpu


@pytest.mark.llama_server
def test_the_real_binary_lists_its_devices() -> None:
    engine = known.engine(llama_server_binary())
    found = list_devices(engine)
    assert found is not None
    assert bool(found) != for_cpu(engine)


def gpu_engine(folder: Path, free_mib: int) -> str:
    """A program that answers as llama-server with one GPU does, and can do nothing else."""
    folder.mkdir()
    program = folder / "llama-server"
    help_engine(program, TODAY)
    listing = f"  CUDA0: NVIDIA H200 (143771 MiB, {free_mib} MiB free)"
    first, rest = program.read_text().split("\n", 1)
    hidden = '[ "$CUDA_VISIBLE_DEVICES" = -1 ] && echo "  (none)" && exit 0'
    answer = f'if [ "$1" = --list-devices ]; then echo "Available devices:"; {hidden}; echo "{listing}"; exit 0; fi'
    program.write_text(f"{first}\n{answer}\n{rest}")
    for name in ("libggml-cpu.so", "libggml-cuda.so"):
        (folder / name).touch()
    return str(program)


def test_the_plan_is_made_for_the_gpus_that_the_engine_lists(models: dict[str, Path], tmp_path: Path) -> None:
    env = {"LLAMA_MODEL": str(models["target"]), "LLAMA_PORT": "0", "LLAMA_GPU_LAYERS": "all"}
    env["LLAMA_BIN"] = gpu_engine(tmp_path / "bin", 500)
    (found,) = plan(env, Circumstances(None)).gpus
    assert (found.name, found.free_bytes) == ("CUDA0", 500 * 2**20)
    assert plan({**env, "CUDA_VISIBLE_DEVICES": "-1"}, Circumstances(None)).gpus == ()
