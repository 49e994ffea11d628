"""Columns of scalars to compressed bytes and back, without loss.

Readings of one minute differ little from one second to the next, so what is alike lies together: every column is a
list in one JSON object, and that is compressed. Nothing is packed by hand: on a day of the demo that would save a
fifth (docs/history.md), and was worth neither its code nor its faults.
"""

from __future__ import annotations

import json
import lzma
from typing import Any, Final

_WRITTEN: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "pb": 0, "dict_size": 1 << 16},)
"""The preset's own 8 MiB of dictionary take 18 MB of memory, these 2, and save a fiftieth of a block."""
_READ: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "pb": 0},)
"""Of any version."""
_JSON: Final = b"{"
"""Columns of schema 1 begin with a length."""
_DAMAGE: Final = (
    AttributeError, EOFError, LookupError, RecursionError, StopIteration, TypeError, ValueError, lzma.LZMAError
)  # fmt: skip
"""What reading bytes raises that were changed."""


class DamagedError(ValueError):
    """The bytes are not what `Columns.pack` made."""


class Columns:
    """Columns by their path, to be written: a `shapes.Sink`."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}

    def put(self, path: str, values: list[Any]) -> None:
        """Store a column."""
        if values:
            self._columns[path] = values

    def pack(self) -> bytes:
        """All columns."""
        plain = json.dumps(self._columns, separators=(",", ":")).encode()
        return lzma.compress(plain, lzma.FORMAT_RAW, filters=_WRITTEN)


class Packed:
    """Columns by their path, read: a `shapes.Origin`."""

    def __init__(self, data: bytes) -> None:
        """Raises DamagedError."""
        try:
            plain = lzma.decompress(data, lzma.FORMAT_RAW, filters=_READ)
            if plain.startswith(_JSON):
                self._columns: dict[str, list[Any]] = json.loads(plain)
            else:
                from specdash.history.columns_v1 import columns_of

                self._columns = columns_of(plain)
        except _DAMAGE as error:
            raise DamagedError(str(error)) from error
        if not all(isinstance(column, list) for column in self._columns.values()):
            raise DamagedError("a column is no list")

    def get(self, path: str) -> list[Any] | None:
        """A column; None when it was never written, or had no values."""
        return self._columns.get(path)
