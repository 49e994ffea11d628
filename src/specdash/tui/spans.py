"""Lines of styled text as plain data, and the glyphs they are drawn with.

A span is (text, role); a role names a meaning (`dim`, `bad`, `decode`), which the theme turns into a style. No
markup exists at this level, so text from outside can never be taken for any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

from specdash.core.readings import Status
from specdash.tui.formatting import UNKNOWN, age, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.picture import Measured
    from specdash.tui.themes import Palette

Span = tuple[str, str]
Line = tuple[Span, ...]

BLANK: Line = ()


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The non-letters of the screen, so that a terminal without Unicode gets its own set."""

    ascii_only: bool = False
    rule: str = "─"
    dot: str = "·"
    ellipsis: str = "…"
    live: str = "●"
    busy: str = "◐"
    stale: str = "○"
    loading: str = "◔"
    restarted: str = "↻"
    down: str = "✖"
    unknown: str = "?"
    alert: str = "▲"
    note: str = "·"


UNICODE = Glyphs()
ASCII = Glyphs(
    ascii_only=True,
    rule="-",
    dot="|",
    ellipsis=">",
    live="*",
    busy="~",
    stale="o",
    loading="%",
    restarted="@",
    down="x",
    alert="!",
    note=".",
)

_TO_ASCII = str.maketrans(
    {
        "…": ">",
        "·": ".",
        "─": "-",
        "–": "-",
        "’": "'",
        "“": '"',
        "”": '"',
        "→": ">",
        "←": "<",
        "↑": "^",
        "↓": "v",
        "°": " ",
    }
)


def line_width(line: Sequence[Span]) -> int:
    """Cells a line takes."""
    return sum(cell_len(text) for text, _ in line)


def spread(left: Sequence[Span], right: Sequence[Span], width: int, fill: str = " ", fill_role: str = "text") -> Line:
    """`left` and `right` at the two ends of `width` cells; `right` is dropped where both do not fit."""
    gap = width - line_width(left) - line_width(right)
    if gap < 1 and right:
        return spread(left, (), width, fill, fill_role)
    return (*left, (fill * max(gap, 0), fill_role), *right)


def figure(measured: Measured, text: str, unit: str, role: str) -> Line:
    """A key figure: bold when it is fresh, dim with its age when it is held, `--` when it is unknown."""
    if measured.value is None or measured.status is Status.UNKNOWN:
        return ((UNKNOWN, "dim"),)
    tail = (f" {unit}", "dim") if unit else ("", "dim")
    if measured.status is Status.STALE:
        held = f" held {age(measured.age_s)}" if measured.age_s is not None else " held"
        return ((text, "dim"), tail, (held, "dim"))
    return ((text, f"{role} bold"), tail)


def wrap(text: str, width: int, most: int) -> list[str]:
    """`text` in at most `most` lines of `width` cells, broken at spaces; the last line is cut."""
    lines: list[str] = []
    rest = " ".join(text.split())
    while rest and width > 0 and len(lines) < most:
        if cell_len(rest) <= width or len(lines) == most - 1:
            lines.append(fit(rest, width).rstrip())
            break
        words, taken = rest.split(" "), ""
        while words and cell_len(f"{taken} {words[0]}".strip()) <= width:
            taken = f"{taken} {words.pop(0)}".strip()
        if not taken:
            taken, words = rest[:width], [rest[width:]]
        lines.append(taken)
        rest = " ".join(words)
    return lines


def to_strip(line: Line, width: int, palette: Palette, *, ascii_only: bool = False) -> Strip:
    """A line as what Textual paints, cut or padded to `width` cells."""
    style = palette.style
    if ascii_only:
        segments = [Segment(_ascii(text), style(role)) for text, role in line]
    else:
        segments = [Segment(text, style(role)) for text, role in line]
    return Strip(segments).adjust_cell_length(width, style("text"))


def _ascii(text: str) -> str:
    """The text for a terminal without Unicode; what has no likeness becomes a question mark."""
    return text if text.isascii() else text.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii")
