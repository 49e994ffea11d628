"""What the terminal shows, cell by cell, so that only cells that look different are written, with no more control
sequences than that takes: most of what Textual writes are colours that the cell before had already, and cells that did
not change."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rich.cells import cell_len
from rich.color import ColorSystem
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console


class Look(NamedTuple):
    """How a cell is drawn, in the parameters of SGR sequences. A blank has no text that flags and colour would show
    on: both are None."""

    flags: tuple[str, ...] | None
    color: str | None
    background: str


PLAIN = Look((), "39", "49")
_SEEN_ON_BLANKS = frozenset(("4", "7", "9", "21", "53"))
_COLOR_LENGTHS = {"2": 5, "5": 3}
_NEAR = 3
"""So few equal cells between two that differ are cheaper written again than stepped over."""

Row = tuple[list[str], list[Look | None]]


@lru_cache(maxsize=1024)
def look_of(sgr: str, *, blank: bool) -> Look:
    """The look that these SGR parameters give to text, or to blanks."""
    parts, flags, color, background = sgr.split(";") if sgr else [], [], "39", "49"
    while parts:
        length = _COLOR_LENGTHS.get(parts[1], 1) if parts[0] in ("38", "48") and len(parts) > 1 else 1
        code, parts = parts[:length], parts[length:]
        number = int(code[0])
        if 30 <= number <= 39 or 90 <= number <= 97:
            color = ";".join(code)
        elif 40 <= number <= 49 or 100 <= number <= 107:
            background = ";".join(code)
        else:
            flags.append(code[0])
    if blank and _SEEN_ON_BLANKS.isdisjoint(flags):
        return Look(None, None, background)
    return Look(tuple(flags), color, background)


@lru_cache(maxsize=4096)
def turned(before: Look, after: Look) -> tuple[str, Look]:
    """The sequence that makes the terminal draw as `after`, and how it draws then."""
    keeps = after.flags is None and _SEEN_ON_BLANKS.isdisjoint(before.flags or ())
    flags = before.flags if keeps else after.flags or ()
    color = after.color or before.color
    codes: list[str] = []
    if not set(before.flags or ()) <= set(flags or ()):
        codes.append("0")
        before, color = PLAIN, after.color or PLAIN.color
    codes += [flag for flag in flags or () if flag not in (before.flags or ())]
    if color is not None and color != before.color:
        codes.append(color)
    if after.background != before.background:
        codes.append(after.background)
    return f"\x1b[{';'.join(codes)}m" if codes else "", Look(flags, color, after.background)


class TerminalPicture:
    """The cells of one terminal, as far as they are known."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}

    def forget(self) -> None:
        """Something else wrote to the terminal."""
        self._rows.clear()

    def frame(self, pieces: Iterable[Piece]) -> str:
        """What to write so that the terminal shows these pieces."""
        pen = _Pen()
        for y, x, spans in pieces:
            texts, looks = _cells(spans)
            old_texts, old_looks = self._row(y, x + len(texts))
            end = x + len(texts)
            was, looked = old_texts[x:end], old_looks[x:end]
            if was == texts and looked == looks:
                continue
            old_texts[x:end], old_looks[x:end] = texts, looks
            for first, last in _runs(_differing(was, looked, texts, looks), looks):
                pen.write(y, x + first, texts[first:last], looks[first:last])
        return pen.sequence()

    def _row(self, y: int, width: int) -> Row:
        texts, looks = self._rows.setdefault(y, ([], []))
        if len(texts) < width:
            looks += [None] * (width - len(texts))
            texts += [" "] * (width - len(texts))
        return texts, looks


