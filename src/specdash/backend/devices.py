"""The devices an engine can run on, asked of itself, and what of the settings names others."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.ask import ask
from specdash.backend.binary import key_of, on_purpose, setting_of
from specdash.backend.engine_facts import Lack
from specdash.backend.engines import PACKAGE, Engine, probe_environment
from specdash.backend.gpu_build import build_of
from specdash.core.parameter_catalogue import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import Assigned, BackendSettings

NONE = "none"
"""The device name that means the CPU."""
_TIMEOUT_S = 20.0
_GOOD_FOR_S = 30.0
_MIB = 1024 * 1024
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
    return tuple(Device(name, words, int(total) * _MIB, int(free) * _MIB) for name, words, total, free in found)


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


def lacking(settings: BackendSettings, engine: Engine, base: Mapping[str, str]) -> tuple[Lack, ...]:
    """What the settings name of devices that `engine` does not offer. The engine is asked only where they name any."""
    found: list[Lack] = []
    named = {name: one for name in _NAMING if (one := _set(settings, name)) is not None and one.value != NONE}
    main, shares = _set(settings, "main-gpu"), _set(settings, "tensor-split")
    if named or (main is not None and main.value) or shares is not None:
        devices = list_devices(engine, visible_environment(settings, base))
        if devices is not None:
            found += [lack for name, one in named.items() for lack in _unknown(name, one, devices, engine)]
            used = _used(settings, devices)
            found += _main(settings, main, used, engine) if main is not None else []
            found += _shares(shares, used, engine) if shares is not None else []
    layers = _set(settings, "gpu-layers")
    if layers is not None and layers.value not in (0, -1) and build_of(engine).cpu_only:
        said = f"{setting_of(BY_NAME['gpu-layers'], layers)} has no effect: {engine.words} was built for the CPU"
        fix = "`specdash doctor` says how to get one that uses the GPU"
        found.append(Lack("gpu-layers", key_of(layers.source), said, refused=False, fix=fix))
    return tuple(found)


def _set(settings: BackendSettings, name: str) -> Assigned | None:
    one = settings.parameters.get(name)
    return one if one is not None and on_purpose(one) else None


def _unknown(name: str, one: Assigned, devices: tuple[Device, ...], engine: Engine) -> list[Lack]:
    known = {device.name.lower() for device in devices}
    strange = [word for word in str(one.value).split(",") if word.lower() not in known]
    if not strange:
        return []
    said = f"{setting_of(BY_NAME[name], one)}: {engine.words} lists no device {', '.join(strange)}"
    if devices:
        fix = f"use {' or '.join(f'{device.name} ({device.description})' for device in devices)}, or 'none' for the CPU"
    else:
        fix = "remove it: the engine has no device but the CPU; `specdash doctor` says why"
    return [Lack(name, key_of(one.source), said, refused=True, fix=fix)]


def _used(settings: BackendSettings, devices: tuple[Device, ...]) -> int:
    """How many devices the server will use."""
    named = settings.text("device")
    if named is None:
        return len(devices)
    return 0 if named == NONE else len(named.split(","))


def _main(settings: BackendSettings, one: Assigned, used: int, engine: Engine) -> list[Lack]:
    if settings.value("split-mode") != NONE or not used or int(one.value) < used:
        return []
    said = f"{setting_of(BY_NAME['main-gpu'], one)}: {engine.words} has {used} GPU{'' if used == 1 else 's'} to use"
    fix = f"use 0 to {used - 1}" if used > 1 else "use 0"
    return [Lack("main-gpu", key_of(one.source), said, refused=True, fix=fix)]


def _shares(one: Assigned, used: int, engine: Engine) -> list[Lack]:
    count = len(re.split("[,/]", str(one.value)))
    if count <= used:
        return []
    said = f"{setting_of(BY_NAME['tensor-split'], one)} has {count} shares: {engine.words} has {used} GPU"
    said += "s" if used != 1 else ""
    fix = "remove it" if used < 2 else f"give {used}"
    return [Lack("tensor-split", key_of(one.source), said, refused=False, fix=fix)]
