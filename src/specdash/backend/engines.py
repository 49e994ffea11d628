"""Which engine runs the model: the llama-server binary or the xllamacpp package; where it is, and what it can do.

llama-server describes itself by `--version` and `--help`, since distributions and forks cut their own builds. What it
says is kept as long as the engine's files are the same. xllamacpp has what the catalogue names of its `CommonParams`.
"""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.backend import binary, embedded
from specdash.backend.binary import Capabilities, from_help, parse_help
from specdash.backend.embedded import PACKAGE as PACKAGE  # noqa: PLC0414 - exported
from specdash.backend.settings import engine_settings, negated
from specdash.core.errors import EngineMissingError, SpecdashError
from specdash.core.paths import cache_dir
from specdash.system import files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


class ProgramOutput(Struct, frozen=True):
    """What a program printed. `problem` says in words why there is no whole answer, None when there is one."""

    text: str
    code: int | None = None
    problem: str | None = None

    @property
    def first_line(self) -> str:
        """The first line that says something, for a message; the exit code when none does."""
        lines = (line.strip() for line in self.text.splitlines())
        return next((line for line in lines if line), f"exit code {self.code}")


def ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> ProgramOutput:
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
    with process:
        try:
            data, late = process.communicate(timeout=timeout_s)[0], None
        except subprocess.TimeoutExpired:
            data, late = b"", f"no answer within {timeout_s:.0f} s"
        # Children that the program left in its session go with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return ProgramOutput(data.decode("utf-8", "replace"), process.returncode, late)


class Engine(Struct, frozen=True):
    """An engine that can be started: what it can do, its path, and why it was taken."""

    can: Capabilities
    path: str
    reason: str
    loader: tuple[tuple[str, str], ...] = ()
    """The variables of the env file that tell the system's loader where the engine's libraries are."""

    @property
    def kind(self) -> str:
        """llama-server or xllamacpp."""
        return self.can.kind

    @property
    def version(self) -> str:
        """The version, in the engine's own words."""
        return self.can.version

    @property
    def words(self) -> str:
        """Kind and version, as the header and the run record show them."""
        return self.can.words


def find_engine(settings: BackendSettings, env: Mapping[str, str] = os.environ) -> Engine:
    """The engine to use for `settings`. Raises `EngineMissingError` saying how to get one.

    `env` is the caller's environment: it has the PATH, and says where the engine's answers are kept.
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
    facts = _kept(found, [f"{key}={value}" for key, value in loader], env, lambda: _asked(found, loader, env))
    reason = "LLAMA_BIN names it" if named is not None else "found on PATH"
    return Engine(_from_help(facts["version"], facts["help"]), found, reason, loader)


def listed_names(env: Mapping[str, str], base: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The spec types and `LLAMA_ARG_*` variables in the help of the engine that a backend env chooses; none where it
    cannot be asked."""
    try:
        can = find_engine(engine_settings(env, base), base).can
    except (SpecdashError, ValueError, OSError):
        return frozenset()
    return can.variables | frozenset(can.spec_types) | frozenset(map(negated, can.variables))


def lacking(settings: BackendSettings, can: Capabilities) -> tuple[Finding, ...]:
    """What the settings ask and the engine has not: what is refused, and what is left out with a warning."""
    return tuple(embedded.fit(settings).lacks if can.kind == PACKAGE else binary.fit(settings, can).lacks)


