"""Holds a live stream's text back from where it could be an unparsed tool call, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.proxy.guardrails import markers
from specdash.proxy.guardrails.markers import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.blocks import BlockSink
    from specdash.proxy.messages import Tool

_BLANK = " \t\r"


class PseudoCallGate:
    """A `BlockSink` that hands on every fragment as it came, except from a possible unparsed tool call on.

    A possible call is held until it is refuted (its fragments go on one by one) or confirmed (everything more is held
    to the end). At the end `held` is what is suspicious: `flush` lets it through, `drop` takes it away. The gate holds
    at least whatever `malformed.inspect` finds by a tag or as JSON; only inspecting the whole answer settles it.
    """

    __slots__ = (
        "_confirmed", "_fence", "_fresh", "_head", "_line", "_mid", "_offered", "_open", "_openers", "_pending",
        "_sink",
    )  # fmt: skip

    def __init__(self, tools: Sequence[Tool], sink: BlockSink) -> None:
        self._sink = sink
        self._offered = frozenset(one.name for one in tools)
        self._open = not tools
        self._mid = False
        self._fresh = True
        self._fence = ""
        self._line = ""
        self._head = 0
        self._confirmed = False
        self._openers: dict[str, int] = {}
        self._pending: list[tuple[bool, str]] = []

    @property
    def held(self) -> str:
        """The text held back, from where the possible call begins."""
        if self._confirmed:
            return "".join(piece for is_text, piece in self._pending if is_text)[self._head :]
        return self._line if self._pending else ""

    def text(self, text: str) -> None:
        """Visible text."""
        if (self._mid and "\n" not in text) or self._open:
            self._sink.text(text)
        else:
            self._examine(text)

    def thinking(self, text: str) -> None:
        """Reasoning; it keeps its place among text that is held."""
        if self._pending:
            self._pending.append((False, text))
        else:
            self._sink.thinking(text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A real call: the upstream's parser works, so whatever was held is text."""
        if not self._open:
            self.flush()
        self._sink.tool(index, call_id, name)

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of a real call's input."""
        self._sink.arguments(index, fragment)

    def flush(self) -> None:
        """Let everything held through, as it came, and hold nothing from now on."""
        self._open = True
        self._confirmed = False
        self._release(len(self._pending))

    def drop(self) -> str:
        """Take away and return what is held; text before the possible call goes on."""
        held = self.held
        head = self._head_length()
        for is_text, piece in self._pending:
            if not is_text:
                self._sink.thinking(piece)
            elif head > 0:
                self._sink.text(piece[:head])
                head = 0
        self._pending.clear()
        self._line = ""
        self._confirmed = False
        self._open = True
        return held

    def _examine(self, fragment: str) -> None:
        self._pending.append((True, fragment))
        if self._confirmed:
            return
        verdict = self._scan(self._line + fragment)
        if verdict is Verdict.NO:
            self._release(len(self._pending))
        else:
            self._release_before()
            self._head = self._head_length()
            self._confirmed = verdict is Verdict.YES

    def _scan(self, text: str) -> Verdict:
        """Go through the lines of `text`, which begins at a line start or at the possible call that is held.

        Leaves in `_line` what of the last line must be seen again: the possible call, or the beginning of a line that
        may yet become one.
        """
        at = 0
        while True:
            if self._mid:
                end = text.find("\n", at)
                if end < 0:
                    self._line = ""
                    return Verdict.NO
                at, self._mid = end + 1, False
            first = at
            while first < len(text) and first - at <= markers.PREFIX_MAX and text[first] in _BLANK:
                first += 1
            if first - at > markers.PREFIX_MAX:
                self._mid, self._fresh = True, False
                continue
            if first == len(text):
                self._line = text[at:]
                return Verdict.NO
            verdict, at = self._judge_line(text, at, first)
            if verdict is not None:
                return verdict

    def _judge_line(self, text: str, start: int, first: int) -> tuple[Verdict | None, int]:
        """Judge the line that is visible from `first` on: a verdict that ends the scan, or None and where to go on."""
        mark = text[first]
        if mark == "\n":
            return None, first + 1
        if self._fresh and mark in "{`":
            verdict = markers.judge_object(text, first, self._offered)
            if verdict is not Verdict.NO:
                self._line = text[first:]
                return verdict, first
        self._fresh = False
        if mark in "`~":
            return self._fence_line(text, start, first)
        if mark in "<[" and not self._fence and markers.shallow(text[start:first]):
            verdict = markers.judge(text, first)
            if verdict is Verdict.YES and self._closes_opened(text, first):
                verdict = Verdict.NO
            if verdict is not Verdict.NO:
                self._line = text[first:]
                return verdict, first
            opened = markers.OPENER.match(text, first)
            if opened is not None:
                self._openers[opened[1]] = self._openers.get(opened[1], 0) + 1
        self._mid = True
        return None, first

    def _fence_line(self, text: str, start: int, first: int) -> tuple[Verdict | None, int]:
        end = text.find("\n", first)
        if end < 0 and len(text) - first <= markers.FENCE_LINE_MAX:
            self._line = text[start:]
            return Verdict.NO, first
        if end >= 0:
            line = text[first:end]
            if not self._fence:
                self._fence = markers.fence_opening(line)
            elif markers.fence_closes(line, self._fence):
                self._fence = ""
            return None, end + 1
        self._mid = True
        return None, first

    def _closes_opened(self, text: str, at: int) -> bool:
        """True when closing tags at `at` close what earlier lines opened: markup that is being shown."""
        closed = markers.closed_tags(text, at)
        if not closed or any(self._openers.get(one, 0) < closed.count(one) for one in closed):
            return False
        for one in closed:
            self._openers[one] -= 1
        return True

    def _release(self, count: int) -> None:
        for is_text, piece in self._pending[:count]:
            if is_text:
                self._sink.text(piece)
            else:
                self._sink.thinking(piece)
        del self._pending[:count]

    def _release_before(self) -> None:
        """Let the fragments go that lie wholly before the possible call."""
        after = len(self._line)
        count = len(self._pending)
        while count and after > 0:
            count -= 1
            is_text, piece = self._pending[count]
            after -= len(piece) if is_text else 0
        self._release(count)

    def _head_length(self) -> int:
        """How much of the first held fragment lies before the possible call."""
        if self._confirmed or not self._pending:
            return self._head
        return sum(len(piece) for is_text, piece in self._pending if is_text) - len(self._line)
