"""Columns of scalars to compressed bytes and back, without loss.

Readings of one minute differ little from one second to the next, so a column is stored as one constant, as indices into
its distinct values, or as differences: whole numbers as they are, other numbers as decimals of so many places where
that is exact to the bit. The bytes of wide numbers are stored plane by plane, and everything is compressed at once.
"""

from __future__ import annotations

import json
import lzma
import sys
from array import array
from itertools import accumulate
from typing import Any, Final

FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "pb": 0},)
"""A sixth smaller than deflated, for a third of a millisecond a second; numbers have no context to speak of."""
RECENT: Final = 64
MAX_DISTINCT: Final = 255
SCALES: Final = (1, 10, 100, 10**3, 10**4, 10**6, 10**9)
"""Decimal places that are tried, as the power of ten."""
STRIDES: Final = (1, 2, 3, 4, 8)
"""Differences are taken to the value so many places before: records of several slots come in turns."""
_LARGEST: Final = 1 << 60
_EXACT: Final = float(1 << 53)
_CODES: Final = (("b", 1 << 7), ("h", 1 << 15), ("i", 1 << 31), ("q", 1 << 63))


class DamagedError(ValueError):
    """The bytes are not what `Columns.pack` made."""


class Columns:
    """Columns by their path, to be written: a `shapes.Sink`."""

    def __init__(self) -> None:
        self._heads: dict[str, list[Any]] = {}
        self._bodies: list[bytes] = []

    def put(self, path: str, values: list[Any]) -> None:
        """Store a column."""
        if values:
            head, body = _packed(values)
            self._heads[path] = [len(values), len(body), *head]
            self._bodies.append(body)

    def pack(self) -> bytes:
        """All columns."""
        heads = json.dumps(self._heads, separators=(",", ":")).encode()
        plain = b"%d\n%b%b" % (len(heads), heads, b"".join(self._bodies))
        return lzma.compress(plain, lzma.FORMAT_RAW, filters=FILTERS)