def package_version() -> str | None:
    """Version of the installed xllamacpp package, None when there is none. Does not import it."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def probe_environment(loader: tuple[tuple[str, str], ...], env: Mapping[str, str]) -> dict[str, str]:
    """The environment to ask an engine in: a bad `LLAMA_ARG_*` would make even `--help` fail."""
    return {**{key: value for key, value in env.items() if not key.startswith("LLAMA_")}, **dict(loader)}


def _package(reason: str, key: str) -> Engine:
    version = package_version()
    if version is None:
        what = f"no engine is installed ({reason}, and no {PACKAGE} package): {_HOW_TO_GET_ONE}"
        raise EngineMissingError(what, key=key)
    build = version.rsplit(".", 1)[-1]
    words = f"{version} (llama.cpp b{build})" if build.isdigit() and len(build) > 2 else version

    return Engine(embedded.capabilities(words), sys.executable, reason)


def _asked(path: str, loader: tuple[tuple[str, str], ...], env: Mapping[str, str]) -> dict[str, Any]:
    """What `path --version` and `path --help` say. Raises `EngineMissingError` when it does not run."""
    where = probe_environment(loader, env)
    answer = ask([path, "--version"], where)
    if answer.problem is not None:
        raise EngineMissingError(f"{path} cannot be run ({answer.problem})", _MEND, key=KEY)
    found = re.search(r"^version: *(.+)$", answer.text, re.MULTILINE)
    if answer.code != 0 or found is None:
        raise EngineMissingError(f"{path} is no working llama-server ({answer.first_line})", _MEND, key=KEY)
    listing = ask([path, "--help"], where)
    if listing.problem is not None or sum(len(row.names) for row in parse_help(listing.text)) < _FEWEST_FLAGS:
        why = listing.problem or f"lists no arguments ({listing.first_line[:200]})"
        raise EngineMissingError(f"{path} --help: {why}; what it can do is unknown", _MEND, key=KEY)
    return {"version": found.group(1).strip(), "help": listing.text}


@functools.lru_cache(maxsize=8)
def _from_help(version: str, text: str) -> Capabilities:
    return from_help(version, parse_help(text))


def _kept(path: str, more: list[str], env: Mapping[str, str], question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer to a question about the engine at `path`, kept in a file for as long as its own files, and those of
    llama.cpp beside it, are the same. `more` is what the answer depends on besides."""
    kept = None
    with contextlib.suppress(OSError, ValueError):
        real = Path(path).resolve(strict=True)
        # A thin binary: libraries hold the flags.
        beside = (found for folder in (real.parent, real.parent.parent / "lib") for found in folder.glob("lib[lg]*"))
        rows = [f"{file}:{(stat := file.stat()).st_mtime_ns}:{stat.st_size}" for file in (real, *sorted(beside))]
        digest = hashlib.sha256("|".join([*rows, *more]).encode("utf-8", "surrogateescape")).hexdigest()
        kept = cache_dir(env) / "engines" / f"{digest[:32]}.json"
        known = json.loads(kept.read_bytes())
        if isinstance(known, dict) and known:
            return known
    answer = question()
    if kept is not None:
        with contextlib.suppress(OSError):
            files.make_directories(kept.parent)
            files.replace(kept, json.dumps(answer).encode())
    return answer


# For which accelerators an engine was built, read from its files: nothing is started. llama.cpp keeps each accelerator
# in a library of its own (`libggml-cuda.so`), or everything in one file, which then names the driver's libraries.


class Build(Struct, frozen=True):
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
    """What the files of `engine` show of its accelerators."""
    backends: dict[str, Path] = {}
    if engine.kind == PACKAGE:
        spec = importlib.util.find_spec(PACKAGE)
        folder = Path(spec.origin or "").parent if spec is not None else Path()
        searched = sorted((*folder.glob("*.so"), *folder.parent.glob(f"{PACKAGE}.libs/*.so*")))
    else:
        path = Path(engine.path).resolve()
        named = [part for key, value in engine.loader if key == "LD_LIBRARY_PATH" for part in value.split(":") if part]
        folders = [path.parent, *(path.parent.parent / name for name in ("lib", "lib64")), *map(Path, named)]
        libraries = [file for folder in folders for file in sorted(folder.glob("libggml*"))]
        for file in libraries:
            # `cuda` of `libggml-cuda.so.0`, `cpu` of `libggml-cpu-haswell.so`.
            backends.setdefault(file.name.partition(".")[0].removeprefix("libggml").strip("-").partition("-")[0], file)
        searched = [path, *libraries]
    others = tuple(sorted(set(backends) - {"", "base", "cpu", "cuda", "blas", "rpc"}))
    if "cuda" in backends:
        return Build(cuda=True, evidence=f"{backends['cuda']}", others=others)
    if "cpu" in backends:
        return Build(cuda=False, evidence=f"no libggml-cuda beside {backends['cpu']}", others=others)
    for file in searched:
        if _holds(file, b"libcuda.so", b"libcudart", b"ggml_cuda_init"):
            return Build(cuda=True, evidence=f"{file} is linked with CUDA", others=others)
    # A file that holds ggml's own code, and not only calls of it.
    if searched and (engine.kind == PACKAGE or any(_holds(file, b"ggml_backend_cpu_reg") for file in searched)):
        return Build(cuda=False, evidence=f"nothing in {searched[0]} is linked with CUDA", others=others)
    return Build(None, f"the libraries of {engine.path} were not found", others)


def _holds(file: Path, *names: bytes) -> bool:
    try:
        return _search(str(file), file.stat().st_mtime_ns, names)
    except (OSError, ValueError):
        return False


@functools.lru_cache(maxsize=32)
def _search(path: str, _changed: int, names: tuple[bytes, ...]) -> bool:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in names)
