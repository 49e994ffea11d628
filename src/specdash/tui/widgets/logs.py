"""The log's tail: bounded, drawn only where it is seen, with find, filter and follow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.system.text import clean, number
from specdash.tui.layout import PanelId
from specdash.tui.spans import fit
from specdash.tui.widgets.panel import Panel, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

    from specdash.core.log_facts import LogLine
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View

CAPACITY = 2000
_KEPT_CHARACTERS = 4000
_MARKER = "\x00"
FOLD = "log.unfilter"
"""The key that shows the detail, too."""
_BAD = re.compile(r"\berror\b|\bfail(?:ed|ure)?\b|\bfatal\b|\babort|(?:^|\s)E\s", re.IGNORECASE)
_WARN = re.compile(r"\bwarn|find_slot|(?:^|\s)W\s", re.IGNORECASE)


class LogBuffer:
    """The last lines of a log, the last of them that are no detail, and those that are shown. No drawing, no I/O.

    Without a filter and a needle detail is left out while it is `folded`: what is looked for is looked for everywhere.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.lines: list[str] = []
        self._notable: list[str] = []
        self.folded = True
        self.has_detail = False
        """Whether any line was detail."""
        self.shown: list[str] = []
        self.needle = ""
        self.filter = ""
        self.filter_on = False
        self.inverted = False

    @property
    def leaves_out(self) -> bool:
        """Whether detail is not shown now."""
        return self.folded and not self.filter and not self.needle

    def extend(self, lines: Sequence[LogLine], skipped: int = 0) -> int:
        """Take in new lines, `skipped` of which were never seen; returns how many of the shown lines are new."""
        fresh = [text[:_KEPT_CHARACTERS] for text, _ in lines]
        notable = [text for text, (_, is_detail) in zip(fresh, lines, strict=True) if not is_detail]
        self.has_detail |= len(notable) < len(fresh)
        if skipped > 0:
            fresh.insert(0, f"{_MARKER}{number(skipped)} lines came faster than they can be shown")
        passing = notable if self.leaves_out else self._passing(fresh)
        self.lines = (self.lines + fresh)[-self.capacity :]
        self._notable = (self._notable + notable)[-self.capacity :]
        self.shown = (self.shown + passing)[-self.capacity :]
        return len(passing)

    def set_filter(self, text: str) -> None:
        """Show only lines with this text (without it when inverted); empty shows all."""
        self.filter, self.filter_on = text, bool(text)
        self.refilter()

    def clear(self) -> None:
        """Forget all lines."""
        self.lines, self._notable, self.shown = [], [], []
        self.has_detail = False

    def refilter(self) -> None:
        """Judge all kept lines again."""
        self.shown = list(self._notable) if self.leaves_out else self._passing(self.lines)

    def _passing(self, lines: list[str]) -> list[str]:
        if not (self.filter_on and self.filter):
            return list(lines)
        return [line for line in lines if not is_marker(line) and found(line, self.filter) != self.inverted]

    def matches(self) -> list[int]:
        """Positions in `shown` of the lines that hold the needle."""
        return [i for i, line in enumerate(self.shown) if found(line, self.needle)] if self.needle else []


def is_marker(line: str) -> bool:
    """Whether a line is our own remark and not the log's."""
    return line.startswith(_MARKER)


def found(line: str, needle: str) -> bool:
    """Whether the text is in the line; capitals matter only when the text has some."""
    return needle in (line if needle != needle.lower() else line.lower())


