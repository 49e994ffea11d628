"""A recorded session as turns that share their beginnings, and the requests that were made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.bench.transcript_parts import NO_RESULT, Block, Result, Text, Use, chars_of, joined, rendered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Message = dict[str, Any]


@dataclass(slots=True, eq=False)
class Turn:
    """One turn; `parent` is the one before it. Turns are shared between all prefixes that hold them."""

    role: str
    line: int
    parent: Turn | None
    id: str | None = None
    """Of the message, where the model made it."""
    blocks: list[Block] = field(default_factory=list)
    more: Mapping[str, str] = field(default_factory=dict)
    has_children: bool = False
    total: int | None = None
    """`chars`, once it was asked for."""

    @property
    def asks(self) -> bool:
        """Whether it is something to answer."""
        return self.role in ("user", "tool") and any(not isinstance(one, Text) or one.text for one in self.blocks)

    def up(self) -> Iterator[Turn]:
        """This turn and all before it, the first last."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def path(self) -> list[Turn]:
        """All turns from the first to this one."""
        return list(self.up())[::-1]

    @property
    def chars(self) -> int:
        """Characters of all texts up to here."""
        path: list[Turn] = []
        turn: Turn | None = self
        while turn is not None and turn.total is None:
            path.append(turn)
            turn = turn.parent
        total = turn.total or 0 if turn is not None else 0
        for one in reversed(path):
            total += chars_of(one.blocks)
            one.total = total
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One request of the session: what was sent is everything up to and with the turn `last`."""

    number: int
    """From 1."""
    line: int
    """Where its answer, or else its last message, begins in the file."""
    last: Turn
    given_tools: tuple[Message, ...] | None = None

    @property
    def chars(self) -> int:
        """Characters of all its texts, without tools."""
        return self.last.chars

    def messages(self) -> list[Message]:
        """The exact prefix, in OpenAI's form."""
        found: list[Message] = []
        for turn in self.last.path():
            found.extend(_messages(turn))
        return joined(found)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A session. `skipped` are lines that were left out as broken, the first of them in words."""

    calls: tuple[Call, ...]
    tools: tuple[Message, ...]
    """Made of what was used; for calls that name none themselves."""
    format: str
    lines: int
    skipped: int = 0
    broken: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Blocks and records that were not taken over, by kind."""
    more: bool = False
    """Reading stopped after as many calls as were wanted."""

    def tools_of(self, call: Call) -> tuple[Message, ...]:
        """The tools of a call."""
        return self.tools if call.given_tools is None else call.given_tools


def _messages(turn: Turn) -> list[Message]:
    """Its messages, with results made up for calls of the turn before that have none: a server would refuse them."""
    blocks = turn.blocks
    before = turn.parent
    if before is not None and before.role == "assistant" and turn.role == "user":
        answered = {one.id for one in blocks if isinstance(one, Result)}
        missing = [one.id for one in before.blocks if isinstance(one, Use) and one.id not in answered]
        blocks = [*(Result(one, (Text(NO_RESULT),)) for one in missing), *blocks]
    return rendered(turn.role, blocks, turn.more)
