"""The human log: its lines are written after the work they tell of, and one that cannot be written is counted."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.telemetry.events_file import RotatedFile

_STDERR = 2


class StderrHandler(logging.Handler):
    """Writes to standard error, past Python's buffer: it would keep what a full disk refuses, and complain at the end.

    `lost` counts lines that could not be written.
    """

    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            os.write(_STDERR, (self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except OSError:
            self.lost += 1


class FileHandler(logging.Handler):
    """Writes to a file that takes care of its size and its disk."""

    def __init__(self, file: RotatedFile) -> None:
        super().__init__()
        self._file = file

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._file.lost

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self._file.write(self.format(record))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class LateHandler(logging.Handler):
    """Passes records on to `handlers` in the event loop's next turn, or at once where no loop runs.

    A line costs 0.1 ms where writing is slow, which would come before the first token of every request.
    """

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._handlers = tuple(handlers)
        self._waiting: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record; the first one of a turn asks for the flush."""
        self._waiting.append(record)
        if len(self._waiting) > 1:
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush)
        except RuntimeError:
            self.flush()

    def flush(self) -> None:
        """Write what waits, in order."""
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            for handler in self._handlers:
                handler.handle(record)

    def close(self) -> None:
        """Write what waits, then close all."""
        self.flush()
        for handler in self._handlers:
            handler.close()
        super().close()
