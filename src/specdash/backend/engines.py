"""Which engine runs the model: the llama-server binary or the xllamacpp package; where it is, and its version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import EngineMissingError

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings

BINARY = "llama-server"
PACKAGE = "xllamacpp"
_VERSION_TIMEOUT_S = 15.0
_HOW_TO_GET_ONE = "`pip install 'specdash[backend]'`, or set LLAMA_BIN to a llama-server binary"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that can be started: its `kind` (llama-server or xllamacpp), path, version, and why it was taken."""

    kind: str
    path: str
    version: str
    reason: str

    @property
    def words(self) -> str:
        """Kind and version, as the header and the run record show them."""
        return f"{self.kind} {self.version}"


def find_engine(settings: BackendSettings) -> Engine:
    """The engine to use for `settings`. Raises `EngineMissingError` saying how to get one."""
    if settings.engine == PACKAGE:
        return _package("LLAMA_ENGINE or --engine asks for it")
    if settings.binary is not None:
        return _named_binary(settings.binary)
    found = shutil.which(BINARY)
    if found is not None:
        return Engine(BINARY, found, binary_version(found), "found on PATH")
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


def binary_version(path: str) -> str:
    """What `path --version` says, in words. Raises `EngineMissingError` when it does not run."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "does not answer --version" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise EngineMissingError(f"{path} cannot be run ({reason}); set LLAMA_BIN to a llama-server binary") from None
    output = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    found = re.search(r"^version: *(.+)$", output, re.MULTILINE)
    if done.returncode != 0 or found is None:
        first = next((line for line in output.splitlines() if line.strip()), f"exit code {done.returncode}")
        raise EngineMissingError(f"{path} is no working llama-server ({first.strip()}); set LLAMA_BIN to one")
    return found.group(1).strip()


def _named_binary(path: str) -> Engine:
    file = Path(path).expanduser()
    resolved = str(file) if file.is_absolute() or os.sep in path else shutil.which(path)
    if resolved is None or not Path(resolved).is_file():
        raise EngineMissingError(f"LLAMA_BIN={path}: no such file; correct it, or unset it and {_HOW_TO_GET_ONE}")
    if not os.access(resolved, os.X_OK):
        raise EngineMissingError(f"LLAMA_BIN={path}: is not executable; `chmod +x` it, or name another binary")
    return Engine(BINARY, resolved, binary_version(resolved), "LLAMA_BIN names it")


def _package(reason: str) -> Engine:
    version = package_version()
    if version is None:
        raise EngineMissingError(f"no engine is installed ({reason}, and no {PACKAGE} package): {_HOW_TO_GET_ONE}")
    build = version.rsplit(".", 1)[-1]
    words = f"{version} (llama.cpp b{build})" if build.isdigit() and len(build) > 2 else version
    return Engine(PACKAGE, sys.executable, words, reason)
