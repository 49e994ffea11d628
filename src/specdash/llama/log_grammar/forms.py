"""How a printed form of a log line is declared, and what is compiled from the declaration.

A form is written as llama.cpp prints it, with fields in braces: `stop processing: n_tokens = {n:d}, truncated = {:d}`.
From it come two things, so that a line can be recognised without running a regex on it:

* a pattern over the line's *shape*, which is the line without digits, blanks and signs (`shape_of`). Whether a line
  belongs to a form is decided on the shape alone, so all lines of one shape belong to the same form;
* a regex over the line itself, which captures the named fields.

Field types: `d` integer, `f` decimal number, `w` word, `s` text (up to the quote if it began with one, to the end of
the line if it is last, else without blanks), `list` numbers between commas, `x` pointer, `dots` dots, `rest` all that
follows. A field without a name is not captured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, StrEnum
from itertools import repeat
from typing import Any, NamedTuple

from specdash.core.log_facts import LogFact, ServerEvent
from specdash.system.data import dataclass

DROPPED = b"0123456789+- \t\r\0"
"""Bytes that do not count in a shape: what varies from line to line, and padding."""

Groups = Sequence[bytes]
Number = int | None
"""A slot's, a task's, or the port of a router's child."""
Seconds = float | None

PrintedStep = tuple[int, int, int, int, bool, Seconds, Number]
"""One verification step as its line prints it: slot, task, accepted, generated, whether a checkpoint was restored after
it, when, and the origin; `log_parser.StepAdder` adds them up to `VerificationSteps`."""


class TimingHeader(NamedTuple):
    """The line that names slot and task of the timing lines below it (builds until 2026-05)."""

    slot: int
    task: int
    at_s: Seconds
    origin: Number


Made = LogFact | PrintedStep | TimingHeader


class Captured(NamedTuple):
    """What lines of one form captured, column by column; each column has a value for each line."""

    slots: Sequence[Any]
    """Numbers for a form after the slot prefix, else None."""
    tasks: Sequence[Any]
    columns: Sequence[Sequence[bytes]]
    """A column for each named field of the form."""
    times: Sequence[Seconds]
    """Seconds since the server's start."""
    origins: Sequence[Number]
    """Ports of a router's children."""


Maker = Callable[[Captured], Iterable[Made]]
"""What lines of one form captured to their facts. Raises ValueError for texts that are not what the form promises."""


def each(make: Callable[[Any, Any, Groups, Seconds, Number], Made]) -> Maker:
    """Makes the facts line by line, of (slot, task, captured fields, seconds, port)."""

    def made(lines: Captured) -> Iterable[Made]:
        rows = zip(*lines.columns, strict=True) if lines.columns else repeat(())
        return map(make, lines.slots, lines.tasks, rows, lines.times, lines.origins)

    return made


class Context(Enum):
    """What stands between the line's prefix and the form."""

    AFTER_SLOT = "after slot"
    """`slot FUNCTION: id N | task M | `. The function name changes between builds and never matters."""
    AFTER_FUNCTIONS = "after functions"
    """Up to three function names, each with a colon, or nothing."""
    WHOLE_LINE = "whole line"
    """Nothing: the form is the whole line."""
    LAST_RESORT = "last resort"
    """Nothing, and only if no form of another context fits: for functions that are known to print detail."""


