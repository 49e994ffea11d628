"""Numbers, shares, times, sizes and tables as text for people: the one home of each spelling.

Pure functions. What is not known (None, or no finite number) is written `UNKNOWN`, never as a zero, and a figure that
rounds to zero has no minus sign. Times are seconds, moments seconds since 1970, shares fractions of 1.
"""

from __future__ import annotations

import re
import time
from math import inf, isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

UNKNOWN = "--"
KIB, MIB = 1024, 1024**2
_SPANS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_MOST_TIMES = 10.0
"""A change to more than this came of a reference that was disturbed, or of nothing: its digits mean nothing."""
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS = ("", "k", "M", "G", "T", "P")
_BARE_PIPE = re.compile(r"(?<!\\)\|")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Control characters, lone surrogates (bytes that were no UTF-8) and bidirectional overrides could move the cursor,
# break the output encoding or reorder a line; each becomes one visible dot.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def plain(value: object) -> str:
    """A name or a number that counts nothing (an identifier), as it is."""
    return UNKNOWN if value is None or (isinstance(value, float) and not isfinite(value)) else str(value)


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A number with a fixed count of decimals, grouped by thousands: `1,234`, `0.67`, `51.2 W`."""
    if value is None or not isfinite(value):
        return UNKNOWN
    return f"{_fixed(value, digits)} {unit}" if unit else _fixed(value, digits)


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many digits, or with all before the point: `57.61`, `25,031`."""
    if value is None or not isfinite(value):
        return UNKNOWN
    return _fixed(value, 0) if abs(value) >= 1000 else f"{value:.{digits}g}"


def rate(value: float | None) -> str:
    """A rate with three digits up to 9,999, then compact: `8.42`, `45.1`, `1,234`, `12.3k`."""
    if value is None or not isfinite(value):
        return UNKNOWN
    if value >= 9_999.5:
        return compact(value)
    return number(value, 0 if value >= 99.95 else 1 if value >= 9.995 else 2)


def compact(value: float | None) -> str:
    """A count in at most five characters: `999`, `12.3k`, `1.16M`."""
    if value is None or not isfinite(value):
        return UNKNOWN
    scaled, index = _scaled(value, 1000.0, _COUNT_UNITS)
    digits = 0 if index == 0 or abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return _fixed(scaled, digits).replace(",", "") + _COUNT_UNITS[index]


def billions(parameters: float) -> str:
    """A number of parameters as people say it: `0.8B`, `35B`, `1.20M`."""
    return f"{significant(parameters / 1e9)}B" if 1e8 <= parameters < inf else compact(parameters)


def context(tokens: float | None) -> str:
    """A context length in the field's binary thousands: 32768 is `32k`, 12904 is `12.6k`."""
    if tokens is None or not 1000 <= tokens < inf:
        return number(tokens)
    return f"{tokens / 1024:.{1 if tokens < 1024 * 1000 else 0}f}".removesuffix(".0") + "k"


def percent(share: float | None, digits: int = 0, unit: str = " %", *, bounded: bool = False) -> str:
    """0.672 as `67 %`, in a narrow column with `unit="%"`.

    `bounded`: not 0 % unless it is nothing, not 100 % unless it is all; `0.4 %`, `under 0.01 %`, `over 99 %`.
    """
    if share is None or not isfinite(share):
        return UNKNOWN
    if bounded and 0 < share < 0.01:
        return f"{share * 100:.2g}{unit}" if share >= 0.0001 else f"under 0.01{unit}"
    if bounded and 0.995 <= share < 1:
        return f"over 99{unit}"
    return f"{_fixed(share * 100, digits)}{unit}"


def change(share: float | None, digits: int = 1, unit: str = " %") -> str:
    """A change as a share of what it was before: 0.123 is `+12.3 %`, 26.8 is `more than ×10`."""
    if share is None or not (isfinite(share) or share > 0):
        return UNKNOWN
    if 1 + share > _MOST_TIMES:
        return f"more than ×{_MOST_TIMES:g}"
    return f"{_fixed(share * 100, digits, '+')}{unit}"


def gain(share: float | None, low: float | None, high: float | None, digits: int = 1, unit: str = " %") -> str:
    """A change with its interval: `+12.3 % [+8.1, +16.7]`; without an interval the change alone."""
    if share is None or low is None or high is None:
        return change(share, digits, unit)
    return f"{change(share, digits, unit)} [{change(low, digits, '')}, {change(high, digits, '')}]"


def times(ratio: float | None) -> str:
    """A ratio: `x1.84`."""
    return UNKNOWN if ratio is None or not isfinite(ratio) else f"x{ratio:.2f}"


def size(count: float | None, *, exact: bool = False) -> str:
    """Bytes in binary units: `3.2 GiB`; `exact` with a decimal more from 1 GiB on, and with one always below."""
    if count is None or not isfinite(count):
        return UNKNOWN
    scaled, index = _scaled(count, 1024.0, _SIZE_UNITS)
    digits = (1 if index < _SIZE_UNITS.index("GiB") else 2) if exact else 0 if abs(scaled) >= 99.95 else 1
    return f"{_fixed(scaled, digits if index else 0)} {_SIZE_UNITS[index]}"


