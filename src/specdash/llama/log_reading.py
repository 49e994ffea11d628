"""What the shape of a log line means: worked out once per shape, used for every line that has it."""

from __future__ import annotations

import json
import re
from copy import copy
from enum import Enum
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from specdash.llama.log_grammar import (
    DETAIL_CLASSES,
    LINE_CLASSES,
    SERVER_STARTING,
    Captured,
    Context,
    Form,
    LineClass,
    Made,
    beginning,
    classify,
    integers,
    line_pattern,
    shape_of,
)
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence


# What may stand in front of a log line: other programs' prefixes, the router's, the clock and the level.
#
# llama-server itself prints one of four: nothing (`--no-log-prefix`), `M.SS.mmm.uuu L ` (minutes without bound since
# the server's start, level D, I, W or E), `L ` alone (`--no-log-timestamps`), or a JSON object with the message escaped
# (`--log-jsonl`, microseconds). A router repeats its children's lines after `[PORT] `. Journald, syslog, container
# runtimes and compose put their own text before all that; behind any other text the server's own clock is looked for.
# Colour codes are removed before any of this.
#
# Which prefix a line has is decided on its shape (see `log_grammar.forms`), so it is known once per shape.

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z^_])")
"""Terminal escape sequences: colours, titles, cursor movements."""


class Clock(Enum):
    """How a line tells the time since the server's start."""

    NONE = "none"
    STAMP = "stamp"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ForeignPrefix:
    """A prefix put there by another program: the pattern of its shape, and of the text itself."""

    name: str
    shape: str
    text: str


_STAMPED_BY_ISO = r"\d{4}-\d\d-\d\d[T ][\d:.,]{1,24}(?:Z|[+-][\d:]{1,6})?\s{0,4}"
FOREIGN: tuple[ForeignPrefix, ...] = (
    ForeignPrefix("none", "", ""),
    ForeignPrefix(
        "journald",
        r"[A-Z][a-z]{2}::\.?[^\[\]{}|:]{1,200}\[\]:",
        r"[A-Z][a-z]{2}\s{1,3}[\d:. ]{1,40}[^\[\]{}|]{1,200}\[\d*\]:\s*",
    ),
    ForeignPrefix(
        "journald iso", r"T::[.,]?:?[^\[\]{}|:]{1,200}\[\]:", _STAMPED_BY_ISO + r"[^\[\]{}|]{1,200}\[\d*\]:\s*"
    ),
    ForeignPrefix("kubernetes", r"T::\.(?:Z|:)std(?:out|err)[FP]", _STAMPED_BY_ISO + r"std(?:out|err)\s[FP]\s"),
    ForeignPrefix("docker", r"T::\.(?:Z|:)", _STAMPED_BY_ISO),
    ForeignPrefix("compose", r"[\w.]{1,64}\|", r"[\w.+\-\s\0]{1,80}\|[\s\0]{0,40}"),
    ForeignPrefix("docker json", r'\{"log":"', r'\{"log":"\s*'),
)
"""Tried in order; the first whose shape fits, and that leaves a prefix of the server's own or a known line, wins."""
_ANY = r"""[^"'\\]{1,200}?"""
"""What any other program may print before a line; a quote in it means that a log is quoted, in a prompt that the
server prints, say."""
ANY_TEXT = ForeignPrefix("any text", _ANY, _ANY)
"""Only before the server's own clock."""


