"""Which engine runs the model: the llama-server binary or the xllamacpp package; where it is, what it can do, and on
which devices.

llama-server describes itself by `--version` and `--help`, since distributions and forks cut their own builds; it is
asked again when its files change. xllamacpp has what the catalogue names of its `CommonParams`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.backend import binary, embedded
from specdash.backend.binary import Engine  # noqa: TC001 - a field type
from specdash.backend.embedded import PACKAGE as PACKAGE  # noqa: PLC0414 - exported
from specdash.backend.settings import engine_settings, negated
from specdash.core.envfile import read_values
from specdash.core.errors import EngineMissingError, SpecdashError
from specdash.core.paths import backend_env_file
from specdash.system.text import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.backend.settings import BackendSettings
    from specdash.collect.gpu import Driver
    from specdash.core.errors import Finding
    from specdash.core.readings import Gpu, Gpus, Reading

BINARY = "llama-server"
KEY = "LLAMA_BIN"
"""The env key that names the binary."""
_TIMEOUT_S = 20.0
_FEWEST_FLAGS = 10
"""A text with fewer is no help of llama-server."""
_LOADER = ("LD_", "DYLD_")
_HOW_TO_GET_ONE = "run `pip install '.[backend]'` in a checkout of specdash, or set LLAMA_BIN to a llama-server binary"
_MEND = "set LLAMA_BIN to a working llama-server"


def ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> tuple[str, int | None]:
    """Standard output and error of `argv` together, and its exit code; why there is no answer, and None. Never raises
    for what the program does, and leaves none behind."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        return error.strerror or str(error), None
    with process:
        try:
            data = process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            data = None
        # Children that the program left in its session go with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if data is None:
        return f"no answer within {timeout_s:.0f} s", None
    return data.decode("utf-8", "replace"), process.returncode


def find_engine(settings: BackendSettings, env: Mapping[str, str] = os.environ) -> Engine:
    """The engine to use for `settings`. Raises `EngineMissingError` saying how to get one.

    `env` is the caller's environment, which has the PATH.
    """
    loader = tuple(sorted((key, value) for key, value in settings.environment.items() if key.startswith(_LOADER)))
    if settings.engine == PACKAGE:
        return _package("LLAMA_ENGINE or --engine asks for it", "LLAMA_ENGINE")
    named = settings.binary
    found = shutil.which(Path(named).expanduser() if named else BINARY, path=env.get("PATH"))
    if found is None and named:
        fix = f"correct it, `chmod +x` it, or unset it and {_HOW_TO_GET_ONE}"
        raise EngineMissingError(f"LLAMA_BIN={named}: no such file, or not executable", fix, key=KEY)
    if found is None and settings.engine == BINARY:
        fix = "set LLAMA_BIN to the binary, or LLAMA_ENGINE=auto"
        raise EngineMissingError(f"no {BINARY} on PATH", fix, key=KEY)
    if found is None:
        return _package(f"LLAMA_BIN is not set and no {BINARY} is on PATH", KEY)
    real = Path(found).resolve()
    # A thin binary: libraries hold the flags.
    beside = (file for folder in (real.parent, real.parent.parent / "lib") for file in folder.glob("lib[lg]*"))
    stats = ((str(file), file.stat()) for file in (real, *sorted(beside)) if file.exists())
    stamp = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
    engine = _described(found, stamp, tuple(sorted(probe_environment(loader, env).items())))
    return replace(engine, path=found, reason="LLAMA_BIN names it" if named else "found on PATH", loader=loader)


