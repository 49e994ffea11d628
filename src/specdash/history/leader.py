"""One recorder per target at a time, across processes: a lock that the kernel gives back, however its holder ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
from typing import TYPE_CHECKING

from specdash.history.schema import MODE

if TYPE_CHECKING:
    from pathlib import Path


class Leadership:
    """Of one target in one record. The lock's file lies beside the record, and stays."""

    def __init__(self, record: Path, target: str) -> None:
        digest = hashlib.blake2b(target.encode(), digest_size=6).hexdigest()
        self._path = record.with_name(f"{record.name}.{digest}.lock")
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process records the target."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Try to take it; False while another process has it. Raises OSError when the file cannot be made."""
        if self._descriptor is not None:
            if _same_file(self._descriptor, self._path):
                return True
            # Somebody removed the lock's file: another process may hold a new one.
            self.give_back()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def give_back(self) -> None:
        """Let another process take it; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
