"""The lines of a transcript as JSON values, read one after the other and bounded, whatever the file is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

LONGEST_LINE = 64 * 1024 * 1024
LARGEST_DOCUMENT = 256 * 1024 * 1024
"""Of a file that is one JSON value, which must be read whole."""
_BLOCK = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class TranscriptError(InputError):
    """The transcript cannot be replayed; the message names the line and quotes nothing of it."""


class BrokenLineError(ValueError):
    """One line is not what a transcript holds; the message says what it is instead, and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not empty. `value` is its JSON; where it is none, `broken` says why, and `value` is None."""

    number: int
    value: Any = None
    broken: str = ""


def read_lines(stream: BinaryIO, *, longest: int = LONGEST_LINE, largest: int = LARGEST_DOCUMENT) -> Iterator[Line]:
    """The lines of a JSONL stream, or the one value of a stream that is a JSON document over several lines.

    The stream must be one that can be sought in.

    No more than `longest` bytes are held of a line, `largest` of a document.
    """
    number = 0
    while raw := stream.readline(longest + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(_BOM)
        if len(raw) > longest and not raw.endswith(b"\n"):
            _skip_line(stream)
            yield Line(number, broken=f"longer than {longest // (1024 * 1024)} MiB")
            continue
        if not raw.strip():
            continue
        line = _parsed(number, raw)
        if number == 1 and line.broken and raw.lstrip()[:1] in (b"{", b"["):
            whole = _document(raw, stream, largest)
            if whole is not None:
                yield whole
                return
        yield line


def _document(begun: bytes, stream: BinaryIO, largest: int) -> Line | None:
    """The file's one value; None, and the stream where it was, when it is none or longer than `largest`."""
    place = stream.tell()
    whole = begun + stream.read(max(0, largest - len(begun)) + 1)
    line = _parsed(1, whole) if len(whole) <= largest else None
    if line is not None and not line.broken:
        return line
    del whole
    stream.seek(place)
    return None


def _skip_line(stream: BinaryIO) -> None:
    while (block := stream.readline(_BLOCK)) and not block.endswith(b"\n"):
        pass


def _parsed(number: int, raw: bytes) -> Line:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Line(number, broken="not UTF-8")
    try:
        return Line(number, json.loads(text, parse_constant=_no_number))
    except RecursionError:
        return Line(number, broken="nested too deeply")
    except ValueError:
        cut = not raw.endswith(b"\n") and raw.lstrip()[:1] in (b"{", b"[")
        return Line(number, broken="not whole JSON; it seems to be cut off" if cut else "not JSON")


def _no_number(_: str) -> NoReturn:
    """Refuse what Python reads and JSON does not know: NaN and the infinities."""
    raise ValueError
