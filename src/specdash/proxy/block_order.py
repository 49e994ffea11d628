"""Blocks of an answer in the order they began: the one rule that the stream writer and the builder share."""

from __future__ import annotations

import base64
import hashlib

from specdash.proxy.json_text import object_of

THINKING = "thinking"
TEXT = "text"
TOOL = "tool_use"


class OrderedBlock:
    """One block as it grows. `index`, `call_id` and `name` are of a tool call; `pieces` join to its text or input."""

    __slots__ = ("_torn_at", "call_id", "index", "is_sealed", "kind", "name", "pieces")

    def __init__(self, kind: str, index: int = -1, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.index = index
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.is_sealed = False
        self._torn_at = 0

    @property
    def is_complete(self) -> bool:
        """True when nothing can follow once another block has begun: prose, or a whole JSON object."""
        if self.kind != TOOL or self.is_sealed:
            return True
        if len(self.pieces) == self._torn_at:
            return False
        if object_of("".join(self.pieces)) is None:
            self._torn_at = len(self.pieces)
            return False
        return True


class BlockOrder:
    """Takes pieces in any order and lists the blocks by their beginning; a piece goes to its own block.

    Prose joins the last block when it is of its kind. What follows the whole JSON object of a call, after another
    block has begun, is no part of it and is left out. A piece of an unknown call, or a call begun twice, is an error
    of the program.
    """

    __slots__ = ("_calls", "blocks")

    def __init__(self) -> None:
        self.blocks: list[OrderedBlock] = []
        self._calls: dict[int, OrderedBlock] = {}

    def thinking(self, text: str) -> None:
        """Reasoning text."""
        if text:
            self._prose(THINKING, text)

    def text(self, text: str) -> None:
        """Visible text."""
        if text:
            self._prose(TEXT, text)

    def tool(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins; its id and name are complete."""
        if index in self._calls:
            raise ValueError(f"tool call {index} begun twice")
        block = self._calls[index] = OrderedBlock(TOOL, index, call_id, name)
        self.blocks.append(block)
        self._grown()

    def arguments(self, index: int, fragment: str) -> None:
        """A piece of the JSON text of that call's input."""
        block = self._calls.get(index)
        if block is None:
            raise ValueError(f"arguments of tool call {index}, which has not begun")
        if not fragment or (block is not self.blocks[-1] and block.is_complete):
            return
        block.pieces.append(fragment)
        self._grown()

    def _prose(self, kind: str, text: str) -> None:
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(OrderedBlock(kind))
        self.blocks[-1].pieces.append(text)
        self._grown()

    def _grown(self) -> None:
        """A block began or has another piece."""


class Signer:
    """The signature of a thinking block: opaque to clients, which hand it back as it is, and a function of its text."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"specdash")

    def add(self, text: str) -> None:
        """The next piece of the thinking."""
        self._hash.update(text.encode("utf-8", "replace"))

    def signature(self) -> str:
        """Of everything added."""
        return base64.b64encode(self._hash.digest()).decode("ascii")


def signature_of(thinking: str) -> str:
    """The signature of a whole thinking text."""
    signer = Signer()
    signer.add(thinking)
    return signer.signature()
