"""The devices an engine can run on, asked of itself, and what of the settings names others."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.binary import MissingFeature, key_of, on_purpose, setting_of
from specdash.backend.engines import (
    PACKAGE,
    Build,
    Engine,
    ask,
    build_of,
    find_engine,
    probe_environment,
)
from specdash.backend.settings import MACHINE_KEYS, BackendSettings
from specdash.core.envfile import read_values
from specdash.core.errors import SpecdashError
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.paths import backend_env_file
from specdash.system.data import dataclass
from specdash.system.text import MIB, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import ParameterValue
    from specdash.collect.gpu import Driver


NONE = "none"
"""The device name that means the CPU."""
_TIMEOUT_S = 20.0
_GOOD_FOR_S = 30.0
_TITLE = "Available devices:"
_DEVICE = re.compile(r"^\s+(\S+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)
_NAMING = ("device", "spec-draft-device")
_lock = threading.Lock()
_known: dict[tuple[object, ...], tuple[float, tuple[Device, ...] | None]] = {}


@dataclass(frozen=True, slots=True)
class Device:
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
    """The devices `engine` offers beside the CPU, None when it does not tell. Good for half a minute.

    `env` is the environment to ask in: CUDA_VISIBLE_DEVICES hides devices. An engine built for the CPU is not asked.
    """
    if build_of(engine).cpu_only:
        return ()
    hiding = tuple(
        sorted((key, value) for key, value in env.items() if "VISIBLE_DEVICES" in key or key == "LD_PRELOAD")
    )
    try:
        changed: object = Path(engine.path).stat().st_mtime_ns
    except OSError:
        changed = None
    key = (engine.kind, engine.path, changed, engine.loader, hiding)
    with _lock:
        kept = _known.get(key)
    if kept is not None and time.monotonic() - kept[0] < _GOOD_FOR_S:
        return kept[1]
    found = _ask_package(env) if engine.kind == PACKAGE else _ask_binary(engine, env)
    with _lock:
        _known[key] = (time.monotonic(), found)
    return found


def _ask_binary(engine: Engine, env: Mapping[str, str]) -> tuple[Device, ...] | None:
    answer = ask([engine.path, "--list-devices"], probe_environment(engine.loader, env), _TIMEOUT_S)
    return parse_devices(answer.text) if answer.problem is None and answer.code == 0 else None


def _ask_package(env: Mapping[str, str]) -> tuple[Device, ...] | None:
    answer = ask([sys.executable, "-m", "specdash.backend.embedded_facts", "--devices"], env, _TIMEOUT_S)
    if answer.problem is not None or answer.code != 0:
        return None
    try:
        rows = json.loads(answer.text.splitlines()[-1])
        return tuple(Device(str(name), str(words), int(total), int(free)) for name, words, total, free in rows)
    except (ValueError, TypeError, IndexError):
        return None


def visible_environment(settings: BackendSettings, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the server will look for devices."""
    return {**base, **settings.environment}


def lacking(settings: BackendSettings, engine: Engine, base: Mapping[str, str]) -> tuple[MissingFeature, ...]:
    """What the settings name of devices that `engine` does not offer. The engine is asked only where they name any."""
    found: list[MissingFeature] = []
    named = {name: value for name in _NAMING if (value := _set(settings, name)) is not None and value.value != NONE}
    main, shares = _set(settings, "main-gpu"), _set(settings, "tensor-split")
    if named or (main is not None and main.value) or shares is not None:
        devices = list_devices(engine, visible_environment(settings, base))
        if devices is not None:
            found += [lack for name, value in named.items() for lack in _unknown(name, value, devices, engine)]
            used = _used(settings, devices)
            found += _main(settings, main, used, engine) if main is not None else []
            found += _shares(shares, used, engine) if shares is not None else []
    layers = _set(settings, "gpu-layers")
    if layers is not None and layers.value not in (0, -1) and build_of(engine).cpu_only:
        said = f"{setting_of(BY_NAME['gpu-layers'], layers)} has no effect: {engine.words} was built for the CPU"
        fix = "`specdash doctor` says how to get one that uses the GPU"
        found.append(MissingFeature("gpu-layers", key_of(layers.source), said, refused=False, fix=fix))
    return tuple(found)


