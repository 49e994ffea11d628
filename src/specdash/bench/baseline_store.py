"""The file of recorded baselines: read what can be read, replaced as a whole, so that nobody ever sees half of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.control import safe_file
from specdash.core.baselines import Baseline
from specdash.core.errors import InputError
from specdash.core.paths import baselines_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


def read_baselines(env: Mapping[str, str] = os.environ) -> tuple[Baseline, ...]:
    """All of them, oldest first; lines that are none are passed over. Raises `InputError` for an unreadable file."""
    found = (Baseline.from_json(line) for line in _lines(baselines_file(env)))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.at))


def add_baseline(baseline: Baseline, env: Mapping[str, str] = os.environ) -> None:
    """Keep it, in the place of an older one of its key. Raises `NotWrittenError`, `ConflictError` or `InputError`."""
    _replace(baselines_file(env), lambda one: one.key != baseline.key, (baseline,))


def forget_baselines(is_to_go: Callable[[Baseline], bool], env: Mapping[str, str] = os.environ) -> int:
    """Remove those; how many there were. Raises what `add_baseline` raises."""
    gone = [one for one in read_baselines(env) if is_to_go(one)]
    if gone:
        _replace(baselines_file(env), lambda one: not is_to_go(one))
    return len(gone)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; the baselines cannot be read") from None


def _replace(path: Path, stays: Callable[[Baseline], bool], added: Iterable[Baseline] = ()) -> None:
    """Write the file anew: what stays, lines that are no baselines of ours (of a newer version), and what is added."""
    try:
        safe_file.make_directories(path.parent)
        with safe_file.locked(path.parent, path.name):
            kept = [line for line in _lines(path) if line.strip() and _stays(line, stays)]
            kept += [one.to_json() for one in added]
            # Never an empty file: whoever follows it takes that for a file whose writer has not begun.
            safe_file.replace(path, ("\n".join(kept) + "\n").encode())
            safe_file.sync_directory(path.parent)
    except OSError as error:
        raise safe_file.not_written(path, error) from None


def _stays(line: str, stays: Callable[[Baseline], bool]) -> bool:
    known = Baseline.from_json(line)
    return known is None or stays(known)
