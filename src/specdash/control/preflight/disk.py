"""Room on the disks that an apply and the service write to, and the right to write there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import SpecdashError
from specdash.core.paths import backups_dir, cache_dir, state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.preflight.context import Findings, PreflightContext

MIB = 1024**2
_GOOD_FOR_S = 5.0
_answers: dict[Path, tuple[tuple[int, ...], float, str | None]] = {}
LITTLE = 64 * MIB
TOO_LITTLE = MIB


def check(context: PreflightContext, out: Findings, *, log: str | None = None, key: str | None = None) -> None:
    """Add what is to be said of disks. `log` is the service's log file, set by `key`, None for the default place."""
    _replaceable(context, out)
    seen: set[int] = set()
    for what, folder, needed, about in _places(context, log, key):
        _place(what, folder, needed, about, seen, out)


def _places(
    context: PreflightContext, log: str | None, key: str | None
) -> Iterator[tuple[str, Path, bool, str | None]]:
    yield "the env file", context.env_file.parent, True, None
    yield "backups of env files", backups_dir(context.base), True, None
    if log is not None:
        yield "the log", Path(log).expanduser().parent, True, key
    else:
        yield "the log", state_dir(context.base) / "logs", True, None
    yield "the cache", cache_dir(context.base), False, None


def _place(what: str, folder: Path, needed: bool, key: str | None, seen: set[int], out: Findings) -> None:
    try:
        there = _existing(folder)
        stat, disk = there.stat(), os.statvfs(there)
    except (OSError, ValueError) as error:
        out.error("disk-space", f"{what}: {folder} cannot be looked at ({error})", key=key, fix="name another place")
        return
    add = out.error if needed else out.warning
    if disk.f_flag & os.ST_RDONLY:
        add("read-only", f"{what}: {there} is on a read-only disk", key=key, fix="mount it read-write")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        add("read-only", f"{what}: {there} cannot be written by this user", key=key, fix="change its owner or mode")
        return
    if stat.st_dev in seen:
        return
    seen.add(stat.st_dev)
    free = disk.f_bavail * disk.f_frsize
    said = f"{what}: {free / MIB:.1f} MiB are free in {there}"
    fix = "make room on that disk"
    if free < TOO_LITTLE or (disk.f_files and not disk.f_favail):
        said = said if free < TOO_LITTLE else f"{what}: no more files can be made in {there}"
        out.error("disk-space", said, key=key, fix=fix)
    elif free < LITTLE:
        out.warning("disk-space", said, key=key, fix=fix)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    for one in (folder.absolute(), *folder.absolute().parents):
        if one.is_dir():
            return one
    return Path("/")


def _replaceable(context: PreflightContext, out: Findings) -> None:
    said = _rehearsed(context.env_file)
    if said is not None:
        what, _, fix = said.partition("; ")
        out.error("env-file", what, fix=fix)


def _rehearsed(path: Path) -> str | None:
    """Why the env file cannot be replaced, None when it can. Rehearsing it writes to the disk, so that the answer is
    kept for a while, as long as the file is the same."""
    from specdash.control.env_store import check_writable, read_env

    state = _state(path)
    known = _answers.get(path)
    if known is not None and known[0] == state and time.monotonic() < known[1]:
        return known[2]
    answer = None
    try:
        check_writable(read_env(path))
    except (SpecdashError, ValueError) as error:
        answer = str(error)
    _answers.clear()
    _answers[path] = (state, time.monotonic() + _GOOD_FOR_S, answer)
    return answer


def _state(path: Path) -> tuple[int, ...]:
    found: list[int] = []
    for one in (path, path.parent):
        try:
            stat = one.stat()
            found += [stat.st_ino, stat.st_mode, stat.st_uid, stat.st_mtime_ns if one == path else 0]
        except (OSError, ValueError):
            found.append(0)
    return tuple(found)