def size_pair(used: float | None, total: float | None) -> str:
    """Used and total, the unit once where it is the same: `21.3/24.0 GiB`, `512 MiB/24.0 GiB`."""
    whole = size(total)
    return f"{size(used).removesuffix(whole[whole.find(' ') :])}/{whole}"


def duration(seconds: float | None, *, short: bool = False) -> str:
    """A span of time in its two largest units: `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.

    `short` as a clock on a screen shows it, in whole seconds that are over: `42s`, `5m08s`, `15m`, `12d04h`.
    """
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    whole = int(max(seconds, 0.0)) if short else round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole}s" if short else f"{whole} s"
    at = next(at for at, (_, length) in enumerate(_SPANS) if whole >= length)
    (large, length), (small, step) = _SPANS[at : at + 2]
    count, rest = whole // length, whole % length // step
    if short:
        return f"{count}{large[0]}" + (f"{rest:02d}{small[0]}" if rest else "")
    return f"{count} {large}" + (f" {rest} {small}" if rest else "")


def age(seconds: float | None) -> str:
    """How long ago, in one unit that is over: `now`, `12s`, `5m`, `3h`, `12d`."""
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    if seconds < 120:
        return f"{int(seconds)}s" if seconds >= 1 else "now"
    unit, length = next(span for span in _SPANS if seconds >= span[1])
    return f"{int(seconds) // length}{unit[0]}"


def seconds(value: float | None) -> str:
    """A measured time with three digits: `66.8 ms`, `8.21 s`, `74.1 s`, `15m10s`."""
    if value is None or not isfinite(value):
        return UNKNOWN
    if 0 < value < 0.9995:
        return f"{rate(value * 1000)} ms"
    return f"{rate(value)} s" if value < 600 else duration(value, short=True)


def clock(wall: float, *, seconds: bool = True) -> str:
    """Local time of day: `02:13:45`, `02:13`."""
    return _moment(wall, "%H:%M:%S" if seconds else "%H:%M")


def moment(wall: float, now: float, *, seconds: bool = True) -> str:
    """`02:13:45`; of another day than now's `11-20 02:13:45`, or without the seconds."""
    day = "%Y-%m-%d"
    return clock(wall) if _moment(wall, day) == _moment(now, day) else timestamp(wall, year=False, seconds=seconds)


def scale_time(wall: float, span: float) -> str:
    """On an axis that spans so many seconds: `02:13`, `11-20 02:13`."""
    return clock(wall, seconds=False) if span <= 86_400 else timestamp(wall, year=False, seconds=False)


def timestamp(wall: float, *, year: bool = True, seconds: bool = True, utc: bool = False) -> str:
    """Date and time of day: `2026-11-22 02:13:45`, `11-22 02:13`; local, or `… UTC`."""
    form = f"{'%Y-' if year else ''}%m-%d %H:%M{':%S' if seconds else ''}{' UTC' if utc else ''}"
    return _moment(wall, form, utc=utc)


def file_timestamp(wall: float, *, utc: bool = False) -> str:
    """For names of files: `20261122-021345`; UTC `20261122T021345Z`."""
    return _moment(wall, "%Y%m%dT%H%M%SZ" if utc else "%Y%m%d-%H%M%S", utc=utc)


def counted(count: int, singular: str, plural: str = "") -> str:
    """`1 prompt was`, `2 prompts were`; without a plural of its own the singular gets an s."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters; the last is an ellipsis where something was cut off."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…" * (limit > 0)


def clean(text: str, limit: int = 1000) -> str:
    """External text made safe to draw: at most `limit` characters, no escape sequence, no control character."""
    cut = text[: limit * 4]
    if not cut.isprintable():
        cut = _UNSAFE.sub("·", _ANSI.sub("", cut).replace("\t", "    "))
    return cut if len(cut) <= limit and len(text) <= limit * 4 else cut[: limit - 1] + "…"


def table(rows: Sequence[Sequence[str]], *, indent: str = "", right: Container[int] = ()) -> list[str]:
    """Rows of one length as lines with their columns under each other; columns in `right` end there."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (indent + "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )).rstrip()
        for row in rows
    ]  # fmt: skip


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The lines of the same in Markdown, the first row as headings; no cell can end itself or its row."""
    cells = [[_BARE_PIPE.sub(r"\|", " ".join(cell.splitlines())) for cell in row] for row in rows]
    head, *body = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _fixed(value: float, digits: int, sign: str = "") -> str:
    shown = f"{value:{sign},.{digits}f}"
    return shown if shown[0] != "-" or shown.strip("-0.,") else sign + shown[1:]


def _scaled(value: float, base: float, units: Sequence[str]) -> tuple[float, int]:
    """The value in the unit in which it has at most three digits, and which one that is."""
    index = 0
    while abs(value) >= 999.5 and index < len(units) - 1:
        value, index = value / base, index + 1
    return value, index


def _moment(wall: float, form: str, *, utc: bool = False) -> str:
    try:
        return time.strftime(form, time.gmtime(wall) if utc else time.localtime(wall))
    except (OverflowError, ValueError, OSError):
        return UNKNOWN
