"""Which engine runs the model: the llama-server binary or the xllamacpp package; where it is, and its version."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.core.errors import EngineMissingError
from specdash.core.paths import cache_dir
from specdash.system import files
from specdash.system.data import dataclass
from specdash.system.text import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.backend.settings import BackendSettings


# Run a program for its few words about itself: bounded in time and in what is read.

_LARGEST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What a program said. `problem` says in words why there is no whole answer, None when there is one."""

    text: str
    code: int | None = None
    problem: str | None = None

    @property
    def first_line(self) -> str:
        """The first line that says something, for a message; the exit code when none does."""
        lines = (line.strip() for line in self.text.splitlines())
        return next((line for line in lines if line), f"exit code {self.code}")


def ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> ProgramOutput:
    """Standard output and error of `argv` together. Never raises for what the program does, and leaves none behind."""
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
        return ProgramOutput("", problem=error.strerror or str(error))
    late = threading.Event()

    def end() -> None:
        # Children that the program left in its session go with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def give_up() -> None:
        late.set()
        end()

    timer = threading.Timer(timeout_s, give_up)
    timer.start()
    with process:
        text = process.stdout.read(_LARGEST + 1) if process.stdout is not None else b""
        if len(text) <= _LARGEST:
            process.wait()
        timer.cancel()
        end()
    problem = f"no answer within {timeout_s:.0f} s" if late.is_set() else None
    problem = f"says more than {size(_LARGEST)}" if len(text) > _LARGEST else problem
    return ProgramOutput(text[:_LARGEST].decode("utf-8", "replace"), process.returncode, problem)


# What was once found out about an engine, kept in one JSON file so that asking again costs nothing.
#
# An entry belongs to one file, told by its real path, time of change and size, and to the libraries that hold the
# code of a thin binary. Only what can be found out again is kept: a damaged, foreign or unwritable file is as good as
# none.

FILE = "capabilities.json"
_FORMAT = 1
_KEPT = 8
"""Engines remembered; the one asked longest ago is forgotten first."""
_PROBE_CACHE_LARGEST = 8 * 1024 * 1024
_LIBRARY = ("libllama", "libggml")


def identity(path: str, *more: str) -> str | None:
    """What tells this very file from another and from an older one of its name; None when it cannot be looked at.

    `more` are other things the answer depends on, such as the loader's variables.
    """
    try:
        real = Path(path).resolve(strict=True)
        found = [_stamp(real.stat()), *_libraries(real.parent), *more]
    except OSError:
        return None
    return f"{real}|{hashlib.sha256('|'.join(found).encode('utf-8', 'surrogateescape')).hexdigest()}"