class Packed:
    """Columns by their path, read one by one as they are asked for: a `shapes.Origin`."""

    def __init__(self, data: bytes) -> None:
        """Raises DamagedError."""
        try:
            plain = lzma.decompress(data, lzma.FORMAT_RAW, filters=FILTERS)
            length, _, rest = plain[:20].partition(b"\n")
            start = len(plain[:20]) - len(rest)
            body = start + int(length)
            self._heads: dict[str, list[Any]] = json.loads(plain[start:body])
            self._plain = plain
            self._starts: dict[str, int] = {}
            for path, head in self._heads.items():
                self._starts[path] = body
                body += head[1]
        except (lzma.LZMAError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise DamagedError(str(error)) from error

    def get(self, path: str) -> list[Any] | None:
        """A column, empty when it has no values; None when it was never written. Raises DamagedError."""
        head = self._heads.get(path)
        if head is None:
            return None
        start = self._starts[path]
        try:
            return _unpacked(head[2:], self._plain[start : start + head[1]], head[0])
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise DamagedError(f"{path}: {error}") from error


def _packed(values: list[Any]) -> tuple[list[Any], bytes]:
    kinds = set(map(type, values))
    if len(kinds) == 2 and type(None) in kinds:
        present = [value is not None for value in values]
        head, body = _packed([value for value in values if value is not None])
        bits = _bits(present)
        return ["?", len(bits), *head], bits + body
    if kinds == {float}:
        return _packed_floats(values)
    first = values[0]
    if len(kinds) == 1 and values.count(first) == len(values):
        return ["=", first], b""
    if kinds == {int}:
        return _packed_ints(values)
    if kinds == {bool}:
        return ["b"], _bits(values)
    if kinds == {str}:
        return _packed_texts(values)
    return ["j"], json.dumps(values, separators=(",", ":")).encode()


def _unpacked(head: list[Any], body: bytes, count: int) -> list[Any]:
    kind = head[0]
    if kind == "=":
        return [head[1]] * count
    if kind == "?":
        bits, body = body[: head[1]], body[head[1] :]
        present = _flags(bits, count)
        found = iter(_unpacked(head[2:], body, sum(present)))
        return [next(found) if is_there else None for is_there in present]
    if kind in ("i", "m"):
        return _unpacked_ints(head, body)
    if kind == "d":
        return [value / head[1] for value in _unpacked_ints(head[2:], body)]
    if kind == "f":
        return _from_planes("d", body).tolist()
    if kind == "b":
        return _flags(body, count)
    if kind == "t":
        words = json.loads(body[count:])
        return [words[index] for index in body[:count]]
    if kind == "j":
        found_all: list[Any] = json.loads(body)
        return found_all
    raise ValueError(f"unknown form {kind!r}")


def _packed_floats(values: list[float]) -> tuple[list[Any], bytes]:
    raw = array("d", values)
    exact = raw.tobytes()
    if exact == exact[:8] * len(values) and values[0] - values[0] == 0:
        return ["=", values[0]], b""
    for scale in SCALES:
        if all(_is_exact(value, scale) for value in values):
            whole = [round(value * scale) for value in values]
            if array("d", [value / scale for value in whole]).tobytes() == exact:
                head, body = _packed_ints(whole)
                return ["d", scale, *head], body
    return ["f"], _planes(raw)


def _is_exact(value: float, scale: int) -> bool:
    scaled = value * scale
    return -_EXACT < scaled < _EXACT and round(scaled) / scale == value


def _packed_ints(values: list[int]) -> tuple[list[Any], bytes]:
    if not all(-_LARGEST < value < _LARGEST for value in (min(values), max(values))):
        return ["j"], json.dumps(values).encode()
    base = values[0]
    values = [value - base for value in values]
    best, stride = values, 0
    least = sum(map(abs, values))
    for step in STRIDES:
        if step >= len(values):
            break
        differences = values[:step] + [one - before for one, before in zip(values[step:], values, strict=False)]
        total = sum(map(abs, differences))
        if total < least:
            best, stride, least = differences, step, total
    if len(values) >= RECENT and least > len(values) and len(set(values)) < len(values) // 4:
        return _packed_recent(values, base)
    widest = max(abs(min(best)), abs(max(best)) + 1)
    code = next(code for code, limit in _CODES if widest <= limit)
    return ["i", stride, code, base], _planes(array(code, best))


def _unpacked_ints(head: list[Any], body: bytes) -> list[int]:
    if head[0] == "m":
        return _unpacked_recent(head, body)
    if head[0] != "i":
        return _unpacked(head, body, 0)
    _, stride, code, base = head
    values: list[int] = _from_planes(code, body).tolist()
    for start in range(stride):
        values[start::stride] = accumulate(values[start::stride])
    return [value + base for value in values] if base else values


def _packed_recent(values: list[int], base: int) -> tuple[list[Any], bytes]:
    """Numbers that come again and again, such as those of tasks: each as its place among those seen last."""
    recent: list[int] = []
    places = bytearray()
    fresh: list[int] = []
    for value in values:
        try:
            place = recent.index(value)
            del recent[place]
        except ValueError:
            place = RECENT
            fresh.append(value)
            del recent[RECENT - 1 :]
        places.append(place)
        recent.insert(0, value)
    head, body = _packed_ints(fresh)
    return ["m", len(places), base, *head], bytes(places) + body


def _unpacked_recent(head: list[Any], body: bytes) -> list[int]:
    _, count, base, *rest = head
    fresh = iter(_unpacked_ints(rest, body[count:]))
    recent: list[int] = []
    values: list[int] = []
    for place in body[:count]:
        if place < RECENT:
            value = recent.pop(place)
        else:
            value = next(fresh)
            del recent[RECENT - 1 :]
        recent.insert(0, value)
        values.append(value + base)
    return values


def _packed_texts(values: list[str]) -> tuple[list[Any], bytes]:
    words = list(dict.fromkeys(values))
    if len(words) <= MAX_DISTINCT:
        index = {word: number for number, word in enumerate(words)}
        return ["t"], bytes(map(index.__getitem__, values)) + json.dumps(words, separators=(",", ":")).encode()
    return ["j"], json.dumps(values, separators=(",", ":")).encode()


def _planes(values: array[Any]) -> bytes:
    """The first bytes of all numbers, then the second ones, and so on; little-endian."""
    size = values.itemsize
    if sys.byteorder == "big":
        values.byteswap()
    data = values.tobytes()
    return data if size == 1 else b"".join(data[place::size] for place in range(size))


def _from_planes(code: str, data: bytes) -> array[Any]:
    values: array[Any] = array(code)
    size = values.itemsize
    if size > 1:
        count, plain = len(data) // size, bytearray(len(data))
        for place in range(size):
            plain[place::size] = data[place * count : (place + 1) * count]
        data = bytes(plain)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _bits(flags: list[bool]) -> bytes:
    digits = "".join("1" if flag else "0" for flag in reversed(flags))
    return int(digits, 2).to_bytes((len(flags) + 7) // 8, "little")


def _flags(bits: bytes, count: int) -> list[bool]:
    return [bool(byte >> bit & 1) for byte in bits for bit in range(8)][:count]
