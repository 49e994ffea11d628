"""What is written to the terminal: only cells that look different, and enough that it shows the right picture."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specdash.tui.terminal_picture import TerminalPicture

WIDTH = 12
STYLES = ("", "1;38;2;1;2;3;48;2;9;9;9", "38;2;1;2;3;48;2;9;9;9", "31;42", "7;31", "97;48;5;7", "2;39;49")
Span = tuple[str, str]
Cell = tuple[str, frozenset[str], str, str]
SPANS = st.lists(st.tuples(st.text("ab 世⣿é", min_size=1, max_size=5), st.sampled_from(STYLES)), max_size=4)
PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), SPANS), max_size=4)
_SEQUENCE = re.compile(r"\x1b\[([\d;]*)([mHC])|([^\x1b])")
_BLANK = (" ", frozenset[str](), "39", "49")
_COLORS = re.compile(r"[34]8;(?:2;\d+;\d+;\d+|5;\d+)|\d+")


class Screen:
    """A terminal: cells by place, each with what it shows and how."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.x = self.y = 0
        self.flags, self.color, self.background = frozenset[str](), "39", "49"

    def show(self, text: str) -> None:
        """Do what was written."""
        for match in _SEQUENCE.finditer(text):
            parameters, kind, char = match.groups()
            if kind == "H":
                self.y, self.x = (int(part) - 1 for part in parameters.split(";"))
            elif kind == "C":
                self.x += int(parameters)
            elif kind == "m":
                for code in _COLORS.findall(parameters):
                    self.style(code)
            else:
                self.put(char)

    def style(self, code: str) -> None:
        """One parameter of SGR."""
        number = int(code.split(";", maxsplit=1)[0])
        if number == 0:
            self.flags, self.color, self.background = frozenset(), "39", "49"
        elif 30 <= number <= 39 or 90 <= number <= 97:
            self.color = code
        elif 40 <= number <= 49:
            self.background = code
        else:
            self.flags |= {code}

    def put(self, char: str) -> None:
        """A character where the cursor is. Half a wide character is none."""
        width = cell_len(char)
        for x in range(self.x, self.x + width):
            if self.cells.get((self.y, x), _BLANK)[0] == "":
                self.cells[self.y, x - 1] = _BLANK
            if self.cells.get((self.y, x + 1), _BLANK)[0] == "":
                self.cells[self.y, x + 1] = _BLANK
        style = (self.flags, self.color, self.background)
        for part in range(width):
            self.cells[self.y, self.x + part] = ("" if part else char, *style)
        self.x += width

    def seen(self) -> dict[tuple[int, int], Cell]:
        """The cells as the eye tells them apart: of a blank it sees the background alone."""
        shown = {}
        for place, (char, flags, color, background) in self.cells.items():
            if char == " " and "7" not in flags:
                flags, color = frozenset[str](), ""
            if (char, flags, background) != (" ", frozenset(), "49"):
                shown[place] = (char, flags, color, background)
        return shown


def plainly(y: int, x: int, spans: list[Span]) -> str:
    """A piece as Textual writes it: every span with all of its style."""
    return f"\x1b[{y + 1};{x + 1}H" + "".join(f"\x1b[{sgr}m{text}\x1b[0m" for text, sgr in spans)


def whole_rows(pieces: list[tuple[int, int, list[Span]]]) -> list[tuple[int, int, list[Span]]]:
    """The pieces filled up to the width, as rows of widgets are."""
    rows = []
    for y, x, spans in pieces:
        missing = WIDTH * 2 + 3 - x - sum(cell_len(text) for text, _ in spans)
        rows.append((y, x, [*spans, (" " * missing, "48;2;9;9;9")]))
    return rows


@given(st.lists(PIECES, max_size=5))
def test_the_terminal_shows_what_it_would_if_everything_were_written(
    frames: list[list[tuple[int, int, list[Span]]]],
) -> None:
    picture, plain, sparing = TerminalPicture(), Screen(), Screen()
    for frame in frames:
        for y, x, spans in whole_rows(frame):
            plain.show(plainly(y, x, spans))
            sparing.show(picture.frame([(y, x, spans)]))
        assert sparing.seen() == plain.seen()


def test_what_is_shown_already_is_not_written_again() -> None:
    picture, row = TerminalPicture(), [("acceptance ", "1;31"), ("67", "32"), (" %", "31")]
    assert "67" in picture.frame([(0, 0, row)])
    assert picture.frame([(0, 0, row)]) == ""
    assert picture.frame([(0, 0, [row[0], ("68", "32"), row[2]])]) == "\x1b[1;13H\x1b[32m8\x1b[0m"


def test_a_terminal_that_something_else_wrote_to_is_written_anew() -> None:
    picture, row = TerminalPicture(), [("acceptance", "31")]
    first = picture.frame([(0, 0, row)])
    picture.forget()
    assert picture.frame([(0, 0, row)]) == first


def test_a_style_is_taken_over_as_far_as_it_is_the_same() -> None:
    written = TerminalPicture().frame([(0, 0, [("a", "31;42"), (" ", "1;33;42"), ("b", "1;31;42"), ("c", "31;42")])])
    assert written == "\x1b[1;1H\x1b[31;42ma \x1b[1mb\x1b[0;31;42mc\x1b[0m"
