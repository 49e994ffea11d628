"""What was recorded in the last minute: written every second, and replaced by a block as soon as there is one."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from specdash.history.codec import UnreadableError, decode
from specdash.history.columns import DamagedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.readings import Reading

_LEVEL: Final = 1

Point = tuple[float, str, float]
"""Unix time, the metric's name, a value."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Readings and points of a second or two."""

    readings: tuple[Reading[Any], ...]
    points: tuple[Point, ...]


def pack(readings: Sequence[str], points: Sequence[Point]) -> bytes:
    """As bytes. Readings are JSON of what `codec.encode` gives."""
    return deflate(f'{{"readings":[{",".join(readings)}],"points":{json.dumps(points, separators=(",", ":"))}}}')


def unpack(data: bytes) -> Fresh:
    """What `pack` was given, without what this version does not know. Raises DamagedError."""
    try:
        found = json.loads(inflate(data))
        readings = []
        for one in found["readings"]:
            try:
                readings.append(decode(one))
            except UnreadableError:
                continue
        points = tuple((float(at), str(name), float(value)) for at, name, value in found["points"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(str(error)) from error
    return Fresh(tuple(readings), points)


def deflate(text: str) -> bytes:
    """A text as bytes."""
    return zlib.compress(text.encode(), _LEVEL)


def inflate(data: bytes) -> str:
    """The text of `deflate`. Raises DamagedError."""
    try:
        return zlib.decompress(data).decode()
    except (zlib.error, ValueError) as error:
        raise DamagedError(str(error)) from error