class _Pen:
    """Writes cells, and knows where the cursor is and how it draws."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._at = (-1, -1)
        self._look = PLAIN

    def write(self, y: int, x: int, texts: Sequence[str], looks: Sequence[Look | None]) -> None:
        if self._at != (y, x):
            forward = x - self._at[1]
            is_near = self._at[0] == y and forward > 0
            self._out.append(f"\x1b[{forward}C" if is_near else f"\x1b[{y + 1};{x + 1}H")
        for text, look in zip(texts, looks, strict=True):
            if look is not None and look is not self._look:
                turn, self._look = turned(self._look, look)
                self._out.append(turn)
            self._out.append(text)
        self._at = (y, x + len(texts))

    def sequence(self) -> str:
        if self._look != PLAIN:
            self._out.append("\x1b[0m")
        return "".join(self._out)


def _cells(spans: Iterable[tuple[str, str]]) -> tuple[list[str], list[Look | None]]:
    """One text and one look per cell; the second cell of a wide character is empty."""
    texts: list[str] = []
    looks: list[Look | None] = []
    for text, sgr in spans:
        before = len(texts)
        if text.isascii() or cell_len(text) == len(text):
            texts += text
        else:
            for char in text:
                width = cell_len(char)
                if width:
                    texts += [char, *[""] * (width - 1)]
                elif len(texts) > before:
                    texts[-1] += char
        looks += [look_of(sgr, blank=not text.strip(" "))] * (len(texts) - before)
    return texts, looks


def _differing(was: list[str], looked: list[Look | None], texts: list[str], looks: list[Look | None]) -> Iterable[int]:
    """The cells that look different; of a wide character both."""
    cells = zip(was, texts, looked, looks, strict=True)
    found = [index for index, (before, after, old, new) in enumerate(cells) if before != after or old != new]
    if "" not in was and "" not in texts:
        return found
    whole = set(found)
    for index in found:
        for row in (was, texts):
            if index and not row[index]:
                whole.add(index - 1)
            if index + 1 < len(row) and not row[index + 1]:
                whole.add(index + 1)
    return sorted(whole)


def _runs(cells: Iterable[int], looks: Sequence[Look | None]) -> Iterable[tuple[int, int]]:
    """Stretches of cells to write, first and end."""
    first = last = -1
    for index in cells:
        if first >= 0 and (
            index == last or (index - last <= _NEAR and all(look == looks[last] for look in looks[last - 1 : index]))
        ):
            last = index + 1
            continue
        if first >= 0:
            yield first, last
        first, last = index, index + 1
    if first >= 0:
        yield first, last


Piece = tuple[int, int, "Iterable[tuple[str, str]]"]
"""Row, first column, and what stands there: texts and the parameters of their SGR sequences."""


class RowsWidget(Protocol):
    """A widget that knows its rows as spans."""

    def sgr_spans(self, y: int, system: ColorSystem) -> Iterable[tuple[str, str]]:
        """One of its rows, for a terminal of so many colours."""


class RowsUpdate(CompositorUpdate):
    """Writes rows of widgets, as far as they differ from what the terminal shows."""

    def __init__(self, rows: Sequence[tuple[int, int, RowsWidget, int]], picture: TerminalPicture) -> None:
        """Each row with its place on the screen, row and first column, and the widget and its row."""
        self._rows, self._picture = rows, picture

    def render_segments(self, console: Console) -> str:
        """What to write to the terminal."""
        system = _color_system(console)
        return self._picture.frame((y, x, widget.sgr_spans(row, system)) for y, x, widget, row in self._rows)


class WholeUpdate(LayoutUpdate):
    """Writes every cell, whatever the terminal shows."""

    def __init__(self, update: LayoutUpdate, picture: TerminalPicture) -> None:
        super().__init__([list(line) for line in update.strips], update.region)
        self._picture = picture

    def render_segments(self, console: Console) -> str:
        """What to write to the terminal."""
        self._picture.forget()
        left, system = self.region.x, _color_system(console)
        return self._picture.frame(
            (y, left, (span for strip in line for span in spans_of(strip, system)))
            for y, line in enumerate(self.strips, self.region.y)
        )


class ChangedUpdate(ChopsUpdate):
    """Writes the cells that differ from what the terminal shows."""

    def __init__(self, update: ChopsUpdate, picture: TerminalPicture) -> None:
        super().__init__(update.chops, update.spans, update.chop_ends)
        self._picture = picture

    def render_segments(self, console: Console) -> str:
        """What to write to the terminal."""
        return self._picture.frame(self._pieces(_color_system(console)))

    def _pieces(self, system: ColorSystem) -> Iterable[Piece]:
        for y, left, right in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is not None and x < right and end > left:
                    first, last = max(x, left), min(end, right)
                    part = strip if (first, last) == (x, end) else strip.crop(first - x, last - x)
                    yield y, first, spans_of(part, system)


def spans_of(strip: Strip, system: ColorSystem) -> Iterable[tuple[str, str]]:
    """Its texts and the parameters of their SGR sequences."""
    for text, style, _ in strip:
        yield text, "" if style is None else Strip.render_ansi(style, system)


def _color_system(console: Console) -> ColorSystem:
    return console._color_system or ColorSystem.TRUECOLOR  # noqa: SLF001 as in Textual's `Strip.render`


OWN_UPDATES = (RowsUpdate, ChangedUpdate, WholeUpdate)
"""After these, the picture is what the terminal shows."""
