"""Whether there is an engine, whether it runs, and whether it can do what is asked."""

from __future__ import annotations

import functools
import importlib.util
import mmap
import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.engines import BINARY, Engine, find_engine
from specdash.backend.settings import MACHINE_KEYS
from specdash.control.preflight.context import blamed, parted
from specdash.core.errors import SpecdashError

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject

_KEPT = 8
_lock = threading.Lock()
_found: dict[tuple[object, ...], Engine] = {}


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of the engine."""
    if not subject.context.probe_engine:
        return
    settings = subject.settings
    try:
        engine = cached_engine(settings)
    except (SpecdashError, ValueError, OSError) as error:
        _say(error, out)
        return
    from specdash.backend.capabilities import lacking, probe

    try:
        lacks = lacking(settings, probe(engine, subject.context.base))
    except SpecdashError as error:
        _say(error, out)
        return
    for lack in lacks:
        (out.error if lack.refused else out.warning)("engine-lacks", lack.message, key=lack.key, fix=lack.fix)


def _say(error: Exception, out: Findings) -> None:
    said, fix = parted(str(error))
    out.error("engine", said, key=blamed(str(error), MACHINE_KEYS), fix=fix)


def cached_engine(settings: BackendSettings) -> Engine:
    """`backend.engines.find_engine`, asked once for every state of the binary. Raises what it raises."""
    named = settings.binary
    path = named if named is not None and os.sep in named else shutil.which(named or BINARY)
    try:
        stat = os.stat(os.path.expanduser(path)) if path is not None else None  # noqa: PTH111, PTH116 - as given
    except (OSError, ValueError):
        stat = None
    state = (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat is not None else None
    key = (settings.engine, named, path, state)
    with _lock:
        known = _found.get(key)
    if known is None:
        known = find_engine(settings)
        with _lock:
            _found[key] = known
            while len(_found) > _KEPT:
                _found.pop(next(iter(_found)))
    return known


def may_use_gpu(engine: Engine | None) -> bool:
    """False when the engine is known to run on the CPU alone: none of its libraries speaks CUDA."""
    if engine is None:
        return True
    if engine.kind != BINARY:
        found = importlib.util.find_spec(engine.kind)
        places = [Path(found.origin).parent] if found is not None and found.origin is not None else []
        modules = [file for place in places for file in place.glob("*.so")]
        return not modules or any(_speaks_cuda(str(file), file.stat().st_mtime_ns) for file in modules)
    folder = Path(engine.path).resolve().parent
    places = [folder, folder.parent / "lib", folder.parent / "lib64"]
    names = [file.name for place in places if place.is_dir() for file in place.glob("libggml*")]
    apart = any(name.startswith("libggml-cpu") for name in names)
    return not apart or any("cuda" in name for name in names)


@functools.lru_cache(maxsize=8)
def _speaks_cuda(path: str, _changed: int) -> bool:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in (b"libcuda.so", b"libcudart"))
