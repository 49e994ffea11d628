"""Every kind of line that llama-server writes to its log, as data.

A new kind of line is one more `LineClass` in one of the tables of this package; nothing else needs to change. The order
of the tables decides where two forms of one context fit the same line: the first one wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from specdash.llama.log_grammar.detail_lines import DETAIL_LINES
from specdash.llama.log_grammar.forms import (
    DROPPED,
    Context,
    Form,
    LineClass,
    Severity,
    exact_shape,
    line_pattern,
    shape_of,
    shape_pattern,
)
from specdash.llama.log_grammar.memory_lines import MEMORY_LINES
from specdash.llama.log_grammar.request_lines import REQUEST_LINES
from specdash.llama.log_grammar.router_lines import ROUTER_LINES, ROUTER_TROUBLE
from specdash.llama.log_grammar.server_lines import SERVER_LINES, SERVER_STARTING
from specdash.llama.log_grammar.server_trouble import SERVER_TROUBLE
from specdash.llama.log_grammar.speculation_lines import SPECULATION_LINES, current_type
from specdash.llama.log_grammar.trouble_lines import TROUBLE_LINES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "DROPPED",
    "LINE_CLASSES",
    "SERVER_STARTING",
    "WARNING_CLASSES",
    "Context",
    "Form",
    "Found",
    "LineClass",
    "Severity",
    "classify",
    "current_type",
    "find_message",
    "line_pattern",
    "shape_of",
]

TABLE: tuple[LineClass, ...] = (
    REQUEST_LINES
    + SPECULATION_LINES
    + MEMORY_LINES
    + TROUBLE_LINES
    + SERVER_TROUBLE
    + ROUTER_TROUBLE
    + SERVER_LINES
    + ROUTER_LINES
    + DETAIL_LINES
)
LINE_CLASSES: Mapping[str, LineClass] = MappingProxyType({line_class.id: line_class for line_class in TABLE})
"""Every line class by its id."""
WARNING_CLASSES: Mapping[str, LineClass] = MappingProxyType(
    {line_class.id: line_class for line_class in TABLE if line_class.severity is not None}
)
"""The classes whose lines are counted, by id."""

_SLOT_SHAPE = re.compile(rb"slot[\w()~<>]{0,64}:id\|task\|")
_FUNCTION_SHAPE = re.compile(rb"[\w()~<>]{1,80}:")
_MAX_FUNCTIONS = 3
_FARTHEST = 400
"""Bytes of a shape in which a message is looked for."""
_MAX_SHAPE = 4096
"""Bytes of a shape that classification looks at."""


@dataclass(frozen=True, slots=True)
class _Index:
    """The forms of one context: those with one shape each, and the others as one alternation in table order."""

    exact: dict[bytes, tuple[LineClass, Form]]
    others: tuple[tuple[LineClass, Form], ...]
    pattern: re.Pattern[bytes]

    def find(self, shape: bytes) -> tuple[LineClass, Form] | None:
        found = self.exact.get(shape)
        if found is not None:
            return found
        match = self.pattern.match(shape)
        return self.others[match.lastindex - 1] if match and match.lastindex else None


@lru_cache(maxsize=len(Context))
def _index(context: Context) -> _Index:
    exact: dict[bytes, tuple[LineClass, Form]] = {}
    others: list[tuple[LineClass, Form]] = []
    for line_class in TABLE:
        for form in line_class.forms:
            if form.context is not context:
                continue
            shape = exact_shape(form.template)
            if shape is not None:
                exact.setdefault(shape, (line_class, form))
            else:
                others.append((line_class, form))
    # The group that tells which form it is stands last, so that a form is passed over at its first letter.
    pattern = "|".join(f"{shape_pattern(form.template)}()" for _, form in others)
    return _Index(exact, tuple(others), re.compile(rf"(?:{pattern})\Z".encode()))


_HEAD = 8
"""Bytes of a form's shape by which it is found inside a line."""
_TELLING = 10
"""Bytes of a shape that are enough to say what a message is, if its end is marked; `_SURELY` if it is not."""
_SURELY = 20


@dataclass(frozen=True, slots=True)
class Found:
    """A message found inside a shape: where it starts, what it is, and whether something is appended to it."""

    start: int
    line_class: LineClass
    form: Form
    appended: bool
    length: int
    """Bytes of the shape that tell what it is."""


@lru_cache(maxsize=len(Context))
def _by_head(context: Context) -> dict[bytes, list[tuple[LineClass, Form, re.Pattern[bytes]]]]:
    found: dict[bytes, list[tuple[LineClass, Form, re.Pattern[bytes]]]] = {}
    for line_class in TABLE:
        for form in line_class.forms:
            # A field's name never counts: only what is printed before the first field can tell where a message starts.
            literal = shape_of(form.template.partition("{")[0].encode())
            if form.context is context and len(literal) >= _HEAD:
                pattern = re.compile(shape_pattern(form.template).encode())
                found.setdefault(literal[:_HEAD], []).append((line_class, form, pattern))
    return found


def find_message(shape: bytes) -> Iterator[Found]:
    """The known messages inside a shape that is none as a whole, the earliest first.

    Anything may stand before a message, and behind it. Only forms that begin with `_HEAD` bytes of their own are found.
    """
    shape = shape[:_MAX_SHAPE]
    slot = _SLOT_SHAPE.search(shape)
    if slot is not None:
        whole = _index(Context.SLOT).find(shape[slot.end() :])
        if whole is not None:
            yield Found(slot.start(), *whole, appended=False, length=len(shape) - slot.start())
        elif (longest := _longest(shape, slot.end(), Context.SLOT)) is not None:
            yield replace(longest, start=slot.start())
        return
    for start in range(min(len(shape) - _HEAD + 1, _FARTHEST)):
        for context in (Context.BARE, Context.ANY):
            longest = _longest(shape, start, context)
            if longest is not None:
                yield longest


def _longest(shape: bytes, start: int, context: Context) -> Found | None:
    best: Found | None = None
    for line_class, form, pattern in _by_head(context).get(shape[start : start + _HEAD], ()):
        match = pattern.match(shape, start)
        if match is None or (best is not None and match.end() - start <= best.length):
            continue
        length, behind = match.end() - start, shape[match.end() : match.end() + 1]
        ends = not behind or not (behind.isalnum() or behind == b"_")
        if length >= (_TELLING if ends else _SURELY):
            best = Found(start, line_class, form, appended=bool(behind), length=length)
    return best


def classify(shape: bytes) -> tuple[LineClass, Form] | None:
    """The class and form of a line whose prefix is gone, by its shape; None for a line that no table has."""
    shape = shape[:_MAX_SHAPE]
    slot = _SLOT_SHAPE.match(shape)
    if slot is not None:
        return _index(Context.SLOT).find(shape[slot.end() :])
    anywhere = _index(Context.ANY)
    found = _index(Context.BARE).find(shape) or anywhere.find(shape)
    start = 0
    for _ in range(_MAX_FUNCTIONS):
        function = _FUNCTION_SHAPE.match(shape, start)
        if found is not None or function is None:
            break
        start = function.end()
        found = anywhere.find(shape[start:])
    return found or _index(Context.DETAIL).find(shape)
