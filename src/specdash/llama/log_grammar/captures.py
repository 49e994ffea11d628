"""From captured bytes to values: the few conversions that the tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.log_facts import LogFact, ServerEvent

if TYPE_CHECKING:
    from specdash.llama.log_grammar.forms import Groups, Maker

MAX_TEXT = 300
"""Characters kept of a text captured from a line."""


def text(captured: bytes) -> str:
    """Captured text, with anything unprintable shown as a replacement character, and cut to `MAX_TEXT`."""
    decoded = captured[: 4 * MAX_TEXT].decode(errors="replace").strip()[:MAX_TEXT]
    if decoded.isprintable():
        return decoded
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in decoded)


def rates(captured: bytes) -> tuple[float, ...]:
    """A list such as `0.944, 0.722` as numbers; an empty list has none."""
    return tuple(float(part) for part in captured.split(b",")) if captured.strip() else ()


def event(name: str, *fields: str) -> Maker:
    """Makes a `ServerEvent` called `name`, whose `fields` are the captured texts in order."""

    def make(_slot: int | None, _task: int | None, g: Groups, at: float | None, origin: int | None) -> LogFact:
        values = tuple((field, text(value)) for field, value in zip(fields, g, strict=True))
        return ServerEvent(name, values, at, origin)

    return make


def pairs(name: str, first: str) -> Maker:
    """Makes a `ServerEvent` called `name` from `value, key=value, …`, where the first value belongs to `first`."""

    def make(_slot: int | None, _task: int | None, g: Groups, at: float | None, origin: int | None) -> LogFact:
        parts = (part.partition("=") for part in f"{first}={text(g[0])}".split(", "))
        return ServerEvent(name, tuple((key.strip(), value.strip()) for key, sign, value in parts if sign), at, origin)

    return make
