"""Why an engine does not use the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend import engines
from specdash.backend.engines import Device, check_engine
from specdash.collect.gpu import Absence, Driver, DriverGpu
from specdash.core.errors import EngineMissingError

if TYPE_CHECKING:
    from pathlib import Path

H200 = DriverGpu(0, "NVIDIA H200", 150 << 30, (9, 0))
NONE = Driver(absence=Absence.NO_GPU, detail="no NVIDIA GPU and no driver on this machine")
HERE = Driver("575.1", (12, 8), (H200,))
LISTED = (Device("CUDA0", "NVIDIA H200", 1, 1),)


@pytest.mark.parametrize(
    ("cpu", "devices", "driver", "env", "usable", "shown"),
    [
        (False, LISTED, HERE, {}, True, "uses CUDA0 (NVIDIA H200)"),
        (True, (), HERE, {}, False, "CPU only: built without CUDA"),
        (True, (), NONE, {}, False, "; besides, no NVIDIA GPU and no driver on this machine"),
        (False, (), NONE, {}, False, "no device: no NVIDIA GPU"),
        (False, (), HERE, {"CUDA_VISIBLE_DEVICES": "-1"}, False, "CUDA_VISIBLE_DEVICES=-1 hides the GPUs"),
        (False, (), HERE, {}, False, "newer than the driver's (575.1), or CUDA's libraries"),
        (False, None, HERE, {}, None, "not known: it does not list its devices"),
    ],
)
def test_the_verdict_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpu: bool, devices: tuple[Device, ...] | None, driver: Driver,
    env: dict[str, str], usable: bool, shown: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(engines, "list_devices", lambda *_: devices)
    monkeypatch.setattr(engines, "for_cpu", lambda _: cpu)
    found = check_engine(driver, {**env, "XDG_CONFIG_HOME": str(tmp_path), "PATH": ""})
    assert found.usable is usable
    assert shown in found.verdict


def test_the_engine_of_the_env_file_is_the_one_and_one_that_is_missing_is_an_error(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    assert check_engine(NONE, env).engine.kind == "xllamacpp"
    file = tmp_path / "specdash" / "llama-server.env"
    file.parent.mkdir(exist_ok=True)
    file.write_text("LLAMA_BIN=/nowhere/llama-server\n")
    with pytest.raises(EngineMissingError, match="LLAMA_BIN=/nowhere/llama-server: no such file"):
        check_engine(NONE, env)
