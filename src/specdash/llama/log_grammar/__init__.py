"""Every kind of line that llama-server writes to its log, as data.

A new kind of line is one more `LineClass` in one of the tables of this package; nothing else needs to change. The order
of the tables decides where two forms of one context fit the same line: the first one wins.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from specdash.llama.log_grammar.forms import (
    DROPPED,
    Captured,
    Context,
    Form,
    LineClass,
    Made,
    PrintedStep,
    TimingHeader,
    WarningSeverity,
    exact_shape,
    integers,
    line_pattern,
    shape_of,
    shape_pattern,
)
from specdash.llama.log_grammar.request_lines import (
    DETAIL_LINES,
    MEMORY_LINES,
    REQUEST_LINES,
    SPECULATION_LINES,
    current_type,
)
from specdash.llama.log_grammar.server_lines import (
    ROUTER_LINES,
    ROUTER_TROUBLE,
    SERVER_LINES,
    SERVER_STARTING,
    SERVER_TROUBLE,
)
from specdash.llama.log_grammar.trouble_lines import TROUBLE_LINES
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DETAIL_CLASSES",
    "DROPPED",
    "LINE_CLASSES",
    "SERVER_STARTING",
    "WARNING_CLASSES",
    "Captured",
    "Context",
    "Form",
    "LineClass",
    "Made",
    "PrintedStep",
    "TimingHeader",
    "WarningSeverity",
    "beginning",
    "classify",
    "current_type",
    "integers",
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

DETAIL_CLASSES = frozenset(
    {
        "slot_selected", "slot_considered", "prompt_started", "prompt_reused", "prefill_progress", "decode_progress",
        "timing_header", "prompt_timing", "total_timing", "graphs_reused", "sampler", "slot_setup", "image_processing",
        "http_request", "idle", "acceptance_per_position", "verification_step", "statistics", "ngram_table",
        "checkpoint_created", "checkpoint_superseded", "checkpoint_checked", "checkpoint_restored",
        "speculative_checkpoint_created", "speculative_checkpoint_restored", "prompt_cache_state", "prompt_cache_saved",
        "prompt_cache_hit", "prompt_cache_updated", "prompt_cache_detail", "blank", "proxying", "queue", "stop_reason",
        "debug", "reasoning_budget", "stream", "mcp", "multimodal",
    }
)  # fmt: skip
"""Classes whose lines tell of a step within a request, up to hundreds for each: views of trouble leave them
out. What begins and ends a request, warnings, what the server says of itself and unknown lines are not among them."""

_SLOT_SHAPE = re.compile(rb"slot[\w()~<>]{0,64}:id\|task\|")
_FUNCTION_SHAPE = re.compile(rb"[\w()~<>]{1,80}:")
_MAX_FUNCTIONS = 3
_MAX_SHAPE = 4096
"""Bytes of a shape that classification looks at."""


_FIRST = 4
"""Bytes of a shape by which the forms that it may be are picked."""


@cache
def _shape_of_form(template: str) -> re.Pattern[bytes]:
    """Compiled for the forms of which a log has lines; all of them take longer than a whole `specdash status`."""
    return re.compile(shape_pattern(template).encode())


def _literal(form: Form) -> bytes:
    """What the shape begins with. A field's name never counts: only what is printed before the first field."""
    return shape_of(form.template.partition("{")[0].encode())


@dataclass(frozen=True, slots=True)
class _Index:
    """The forms of one context: those with one shape each, and the others by how they begin, in table order."""

    exact: dict[bytes, tuple[LineClass, Form]]
    by_first: dict[bytes, list[tuple[bytes, LineClass, Form]]]
    short: list[tuple[bytes, LineClass, Form]]
    """Those that begin with fewer bytes of their own; they are in each of the lists as well."""

    def find(self, shape: bytes) -> tuple[LineClass, Form] | None:
        found = self.exact.get(shape)
        if found is not None:
            return found
        for literal, line_class, form in self.by_first.get(shape[:_FIRST], self.short):
            if shape.startswith(literal) and _shape_of_form(form.template).fullmatch(shape):
                return line_class, form
        return None


