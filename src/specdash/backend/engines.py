"""Which engine runs the model: the llama-server binary or the xllamacpp package; where it is, and its version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend import probe_cache
from specdash.backend.ask import ask
from specdash.core.errors import EngineMissingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings

BINARY = "llama-server"
PACKAGE = "xllamacpp"
_VERSION_TIMEOUT_S = 15.0
_LOADER = ("LD_", "DYLD_")
_HOW_TO_GET_ONE = "`pip install 'specdash[backend]'`, or set LLAMA_BIN to a llama-server binary"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that can be started: its `kind` (llama-server or xllamacpp), path, version, and why it was taken."""

    kind: str
    path: str
    version: str
    reason: str
    loader: tuple[tuple[str, str], ...] = ()
    """The variables of the env file that tell the system's loader where the engine's libraries are."""

    @property
    def words(self) -> str:
        """Kind and version, as the header and the run record show them."""
        return f"{self.kind} {self.version}"


def find_engine(settings: BackendSettings, env: Mapping[str, str] = os.environ) -> Engine:
    """The engine to use for `settings`. Raises `EngineMissingError` saying how to get one.

    `env` is the caller's environment: it has the PATH, and tells where the engine's version may be remembered.
    """
    loader = tuple(sorted((key, value) for key, value in settings.environment.items() if key.startswith(_LOADER)))
    if settings.engine == PACKAGE:
        return _package("LLAMA_ENGINE or --engine asks for it")
    if settings.binary is not None:
        return _named_binary(settings.binary, loader, env)
    found = shutil.which(BINARY, path=env.get("PATH"))
    if found is not None:
        return Engine(BINARY, found, binary_version(found, loader, env), "found on PATH", loader)
    if settings.engine == BINARY:
        raise EngineMissingError(f"no {BINARY} on PATH; set LLAMA_BIN to the binary, or LLAMA_ENGINE=auto")
    return _package(f"LLAMA_BIN is not set and no {BINARY} is on PATH")


def package_version() -> str | None:
    """Version of the installed xllamacpp package, None when there is none. Does not import it."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def binary_key(path: str, loader: tuple[tuple[str, str], ...]) -> str | None:
    """What `probe_cache` knows the binary by: its file, its libraries, and where the loader looks for others."""
    return probe_cache.identity(path, *(f"{key}={value}" for key, value in loader))


def probe_environment(loader: tuple[tuple[str, str], ...], env: Mapping[str, str]) -> dict[str, str]:
    """The environment to ask an engine in: a bad `LLAMA_ARG_*` would make even `--help` fail."""
    return {**{key: value for key, value in env.items() if not key.startswith("LLAMA_")}, **dict(loader)}


def binary_version(path: str, loader: tuple[tuple[str, str], ...] = (), env: Mapping[str, str] = os.environ) -> str:
    """What `path --version` says, in words; from the cache when the same file was asked before.

    Raises `EngineMissingError` when it does not run.
    """
    key = binary_key(path, loader)
    kept = probe_cache.recall(key, env).get("version") if key is not None else None
    if isinstance(kept, str):
        return kept
    answer = ask([path, "--version"], probe_environment(loader, env), _VERSION_TIMEOUT_S)
    if answer.problem is not None:
        told = f"{path} --version: {answer.problem}" if answer.text else f"{path} cannot be run ({answer.problem})"
        raise EngineMissingError(f"{told}; set LLAMA_BIN to a llama-server binary")
    found = re.search(r"^version: *(.+)$", answer.text, re.MULTILINE)
    if answer.code != 0 or found is None:
        raise EngineMissingError(f"{path} is no working llama-server ({answer.first_line}); set LLAMA_BIN to one")
    version = found.group(1).strip()
    if key is not None:
        probe_cache.remember(key, {"version": version}, env)
    return version


def _named_binary(path: str, loader: tuple[tuple[str, str], ...], env: Mapping[str, str]) -> Engine:
    file = Path(path).expanduser()
    resolved = str(file) if file.is_absolute() or os.sep in path else shutil.which(path, path=env.get("PATH"))
    if resolved is None or not Path(resolved).is_file():
        raise EngineMissingError(f"LLAMA_BIN={path}: no such file; correct it, or unset it and {_HOW_TO_GET_ONE}")
    if not os.access(resolved, os.X_OK):
        raise EngineMissingError(f"LLAMA_BIN={path}: is not executable; `chmod +x` it, or name another binary")
    return Engine(BINARY, resolved, binary_version(resolved, loader, env), "LLAMA_BIN names it", loader)


def _package(reason: str) -> Engine:
    version = package_version()
    if version is None:
        raise EngineMissingError(f"no engine is installed ({reason}, and no {PACKAGE} package): {_HOW_TO_GET_ONE}")
    build = version.rsplit(".", 1)[-1]
    words = f"{version} (llama.cpp b{build})" if build.isdigit() and len(build) > 2 else version
    return Engine(PACKAGE, sys.executable, words, reason)
