"""For which accelerators an engine was built, told from its files: nothing is started.

llama.cpp keeps each accelerator in a library of its own (`libggml-cuda.so`), or everything in one file; then the names
of the driver's libraries inside it tell.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.engines import BINARY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.backend.engines import Engine

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
    return _package(engine.kind) if engine.kind != BINARY else _binary(Path(engine.path).resolve(), engine.loader)


def may_use_gpu(engine: Engine | None) -> bool:
    """False when the engine is known to run on the CPU alone."""
    return engine is None or not build_of(engine).cpu_only


def _package(name: str) -> Build:
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
    folders += [Path(one) for key, value in loader if key == "LD_LIBRARY_PATH" for one in value.split(":") if one]
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
