"""Whether there is an engine, whether it runs, and whether it can do what is asked."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

from specdash.backend import auto_context
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
    settings = auto_context.without(subject.settings)
    try:
        engine = cached_engine(settings)
    except (SpecdashError, ValueError, OSError) as error:
        _say(error, out)
        return
    from specdash.backend import devices
    from specdash.backend.capabilities import lacking, probe

    base = subject.context.base
    try:
        lacks = (*lacking(settings, probe(engine, base)), *devices.lacking(settings, engine, base))
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
