"""One apply at a time, across processes: a lock that the kernel gives back, however its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Self

from specdash.core.errors import ConflictError, NotWrittenError
from specdash.core.paths import apply_lock_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class ApplyLock:
    """Held from `acquire` to `release`. The file stays; it says who holds it, for how long, and what for."""

    def __init__(self, what: str, env: Mapping[str, str] = os.environ) -> None:
        self._what = what
        self._path = apply_lock_file(env)
        self._descriptor: int | None = None

    def acquire(self) -> Self:
        """Take it. Raises `ConflictError` naming the holder, `NotWrittenError` when the file cannot be made."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NotWrittenError(f"{self._path}: {error.strerror or error}; nothing was changed") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise ConflictError(f"another apply is running{_holder(self._path)}; wait for its end") from None
        self._descriptor = descriptor
        note = json.dumps({"pid": os.getpid(), "what": self._what, "since": time.time()})
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note.encode(), 0)
        return self

    def release(self) -> None:
        """Give it back; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _holder(path: Path) -> str:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        since = time.strftime("%H:%M:%S", time.localtime(float(data["since"])))
        return f" (pid {int(data['pid'])}, since {since}: {data['what']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
