"""Columns as schema 1 stored them, read only: records of development versions before 0.1.0 stay readable.

Numbers were differences, places among those seen last, or decimals, and their bytes lay plane by plane.
"""

from __future__ import annotations

import json
import sys
from array import array
from itertools import accumulate
from typing import Any, Final

_RECENT: Final = 64


def columns_of(plain: bytes) -> dict[str, list[Any]]:
    """All columns of a block that was decompressed. What it raises for bytes that are none is damage
    (`columns.Packed`)."""
    length, _, rest = plain[:20].partition(b"\n")
    start = len(plain[:20]) - len(rest)
    at = start + int(length)
    found = {}
    for path, head in json.loads(plain[start:at]).items():
        found[path] = _unpacked(head[2:], plain[at : at + head[1]], head[0])
        at += head[1]
    return found


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


def _unpacked_recent(head: list[Any], body: bytes) -> list[int]:
    _, count, base, *rest = head
    fresh = iter(_unpacked_ints(rest, body[count:]))
    recent: list[int] = []
    values: list[int] = []
    for place in body[:count]:
        if place < _RECENT:
            value = recent.pop(place)
        else:
            value = next(fresh)
            del recent[_RECENT - 1 :]
        recent.insert(0, value)
        values.append(value + base)
    return values


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


def _flags(bits: bytes, count: int) -> list[bool]:
    return [bool(byte >> bit & 1) for byte in bits for bit in range(8)][:count]
