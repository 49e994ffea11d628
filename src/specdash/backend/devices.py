"""The devices an engine can run on, asked of itself, and what of the settings names others."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.backend.engines import (
    PACKAGE,
    Build,
    Engine,
    ask,
    build_of,
    find_engine,
    probe_environment,
)
from specdash.backend.settings import BackendSettings, engine_settings
from specdash.core.envfile import read_values
from specdash.core.errors import SpecdashError
from specdash.core.paths import backend_env_file
from specdash.system.text import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.collect.gpu import Driver
    from specdash.core.readings import Gpu, Gpus, Reading


NONE = "none"
"""The device name that means the CPU."""
_GOOD_FOR_S = 30.0
_NVML_S = 2.0
_TITLE = "Available devices:"
_DEVICE = re.compile(r"^\s+(\S+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)


class Device(Struct, frozen=True):
    """One device as the engine names it, and its memory in bytes."""

    name: str
    description: str
    total_bytes: int
    free_bytes: int


def parse_devices(text: str) -> tuple[Device, ...] | None:
    """What `llama-server --list-devices` prints; None for a text that is no such list."""
    if _TITLE not in text:
        return None
    found = _DEVICE.findall(text[text.index(_TITLE) :])
    return tuple(Device(name, words, int(total) * MIB, int(free) * MIB) for name, words, total, free in found)


def list_devices(engine: Engine, env: Mapping[str, str] = os.environ) -> tuple[Device, ...] | None:
    """The devices `engine` offers beside the CPU, None when it does not list them. Good for half a minute.

    `env` is the environment to ask in: CUDA_VISIBLE_DEVICES hides devices. An engine built for the CPU is not asked.
    """
    if build_of(engine).cpu_only:
        return ()
    where = env if engine.kind == PACKAGE else probe_environment(engine.loader, env)
    return _listed(engine.kind, engine.path, tuple(sorted(where.items())), int(time.monotonic() / _GOOD_FOR_S))


@functools.lru_cache(maxsize=16)
def _listed(kind: str, path: str, env: tuple[tuple[str, str], ...], _when: int) -> tuple[Device, ...] | None:
    if kind != PACKAGE:
        answer = ask([path, "--list-devices"], dict(env))
        return parse_devices(answer.text) if answer.problem is None and answer.code == 0 else None
    answer = ask([sys.executable, "-m", "specdash.backend.embedded_facts", "--devices"], dict(env))
    try:
        rows = json.loads(answer.text.splitlines()[-1])
        return tuple(Device(str(name), str(words), int(total), int(free)) for name, words, total, free in rows)
    except (ValueError, TypeError, IndexError):
        return None


# Which GPUs the settings use. NVML and CUDA number GPUs in different orders (by PCI bus, and fastest first), so that a
# device of the engine is matched to one of NVML's by its UUID.


class UsedGpu(Struct, frozen=True):
    """A device that the engine uses: its name there, what it is, NVML's view of it where NVML knows it, and what the
    engine says is free where it was asked."""

    name: str
    description: str
    gpu: Gpu | None = None
    free_bytes: int | None = None

    @property
    def words(self) -> str:
        """Name and description."""
        return f"{self.name} ({self.description})"


def nvml_gpus() -> Gpus | None:
    """The GPUs of this machine as NVML sees them, None when it shows none. Good for two seconds."""
    return _seen(int(time.monotonic() / _NVML_S))


@functools.lru_cache(maxsize=1)
def _seen(_when: int) -> Gpus | None:
    from specdash.collect.gpu import GpuCollector

    readings: list[Reading[Gpus]] = []
    GpuCollector(readings.append).step(_NVML_S)
    return readings[-1].value


def cuda_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """The UUIDs of the GPUs in the order in which CUDA numbers them in `env`; none where CUDA has none."""
    return _cuda_order(tuple(sorted(env.items())), int(time.monotonic() / _GOOD_FOR_S))


@functools.lru_cache(maxsize=16)
def _cuda_order(env: tuple[tuple[str, str], ...], _when: int) -> tuple[str, ...]:
    answer = ask([sys.executable, "-m", "specdash.backend.embedded_facts", "--cuda"], dict(env))
    return tuple(answer.text.split()) if answer.problem is None and answer.code == 0 else ()


def used_gpus(
    settings: BackendSettings,
    engine: Engine | None,
    base: Mapping[str, str],
    nvml: Callable[[], Gpus | None] = nvml_gpus,
    cuda: Callable[[Mapping[str, str]], tuple[str, ...]] = cuda_gpus,
    *,
    ask: bool = False,
) -> tuple[UsedGpu, ...]:
    """The GPUs that the settings use, in the engine's order; none where it runs on the CPU.

    NVIDIA's are known without the engine; it lists its devices with `ask`, and where it has others. Without an engine
    it is taken for one that uses CUDA.
    """
    drafts = settings.draft_model is not None and settings.value("spec-draft-ngl") != 0
    if (settings.value("gpu-layers") == 0 and not drafts) or settings.value("device") == NONE:
        return ()
    if engine is not None and build_of(engine).cpu_only:
        return ()
    env = {**base, **settings.environment}
    seen = nvml()
    by_uuid = {gpu.uuid: gpu for gpu in seen.gpus} if seen is not None else {}
    order = cuda(env) if by_uuid else ()
    found = tuple(
        UsedGpu(f"CUDA{number}", gpu.name or "unnamed", gpu)
        for number, gpu in enumerate(map(by_uuid.get, order))
        if gpu is not None
    )
    asked = engine is not None and (ask or (not found and bool(build_of(engine).others)))
    listed = list_devices(engine, env) if engine is not None and asked else None
    if listed is not None:
        known = {used.name: used.gpu for used in found}
        found = tuple(
            UsedGpu(device.name, device.description, known.get(device.name), device.free_bytes) for device in listed
        )
    named = settings.text("device")
    if named is not None:
        by_name = {used.name.lower(): used for used in found}
        found = tuple(by_name[word] for word in named.lower().split(",") if word in by_name)
    if settings.value("split-mode") == NONE:
        main = int(settings.value("main-gpu") or 0)
        found = found[main : main + 1]
    return found


# Whether the engine at hand can use the NVIDIA GPU, and why not: for `specdash doctor`.


class EngineCheck(Struct, frozen=True):
    """The chosen engine: `verdict` says in one line whether it uses the GPU, and why not. `usable` None: unknown."""

    engine: Engine
    path: str
    build: Build
    devices: tuple[Device, ...] | None
    usable: bool | None
    verdict: str


def check_engine(driver: Driver, env: Mapping[str, str] = os.environ) -> EngineCheck:
    """Look at the engine that the env file or the environment chooses. Raises `EngineMissingError`."""
    values: dict[str, str] = {}
    with contextlib.suppress(OSError, SpecdashError):
        file = backend_env_file(env)
        values = read_values(file.read_bytes(), str(file))
    settings = engine_settings(values, env)
    engine, visible = find_engine(settings, env), {**env, **settings.environment}
    build, devices = build_of(engine), list_devices(engine, visible)
    package = importlib.util.find_spec(PACKAGE) if engine.kind == PACKAGE else None
    path = engine.path if package is None or package.origin is None else str(Path(package.origin).parent)
    return EngineCheck(engine, path, build, devices, *judge(build, devices, driver, visible))


def judge(
    build: Build, devices: tuple[Device, ...] | None, driver: Driver, env: Mapping[str, str]
) -> tuple[bool | None, str]:
    """Whether an engine uses the GPU, and in one line why, or why not."""
    hidden = env.get("CUDA_VISIBLE_DEVICES")
    if devices:
        return True, f"uses {', '.join(f'{device.name} ({device.description})' for device in devices)}"
    if build.cpu_only:
        return (
            False,
            f"CPU only: built without CUDA ({build.evidence}){f'; besides, {driver.detail}' * (not driver.gpus)}",
        )
    if devices is None:
        return None, f"not known: it does not list its devices ({build.evidence})"
    why = f"its CUDA may be newer than the driver's ({driver.version}), or CUDA's libraries are not found"
    why = driver.detail if not driver.gpus else f"CUDA_VISIBLE_DEVICES={hidden} hides the GPUs" if hidden else why
    return False, f"CPU only: it lists no device ({build.evidence}): {why}"
