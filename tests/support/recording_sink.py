"""A `BlockSink` that writes down what it gets, piece by piece."""

from __future__ import annotations


class RecordingSink:
    """`pieces` are (kind, text) in the order of arrival."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []

    def thinking(self, text: str) -> None:
        self.pieces.append(("thinking", text))

    def text(self, text: str) -> None:
        self.pieces.append(("text", text))

    def tool(self, index: int, call_id: str, name: str) -> None:
        self.pieces.append(("tool", f"{index} {call_id} {name}"))

    def arguments(self, index: int, fragment: str) -> None:
        self.pieces.append(("arguments", fragment))

    @property
    def texts(self) -> list[str]:
        """The fragments of visible text."""
        return [text for kind, text in self.pieces if kind == "text"]

    @property
    def all_text(self) -> str:
        """All visible text."""
        return "".join(self.texts)
