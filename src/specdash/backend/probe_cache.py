"""What was once found out about an engine, kept in one JSON file so that asking again costs nothing.

An entry belongs to one file, told by its real path, time of change and size, and to the libraries that hold the code
of a thin binary. Only what can be found out again is kept: a damaged, foreign or unwritable file is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.core.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "capabilities.json"
_FORMAT = 1
_KEPT = 8
"""Engines remembered; the one asked longest ago is forgotten first."""
_LARGEST = 8 * 1024 * 1024
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
    found = _read(_file(env)).get(key)
    return found if isinstance(found, dict) else {}


def remember(key: str, facts: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> None:
    """Keep `facts` under `key` beside what is known of it already; without a word when that cannot be done."""
    file = _file(env)
    entries = _read(file)
    before = entries.pop(key, None)
    entries[key] = {**(before if isinstance(before, dict) else {}), **facts}
    kept = dict(list(entries.items())[-_KEPT:])
    draft = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                json.dump({"format": _FORMAT, "engines": kept}, out)
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)


def _file(env: Mapping[str, str]) -> Path:
    return cache_dir(env) / FILE


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST:
            return {}
        data: Any = json.loads(file.read_bytes())
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
