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

from specdash.backend.binary import Engine  # noqa: TC001 - a field type
from specdash.backend.engines import PACKAGE, ask, find_engine, for_cpu, probe_environment
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
_FACTS = (sys.executable, "-m", "specdash.backend.embedded_facts")
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
    if for_cpu(engine):
        return ()
    if engine.kind != PACKAGE:
        text, code = _asked((engine.path, "--list-devices"), probe_environment(engine.loader, env))
        return parse_devices(text) if code == 0 else None
    try:
        rows = json.loads(_asked((*_FACTS, "--devices"), env)[0].splitlines()[-1])
        return tuple(Device(str(name), str(words), int(total), int(free)) for name, words, total, free in rows)
    except (ValueError, TypeError, IndexError):
        return None


def _asked(argv: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, int | None]:
    return _kept(argv, tuple(sorted(env.items())), int(time.monotonic() / _GOOD_FOR_S))


@functools.lru_cache(maxsize=32)
def _kept(argv: tuple[str, ...], env: tuple[tuple[str, str], ...], _when: int) -> tuple[str, int | None]:
    return ask(argv, dict(env))


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
    text, code = _asked((*_FACTS, "--cuda"), env)
    return tuple(text.split()) if code == 0 else ()


def used_gpus(
    settings: BackendSettings,
    engine: Engine | None,
    base: Mapping[str, str],
    nvml: Callable[[], Gpus | None] = nvml_gpus,
    cuda: Callable[[Mapping[str, str]], tuple[str, ...]] = cuda_gpus,
) -> tuple[UsedGpu, ...]:
    """The GPUs that the settings use, in the engine's order; none where it runs on the CPU.

    NVIDIA's are known without the engine, which is taken for one that uses CUDA; it lists its devices where there are
    none, and where the settings name others.
    """
    drafts = settings.draft_model is not None and settings.value("spec-draft-ngl") != 0
    named = (settings.text("device") or "").lower()
    if (settings.value("gpu-layers") == 0 and not drafts) or named == NONE:
        return ()
    if engine is not None and for_cpu(engine):
        return ()
    env = {**base, **settings.environment}
    seen = nvml()
    by_uuid = {gpu.uuid: gpu for gpu in seen.gpus} if seen is not None else {}
    numbered = enumerate(map(by_uuid.get, cuda(env) if by_uuid else ()))
    known = {f"CUDA{number}": gpu for number, gpu in numbered if gpu is not None}
    found = [UsedGpu(name, gpu.name or "unnamed", gpu) for name, gpu in known.items()]
    if engine is not None and not (known and {*filter(None, named.split(","))} <= {*map(str.lower, known)}):
        listed = list_devices(engine, env)
        if listed is not None:
            found = [UsedGpu(row.name, row.description, known.get(row.name), row.free_bytes) for row in listed]
    if named:
        by_name = {used.name.lower(): used for used in found}
        found = [by_name[word] for word in named.split(",") if word in by_name]
    if settings.value("split-mode") == NONE:
        main = int(settings.value("main-gpu") or 0)
        found = found[main : main + 1]
    return tuple(found)


# Whether the engine at hand can use the NVIDIA GPU, and why not: for `specdash doctor`.


class EngineCheck(Struct, frozen=True):
    """An engine, where it is, and whether it can use the GPU: `usable` None where that is not known, and `verdict` in
    one line why."""

    engine: Engine
    path: str
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
    devices = list_devices(engine, visible)
    package = importlib.util.find_spec(PACKAGE) if engine.kind == PACKAGE else None
    path = engine.path if package is None or package.origin is None else str(Path(package.origin).parent)
    usable, verdict = judge(devices, driver, visible, cpu=for_cpu(engine))
    return EngineCheck(engine, path, devices, usable, verdict)


def judge(
    devices: tuple[Device, ...] | None, driver: Driver, env: Mapping[str, str], *, cpu: bool
) -> tuple[bool | None, str]:
    """Whether an engine that lists `devices` uses the GPU, and in one line why, or why not. `cpu`: it was built for the
    CPU alone."""
    hidden = env.get("CUDA_VISIBLE_DEVICES")
    if devices:
        return True, f"uses {', '.join(f'{device.name} ({device.description})' for device in devices)}"
    if cpu:
        return False, f"CPU only: built without CUDA{f'; besides, {driver.detail}' * (not driver.gpus)}"
    if devices is None:
        return None, "not known: it does not list its devices"
    why = f"its CUDA may be newer than the driver's ({driver.version}), or CUDA's libraries are not found"
    why = driver.detail if not driver.gpus else f"CUDA_VISIBLE_DEVICES={hidden} hides the GPUs" if hidden else why
    return False, f"CPU only: it lists no device: {why}"
