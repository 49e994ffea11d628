"""Keys about GPUs: read, rendered for both engines, and refused where the engine has no such device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import xllamacpp

from specdash.backend import binary, devices, embedded
from specdash.backend.devices import Device, parse_devices
from specdash.backend.embedded_facts import devices as package_devices
from specdash.backend.engines import PACKAGE, Engine, build_of
from specdash.backend.launch import make_plan
from specdash.backend.plan import Circumstances, Plan
from specdash.backend.rules import machine
from specdash.backend.settings import BackendSettings, settings_from_env
from support import known_engines as known
from support.engines import llama_server_binary
from support.help_engine import TODAY, help_engine

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.core.errors import Finding

LISTED = """\
ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA H200, compute capability 9.0, VMM: yes
Available devices:
  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)
  CUDA1: NVIDIA GeForce RTX 4090 (24564 MiB, 24100 MiB free)
"""
KEYS = {
    "LLAMA_DEVICE": ("CUDA0,CUDA1", "--device CUDA0,CUDA1"),
    "LLAMA_GPU_LAYERS": ("all", "--gpu-layers all"),
    "LLAMA_N_GPU_LAYERS": ("20", "--gpu-layers 20"),
    "LLAMA_FLASH_ATTN": ("on", "--flash-attn on"),
    "LLAMA_CACHE_TYPE_K": ("q8_0", "--cache-type-k q8_0"),
    "LLAMA_CACHE_TYPE_V": ("q8_0", "--cache-type-v q8_0"),
    "LLAMA_TENSOR_SPLIT": ("3,1", "--tensor-split 3,1"),
    "LLAMA_SPLIT_MODE": ("row", "--split-mode row"),
    "LLAMA_MAIN_GPU": ("1", "--main-gpu 1"),
    "LLAMA_DRAFT_DEVICE": ("CUDA1", "--spec-draft-device CUDA1"),
    "LLAMA_DRAFT_GPU_LAYERS": ("all", "--spec-draft-ngl all"),
    "LLAMA_DRAFT_CACHE_TYPE_K": ("q4_0", "--spec-draft-type-k q4_0"),
    "LLAMA_DRAFT_CACHE_TYPE_V": ("q4_0", "--spec-draft-type-v q4_0"),
}


def settings(**env: str) -> BackendSettings:
    return settings_from_env({"LLAMA_MODEL": "m.gguf", **env})


@pytest.mark.parametrize("key", KEYS)
def test_each_key_becomes_its_flag_and_sets_its_attribute_of_the_package(key: str) -> None:
    value, flag = KEYS[key]
    assert flag in " ".join(binary.arguments(settings(**{key: value}), known.BUILD))
    params = xllamacpp.CommonParams()
    for row in embedded.fit(settings(**{key: value})).assignments:
        if "device" not in row.name:
            embedded.apply(params, row.name, row.path, row.value)
    assert key != "LLAMA_TENSOR_SPLIT" or list(params.tensor_split)[:3] == [3.0, 1.0, 0.0]
    assert key != "LLAMA_MAIN_GPU" or params.main_gpu == 1


def test_the_list_of_devices_is_read() -> None:
    found = parse_devices(LISTED)
    assert found is not None
    assert [device.name for device in found] == ["CUDA0", "CUDA1"]
    assert found[0] == Device("CUDA0", "NVIDIA H200", 143771 * 2**20, 143000 * 2**20)
    assert parse_devices("Available devices:\n  (none)\n") == ()
    assert parse_devices("error: invalid argument: --list-devices") is None


def test_the_package_lists_what_is_no_cpu() -> None:
    kinds = xllamacpp.ggml_backend_dev_type
    rows = [
        {"name": "CUDA0", "description": "NVIDIA H200", "memory_total": 9, "memory_free": 8, "type": kind}
        for kind in (kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_CPU)
    ]
    assert package_devices(rows) == [("CUDA0", "NVIDIA H200", 9, 8)]
    assert all(row["name"] != "CPU" for row in xllamacpp.get_device_info() if package_devices([row]))


def judged(engine: Engine, **env: str) -> tuple[Finding, ...]:
    """What the rule about devices says of settings for an engine."""
    return tuple(machine.no_gpu(Plan(env, Circumstances(None, base={}), settings(**env), engine=engine)))


def built(folder: Path, *libraries: str, holding: bytes = b"") -> Engine:
    folder.mkdir()
    program = folder / "llama-server"
    program.write_bytes(b"ELF " + holding)
    for name in libraries:
        (folder / name).write_bytes(b"library")
    return known.engine(str(program))


@pytest.mark.parametrize(
    ("libraries", "holding", "cuda", "others"),
    [
        (("libggml-base.so", "libggml-cpu.so"), b"", False, ()),
        (("libggml-cpu-haswell.so", "libggml-cuda.so.0"), b"", True, ()),
        (("libggml-cpu.so", "libggml-vulkan.so"), b"", False, ("vulkan",)),
        ((), b"..ggml_backend_cpu_reg..libcuda.so.1..", True, ()),
        ((), b"..ggml_backend_cpu_reg..", False, ()),
        ((), b"a thin program", None, ()),
    ],
)
def test_the_files_of_an_engine_tell_what_it_was_built_for(
    tmp_path: Path, libraries: tuple[str, ...], holding: bytes, cuda: bool | None, others: tuple[str, ...]
) -> None:
    engine = built(tmp_path / "bin", *libraries, holding=holding)
    found = build_of(engine)
    assert (found.cuda, found.others) == (cuda, others), found
    assert found.cpu_only == (cuda is False and not others)
    assert found.evidence


def test_layers_on_the_gpu_have_no_effect_with_an_engine_for_the_cpu(tmp_path: Path) -> None:
    engine = built(tmp_path / "bin", "libggml-cpu.so")
    (lack,) = judged(engine, LLAMA_N_GPU_LAYERS="99")
    assert lack.severity == "warning"
    assert "LLAMA_N_GPU_LAYERS=99 has no effect: llama-server b1 was built for the CPU; `specdash doctor`" in lack.line
    assert judged(engine, LLAMA_N_GPU_LAYERS="0") == ()


def test_the_installed_package_tells_what_it_was_built_for() -> None:
    found = build_of(known.engine(sys.executable, PACKAGE))
    assert found.cuda is not None, found
    assert "xllamacpp" in found.evidence


@pytest.mark.llama_server
def test_the_real_binary_lists_its_devices() -> None:
    engine = known.engine(llama_server_binary())
    found = devices._listed(engine.kind, engine.path, (), 0)
    assert found is not None
    assert bool(found) == (build_of(engine).cuda is True)


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
    env = {"LLAMA_MODEL": str(models["target"]), "LLAMA_PORT": "0", "LLAMA_CTX_SIZE": "auto", "LLAMA_GPU_LAYERS": "all"}
    env["LLAMA_BIN"] = gpu_engine(tmp_path / "bin", 500)
    on_gpu = make_plan(env).settings
    assert on_gpu.decisions[0].steps[0].startswith("CUDA0 (NVIDIA H200): 500 MiB free, x 0.90, less 400 MiB")
    hidden = make_plan({**env, "CUDA_VISIBLE_DEVICES": "-1"}).settings
    assert hidden.decisions[0].steps[0].startswith("main memory: ")