_ROUTER_SHAPE = r"(\[\])?"
_ROUTER_TEXT = r"\[(\d{1,9})\]\s*"
_STAMP_SHAPE = r"\.\.\.([DIWE])"
_STAMP_TEXT = r"(\d{1,9}\.\d\d\.\d{3}\.\d{3}) *[DIWE] *"
_JSON_SHAPE = r'\{"type":"log","time":,"level":"([a-z])[a-z]*","msg":"'
_JSON_TEXT = (
    r'\{\s*"type"\s*:\s*"log"\s*,\s*"time"\s*:\s*(\d{1,18})\s*,\s*"level"\s*:\s*"[a-z]*"\s*,\s*"msg"\s*:\s*"\s*'
)
_JSON_END = re.compile(
    rb'(?:\\n|\\r|\s)*"(?:\s*,\s*"stream"\s*:\s*"std(?:out|err)"\s*,\s*"time"\s*:\s*"[^"]{0,40}"\s*)?\}\s*\Z'
)
_JSON_SHAPE_END = re.compile(rb'(?:\\n|\\r)*"(?:,"stream":"std(?:out|err)","time":"[^"]{0,40}")?\}\Z')
_JSON_TAIL = 160
_LEVELS = {"d": "D", "t": "D", "i": "I", "w": "W", "e": "E"}


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of a line: who else wrote in front of it, whether a router did, its clock and its level."""

    foreign: ForeignPrefix = FOREIGN[0]
    routed: bool = False
    clock: Clock = Clock.NONE
    level: str | None = None

    @property
    def pattern(self) -> str:
        """The regex of the prefix's text; captures the router's port, then the clock."""
        clock = {Clock.STAMP: _STAMP_TEXT, Clock.JSON: _JSON_TEXT}.get(self.clock)
        if clock is None:
            clock = r"[DIWE]\s*" if self.level else ""
        return rf"[\s\0]*{self.foreign.text}{_ROUTER_TEXT if self.routed else ''}{clock}"

    @property
    def is_quoted(self) -> bool:
        """Whether the message stands escaped in a JSON object, which ends behind it."""
        return self.clock is Clock.JSON or self.foreign.name == "docker json"


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())


def seconds_of(prefix: Prefix, line: bytes) -> float | None:
    """Seconds since the server's start by the line's own clock, None where it has none."""
    if prefix.clock is Clock.NONE:
        return None
    match = _compiled(prefix.pattern).match(line)
    if match is None:
        return None
    return read_clocks(prefix.clock, [match[2 if prefix.routed else 1]])[0]


_OWN_STAMP = re.compile(rf"(?<![\d.]){_STAMP_TEXT}".encode())
_OWN_JSON = re.compile(_JSON_TEXT.encode())


def own_seconds(text: str) -> float | None:
    """Seconds since the server's start by a whole line's clock; None where it has none, or is a router's child's."""
    line = text[:400].encode()
    if (match := _OWN_JSON.search(line)) is not None:
        return int(match[1]) / 1e6
    match = _OWN_STAMP.search(line)
    if match is None or re.search(rb"\[\d{1,9}\]\s*$", line[: match.start()]) is not None:
        return None
    return read_clocks(Clock.STAMP, [match[1]])[0]


def read_clocks(clock: Clock, times: Sequence[bytes]) -> list[float]:
    """What lines print as their times, in seconds."""
    if clock is Clock.JSON:
        return [int(time) / 1e6 for time in times]
    # As one number for each stamp: minutes, then two digits of seconds and six of microseconds.
    numbers = map(int, b" ".join(times).translate(None, b".").split())
    return [(number - number // 100_000_000 * 40_000_000) / 1e6 for number in numbers]


def json_message_end(line: bytes) -> int:
    """Where the escaped message of a JSON line ends, its newline not counted."""
    match = _JSON_END.search(line, max(0, len(line) - _JSON_TAIL))
    return match.start() if match else len(line)


_OWN_SHAPE = f"{_ROUTER_SHAPE}(?:{_STAMP_SHAPE}|{_JSON_SHAPE})?"
_BEHIND_TEXT = re.compile(rf"{_ANY}(?:{_ROUTER_TEXT})?(?:{_STAMP_TEXT}|{_JSON_TEXT})".encode())


@lru_cache(maxsize=256)
def _head(foreign: ForeignPrefix) -> re.Pattern[bytes]:
    return re.compile(f"{foreign.shape}{_OWN_SHAPE}".encode())


@cache
def _clocked_head(foreign: ForeignPrefix) -> re.Pattern[bytes]:
    return re.compile(f"{foreign.shape}{_OWN_SHAPE.removesuffix('?')}".encode())


def split_shape(shape: bytes, *, behind_text: bool = False) -> list[tuple[Prefix, bytes]]:
    """The ways in which a shape can be read as prefix and message, most telling first.

    A clock settles the matter: then there is one way. Without it, another program's prefix and a lone level letter are
    only guesses, which hold if what they leave is a known line. `behind_text` says that the line has the server's clock
    behind some other text.
    """
    guesses: list[tuple[Prefix, bytes]] = []
    for foreign in (*FOREIGN, ANY_TEXT) if behind_text else FOREIGN:
        match = (_head if foreign is not ANY_TEXT else _clocked_head)(foreign).match(shape)
        if match is None:
            continue
        routed = match[1] is not None
        rest = shape[match.end() :]
        if match[2] is not None:
            return [(Prefix(foreign, routed, Clock.STAMP, match[2].decode()), _unquoted(foreign, rest))]
        if match[3] is not None:
            level = _LEVELS.get(match[3].decode())
            return [(Prefix(foreign, routed, Clock.JSON, level), _message_of(rest))]
        rest = _unquoted(foreign, rest)
        guesses.append((Prefix(foreign, routed), rest))
        if rest[:1] in (b"D", b"I", b"W", b"E"):
            guesses.append((Prefix(foreign, routed, Clock.NONE, rest[:1].decode()), rest[1:]))
    return guesses


def _message_of(rest: bytes) -> bytes:
    end = _JSON_SHAPE_END.search(rest, max(0, len(rest) - _JSON_TAIL))
    return rest[: end.start()] if end else rest


def _unquoted(foreign: ForeignPrefix, rest: bytes) -> bytes:
    return _message_of(rest) if Prefix(foreign).is_quoted else rest


_UNKNOWN_LEVEL = {"D": "debug", "W": "other_warning", "E": "other_error"}
_LOG_READING_UNKNOWN = frozenset({"unrecognised", "other_warning", "other_error"})
_BEFORE_START = _LOG_READING_UNKNOWN | {
    "startup", "environment_overridden", "deprecated_argument", "bad_argument", "comment", "blank", "continuation",
    "debug",
}  # fmt: skip
"""Classes whose lines may come before the line with which a server starts."""
_SLOT_TEXT = r"slot[^:|]{0,80}: *id *(\d{1,9}) *\| *task *(-?\d{1,18}) *\| *"
_FUNCTIONS_TEXT = r"(?:[\w()~<>+ -]{1,160}: *){0,3}?"


def _unescaped(captured: bytes) -> bytes:
    if b"\\" not in captured:
        return captured
    try:
        return str(json.loads(b'"' + captured + b'"')).encode(errors="replace")
    except ValueError:
        return captured


def _no_match(_line: bytes) -> re.Match[bytes] | None:
    return None


_BETWEEN_NUMBERS = bytes(byte if chr(byte) in "0123456789.-" else ord(" ") for byte in range(256))
_NUMBER = re.compile(rb"[\d.-]+")


class ShapeMeaning:
    """What a shape means: its class and form behind which prefix, and the regex that captures its values.

    Lines that differ in the digits alone match alike. So what one of them captured tells which of a line's numbers are
    captured (`fields`, None where texts are, too), and of the others the numbers are all that is looked at.
    """

    __slots__ = (
        "appended", "begins", "captures", "clock", "fields", "form", "in_slot", "is_detail",
        "line_class", "loose", "make", "match", "numbers", "prefix", "quoted", "routed", "starts", "telling", "unknown",
        "variants",
    )  # fmt: skip

    def __init__(self, line_class: LineClass, form: Form | None, prefix: Prefix, *, appended: bool = False) -> None:
        self.form = form
        self.appended = appended
        self.line_class = line_class
        self.prefix = prefix
        self.clock = prefix.clock
        self.quoted = prefix.is_quoted
        self.routed = prefix.routed
        self.starts = line_class.id == SERVER_STARTING
        self.begins = line_class.id not in _BEFORE_START and not prefix.routed
        self.unknown = line_class.id in _LOG_READING_UNKNOWN
        self.in_slot = form is not None and form.context is Context.AFTER_SLOT
        self.make = form.make if form is not None else None
        self.is_detail = line_class.id in DETAIL_CLASSES
        self.captures = self.make is not None
        self.match = (
            whole_pattern(form.context, form.template, prefix, appended=appended).match
            if form is not None and self.captures
            else _no_match
        )
        self.loose = self.unknown or line_class.id == "blank"
        self.telling = self.captures or self.loose
        """Whether the line itself is to be looked at."""
        self.fields: tuple[int, ...] | None = None
        self.numbers = 0
        """How many a line has."""
        self.variants: dict[tuple[int, tuple[int, ...]], ShapeMeaning] = {}

    def of_line(self, line: bytes, *, quickly: bool = True) -> ShapeMeaning:
        """What a line of this shape means, and every other one that has its digits in the same places."""
        if not self.captures:
            return self
        match = self._match(line)
        if match is None:
            return MALFORMED
        places = {number.span(): place for place, number in enumerate(_NUMBER.finditer(line))}
        captured = [match.span(group + 1) for group in range(match.re.groups)]
        if not quickly or any(span not in places for span in captured):
            return self
        fields = tuple(places[span] for span in captured)
        if (len(places), fields) not in self.variants:
            self.variants[len(places), fields] = variant = copy(self)
            variant.numbers, variant.fields = len(places), fields
        return self.variants[len(places), fields]

    def facts_of(self, lines: Sequence[bytes]) -> list[Made]:
        """The facts of lines that mean this.

        Raises:
            ValueError: a line's texts are not what its shape promised.
        """
        assert self.make is not None  # noqa: S101 - for the type checker
        columns = self._columns(lines)
        nothing: list[None] = [None] * len(lines)
        origins = integers(columns.pop(0)) if self.routed else nothing
        times = read_clocks(self.clock, columns.pop(0)) if self.clock is not Clock.NONE else nothing
        slots, tasks = (integers(columns.pop(0)), integers(columns.pop(0))) if self.in_slot else (nothing, nothing)
        return list(self.make(Captured(slots, tasks, columns, times, origins)))

    def _columns(self, lines: Sequence[bytes]) -> list[Sequence[bytes]]:
        """What the lines' groups captured, by group."""
        if self.fields is not None:
            numbers = b"\n".join(lines).translate(_BETWEEN_NUMBERS).split()
            return [numbers[field :: self.numbers] for field in self.fields]
        rows = [match.groups() for match in map(self._match, lines) if match is not None]
        columns: list[Sequence[bytes]] = [*zip(*rows, strict=True)]
        return [[*map(_unescaped, column)] for column in columns] if self.clock is Clock.JSON else columns

    def _match(self, line: bytes) -> re.Match[bytes] | None:
        return self.match(line[: json_message_end(line)] if self.quoted else line)

    @property
    def may_continue(self) -> bool:
        """Whether such a line may belong to the message before it: nothing in front of it, nothing known about it."""
        return self.prefix.clock is Clock.NONE and self.loose