def recall(key: str, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What is remembered under `key`; empty when nothing is."""
    found = _probe_cache_read(_file(env)).get(key)
    return found if isinstance(found, dict) else {}


def remember(key: str, facts: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> None:
    """Keep `facts` under `key` beside what is known of it already; without a word when that cannot be done."""
    file = _file(env)
    entries = _probe_cache_read(file)
    before = entries.pop(key, None)
    entries[key] = {**(before if isinstance(before, dict) else {}), **facts}
    kept = dict(list(entries.items())[-_KEPT:])
    with contextlib.suppress(OSError):
        files.make_directories(file.parent)
        files.replace(file, json.dumps({"format": _FORMAT, "engines": kept}).encode())


def _file(env: Mapping[str, str]) -> Path:
    return cache_dir(env) / FILE


def _probe_cache_read(file: Path) -> dict[str, Any]:
    try:
        data: Any = json.loads(files.read_bounded(file, _PROBE_CACHE_LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        return {}
    engines = data.get("engines")
    return engines if isinstance(engines, dict) else {}


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns}:{stat.st_size}"


def _libraries(folder: Path) -> list[str]:
    """Stamps of llama.cpp's libraries beside the binary, or in the `lib` beside its `bin`: they hold the flags."""
    places = (folder, folder.parent / "lib")
    found = []
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            names = sorted(entry.path for entry in entries if entry.name.startswith(_LIBRARY))
            found += [f"{name}={_stamp(Path(name).stat())}" for name in names]
    return found


BINARY = "llama-server"
PACKAGE = "xllamacpp"
KEY = "LLAMA_BIN"
"""The env key that names the binary."""
_VERSION_TIMEOUT_S = 15.0
_LOADER = ("LD_", "DYLD_")
_HOW_TO_GET_ONE = "run `pip install '.[backend]'` in a checkout of specdash, or set LLAMA_BIN to a llama-server binary"


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
        return _package("LLAMA_ENGINE or --engine asks for it", "LLAMA_ENGINE")
    if settings.binary is not None:
        return _named_binary(settings.binary, loader, env)
    found = shutil.which(BINARY, path=env.get("PATH"))
    if found is not None:
        return Engine(BINARY, found, binary_version(found, loader, env), "found on PATH", loader)
    if settings.engine == BINARY:
        raise EngineMissingError(f"no {BINARY} on PATH", "set LLAMA_BIN to the binary, or LLAMA_ENGINE=auto", key=KEY)
    return _package(f"LLAMA_BIN is not set and no {BINARY} is on PATH", KEY)


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
    return identity(path, *(f"{key}={value}" for key, value in loader))


def probe_environment(loader: tuple[tuple[str, str], ...], env: Mapping[str, str]) -> dict[str, str]:
    """The environment to ask an engine in: a bad `LLAMA_ARG_*` would make even `--help` fail."""
    return {**{key: value for key, value in env.items() if not key.startswith("LLAMA_")}, **dict(loader)}


def binary_version(path: str, loader: tuple[tuple[str, str], ...] = (), env: Mapping[str, str] = os.environ) -> str:
    """What `path --version` says, in words; from the cache when the same file was asked before.

    Raises `EngineMissingError` when it does not run.
    """
    key = binary_key(path, loader)
    kept = recall(key, env).get("version") if key is not None else None
    if isinstance(kept, str):
        return kept
    answer = ask([path, "--version"], probe_environment(loader, env), _VERSION_TIMEOUT_S)
    if answer.problem is not None:
        told = f"{path} --version: {answer.problem}" if answer.text else f"{path} cannot be run ({answer.problem})"
        raise EngineMissingError(told, "set LLAMA_BIN to a llama-server binary", key=KEY)
    found = re.search(r"^version: *(.+)$", answer.text, re.MULTILINE)
    if answer.code != 0 or found is None:
        what = f"{path} is no working llama-server ({answer.first_line})"
        raise EngineMissingError(what, "set LLAMA_BIN to one", key=KEY)
    version = found.group(1).strip()
    if key is not None:
        remember(key, {"version": version}, env)
    return version


def _named_binary(path: str, loader: tuple[tuple[str, str], ...], env: Mapping[str, str]) -> Engine:
    file = Path(path).expanduser()
    resolved = str(file) if file.is_absolute() or os.sep in path else shutil.which(path, path=env.get("PATH"))
    if resolved is None or not Path(resolved).is_file():
        fix = f"correct it, or unset it and {_HOW_TO_GET_ONE}"
        raise EngineMissingError(f"LLAMA_BIN={path}: no such file", fix, key=KEY)
    if not os.access(resolved, os.X_OK):
        fix = "`chmod +x` it, or name another binary"
        raise EngineMissingError(f"LLAMA_BIN={path}: is not executable", fix, key=KEY)
    return Engine(BINARY, resolved, binary_version(resolved, loader, env), "LLAMA_BIN names it", loader)


def _package(reason: str, key: str) -> Engine:
    version = package_version()
    if version is None:
        what = f"no engine is installed ({reason}, and no {PACKAGE} package): {_HOW_TO_GET_ONE}"
        raise EngineMissingError(what, key=key)
    build = version.rsplit(".", 1)[-1]
    words = f"{version} (llama.cpp b{build})" if build.isdigit() and len(build) > 2 else version
    return Engine(PACKAGE, sys.executable, words, reason)


# For which accelerators an engine was built, told from its files: nothing is started.
#
# llama.cpp keeps each accelerator in a library of its own (`libggml-cuda.so`), or everything in one file; then the
# names of the driver's libraries inside it tell.


_PLAIN = ("base", "cpu")
_CUDA_NAMES = (b"libcuda.so", b"libcudart", b"ggml_cuda_init")
_WHOLE = b"ggml_backend_cpu_reg"
"""In a file that holds ggml's own code, and not only calls of it."""


@dataclass(frozen=True, slots=True)
class Build:
    """What an engine was built for. `cuda` None: its files do not tell. `evidence` says where that was seen."""

    cuda: bool | None
    evidence: str
    others: tuple[str, ...] = ()
    """Other accelerators, as llama.cpp names them: vulkan, hip, metal."""

    @property
    def cpu_only(self) -> bool:
        """Whether it is certain that no GPU will be used."""
        return self.cuda is False and not self.others


def build_of(engine: Engine) -> Build:
    """What the files of `engine` tell of its accelerators."""
    return (
        _gpu_build_package(engine.kind)
        if engine.kind != BINARY
        else _binary(Path(engine.path).resolve(), engine.loader)
    )


def _gpu_build_package(name: str) -> Build:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return Build(None, f"the package {name} is not installed")
    folder = Path(found.origin).parent
    modules = sorted((*folder.glob("*.so"), *folder.parent.glob(f"{name}.libs/*.so*")))
    speaking = _speaking(modules)
    if speaking is not None:
        return Build(cuda=True, evidence=f"{speaking} is linked with CUDA")
    if not modules:
        return Build(None, f"no compiled module in {folder}")
    return Build(cuda=False, evidence=f"nothing in {modules[0]} is linked with CUDA")


def _binary(path: Path, loader: tuple[tuple[str, str], ...]) -> Build:
    folders = [path.parent, path.parent.parent / "lib", path.parent.parent / "lib64"]
    folders += [Path(part) for key, value in loader if key == "LD_LIBRARY_PATH" for part in value.split(":") if part]
    libraries = [file for folder in folders if folder.is_dir() for file in sorted(folder.glob("libggml*"))]
    backends = {_backend(file.name): file for file in reversed(libraries)}
    others = tuple(sorted(name for name in backends if name and name not in (*_PLAIN, "cuda", "blas", "rpc")))
    if "cuda" in backends:
        return Build(cuda=True, evidence=f"{backends['cuda']}", others=others)
    if "cpu" in backends:
        return Build(cuda=False, evidence=f"no libggml-cuda beside {backends['cpu']}", others=others)
    speaking = _speaking([path, *libraries])
    if speaking is not None:
        return Build(cuda=True, evidence=f"{speaking} is linked with CUDA", others=others)
    if any(_holds(file, (_WHOLE,)) for file in (path, *libraries)):
        return Build(cuda=False, evidence=f"{path} holds all of ggml, and is not linked with CUDA", others=others)
    return Build(None, f"the libraries of {path} were not found", others)


def _backend(name: str) -> str:
    """`cuda` of `libggml-cuda.so.0`, `cpu` of `libggml-cpu-haswell.so`; empty for libggml.so itself."""
    return name.partition(".")[0].removeprefix("libggml").removeprefix("-").partition("-")[0]


def _speaking(files: Iterable[Path]) -> Path | None:
    """The first file that names CUDA's libraries."""
    return next((file for file in files if _holds(file, _CUDA_NAMES)), None)


def _holds(file: Path, names: tuple[bytes, ...]) -> bool:
    try:
        return _search(str(file), file.stat().st_mtime_ns, names)
    except (OSError, ValueError):
        return False


@functools.lru_cache(maxsize=32)
def _search(path: str, _changed: int, names: tuple[bytes, ...]) -> bool:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in names)