class LogPanel(Panel):
    """The tail of the log."""

    def __init__(self) -> None:
        super().__init__(PanelId.LOG)
        self.buffer = LogBuffer()
        self.bottom: int | None = None
        """Index in `buffer.shown` after the lowest visible line; None follows the end."""
        self.match: int | None = None
        self.shift = 0
        self._newest = 0

    def take_new_lines(self, view: View) -> None:
        """Fetch what the log gained since the last call; also when the panel is hidden, so that nothing is lost."""
        newest, lines = view.state.log_lines(self._newest, CAPACITY)
        if newest == self._newest and not lines:
            return
        # The first call meets a log that is older than the screen: what it leaves out was not missed.
        skipped = newest - self._newest - len(lines) if self._newest else 0
        before = len(self.buffer.shown)
        gained = self.buffer.extend(lines, skipped)
        dropped = before + gained - len(self.buffer.shown)
        self._newest = newest
        if self.bottom is not None:
            self.bottom = max(self.bottom - dropped, 0)
        if self.match is not None:
            self.match = self.match - dropped if self.match >= dropped else None

    def forget(self) -> None:
        """Another past is looked at: begin again with its lines."""
        self.buffer.clear()
        self.bottom = self.match = None
        self._newest = 0

    def key_figure(self, view: View) -> Line:
        """Whether the end is followed, what is left out, and the filter and find that are on."""
        buffer = self.buffer
        spans: list[Span] = []
        if self.bottom is not None:
            spans.append((f"{len(buffer.shown) - self.bottom} lines below ", "warn"))
        if buffer.leaves_out and buffer.has_detail:
            spans.append((f"detail left out, {view.keys[FOLD]} shows it ", "dim"))
        elif buffer.has_detail and not buffer.filter and not buffer.needle:
            spans.append((f"with detail, {view.keys[FOLD]} leaves it out ", "dim"))
        if buffer.filter:
            word = "hiding" if buffer.inverted else "only"
            role = "accent" if buffer.filter_on else "dim"
            spans.append((f"{word} “{clean(buffer.filter, 24)}”{'' if buffer.filter_on else ' (off)'} ", role))
        if buffer.needle:
            matches = buffer.matches()
            at = f"{matches.index(self.match) + 1}/" if self.match in matches else ""
            spans.append((f"find “{clean(buffer.needle, 24)}” {at}{len(matches)} ", "accent"))
        return tuple(spans)

    def aside(self, view: View) -> Line:
        """Lines read in all."""
        log = view.picture.log
        return ((f"{number(log.lines)} lines", "dim"),) if log.lines != 0 else ()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The visible lines."""
        shown = self.buffer.shown
        if not shown:
            if self.buffer.leaves_out and self.buffer.lines:
                return message(f"nothing but detail so far; {view.keys[FOLD]} shows it", width, height)
            if self.buffer.lines:
                return message("no line matches the filter", width, height)
            return message(view.picture.log.reason or "no log lines yet", width, height)
        end = len(shown) if self.bottom is None else min(max(self.bottom, min(height, len(shown))), len(shown))
        start = max(end - height, 0)
        return [self._line(shown[i], width, at_match=i == self.match) for i in range(start, end)]

    def _line(self, raw: str, width: int, *, at_match: bool) -> Line:
        if is_marker(raw):
            return ((fit(f"  … {raw[1:]}", width), "warn"),)
        text = clean(raw, _KEPT_CHARACTERS)[self.shift :]
        text = text[: width * 2]
        role = "bad" if _BAD.search(raw, 0, 400) else "warn" if _WARN.search(raw, 0, 400) else "text"
        needle = self.buffer.needle
        if not needle or not found(text, needle):
            return ((text, role),)
        return tuple(_highlighted(text, needle, role, "accent bold reverse" if at_match else "accent bold underline"))

    @property
    def line(self) -> str:
        """The line that was found, else the lowest one shown; "" without any."""
        shown = self.buffer.shown
        at = self.match if self.match is not None else (self.bottom or len(shown)) - 1
        return shown[at] if 0 <= at < len(shown) and not is_marker(shown[at]) else ""

    def move(self, lines: int) -> None:
        """Move by lines; reaching the end follows it again."""
        shown, height = len(self.buffer.shown), max(self.size.height - 1, 1)
        bottom = (shown if self.bottom is None else self.bottom) + lines
        self.bottom = None if bottom >= shown else max(bottom, min(height, shown))
        self.redraw()

    def page(self, pages: int) -> None:
        """Move by what the panel shows."""
        self.move(pages * max(self.size.height - 2, 1))

    def to_start(self) -> None:
        """Show the oldest line kept."""
        self.move(-len(self.buffer.shown))

    def to_end(self) -> None:
        """Show the end, and stay there."""
        self.bottom = None
        self.redraw()

    def scroll_sideways(self, cells: int) -> None:
        """Shift long lines."""
        self.shift = max(self.shift + cells, 0)
        self.redraw()

    def find(self, text: str) -> None:
        """Mark lines with this text and go to the newest; empty ends the search."""
        was_left_out = self.buffer.leaves_out
        self.buffer.needle, self.match = text, None
        if self.buffer.leaves_out != was_left_out:
            self.buffer.refilter()
            self.bottom = None
        matches = self.buffer.matches()
        if matches:
            self._show_match(matches[-1])
        else:
            self.redraw()

    def next_match(self, step: int) -> None:
        """Go to the next newer (1) or older (-1) match, around the ends."""
        matches = self.buffer.matches()
        if not matches:
            return
        if self.match in matches:
            self._show_match(matches[(matches.index(self.match) + step) % len(matches)])
        else:
            self._show_match(matches[-1])

    def _show_match(self, index: int) -> None:
        self.match = index
        height = max(self.size.height - 1, 1)
        end = len(self.buffer.shown) if self.bottom is None else self.bottom
        if not end - height <= index < end:
            self.bottom = min(index + height // 2 + 1, len(self.buffer.shown))
            self.bottom = None if self.bottom >= len(self.buffer.shown) else max(self.bottom, height)
        self.redraw()

    def filter_by(self, text: str) -> None:
        """Set the filter; positions in the old selection mean nothing in the new one."""
        self.buffer.set_filter(text)
        self._selection_changed()

    def toggle_filter(self) -> None:
        """Switch the filter off or on again; without one, show detail or leave it out."""
        if self.buffer.filter:
            self.buffer.filter_on = not self.buffer.filter_on
        else:
            self.buffer.folded = not self.buffer.folded
        self.buffer.refilter()
        self._selection_changed()

    def invert_filter(self) -> None:
        """Hide what was shown and the reverse."""
        self.buffer.inverted = not self.buffer.inverted
        self.buffer.refilter()
        self._selection_changed()

    def _selection_changed(self) -> None:
        self.bottom = self.match = None
        self.redraw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Wheel up goes back in time."""
        event.stop()
        self.move(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Wheel down goes towards the end."""
        event.stop()
        self.move(3)


def _highlighted(text: str, needle: str, role: str, mark: str) -> list[Span]:
    haystack = text if needle != needle.lower() else text.lower()
    if len(haystack) != len(text):
        return [(text, mark)]
    spans: list[Span] = []
    at = 0
    while (start := haystack.find(needle, at)) >= 0:
        spans += [(text[at:start], role), (text[start : start + len(needle)], mark)]
        at = start + len(needle)
    return [*spans, (text[at:], role)]