@lru_cache(maxsize=2048)
def whole_pattern(where: Context, template: str, prefix: Prefix, *, appended: bool = False) -> re.Pattern[bytes]:
    """The regex of a whole line: captures the prefix's parts, slot and task in a slot's line, and the named fields."""
    context = {Context.AFTER_SLOT: _SLOT_TEXT, Context.AFTER_FUNCTIONS: _FUNCTIONS_TEXT}.get(where, "")
    end = r"(?!\w)" if appended else "" if template.endswith((":rest}", ":s}")) else r"[\s\0]*\Z"
    return re.compile(f"{prefix.pattern}{context}{line_pattern(template)}{end}".encode())


def read_line(line: bytes) -> ShapeMeaning:
    """What a line is, without its values."""
    return read_shape(shape_of(line), behind_text=is_behind_text(line))


def is_behind_text(line: bytes) -> bool:
    """Whether the server's own clock stands behind some other text."""
    return _BEHIND_TEXT.match(line) is not None


def read_shape(shape: bytes, *, behind_text: bool = False) -> ShapeMeaning:
    """What lines of this shape are; `behind_text` as in `split_shape`."""
    ways = split_shape(shape, behind_text=behind_text)
    for prefix, message in ways:
        found = classify(message)
        if found is not None and not (found[0].id == "blank" and prefix.level == "D"):
            return ShapeMeaning(*found, prefix)
    prefix, message = ways[0]
    longer = beginning(message)
    # A warning that goes on after the words of a harmless message may say anything: it stays unknown.
    if longer is not None and not (prefix.level in ("W", "E") and longer[0].severity is None):
        return ShapeMeaning(*longer, prefix, appended=True)
    kind = "unrecognised" if prefix.level is None else _UNKNOWN_LEVEL.get(prefix.level, "unrecognised")
    return ShapeMeaning(LINE_CLASSES[kind], None, prefix)


CONTINUATION = ShapeMeaning(LINE_CLASSES["continuation"], None, Prefix())
MALFORMED = ShapeMeaning(LINE_CLASSES["unrecognised"], None, Prefix())
"""A line whose shape is known, but whose values are not what the shape promises."""
