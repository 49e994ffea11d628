"""Values as short text. Pure functions; None is always drawn as `--`, never as a zero."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN = "--"

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Control characters, lone surrogates (bytes that were no UTF-8) and bidirectional overrides could move the cursor,
# break the output encoding or reorder a line; each becomes one visible dot.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_LEAST_TOP = 1e-6
_SUFFIXES = ("", "k", "M", "G", "T", "P")


def clean(text: str, limit: int = 1000) -> str:
    """External text made safe to draw: at most `limit` characters, no escape sequence, no control character."""
    cut = text[: limit * 4]
    if not cut.isprintable():
        cut = _UNSAFE.sub("·", _ANSI.sub("", cut).replace("\t", "    "))
    return cut if len(cut) <= limit and len(text) <= limit * 4 else cut[: limit - 1] + "…"


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells: padded, or cut with an ellipsis."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, max(width - 1, 0)) + "…" * (width > 0)
    return " " * (width - length) + text if right else text + " " * (width - length)


def middle(text: str, width: int) -> str:
    """External text in at most `width` cells, shortened in its middle: identifiers differ at their ends."""
    shown = clean(text)
    if cell_len(shown) <= width:
        return shown
    tail = max((width - 1) // 2, 0)
    return set_cell_size(shown, max(width - 1 - tail, 0)).rstrip() + "…" + (shown[-tail:] if tail else "")


def percent(fraction: float | None, digits: int = 0) -> str:
    """0.672 as `67 %`."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.{digits}f} %"


def decimal(value: float | None, digits: int = 2) -> str:
    """A plain number with a fixed count of decimals."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """A rate with three significant digits up to 9,999, then compact: `8.42`, `45.1`, `1,234`, `12.3k`."""
    if value is None:
        return UNKNOWN
    if value >= 9_999.5:
        return compact(value)
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def compact(value: float | None) -> str:
    """A count in at most five characters: `999`, `12.3k`, `1.16M`."""
    if value is None:
        return UNKNOWN
    scaled, index = abs(float(value)), 0
    while scaled >= 999.5 and index < len(_SUFFIXES) - 1:
        scaled /= 1000.0
        index += 1
    sign = "-" if value < 0 else ""
    if index == 0:
        return f"{sign}{scaled:.0f}"
    digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{sign}{scaled:.{digits}f}{_SUFFIXES[index]}"


def context(tokens: float | None) -> str:
    """A context length in the field's binary thousands: 32768 is `32k`, 12904 is `12.6k`."""
    if tokens is None:
        return UNKNOWN
    if tokens < 1000:
        return f"{tokens:.0f}"
    number = f"{tokens / 1024:.1f}" if tokens < 1024 * 1000 else f"{tokens / 1024:.0f}"
    return number.removesuffix(".0") + "k"


def count(value: float | None) -> str:
    """A count in full, grouped by thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in binary units: `3.2 GiB`."""
    if value is None:
        return UNKNOWN
    scaled, index = float(value), 0
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    while scaled >= 999.5 and index < len(units) - 1:
        scaled /= 1024.0
        index += 1
    return f"{scaled:.{0 if index == 0 or scaled >= 99.95 else 1}f} {units[index]}"


def size_pair(used: float | None, total: float | None) -> str:
    """Used and total in the unit of the total: `21.3/24.0 GiB`."""
    if total is None:
        return size(used)
    number, unit = size(total).split(" ")
    if used is None:
        return f"{UNKNOWN}/{number} {unit}"
    power = ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    scaled = used / 1024.0**power
    return f"{scaled:.{0 if power == 0 or scaled >= 99.95 else 1}f}/{number} {unit}"


def age(seconds: float | None) -> str:
    """A span of time in one unit, for ages: `now`, `12s`, `5m`, `3h`, `12d`."""
    if seconds is None:
        return UNKNOWN
    whole = int(max(seconds, 0.0))
    if whole < 1:
        return "now"
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= 2 * length or (whole >= length and unit != "m"):
            return f"{whole // length}{unit}"
    return f"{whole}s"


def duration(seconds: float | None) -> str:
    """A span of time in its two largest units: `42s`, `5m08s`, `3h12m`, `12d04h`."""
    if seconds is None:
        return UNKNOWN
    whole = int(max(seconds, 0.0))
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02d}h"


def seconds(value: float | None) -> str:
    """A span of time that matters in fractions: `0.08 s`, `8.21 s`, `74.1 s`, `15m10s`."""
    if value is None:
        return UNKNOWN
    if value >= 600:
        return duration(value)
    return f"{value:.{1 if value >= 9.995 else 2}f} s"


def window(seconds: float) -> str:
    """A chart window: `1m`, `15m`, `1h`, `90s`."""
    whole = round(seconds)
    for unit, length in (("h", 3_600), ("m", 60)):
        if whole >= length and whole % length == 0:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def interval(seconds: float) -> str:
    """A refresh interval: `0.5s`, `2s`."""
    return f"{seconds:g}s"


def clock(wall: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(wall))


def bar(fraction: float | None, width: int, *, ascii_only: bool = False) -> tuple[str, str]:
    """The filled and the empty part of a horizontal bar `width` cells long, in eighths of a cell."""
    if fraction is None:
        return "", " " * width
    share = min(max(fraction, 0.0), 1.0)
    if ascii_only:
        full = round(share * width)
        return "#" * full, "." * (width - full)
    eighths = round(share * width * 8)
    filled = "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
    return filled, " " * (width - len(filled))


def column_bar(fraction: float | None, height: int, *, ascii_only: bool = False) -> str:
    """A vertical bar as one character per row, top first."""
    share = min(max(fraction or 0.0, 0.0), 1.0)
    if ascii_only:
        full = round(share * height)
        return " " * (height - full) + "#" * full
    eighths = round(share * height * 8)
    if fraction and not eighths:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return (" " * height + ("", "▁", "▂", "▃", "▄", "▅", "▆", "▇")[rest] + "█" * full)[-height:] if height else ""


def add_up(counts: Sequence[int], width: int) -> list[int]:
    """Counts in at most `width` columns: neighbours are added up, in whole groups that end at the newest."""
    group = max(-(-len(counts) // max(width, 1)), 1)
    first = len(counts) % group
    sums = [sum(counts[:first])] if first else []
    return sums + [sum(counts[at : at + group]) for at in range(first, len(counts), group)]


def sparkline(counts: Sequence[int], highest: int, *, ascii_only: bool = False) -> str:
    """Counts as columns one character high; `highest` is that of a full one. Anything above zero is seen."""
    levels = " .:-=+*#" if ascii_only else " ▁▂▃▄▅▆▇█"
    top = max(highest, 1)
    return "".join(levels[-(-min(count, top) * (len(levels) - 1) // top)] for count in counts)


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is not below `value`; the top of a chart."""
    if value < _LEAST_TOP:
        return 1.0 if value <= 0 else _LEAST_TOP
    power = 10.0 ** (len(f"{value:.0f}") - 1) if value >= 1 else 1.0
    if value < 1:
        while value < power:
            power /= 10.0
    for step in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 15.0 * power
