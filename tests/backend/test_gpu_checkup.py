"""Why an engine does not use the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend.devices import Device, check_engine, judge
from specdash.backend.engines import Build
from specdash.collect.gpu import Absence, Driver, DriverGpu
from specdash.core.errors import EngineMissingError

if TYPE_CHECKING:
    from pathlib import Path

H200 = DriverGpu(0, "NVIDIA H200", 150 << 30, (9, 0))
NONE = Driver(absence=Absence.NO_GPU, detail="no NVIDIA GPU and no driver on this machine")
HERE = Driver("575.1", (12, 8), (H200,))
CUDA = Build(cuda=True, evidence="/opt/libggml-cuda.so")
CPU = Build(cuda=False, evidence="no libggml-cuda beside /opt/libggml-cpu.so")
LISTED = (Device("CUDA0", "NVIDIA H200", 1, 1),)


@pytest.mark.parametrize(
    ("build", "devices", "driver", "env", "usable", "said"),
    [
        (CUDA, LISTED, HERE, {}, True, "uses CUDA0 (NVIDIA H200)"),
        (CPU, (), HERE, {}, False, "CPU only: built without CUDA (no libggml-cuda beside"),
        (CPU, (), NONE, {}, False, "; besides, no NVIDIA GPU and no driver on this machine"),
        (CUDA, (), NONE, {}, False, "no device (/opt/libggml-cuda.so): no NVIDIA GPU"),
        (CUDA, (), HERE, {"CUDA_VISIBLE_DEVICES": "-1"}, False, "CUDA_VISIBLE_DEVICES=-1 hides the GPUs"),
        (CUDA, (), HERE, {}, False, "newer than the driver's (575.1), or CUDA's libraries"),
        (CUDA, None, HERE, {}, None, "not known: it does not list its devices"),
    ],
)
def test_the_verdict_says_why(
    build: Build, devices: tuple[Device, ...] | None, driver: Driver, env: dict[str, str], usable: bool, said: str
) -> None:
    found = judge(build, devices, driver, env)
    assert found[0] is usable
    assert said in found[1]


def test_the_engine_of_the_env_file_is_the_one_and_one_that_is_missing_is_an_error(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    assert check_engine(NONE, env).engine.kind == "xllamacpp"
    file = tmp_path / "specdash" / "llama-server.env"
    file.parent.mkdir(exist_ok=True)
    file.write_text("LLAMA_BIN=/nowhere/llama-server\n")
    with pytest.raises(EngineMissingError, match="LLAMA_BIN=/nowhere/llama-server: no such file"):
        check_engine(NONE, env)
