"""What is done with a server's output besides keeping it: copied to our stderr, and searched for what went wrong."""

from __future__ import annotations

import os
import re
import select
from collections import deque

CHUNK = 64 * 1024
"""Bytes of output read at once."""
_PENDING_LIMIT = 1024 * 1024
_ATOMIC_WRITE = 4096
_EARLY_LIMIT = 400
_ERROR_LINE = re.compile(rb"^\s*[\d.]*\s*E |error|failed|GGML_ASSERT|CUDA|terminate called|couldn't", re.IGNORECASE)


class Tail:
    """The last lines of the output, and what looked like an error at the start: for why the server fails, or runs
    without speculation."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque(maxlen=256)
        self.early: list[bytes] = []
        """Lines since the start that look like errors; it only grows, so that another thread may read it."""
        self.starting = True
        """Whether such lines are still kept."""
        self.open = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece, cut anywhere."""
        *whole, self.open = (self.open + data[-CHUNK:]).split(b"\n")
        self.open = self.open[-1024:]
        kept = [line[:1024] for line in whole if line.strip()]
        self.lines.extend(kept)
        if self.starting and kept:
            self.early += [line for line in kept if _ERROR_LINE.search(line)]
            self.starting = len(self.early) < _EARLY_LIMIT

    def texts(self) -> list[str]:
        """All that is kept, in its order, each line once."""
        last = [*self.lines, *([self.open] if self.open.strip() else [])]
        known = set(last)
        whole = [*(line for line in self.early if line not in known), *last]
        return [line.decode("utf-8", "replace") for line in whole]

    def errors(self) -> list[str]:
        """The last three lines that look like errors, else the last one."""
        lines = [*self.lines, *([self.open] if self.open.strip() else [])]
        found = [line for line in lines if _ERROR_LINE.search(line)] or lines[-1:]
        texts = [re.sub(r"^\s*[\d.]+\s+[A-Z]\s+", "", line.decode("utf-8", "replace")).strip() for line in found]
        return list(dict.fromkeys(texts))[-3:]


class Echo:
    """Copies output to a descriptor that may be slow or gone, without ever waiting for it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.dropped = 0
        self.gone = False

    def feed(self, data: bytes) -> None:
        """Write `data`, now or when the descriptor takes it."""
        if not self.gone:
            if len(self.pending) + len(data) > _PENDING_LIMIT:
                self.dropped += len(data)
            else:
                self.pending += data
            self.drain()

    def drain(self) -> None:
        """Write what can be written now."""
        while not self.gone and (self.pending or self.dropped):
            if not select.select([], [self.descriptor], [], 0)[1]:
                return
            if not self.pending:
                self.pending += b"\nspecdash: %d bytes not shown here; the log file has them\n" % self.dropped
                self.dropped = 0
            try:
                written = os.write(self.descriptor, self.pending[:_ATOMIC_WRITE])
            except OSError:
                self.gone = True
                return
            del self.pending[:written]
