"""The log around warnings and errors, line by line made anew (see `specdash.llama.log_safe`), and never much of it."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.llama.log_grammar import DROPPED, LINE_CLASSES, SERVER_STARTING
from specdash.llama.log_prefix import seconds_of
from specdash.llama.log_safe import LIFE_CYCLE_CLASSES, bare, is_shown, recognise, safe_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from specdash.export.incident.parts import Span
    from specdash.llama.log_reading import Reading

READ_BYTES = 8 * 1024 * 1024
"""How much of the end of a log is looked at."""
MAX_LINES = 1500
BEFORE, AFTER = 4, 3
"""Recognised lines shown around a warning."""
LAST = 12
"""Recognised lines shown of the end, which is what a server said before it died."""
SHOWN_OF_A_CLASS = 5
"""Warnings of one class that are shown in a row of time, before they are only counted."""
QUIET_S = 60.0
"""After so long without one, a warning of a class is shown again."""
_BACKWARDS_S = 1.0
_CHATTER = frozenset({"verification_step", "queue", "prefill_progress", "decode_progress"})
"""Classes of which a request prints many."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of a log, one text a line; how many lines of the span were looked at, and what each class had."""

    path: str
    lines: tuple[str, ...]
    looked_at: int
    left_out: int
    """Lines of the span that are not shown."""
    counts: tuple[tuple[str, int], ...] = ()
    """Per class that was found in the span, how many lines; of all, shown or not."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    raw: bytes
    known: Reading
    wall: float | None


def excerpt(path: Path, span: Span, *, read_bytes: int = READ_BYTES) -> Excerpt:
    """The lines of the span that matter. Raises OSError for a file that cannot be read."""
    data, written_at, is_cut = _end_of(path, read_bytes)
    remarks: list[str] = []
    dated = _dated(data.split(b"\n"), written_at)
    if any(line.wall is not None for line in dated):
        inside = _of_span(dated, span)
    else:
        inside = dated[-MAX_LINES:]
        remarks.append("the log's lines have no time stamps: these are its last lines, whatever the span")
    first = next((line.wall for line in dated if line.wall is not None), None)
    if is_cut and (first is None or first > span.since):
        remarks.append(f"only the last {read_bytes // 2**20} MiB of the log were looked at; earlier lines are missing")
    shown = _selected(inside)
    counts = Counter(line.known.line_class.id for line in inside if line.raw)
    lines = _told(inside, shown)
    if len(lines) > MAX_LINES:
        remarks.append(
            f"the first {len(lines) - MAX_LINES} lines of this excerpt were left out: it has {MAX_LINES} at most"
        )
    return Excerpt(
        str(path),
        tuple(lines[-MAX_LINES:]),
        sum(counts.values()),
        max(0, sum(counts.values()) - min(len(shown), MAX_LINES)),
        tuple(counts.most_common()),
        tuple(remarks),
    )


def _end_of(path: Path, limit: int) -> tuple[bytes, float, bool]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        start = max(0, status.st_size - limit)
        file.seek(start)
        data = file.read(limit)
    if start:
        _, _, data = data.partition(b"\n")
    return data, status.st_mtime, start > 0


def _dated(lines: Iterable[bytes], written_at: float) -> list[_Line]:
    """Every line with when it was written: the newest when the file was, a server's last when the next one began."""
    found: list[tuple[bytes, Reading, float | None]] = []
    begins: list[int] = []
    clock: float | None = None
    for raw in map(bare, lines):
        known = recognise(raw.translate(None, DROPPED))
        seconds = None if known.prefix.routed else seconds_of(known.prefix, raw)
        back = clock is not None and seconds is not None and seconds < clock - _BACKWARDS_S
        if back or (known.line_class.id == SERVER_STARTING and not known.prefix.routed and found):
            begins.append(len(found))
            clock = None
        clock = seconds if seconds is not None else clock
        found.append((raw, known, seconds))
    dated: deque[_Line] = deque()
    ended = written_at
    for begin, end in zip([0, *begins][::-1], [*begins, len(found)][::-1], strict=True):
        newest = next((one[2] for one in reversed(found[begin:end]) if one[2] is not None), None)
        offset = ended - newest if newest is not None else None
        wall: float | None = None
        life = []
        for raw, known, seconds in found[begin:end]:
            # A line without a stamp belongs to the one before it.
            wall = offset + seconds if offset is not None and seconds is not None else wall
            life.append(_Line(raw, known, wall))
        dated.extendleft(reversed(life))
        ended = offset if offset is not None else ended
    return list(dated)


def _of_span(lines: Sequence[_Line], span: Span) -> list[_Line]:
    # The file's time is that of its last write, and a line may be a moment older.
    return [one for one in lines if one.wall is not None and span.since - 1 <= one.wall <= span.until + 1]


def _selected(lines: Sequence[_Line]) -> dict[int, str]:
    """Which lines are shown, by index, as they are shown."""
    shown: dict[int, str] = {}
    in_a_row: Counter[str] = Counter()
    seen_at: dict[str, float] = {}
    for at, line in enumerate(lines):
        line_class = line.known.line_class
        life = line_class.id in LIFE_CYCLE_CLASSES and line.known.prefix.level != "D"
        if line_class.severity is None and not life:
            continue
        if line.wall is not None:
            if line.wall - seen_at.get(line_class.id, line.wall) > QUIET_S:
                in_a_row[line_class.id] = 0
            seen_at[line_class.id] = line.wall
        in_a_row[line_class.id] += 1
        if in_a_row[line_class.id] > SHOWN_OF_A_CLASS:
            continue
        _show(shown, lines, at)
        if line_class.severity is not None and in_a_row[line_class.id] == 1:
            around = [*range(max(0, at - BEFORE), at), *range(at + 1, min(len(lines), at + AFTER + 1))]
            for near in around:
                if _is_telling(lines[near]):
                    _show(shown, lines, near)
    seen = [at for at, line in enumerate(lines) if _is_telling(line)]
    for at in seen[-LAST:]:
        _show(shown, lines, at)
    return dict(sorted(shown.items()))


def _is_telling(line: _Line) -> bool:
    """Whether it is worth a line around a warning."""
    return is_shown(line.known) and line.known.prefix.level != "D" and line.known.line_class.id not in _CHATTER


def _show(shown: dict[int, str], lines: Sequence[_Line], at: int) -> None:
    if at not in shown and (made := safe_line(lines[at].raw)) is not None:
        wall = lines[at].wall
        shown[at] = made.text if wall is None else f"{time.strftime('%H:%M:%S', time.localtime(wall))}  {made.text}"


def _told(lines: Sequence[_Line], shown: dict[int, str]) -> list[str]:
    """The shown lines, and between them how many of which class were left out."""
    told: list[str] = []
    after = 0
    for at, text in shown.items():
        told += _gap(lines[after:at])
        told.append(text)
        after = at + 1
    return told + _gap(lines[after:])


def _gap(lines: Sequence[_Line]) -> list[str]:
    counts = Counter(line.known.line_class.id for line in lines if line.raw)
    if not counts:
        return []
    most = ", ".join(f"{count:,} {_title(name)}" for name, count in counts.most_common(3))
    more = f", and {len(counts) - 3} more" if len(counts) > 3 else ""
    total = sum(counts.values())
    return [f"          [{total:,} line{'s' if total > 1 else ''} left out: {most}{more}]"]


def _title(name: str) -> str:
    return f"of “{LINE_CLASSES[name].title}”"
