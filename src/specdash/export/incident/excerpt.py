"""The log of an incident: the lines of its time, each rebuilt from the table of line classes, and never many."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.llama.log import LINE_CLASSES
from specdash.llama.log.forms import split_port
from specdash.llama.log.safe import bare, recognise, safe_line
from specdash.llama.log.server_lines import SERVER_STARTING
from specdash.system.text import clock, counted, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from specdash.export.incident.bundle import IncidentSpan
    from specdash.llama.log.forms import ReadLine

READ_BYTES = 8 * 1024 * 1024
"""How much of the end of a log is looked at."""
MAX_LINES = 1500
SHOWN_OF_A_CLASS = 5
"""Lines of one class in a row that are shown; more are counted."""
_BACKWARDS_S = 1.0
"""A clock that goes back by more is another server's; threads may be out of order by milliseconds."""


class Excerpt(Struct, frozen=True):
    """What is shown of a log. `counts` are all lines of the span by class."""

    path: str
    lines: tuple[str, ...]
    counts: tuple[tuple[str, int], ...] = ()
    remarks: tuple[str, ...] = ()


def excerpt(path: Path, span: IncidentSpan, *, read_bytes: int = READ_BYTES) -> Excerpt:
    """The lines of the span in a log file. Raises OSError for a file that cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        start = max(0, status.st_size - read_bytes)
        file.seek(start)
        data = file.read(read_bytes)
    cut = [f"only the last {size(read_bytes)} of the log were looked at"] if start else []
    return excerpt_of(str(path), data[data.find(b"\n") + 1 if start else 0 :], status.st_mtime, span, cut)


def excerpt_of(place: str, data: bytes, written_at: float, span: IncidentSpan, remarks: Iterable[str] = ()) -> Excerpt:
    """The lines of the span in a log whose last line was written at that Unix time."""
    dated = [*_from_the_end(data.split(b"\n"), written_at)][::-1]
    remarks = [*remarks]
    if any(wall is not None for _, _, wall in dated):
        dated = [line for line in dated if line[2] is not None and span.since - 1 <= line[2] <= span.until + 1]
    else:
        remarks.append("the log's lines have no time stamps: these are its last lines, of any time")
    shown: list[str] = []
    left_out: Counter[str] = Counter()
    last, in_a_row = "", 0
    for raw, read, wall in dated:
        name = read.line_class.id
        in_a_row = in_a_row + 1 if name == last else 1
        last = name
        known = read.pattern is not None and not read.detail and read.level != "D"
        if not known or in_a_row > SHOWN_OF_A_CLASS:
            left_out[name] += bool(raw)
            continue
        shown += _gap(left_out)
        left_out.clear()
        shown.append(safe_line(raw) if wall is None else f"{clock(wall)}  {safe_line(raw)}")
    shown += _gap(left_out)
    if len(shown) > MAX_LINES:
        remarks.append(f"the first {len(shown) - MAX_LINES} lines of this excerpt were left out")
    counts = Counter(read.line_class.id for raw, read, _ in dated if raw)
    return Excerpt(place, tuple(shown[-MAX_LINES:]), tuple(counts.most_common()), tuple(remarks))


def _from_the_end(lines: list[bytes], written_at: float) -> Iterator[tuple[bytes, ReadLine, float | None]]:
    """Every line with the Unix time at which it was written, the last one first.

    The newest line was written when the file was, and a server's last line when the next server began. A line without a
    stamp, and one of a router's child, has the time of the line after it.
    """
    wall, offset, later = written_at, None, None
    for raw in map(bare, reversed(lines)):
        port, own = split_port(raw)
        read = recognise(own)
        seconds = read.seconds(own) if port is None else None
        if seconds is not None:
            if offset is None or later is None or seconds > later + _BACKWARDS_S:
                offset = wall - seconds
            wall, later = offset + seconds, seconds
        yield raw, read, wall if offset is not None else None
        if read.line_class.id == SERVER_STARTING and port is None:
            later = None


def _gap(left_out: Counter[str]) -> list[str]:
    total = left_out.total()
    if not total:
        return []
    most = ", ".join(f"{count:,} of “{LINE_CLASSES[name].title or name}”" for name, count in left_out.most_common(3))
    return [f"          [{counted(total, 'line')} left out: {most}]"]