@lru_cache(maxsize=len(Context))
def _index(context: Context) -> _Index:
    exact: dict[bytes, tuple[LineClass, Form]] = {}
    others: list[tuple[bytes, LineClass, Form]] = []
    for line_class in TABLE:
        for form in line_class.forms:
            if form.context is not context:
                continue
            shape = exact_shape(form.template)
            if shape is not None:
                exact.setdefault(shape, (line_class, form))
            else:
                others.append((_literal(form), line_class, form))
    by_first: dict[bytes, list[tuple[bytes, LineClass, Form]]] = {
        literal[:_FIRST]: [] for literal, *_ in others if len(literal) >= _FIRST
    }
    for entry in others:
        for listed in by_first.values() if len(entry[0]) < _FIRST else (by_first[entry[0][:_FIRST]],):
            listed.append(entry)
    return _Index(exact, by_first, [entry for entry in others if len(entry[0]) < _FIRST])


_HEAD = 8
"""Bytes of a form's shape by which it is found inside a line."""
_TELLING = 10
"""Bytes of a shape that are enough to say what a message is, if its end is marked; `_SURELY` if it is not."""
_SURELY = 20


@lru_cache(maxsize=len(Context))
def _by_head(context: Context) -> dict[bytes, list[tuple[LineClass, Form]]]:
    found: dict[bytes, list[tuple[LineClass, Form]]] = {}
    for line_class in TABLE:
        for form in line_class.forms:
            if form.context is context and len(literal := _literal(form)) >= _HEAD:
                found.setdefault(literal[:_HEAD], []).append((line_class, form))
    return found


def beginning(shape: bytes) -> tuple[LineClass, Form] | None:
    """The class and form of the known message that a shape begins with and goes on after; a newer build may append to
    what it prints. Only forms that begin with `_HEAD` bytes of their own are found."""
    shape = shape[:_MAX_SHAPE]
    slot = _SLOT_SHAPE.match(shape)
    if slot is not None:
        return _longest(shape, slot.end(), Context.AFTER_SLOT)
    found = _longest(shape, 0, Context.WHOLE_LINE)
    start = 0
    for _ in range(_MAX_FUNCTIONS + 1):
        found = found or _longest(shape, start, Context.AFTER_FUNCTIONS)
        function = _FUNCTION_SHAPE.match(shape, start)
        if found is not None or function is None:
            break
        start = function.end()
    return found


def _longest(shape: bytes, start: int, context: Context) -> tuple[LineClass, Form] | None:
    best: tuple[LineClass, Form] | None = None
    longest = 0
    for line_class, form in _by_head(context).get(shape[start : start + _HEAD], ()):
        match = _shape_of_form(form.template).match(shape, start)
        if match is None or match.end() - start <= longest:
            continue
        length, behind = match.end() - start, shape[match.end() : match.end() + 1]
        ends = not (behind.isalnum() or behind == b"_")
        if length >= (_TELLING if ends else _SURELY):
            best, longest = (line_class, form), length
    return best


def classify(shape: bytes) -> tuple[LineClass, Form] | None:
    """The class and form of a line whose prefix is gone, by its shape; None for a line that no table has."""
    shape = shape[:_MAX_SHAPE]
    slot = _SLOT_SHAPE.match(shape)
    if slot is not None:
        return _index(Context.AFTER_SLOT).find(shape[slot.end() :])
    anywhere = _index(Context.AFTER_FUNCTIONS)
    found = _index(Context.WHOLE_LINE).find(shape) or anywhere.find(shape)
    start = 0
    for _ in range(_MAX_FUNCTIONS):
        function = _FUNCTION_SHAPE.match(shape, start)
        if found is not None or function is None:
            break
        start = function.end()
        found = anywhere.find(shape[start:])
    return found or _index(Context.LAST_RESORT).find(shape)
