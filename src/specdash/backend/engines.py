"""Which engine runs the model: the llama-server binary or the xllamacpp package; where it is, and what it can do.

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
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.backend import binary, embedded
from specdash.backend.embedded import PACKAGE as PACKAGE  # noqa: PLC0414 - exported
from specdash.backend.settings import engine_settings, negated
from specdash.core.errors import EngineMissingError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.backend.binary import Engine
    from specdash.backend.settings import BackendSettings
    from specdash.core.errors import Finding

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
    if named is not None:
        file = Path(named).expanduser()
        found = str(file) if file.is_absolute() or os.sep in named else shutil.which(named, path=env.get("PATH"))
        if found is None or not Path(found).is_file():
            fix = f"correct it, or unset it and {_HOW_TO_GET_ONE}"
            raise EngineMissingError(f"LLAMA_BIN={named}: no such file", fix, key=KEY)
        if not os.access(found, os.X_OK):
            fix = "`chmod +x` it, or name another binary"
            raise EngineMissingError(f"LLAMA_BIN={named}: is not executable", fix, key=KEY)
    else:
        found = shutil.which(BINARY, path=env.get("PATH"))
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
    asked = _asked(found, stamp, tuple(sorted(probe_environment(loader, env).items())))
    return replace(asked, path=found, reason="LLAMA_BIN names it" if named else "found on PATH", loader=loader)


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
    return tuple(embedded.fit(settings).lacks if engine.kind == PACKAGE else binary.fit(settings, engine).lacks)


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
def _asked(path: str, _stamp: tuple[tuple[str, int, int], ...], env: tuple[tuple[str, str], ...]) -> Engine:
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

_NOT_GPU = frozenset({"", "base", "cpu", "blas", "rpc"})
_ACCELERATED = (b"libcuda.so", b"libcudart", b"ggml_cuda_init", b"libvulkan.so")


def for_cpu(engine: Engine) -> bool:
    """Whether the engine was certainly built for the CPU alone; false where its files do not tell."""
    if engine.kind == PACKAGE:
        spec = importlib.util.find_spec(PACKAGE)
        folder = Path(spec.origin or "").parent if spec is not None else Path()
        code, libraries = [*folder.glob("*.so"), *folder.parent.glob(f"{PACKAGE}.libs/*.so*")], []
    else:
        path = Path(engine.path).resolve()
        named = [part for key, value in engine.loader if key == "LD_LIBRARY_PATH" for part in value.split(":") if part]
        folders = [path.parent, *(path.parent.parent / name for name in ("lib", "lib64")), *map(Path, named)]
        libraries = [file for folder in folders for file in folder.glob("libggml*")]
        code = [path, *libraries]
    # `cuda` of `libggml-cuda.so.0`, `cpu` of `libggml-cpu-haswell.so`.
    parts = {file.name.partition(".")[0].removeprefix("libggml").strip("-").partition("-")[0] for file in libraries}
    # A file that holds ggml's own code, and not only calls of it.
    seen = "cpu" in parts or engine.kind == PACKAGE or any(_holds(file, b"ggml_backend_cpu_reg") for file in code)
    return bool(seen and code) and parts <= _NOT_GPU and not any(_holds(file, *_ACCELERATED) for file in code)


def _holds(file: Path, *names: bytes) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return _search(str(file), file.stat().st_mtime_ns, names)
    return False


@functools.lru_cache(maxsize=32)
def _search(path: str, _changed: int, names: tuple[bytes, ...]) -> bool:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in names)