def listed_names(env: Mapping[str, str], base: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The spec types and `LLAMA_ARG_*` variables in the help of the engine that a backend env chooses; none where it
    cannot be asked."""
    try:
        engine = find_engine(engine_settings(env, base), base)
    except (SpecdashError, ValueError, OSError):
        return frozenset()
    return engine.variables | frozenset(engine.spec_types) | frozenset(map(negated, engine.variables))


def lacking(settings: BackendSettings, engine: Engine) -> tuple[Finding, ...]:
    """What the settings ask and the engine has not: what is refused, and what is left out with a warning."""
    return tuple((embedded.fit(settings) if engine.kind == PACKAGE else binary.fit(settings, engine))[1])


def probe_environment(loader: tuple[tuple[str, str], ...], env: Mapping[str, str]) -> dict[str, str]:
    """The environment to ask an engine in: a bad `LLAMA_ARG_*` would make even `--help` fail."""
    return {**{key: value for key, value in env.items() if not key.startswith("LLAMA_")}, **dict(loader)}


def _package(reason: str, key: str) -> Engine:
    """The installed package, which is not imported."""
    if importlib.util.find_spec(PACKAGE) is None:
        what = f"no engine is installed ({reason}, and no {PACKAGE} package): {_HOW_TO_GET_ONE}"
        raise EngineMissingError(what, key=key)
    version = "of unknown version"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version(PACKAGE)
    build = version.rsplit(".", 1)[-1]
    words = f"{version} (llama.cpp b{build})" if build.isdigit() and len(build) > 2 else version
    return replace(embedded.capabilities(words), path=sys.executable, reason=reason)


@functools.lru_cache(maxsize=8)
def _described(path: str, _stamp: tuple[tuple[str, int, int], ...], env: tuple[tuple[str, str], ...]) -> Engine:
    """What `path --version` and `path --help` say. Raises `EngineMissingError` when it does not run."""
    text, code = ask([path, "--version"], dict(env))
    if code is None:
        raise EngineMissingError(f"{path} cannot be run ({text})", _MEND, key=KEY)
    version = re.search(r"^version: *(.+)$", text, re.MULTILINE)
    if code != 0 or version is None:
        raise EngineMissingError(f"{path} is no working llama-server ({_first_line(text, code)})", _MEND, key=KEY)
    text, code = ask([path, "--help"], dict(env))
    engine = binary.from_help(version.group(1).strip(), text)
    if code is None or len(engine.texts) < _FEWEST_FLAGS:
        why = text if code is None else f"lists no arguments ({_first_line(text, code)[:200]})"
        raise EngineMissingError(f"{path} --help: {why}; what it can do is unknown", _MEND, key=KEY)
    return engine


def _first_line(text: str, code: int) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), f"exit code {code}")


# What an engine was built for, read from its files: nothing is started. llama.cpp keeps each accelerator in a library
# of its own (`libggml-cuda.so`), or everything in one file, which then names the driver's libraries.

_ACCELERATED = (b"libcuda.so", b"libcudart", b"ggml_cuda_init", b"libvulkan.so", b"libsycl.so", b"libOpenCL.so")


def for_cpu(engine: Engine) -> bool:
    """Whether the engine was certainly built for the CPU alone; false where its files do not tell."""
    if engine.kind == PACKAGE:
        spec = importlib.util.find_spec(PACKAGE)
        folder = Path(spec.origin or "").parent if spec is not None else Path()
        files = [*folder.glob("*.so"), *folder.parent.glob(f"{PACKAGE}.libs/*.so*")]
    else:
        path = Path(engine.path).resolve()
        named = [part for key, value in engine.loader if key == "LD_LIBRARY_PATH" for part in value.split(":") if part]
        folders = [path.parent, *(path.parent.parent / name for name in ("lib", "lib64")), *map(Path, named)]
        files = [path, *(file for folder in folders for file in folder.glob("libggml*"))]
    code = [(str(file), file.stat().st_mtime_ns) for file in files if file.is_file()]
    # A file that holds ggml's own code, and not only calls of it.
    seen = (engine.kind == PACKAGE and bool(code)) or any(_holds(*file, b"ggml_backend_cpu_reg") for file in code)
    return seen and not any(_holds(*file, *_ACCELERATED) for file in code)


@functools.lru_cache(maxsize=32)
def _holds(path: str, _changed: int, *names: bytes) -> bool:
    with (
        contextlib.suppress(OSError, ValueError),
        Path(path).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return any(data.find(name) >= 0 for name in names)
    return False


# The devices an engine can run on, asked of itself.

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

    `env` is the environment to ask in: CUDA_VISIBLE_DEVICES hides devices. An engine built for the CPU is not asked,
    and the package cannot be.
    """
    if for_cpu(engine):
        return ()
    if engine.kind == PACKAGE:
        return None
    text, code = _asked((engine.path, "--list-devices"), probe_environment(engine.loader, env))
    return parse_devices(text) if code == 0 else None


def _asked(argv: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, int | None]:
    return _kept(argv, tuple(sorted(env.items())), int(time.monotonic() / _GOOD_FOR_S))


@functools.lru_cache(maxsize=32)
def _kept(argv: tuple[str, ...], env: tuple[tuple[str, str], ...], _when: int) -> tuple[str, int | None]:
    return ask(argv, dict(env))


# Which GPUs the settings use. NVML and CUDA number GPUs in different orders (by PCI bus, and fastest first), so that a
# device of the engine is matched to one of NVML's by its UUID.


class UsedGpu(Struct, frozen=True):
    """A device that the engine uses: its name there, NVML's view of it where NVML knows it, and what the engine says is
    free where it was asked."""

    name: str
    gpu: Gpu | None = None
    free_bytes: int | None = None


def nvml_gpus() -> Gpus | None:
    """The GPUs of this machine as NVML sees them, None when it shows none."""
    from specdash.collect.gpu import GpuCollector

    readings: list[Reading[Gpus]] = []
    GpuCollector(readings.append).step(_NVML_S)
    return readings[-1].value


def cuda_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """The UUIDs of the GPUs in the order in which CUDA numbers them in `env`; none where CUDA has none."""
    text, code = _asked((sys.executable, "-m", "specdash.backend.cuda_order"), env)
    return tuple(text.split()) if code == 0 else ()


def used_gpus(
    settings: BackendSettings,
    engine: Engine | None,
    base: Mapping[str, str],
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
    seen = nvml_gpus()
    by_uuid = {gpu.uuid: gpu for gpu in seen.gpus} if seen is not None else {}
    numbered = enumerate(map(by_uuid.get, cuda_gpus(env) if by_uuid else ()))
    known = {f"CUDA{number}": gpu for number, gpu in numbered if gpu is not None}
    found = [UsedGpu(name, gpu) for name, gpu in known.items()]
    if engine is not None and not (known and {*filter(None, named.split(","))} <= {*map(str.lower, known)}):
        listed = list_devices(engine, env)
        if listed is not None:
            found = [UsedGpu(row.name, known.get(row.name), row.free_bytes) for row in listed]
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
    hidden = visible.get("CUDA_VISIBLE_DEVICES")
    if devices:
        words = f"uses {', '.join(f'{device.name} ({device.description})' for device in devices)}"
    elif for_cpu(engine):
        words = f"CPU only: built without CUDA{f'; besides, {driver.detail}' * (not driver.gpus)}"
    elif devices is None:
        words = "not known: it does not list its devices"
    else:
        why = f"its CUDA may be newer than the driver's ({driver.version}), or CUDA's libraries are not found"
        why = f"CUDA_VISIBLE_DEVICES={hidden} hides the GPUs" if hidden else why
        words = f"CPU only: it lists no device: {why if driver.gpus else driver.detail}"
    return EngineCheck(engine, path, devices, None if devices is None else bool(devices), words)
