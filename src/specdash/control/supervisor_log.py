"""The file that a supervised service writes its output to: private, bounded, read from its end."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import IO

LIMIT_BYTES = 16 * 1024 * 1024
_LINE_BYTES = 2048
"""What is kept of one line when the tail is read."""
_TAIL_BYTES = 1024 * 1024


def open_log(path: Path) -> IO[bytes]:
    """Open for appending, mode 0600, after moving a file that is too long to `.1`. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    bound_log(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def bound_log(path: Path) -> None:
    """Copy a log over 16 MiB to `.1` and empty it, also while a process appends to it; never fails.

    It is copied because the process keeps its descriptor; what it writes during the copy is lost.
    """
    with contextlib.suppress(OSError):
        if not path.is_file() or path.stat().st_size <= LIMIT_BYTES:
            return
        with contextlib.suppress(OSError):
            draft = path.with_name(f"{path.name}.1.new")
            try:
                os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
                shutil.copyfile(path, draft)
                draft.replace(f"{path}.1")
            finally:
                draft.unlink(missing_ok=True)
        os.truncate(path, 0)


def tail(path: str | None, lines: int) -> tuple[str, ...]:
    """The last lines, oldest first, without line ends and blank ones; empty where there is no file."""
    if path is None or lines <= 0:
        return ()
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return ()
    found = [line[:_LINE_BYTES] for line in data.splitlines() if line.strip()]
    return tuple(line.decode("utf-8", "replace").rstrip() for line in found[-lines:])


def last_line(path: str | None) -> str:
    """The last line, to say why a service ended; empty where there is none."""
    return next(iter(tail(path, 1)), "").strip()