def _set(settings: BackendSettings, name: str) -> ParameterValue | None:
    value = settings.parameters.get(name)
    return value if value is not None and on_purpose(value) else None


def _unknown(name: str, value: ParameterValue, devices: tuple[Device, ...], engine: Engine) -> list[MissingFeature]:
    known = {device.name.lower() for device in devices}
    strange = [word for word in str(value.value).split(",") if word.lower() not in known]
    if not strange:
        return []
    said = f"{setting_of(BY_NAME[name], value)}: {engine.words} lists no device {', '.join(strange)}"
    if devices:
        fix = f"use {' or '.join(f'{device.name} ({device.description})' for device in devices)}, or 'none' for the CPU"
    else:
        fix = "remove it: the engine has no device but the CPU; `specdash doctor` says why"
    return [MissingFeature(name, key_of(value.source), said, refused=True, fix=fix)]


def _used(settings: BackendSettings, devices: tuple[Device, ...]) -> int:
    named = settings.text("device")
    if named is None:
        return len(devices)
    return 0 if named == NONE else len(named.split(","))


def _main(settings: BackendSettings, value: ParameterValue, used: int, engine: Engine) -> list[MissingFeature]:
    if settings.value("split-mode") != NONE or not used or int(value.value) < used:
        return []
    said = f"{setting_of(BY_NAME['main-gpu'], value)}: {engine.words} has {counted(used, 'GPU')} to use"
    fix = f"use 0 to {used - 1}" if used > 1 else "use 0"
    return [MissingFeature("main-gpu", key_of(value.source), said, refused=True, fix=fix)]


def _shares(value: ParameterValue, used: int, engine: Engine) -> list[MissingFeature]:
    count = len(re.split("[,/]", str(value.value)))
    if count <= used:
        return []
    said = f"{setting_of(BY_NAME['tensor-split'], value)} has {count} shares: {engine.words} has {used} GPU"
    said += "s" if used != 1 else ""
    fix = "remove it" if used < 2 else f"give {used}"
    return [MissingFeature("tensor-split", key_of(value.source), said, refused=False, fix=fix)]


# Whether the engine at hand can use the NVIDIA GPU, and why not: for `specdash doctor`.


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """The chosen engine: `verdict` says in one line whether it uses the GPU, and why not. `usable` None: unknown."""

    kind: str
    version: str
    path: str
    reason: str
    build: Build
    devices: tuple[Device, ...] | None
    usable: bool | None
    verdict: str


def check_engine(driver: Driver, env: Mapping[str, str] = os.environ) -> EngineCheck:
    """Look at the engine that the env file or the environment chooses. Raises `EngineMissingError`."""
    settings = _settings(env)
    engine = find_engine(settings, env)
    visible = visible_environment(settings, env)
    build = build_of(engine)
    devices = list_devices(engine, visible)
    usable, verdict = judge(engine.kind, build, devices, driver, visible)
    package = importlib.util.find_spec(PACKAGE) if engine.kind == PACKAGE else None
    path = engine.path if package is None or package.origin is None else str(Path(package.origin).parent)
    return EngineCheck(engine.kind, engine.version, path, engine.reason, build, devices, usable, verdict)


def _settings(env: Mapping[str, str]) -> BackendSettings:
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


def judge(
    kind: str, build: Build, devices: tuple[Device, ...] | None, driver: Driver, env: Mapping[str, str]
) -> tuple[bool | None, str]:
    """Whether an engine uses the GPU, and in one line why, or why not."""
    if devices:
        named = ", ".join(f"{device.name} ({device.description})" for device in devices)
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
