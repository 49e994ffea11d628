"""What the record stores as bytes: JSON, row by row or in columns, compressed. And the blocks that readings become.

Readings of two minutes differ little from one second to the next, so in a block what is alike lies together: every
JSON object is a row in the table of those with the same keys, and a table is written column by column. That is done to
any JSON, and halves what LZMA makes of it. Bytes that were changed are found by LZMA's and zlib's own
checksums.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from specdash.core.readings import Reading, Source
from specdash.core.sources import SOURCES, UnreadableError, decode, encode, read_value

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence


Row = dict[str, Any]
"""A reading as `codec.encode` makes it."""
_Tables = dict[tuple[str, ...], tuple[int, list[list[Any]]]]
"""While packing: number and rows of the table of objects with these keys."""
_Waiting = list[tuple[Iterator[Row], list[str]]]
"""While unpacking: of each table, the rows that are still to come, and the keys whose values are not plain."""
_PLACES: Final = 4
"""Moments in blocks are kept to 0.1 ms."""
_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "pb": 0, "dict_size": 1 << 16},)
"""The preset's own 8 MiB of dictionary take 18 MB of memory, these 2, and save a fiftieth of a block. Preset 3 takes a
third of the time and makes blocks a fifth larger: more than 60 MB a day."""
_DEFLATED: Final = b"\x78"
"""How rows begin, and columns do not."""
_DAMAGE: Final = (
    AttributeError, EOFError, LookupError, RecursionError, StopIteration, TypeError, ValueError, lzma.LZMAError,
    zlib.error,
)  # fmt: skip
"""What reading bytes raises that were changed."""


class DamagedError(ValueError):
    """The bytes are not what `pack` or `pack_rows` made."""


def pack(data: Any) -> bytes:
    """JSON as columns: small, for what is written once and read often."""
    return lzma.compress(_text(_columns(data)), lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=_FILTERS)


def pack_rows(data: Any) -> bytes:
    """JSON as it is: several times as large as `pack`, as quick as can be, and hardly able to fail."""
    return zlib.compress(_text(data), 1)


def unpack(data: bytes) -> Any:
    """The JSON of `pack` or `pack_rows`. Raises DamagedError."""
    try:
        if data.startswith(_DEFLATED):
            return json.loads(zlib.decompress(data))
        return _rows(*json.loads(lzma.decompress(data, lzma.FORMAT_XZ)))
    except _DAMAGE as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _text(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _columns(data: Any) -> list[Any]:
    """`[shape, tables]`: the data with each object replaced by `{"t": number of its table}`, a list of nothing but
    objects by `{"t": [numbers]}`; and each table as `[keys, column, column, ...]`. Objects are in their table in the
    order in which they are met, an outer one before those within it."""
    tables: _Tables = {}
    first = _shape(data, tables)
    return [first, [[list(keys), len(rows), *zip(*rows, strict=True)] for keys, (_, rows) in tables.items()]]


# The tables are an argument and no closure's: a closure that calls itself is a cycle, and would keep each block's
# megabyte until the collector of cycles comes by.


def _shape(value: Any, tables: _Tables) -> Any:
    if type(value) is dict:
        number, rows = tables.setdefault(tuple(value), (len(tables), []))
        row: list[Any] = []
        rows.append(row)
        row += [entry if type(entry) in _SCALARS else _shape(entry, tables) for entry in value.values()]
        return {"t": number}
    if isinstance(value, list | tuple):
        shapes = [entry if type(entry) in _SCALARS else _shape(entry, tables) for entry in value]
        numbers = [entry["t"] for entry in shapes if type(entry) is dict and type(entry["t"]) is int]
        return {"t": numbers} if numbers and len(numbers) == len(shapes) else shapes
    return value


def _rows(shape: Any, tables: list[list[Any]]) -> Any:
    """What `_columns` was given."""
    waiting: _Waiting = []
    for keys, count, *columns in tables:
        rows = zip(*columns, strict=True) if keys else repeat((), count)
        nested = [key for key, column in zip(keys, columns, strict=True) if not _SCALARS.issuperset(map(type, column))]
        waiting.append((iter([dict(zip(keys, row, strict=True)) for row in rows]), nested))
    return _value(shape, waiting)


def _row(number: int, waiting: _Waiting) -> Row:
    rows, nested = waiting[number]
    made = next(rows)
    for key in nested:
        made[key] = _value(made[key], waiting)
    return made


def _value(shape: Any, waiting: _Waiting) -> Any:
    if type(shape) is dict:
        number = shape["t"]
        return _row(number, waiting) if type(number) is int else [_row(each, waiting) for each in number]
    return [_value(each, waiting) for each in shape] if type(shape) is list else shape


_SCALARS: Final = frozenset({type(None), bool, int, float, str})


def readings_of(content: Any, still: Callable[[Source, str], Any] | None = None) -> list[Reading[Any]]:
    """The readings of a block, or of what is in none yet, without those that this version does not know.

    `still` finds a value by its digest and may raise UnreadableError. Raises DamagedError.
    """
    readings = []
    for row in _part(content, "readings"):
        try:
            readings.append(decode(row, still))
        except UnreadableError:
            continue
    return readings


def carried_of(content: Any) -> dict[Source, Row]:
    """The last reading of each source that may be silent for long, as the block began. Raises DamagedError."""
    known = {source.value: source for source in Source}
    try:
        return {known[row["source"]]: row for row in _part(content, "carried") if row["source"] in known}
    except _DAMAGE as error:
        raise DamagedError(str(error)) from error


def carried_on(content: Any) -> dict[Source, Row]:
    """What is to be carried into the block that follows this one. Raises DamagedError."""
    carried = carried_of(content)
    try:
        for row in _part(content, "readings"):
            _carry(carried, row)
    except _DAMAGE as error:
        raise DamagedError(str(error)) from error
    return carried


def _part(content: Any, name: str) -> Any:
    if not isinstance(content, dict) or not isinstance(content.get(name), list):
        raise DamagedError(f"no {name}")
    return content[name]


def _carry(carried: dict[Source, Row], row: Row) -> None:
    source = Source(row["source"])
    if "still" in row or "failure" in row:
        carried[source] = row
    else:
        carried.pop(source, None)


def still_value(source: Source, data: bytes) -> Any:
    """The value that is stored under a digest. Raises UnreadableError."""
    try:
        return read_value(source, unpack(data))
    except DamagedError as error:
        raise UnreadableError(str(error)) from error


class BlockWriter:
    """Writes the blocks of one target, and what seldom changes beside them; in the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, target: int) -> None:
        self._connection, self._target = connection, target
        self.carried: dict[Source, Row] = {}
        """Goes into the next block: the last reading of each source that may be silent for long."""
        self._latest: dict[Source, tuple[Any, str, bytes]] = {}

    def add(
        self,
        era: int,
        readings: Sequence[Reading[Any]],
        on_fault: Callable[[Exception], None],
        encoded: Mapping[int, Row] = MappingProxyType({}),
    ) -> None:
        """Store readings, in the order of their time, as a block. What cannot be packed is kept as rows, and `on_fault`
        called. `encoded` has rows that were made already, by the `id` of their readings."""
        before = dict(self.carried)
        rows = []
        for reading in readings:
            row = encoded.get(id(reading)) or self._row(reading)
            row["at"] = round(reading.at, _PLACES)
            rows.append(row)
            _carry(self.carried, row)
        content = {"carried": list(before.values()), "readings": rows}
        try:
            data = pack(content)
        except Exception as error:  # noqa: BLE001 - what cannot be packed is kept plain, and not tried again
            on_fault(error)
            data = pack_rows(content)
        # As the rows have them: who looks from the beginning of a block on must find its first reading.
        first, last = rows[0]["at"], rows[-1]["at"]
        for row in before.values():
            self._connection.execute(
                "UPDATE stills SET last = ? WHERE target = ? AND digest = ?", (last, self._target, row.get("still"))
            )
        self._connection.execute(
            "INSERT INTO blocks (target, era, first, last, readings, data) VALUES (?, ?, ?, ?, ?, ?)",
            (self._target, era, first, last, len(readings), data),
        )

    def _row(self, reading: Reading[Any]) -> Row:
        if not SOURCES[reading.source].is_still or reading.value is None:
            return encode(reading)
        value, digest, data = self._latest.get(reading.source, (None, "", b""))
        if value != reading.value:
            stored = msgspec.to_builtins(reading.value)
            digest = hashlib.blake2b(json.dumps(stored, sort_keys=True).encode(), digest_size=12).hexdigest()
            data = pack_rows(stored)
            self._latest[reading.source] = (reading.value, digest, data)
        self._connection.execute(
            "INSERT INTO stills (target, digest, last, data) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (target, digest) DO UPDATE SET last = max(last, excluded.last)",
            (self._target, digest, reading.at, data),
        )
        return encode(reading, digest)
