"""What the shape of a log line means: worked out once per shape, used for every line that has it.

A shape, which has no numbers and blanks, tells what a line is, but not where its values stand. A line's *layout* does:
the line with every digit written as 0. Patterns do not tell one digit from another (but for the few forms that have
digits themselves), so values stand at the same places in all lines of one layout, and one match finds them for all.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from specdash.llama.log_grammar import (
    LINE_CLASSES,
    SERVER_STARTING,
    Context,
    Form,
    Found,
    LineClass,
    classify,
    find_message,
    line_pattern,
)
from specdash.llama.log_prefix import Clock, Foreign, Prefix, prefix_before, split_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LAYOUT: Final = bytes.maketrans(b"123456789", b"000000000")
"""Translates a line to its layout."""
_UNKNOWN_LEVEL = {"D": "debug", "W": "other_warning", "E": "other_error"}
_UNKNOWN = frozenset({"unrecognised", "other_warning", "other_error"})
_BEFORE_START = _UNKNOWN | {
    "startup", "environment_overridden", "deprecated_argument", "bad_argument", "comment", "blank", "continuation",
    "debug",
}  # fmt: skip
"""Classes whose lines may come before the line with which a server starts."""
_ENDS_HEADER = frozenset({"task_launched", "task_released"})
"""Classes after whose lines a timing header is about another request."""
_PLAIN = 24
"""Bytes of a message's shape that show its start behind a word that is no prefix by itself."""
_SLOT_TEXT = r"slot[^:|]{0,80}: *id *(\d{1,9}) *\| *task *(-?\d{1,18}) *\| *"
_FUNCTIONS_TEXT = r"(?:[\w()~<>+ -]{1,160}: *){0,3}?"


def _no_match(_line: bytes) -> re.Match[bytes] | None:
    return None


class Reading:
    """What a shape means: its class and form behind which prefix, and the regex that captures its values."""

    __slots__ = (
        "any_digits", "appended", "begins", "busy", "captures", "clock", "ends_header", "form", "in_slot", "line_class",
        "make", "make_common", "match", "prefix", "routed", "starts", "unknown",
    )  # fmt: skip

    def __init__(self, line_class: LineClass, form: Form | None, prefix: Prefix, *, appended: bool = False) -> None:
        self.form = form
        self.appended = appended
        self.line_class = line_class
        self.prefix = prefix
        self.clock = prefix.clock
        self.routed = prefix.routed
        self.starts = line_class.id == SERVER_STARTING
        self.begins = line_class.id not in _BEFORE_START and not prefix.routed
        self.unknown = line_class.id in _UNKNOWN
        self.in_slot = form is not None and form.context is Context.SLOT
        self.make = form.make if form is not None else None
        self.ends_header = line_class.id in _ENDS_HEADER
        self.captures = form is not None and (self.make is not None or line_class.id == "timing_header")
        self.match = (
            whole_pattern(form.context, form.template, prefix, appended=appended).match
            if form is not None and self.captures
            else _no_match
        )
        self.busy = self.captures or self.unknown or line_class.id == "blank"
        self.any_digits = form is not None and not form.has_digits
        common = self.in_slot and self.clock is Clock.STAMP and not self.routed
        self.make_common = self.make if common else None

    @property
    def may_continue(self) -> bool:
        """Whether such a line may belong to the message before it: nothing in front of it, nothing known about it."""
        free = self.prefix.clock is Clock.NONE and not self.prefix.named
        return free and (self.unknown or self.line_class.id == "blank")


@lru_cache(maxsize=2048)
def whole_pattern(where: Context, template: str, prefix: Prefix, *, appended: bool = False) -> re.Pattern[bytes]:
    """The regex of a whole line: captures the prefix's parts, slot and task in a slot's line, and the named fields."""
    context = {Context.SLOT: _SLOT_TEXT, Context.ANY: _FUNCTIONS_TEXT}.get(where, "")
    end = r"(?!\w)" if appended else "" if template.endswith((":rest}", ":s}")) else r"[\s\0]*\Z"
    return re.compile(f"{prefix.pattern}{context}{line_pattern(template)}{end}".encode())


def read_shape(shape: bytes, learnt_here: Iterable[Foreign] = ()) -> Reading:
    """What lines of this shape are, in a log whose lines have taught these prefixes."""
    ways = split_shape(shape, learnt_here)
    for prefix, message in ways:
        found = classify(message)
        if found is not None and not (found[0].id == "blank" and prefix.level == "D"):
            return Reading(*found, prefix)
    prefix, message = ways[0]
    for inside in find_message(message):
        reading = _read_inside(message, inside, prefix)
        if reading is not None:
            return reading
    kind = "unrecognised" if prefix.level is None else _UNKNOWN_LEVEL.get(prefix.level, "unrecognised")
    return Reading(LINE_CLASSES[kind], None, prefix)


def _read_inside(message: bytes, inside: Found, framed: Prefix) -> Reading | None:
    """The line with that message in it, None if what stands around the message speaks against it."""
    head = message[: inside.start]
    prefix, ends = framed, True
    if head:
        found = prefix_before(head, framed, functions=inside.form.context is Context.ANY)
        if found is None:
            return None
        prefix, ends = found
    if not ends and (inside.appended or inside.length < _PLAIN):
        return None
    # A warning that goes on after the words of a harmless message may say anything: it stays unknown.
    if inside.appended and prefix.level in ("W", "E") and inside.line_class.severity is None:
        return None
    return Reading(inside.line_class, inside.form, prefix, appended=inside.appended)


def cutter(match: re.Match[bytes], length: int) -> Callable[[bytes], tuple[bytes, ...]]:
    """Cuts the captured fields out of any line that has the same layout as the one matched, of `length` bytes."""
    parts = []
    end = 0
    for start, stop in match.regs[1:]:
        parts.append(f"{start - end}x{stop - start}s")
        end = stop
    return Struct(f"{''.join(parts)}{length - end}x").unpack


CONTINUATION = Reading(LINE_CLASSES["continuation"], None, Prefix())
MALFORMED = Reading(LINE_CLASSES["unrecognised"], None, Prefix())
"""A line whose shape is known, but whose values are not what the shape promises."""