class WarningSeverity(StrEnum):
    """How much a warning class matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


ERROR, WARNING, NOTICE = WarningSeverity


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """One way in which a line class is printed: where it stands, its template, and the fact that it makes, if any."""

    context: Context
    template: str
    make: Maker | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LineClass:
    """One kind of log line.

    `severity` is set for the classes that are counted as warnings; `note` says what such a line means and when it is
    normal. `continues` marks a class whose text may run on over unprefixed lines of free text.
    """

    id: str
    title: str
    forms: tuple[Form, ...]
    severity: WarningSeverity | None = None
    note: str = ""
    continues: bool = False


def in_slot(*templates: str, make: Maker | None = None) -> tuple[Form, ...]:
    """Forms after the slot prefix; `make` gives their fact."""
    return tuple(Form(Context.AFTER_SLOT, template, make) for template in templates)


def anywhere(*templates: str, make: Maker | None = None) -> tuple[Form, ...]:
    """Forms after any function names; `make` gives their fact."""
    return tuple(Form(Context.AFTER_FUNCTIONS, template, make) for template in templates)


def whole_line(*templates: str, make: Maker | None = None) -> tuple[Form, ...]:
    """Forms that are the whole line; `make` gives their fact."""
    return tuple(Form(Context.WHOLE_LINE, template, make) for template in templates)


def detail(*templates: str) -> tuple[Form, ...]:
    """Whole lines that no other form fits; they make no fact."""
    return tuple(Form(Context.LAST_RESORT, template) for template in templates)


def shape_of(line: bytes) -> bytes:
    """The line without what varies between lines of the same kind."""
    return line.translate(None, DROPPED)


_FIELD = re.compile(r"\{(\w*):(\w+)\}")
_NUMBER = r"-?\d{1,15}(?:\.\d{1,15})?"
_FIELDS: dict[str, tuple[str, str]] = {
    "d": ("", r"-?\d{1,18}"),
    "f": (r"\.?", _NUMBER),
    "w": (r"[\w.]*", r"[\w.+-]{1,200}"),
    "list": (r"[.,]*", r"[\d., -]*"),
    "dots": (r"\.*", r"\.*"),
    "x": (r"[a-fxnil()]*", r"[\da-fxnil()]*"),
    "rest": (r".*", r".*"),
}
"""Field type: its pattern in a shape, its pattern in a line."""
_GAP = " {0,40}"
"""Blanks between words. Bounded, and never beside a pattern that could match blanks at length, so that no line, however
made, takes more than linear time."""
_PADDED = frozenset("df")
"""Types printed with a width, so that blanks may stand before them."""


def _text_field(template: str, field: re.Match[str]) -> tuple[str, str]:
    if template[: field.start()].endswith("'"):
        return "[^']*", "[^']*"
    return (".*", ".*") if field.end() == len(template) else (r"\S*", r"\S{1,1000}")


def _patterns(template: str, field: re.Match[str]) -> tuple[str, str]:
    return _text_field(template, field) if field[2] == "s" else _FIELDS[field[2]]


def shape_pattern(template: str) -> str:
    """The regex that the shape of a line of this form matches as a whole."""
    parts: list[str] = []
    end = 0
    for field in _FIELD.finditer(template):
        parts.append(_shape_literal(template[end : field.start()]))
        parts.append(_patterns(template, field)[0])
        end = field.end()
    parts.append(_shape_literal(template[end:]))
    return "".join(parts)


def _shape_literal(literal: str) -> str:
    return re.escape(shape_of(literal.encode()).decode())


def exact_shape(template: str) -> bytes | None:
    """The one shape of a form whose fields are all numbers, None for a form with other fields."""
    if any(field[2] not in _PADDED for field in _FIELD.finditer(template)):
        return None
    plain = _FIELD.sub(lambda field: "." if field[2] == "f" else "", template)
    return shape_of(plain.encode())


def line_pattern(template: str) -> str:
    """The regex, without anchors, that captures the named fields of a line of this form."""
    parts: list[str] = []
    end = 0
    for field in _FIELD.finditer(template):
        _append_literal(parts, template[end : field.start()])
        if field[2] in _PADDED:
            _append_gap(parts)
        pattern = _patterns(template, field)[1]
        parts.append(f"({pattern})" if field[1] else f"(?:{pattern})")
        end = field.end()
    _append_literal(parts, template[end:])
    return "".join(parts).removesuffix("(?:.*)")


def _append_literal(parts: list[str], literal: str) -> None:
    for chunk in re.split(r"( +)", literal):
        if chunk.startswith(" "):
            _append_gap(parts)
        elif chunk:
            parts.append(re.escape(chunk))


def _append_gap(parts: list[str]) -> None:
    if parts and parts[-1] != _GAP:
        parts.append(_GAP)


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


def integers(column: Sequence[bytes]) -> list[int]:
    """Numbers of which many are the same."""
    known = {number: int(number) for number in set(column)}
    return list(map(known.__getitem__, column))


def slot_fact(kind: Callable[..., LogFact], *values: Callable[[bytes], Any], then: tuple[Any, ...] = ()) -> Maker:
    """Makes facts of this `kind` of slot, task, the captured `values` in order, and the constants that come `then`."""

    def made(lines: Captured) -> Iterable[LogFact]:
        read = (
            integers(column) if value is int else map(value, column)
            for value, column in zip(values, lines.columns, strict=False)
        )
        return map(kind, lines.slots, lines.tasks, *read, *map(repeat, then), lines.times, lines.origins)

    return made


def event(name: str, *fields: str) -> Maker:
    """Makes a `ServerEvent` called `name`, whose `fields` are the captured texts in order."""

    @each
    def make(_slot: Number, _task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
        values = tuple((field, text(value)) for field, value in zip(fields, g, strict=True))
        return ServerEvent(name, values, at, origin)

    return make


def pairs(name: str, first: str) -> Maker:
    """Makes a `ServerEvent` called `name` from `value, key=value, …`, where the first value belongs to `first`."""

    @each
    def make(_slot: Number, _task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
        parts = (part.partition("=") for part in f"{first}={text(g[0])}".split(", "))
        return ServerEvent(name, tuple((key.strip(), value.strip()) for key, sign, value in parts if sign), at, origin)

    return make
