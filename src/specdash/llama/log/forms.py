"""What one kind of log line is, as data, and how a line is read with it.

A `LineClass` has the patterns in which llama.cpp prints it. A pattern is the printed text with fields in braces:
`stop processing: n_tokens = {n_tokens:d}, truncated = {truncated:d}`. Before it may stand up to three function names,
each with a colon, which never matter: they change between builds. `slot| ` at its beginning stands for
`slot FUNCTION: id N | task M | `, whose numbers are the fields `slot` and `task`; `^` says that nothing stands before.
Field types: `d` integer, `f` decimal number, `w` word, `s` text (up to the quote if it began with one, to the end of
the line if it is last, else without blanks), `list` numbers between commas, `rest` all that follows, `=text` this very
text. A field without a name is not kept.

Patterns have no digits of their own. So lines that differ in their digits alone are of one class and have their fields
in the same places: `Grammar.read` matches one of them and remembers it for all.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from msgspec import DecodeError, Meta, Struct
from msgspec.json import Decoder

from specdash.core.log_facts import LogFact, ServerEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class WarningSeverity(StrEnum):
    """How much a warning class matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


ERROR, WARNING, NOTICE = WarningSeverity


class ServerEnd(StrEnum):
    """What becomes of a server."""

    EXIT = "exit"
    """It ends by itself, nearly always with exit code 1."""
    ABORT = "abort"
    """It is ended by a signal of its own making (SIGABRT), or by one of the system's."""
    EITHER = "ends, or runs without speculation"
    """It depends on the build which of the two."""
    WITHOUT = "runs without speculation"
    REQUEST = "fails requests"
    """It goes on; a request fails."""


class Cause(Struct, frozen=True):
    """Why a server ended, or runs without speculation.

    Its `patterns` are lines of its class. Their named fields and `line` fill the braces of `because` (a clause: "it
    ended because ...") and of `fix`.
    """

    id: str
    because: str
    fix: str
    patterns: tuple[str, ...] = ()
    ends: ServerEnd = ServerEnd.EXIT
    general: bool = False
    """Named only where no other cause fits."""


class PrintedStep(NamedTuple):
    """One verification step as its line prints it."""

    slot: int
    task: int
    accepted: int
    generated: int
    restored: bool
    """Whether a checkpoint was restored after it."""
    at_s: float | None = None


class TimingHeader(NamedTuple):
    """The line that names slot and task of the timing lines below it (builds until 2026-05)."""

    slot: int
    task: int
    at_s: float | None = None


Made = LogFact | PrintedStep | TimingHeader


class LineClass(Struct, frozen=True, eq=False):
    """One kind of log line.

    `make` gets the named fields of a line, and `at_s`, its time stamp in seconds since the server's start; it returns
    None where the pattern names no fact. A class with `event` makes a `ServerEvent` of the texts of its fields. Lines
    of a class with `severity` are counted as warnings; `note` says what they mean and when they are normal. `detail`
    marks steps within a request, up to hundreds for each: views of trouble leave them out.
    """

    id: str
    title: str = ""
    """What it is, of a class whose lines are counted."""
    patterns: tuple[str, ...] = ()
    make: Callable[..., Made | None] | None = None
    event: bool = False
    detail: bool = False
    severity: WarningSeverity | None = None
    note: str = ""
    causes: tuple[Cause, ...] = ()
    because: str = ""
    fix: str = ""
    """With a `fix`, lines of no cause of their own are a cause: its id is that of the class, `because` its title where
    that says no more. Without a `note`, the fix is what a warning means."""
    ends: ServerEnd = ServerEnd.EXIT
    general: bool = False

    @property
    def meaning(self) -> str:
        """What its lines mean, and what to do about them."""
        return self.note or f"{self.fix[:1].upper()}{self.fix[1:]}."

    @property
    def every_cause(self) -> tuple[Cause, ...]:
        """Its causes, the one of all other lines last."""
        if not self.fix:
            return self.causes
        return (
            *self.causes,
            Cause(self.id, self.because or self.title, self.fix, ends=self.ends, general=self.general),
        )


SLOT = "slot| "
FIELD: Final = re.compile(r"\{(\w*):(=[^}]*|\w+)\}")
_FIELDS: Final = {
    "d": r"-?\d{1,18}",
    "f": r"-?\d{1,15}(?:\.\d{1,15})?",
    "w": r"[\w.+-]{1,200}",
    "list": r"[\d., -]*",
    "rest": r".*",
}
_GAP: Final = " {0,40}"
"""Blanks between words. Bounded, and never beside a pattern that could match blanks at length, so that no line, however
made, takes more than linear time."""
_HEAD: Final = 3
"""Bytes by which the patterns that a message may be of are found."""
_LONG: Final = 20
"""A message of so many bytes is known by them, even if a newer build appends to it."""
MAX_TEXT: Final = 300
"""Characters kept of a text captured from a line."""


@cache
def _compiled(message: str) -> tuple[re.Pattern[bytes], tuple[tuple[str, str], ...]]:
    """The regex of a pattern with a group for each field, and the fields' names and types."""
    parts: list[str] = []
    fields: list[tuple[str, str]] = []
    end = 0

    def literal(text: str) -> None:
        parts.extend(_GAP if chunk.isspace() else re.escape(chunk) for chunk in re.split(r"( +)", text) if chunk)

    for field in FIELD.finditer(message):
        literal(message[end : field.start()])
        name, kind = field.groups()
        if kind in ("d", "f") and parts and parts[-1] != _GAP:
            parts.append(_GAP)
        if kind.startswith("="):
            value = re.escape(kind[1:])
        elif kind == "s":
            quoted = message[: field.start()].endswith("'")
            value = "[^']*" if quoted else ".*" if field.end() == len(message) else r"\S{1,1000}"
        else:
            value = _FIELDS[kind]
        parts.append(f"({value})")
        fields.append((name, kind))
        end = field.end()
    literal(message[end:])
    return re.compile("".join(parts).encode(), re.DOTALL), tuple(fields)


def text(captured: bytes) -> str:
    """Captured text, with anything unprintable shown as a replacement character, and cut to `MAX_TEXT`."""
    decoded = captured[: 4 * MAX_TEXT].decode(errors="replace").strip()[:MAX_TEXT]
    shown = (char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in decoded)
    return decoded if decoded.isprintable() else "".join(shown)


def _rates(captured: bytes) -> tuple[float, ...]:
    """A list such as `0.944, 0.722` as numbers; an empty list has none."""
    return tuple(float(part) for part in captured.split(b",")) if captured.strip() else ()


_READ: Final[dict[str, Callable[[bytes], Any]]] = {"d": int, "f": float, "list": _rates}


def stamp_seconds(stamp: bytes) -> float:
    """`63.17.951.405`, which is minutes, seconds, milliseconds and microseconds since the start, in seconds."""
    number = int(stamp.replace(b".", b""))
    return (number - number // 100_000_000 * 40_000_000) / 1e6


Span = tuple[str, str, int, int]
"""Name, type, begin and end of a field."""


class ReadLine(Struct, frozen=True, eq=False):
    """What a line is, and where its fields are: of all lines that differ from it in their digits alone."""

    line_class: LineClass
    level: str
    """`D`, `I`, `W` or `E`; "" where the line does not say."""
    clock: slice | None
    made: bool
    """Whether it makes a fact."""
    detail: bool
    pattern: str | None = None
    """None for a line of no class."""
    cause: Cause | None = None
    """Why a server ended that printed such a line."""
    spans: tuple[Span, ...] = ()

    def texts(self, line: bytes) -> dict[str, str]:
        """The named fields of such a line as they are written."""
        return {name: text(line[begin:end]) for name, _, begin, end in self.spans if name}

    def seconds(self, line: bytes) -> float | None:
        """Seconds since the server's start by the line's own clock, None where it has none."""
        return stamp_seconds(line[self.clock]) if self.clock is not None else None

    def fact(self, line: bytes) -> Made | None:
        """What such a line says; None where it says nothing, or not what its pattern promises."""
        read = {} if self.line_class.event else _READ
        try:
            fields = {name: read.get(kind, text)(line[begin:end]) for name, kind, begin, end in self.spans if name}
        except ValueError:
            return None
        make = self.line_class.make
        if make is not None:
            return make(**fields, at_s=self.seconds(line))
        return ServerEvent(self.line_class.id, tuple(fields.items()), at_s=self.seconds(line))


# How lines begin. On a terminal and in files nothing stands before the server's own stamp (`0.00.041.000 W `);
# journald, docker, kubectl and others put something there. Docker's files and `--log-jsonl` have a line in JSON.

_STAMP: Final = re.compile(
    rb"[\s\0]*[^\"'\\]{0,200}?(?<!\d)(?<!\d\.)(\d{1,9}\.\d\d\.\d{3}\.\d{3}) {1,4}([DIWE])(?![A-Za-z]) *"
)
_FOREIGN: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?[\0\s]*"
    rb"(?:<\d{1,3}>\d (?:\S{1,255} ){5}(?:-|(?:\[[^\]]{1,300}\]){1,9}) (?:\xef\xbb\xbf)?|<\d{1,3}>|"
    rb"(?:\+ )?[a-z\d.-]{1,80}-[a-z\d]{3,10} (?:\xe2\x80\xba )?[a-z\d-]{1,63} (?:\xe2\x80\xba )?)?"
    rb"(?:[\w.+-]{1,64} *\| *)?(?:\[[^\]]{1,80}\] *)?"
    rb"(?:(?:(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ][\d:.,]{1,24}(?:Z|[+-][\d:]{1,6}| [A-Z]{3,5}(?= ))?|"
    rb"[A-Z][a-z]{2} {1,2}\d{1,2} [\d:.]{5,20}|\d{1,12}\.\d{3,9}(?= )) {0,4})?"
    rb"(?:\S{1,80} [^\s\[]{1,80}\[\d*\]: *|std(?:out|err) [FP] )?"
)
"""Before a line without a stamp: RFC 5424, syslog's priority, stern, compose, a time or a pod in brackets, a time of
any form, and whose line it is."""
_GLUED: Final = re.compile(
    rb"[^\"'\\]{0,200}?(?:[A-Za-z.:](?=\d{1,9}\.\d\d\.\d{3}\.\d{3} {1,4}[DIWE] )|assuming pure content parser\.)"
)
"""A message without its newline, behind which another begins: one of `-lv 5` never has it, and writers are cut off."""
_LEVEL: Final = re.compile(rb"([DIWE]) +")
_SLOT: Final = re.compile(rb"slot[^:|]{0,80}: *id *(\d{1,9}) *\| *task *(-?\d{1,18}) *\| *")
_FUNCTION: Final = re.compile(rb"[\w()~<>+ -]{1,160}: *")
_MAX_FUNCTIONS: Final = 3

ANSI: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z^_])")
"""Terminal escape sequences: colours, titles, cursor movements."""
DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
MAX_FRAMES: Final = 8192
_MAX_FRAME: Final = 1024

_CHILD: Final = re.compile(
    rb"[^\"'\\]{0,200}?\[(\d{1,9})\] *(?=\d{1,9}\.\d\d\.\d{3}\.\d{3} {1,4}[DIWE])|\[(\d{1,9})\] *"
)
"""What a router puts before each line of a child: the port that it listens on."""


_IN_JSON: Final = re.compile(
    rb"[^\"'\\]{0,200}?\{\s*\"(?:log\"|type\"\s*:\s*\"log\"\s*,\s*\"time\"\s*:\s*(\d{1,18})\s*,\s*\"level\"\s*:\s*\"([a-z])[a-z]*\""
    rb"\s*,\s*\"msg\")\s*:\s*\"([^\"\\]*(?:\\.[^\"\\]*)*)"
)
"""A line that Docker keeps, or one of `--log-jsonl` with its microseconds and level; it may be cut off."""
_LEVELS: Final = {"d": "D", "t": "D", "w": "W", "e": "E"}


def _stamp(micros: int, level: str) -> str:
    """Time and level of a line of `--log-jsonl` as other lines have them."""
    digits = str(micros + micros // 60_000_000 * 40_000_000).zfill(9)
    return f"{digits[:-8]}.{digits[-8:-6]}.{digits[-6:-3]}.{digits[-3:]} {_LEVELS.get(level[:1], 'I')}"


def _out_of_json(line: bytes) -> bytes:
    """A line in JSON as it is printed without; any other as it is."""
    if b'":' not in line or (found := _IN_JSON.match(line)) is None:
        return line
    own = found[3].removesuffix(b"\\n")
    if b"\\" in own:
        with suppress(ValueError):
            own = str(json.loads(b'"' + own + b'"')).encode(errors="replace")
        own = ANSI.sub(b"", own).strip().replace(b"\n", b" ")
    if found[1] is None:
        return _out_of_json(own)
    return b"%s %s" % (_stamp(int(found[1]), found[2].decode()).encode(), own)


class _DockerLine(Struct):
    log: str

    def printed(self) -> str:
        return self.log


class _ServerLine(Struct, tag_field="type", tag="log"):
    time: Annotated[int, Meta(ge=0)]
    level: str
    msg: str

    def printed(self) -> str:
        return f"{_stamp(self.time, self.level)} {self.msg}"


_OF_BLOCK: Final[tuple[Callable[[bytes], Sequence[_DockerLine | _ServerLine]], ...]] = (
    Decoder(_DockerLine).decode_lines,
    Decoder(_ServerLine).decode_lines,
)


def out_of_json(block: bytes, count: int) -> bytes:
    """So many lines that are all in JSON as they are printed without; others as they are, for `split_port`.

    A storm of a million lines is worth a way of its own: it takes a fifth of the time.
    """
    for decoded in _OF_BLOCK:
        if block.startswith(b'{"'):
            with suppress(DecodeError, UnicodeError):
                lines = [line.printed().strip().replace("\n", " ") for line in decoded(block)]
                if len(lines) == count:
                    return out_of_json(ANSI.sub(b"", "\n".join(lines).encode()), count)
    return block


def split_port(line: bytes) -> tuple[int | None, bytes]:
    """The port of the router's child that wrote a line, None for the server itself, and the line as it wrote it."""
    child = _CHILD.match(line) if b"[" in line else None
    if child is None and (own := _out_of_json(line)) is not line:
        return split_port(own)
    return (int(child[1] or child[2]), _out_of_json(line[child.end() :])) if child is not None else (None, line)


Entry = tuple[LineClass, str, Cause | None]


def _entries(line_class: LineClass) -> Iterator[Entry]:
    """The patterns of a class, those of its causes first."""
    for cause in line_class.causes:
        yield from ((line_class, pattern, cause) for pattern in cause.patterns)
    otherwise = line_class.every_cause[-1] if line_class.fix else None
    yield from ((line_class, pattern, otherwise) for pattern in line_class.patterns)


class Grammar:
    """The patterns of a table, found by how they begin; the first one in table order wins."""

    def __init__(self, table: tuple[LineClass, ...], unknown: dict[str, LineClass]) -> None:
        self.known: dict[bytes, ReadLine] = {}
        """What lines are, by their frame, which is the line with 0 for every digit."""
        self._unknown = unknown
        self._indexes: dict[str, dict[bytes, list[Entry]]] = {SLOT: {b"": []}, "^": {b"": []}, "": {b"": []}}
        for entry in (entry for line_class in table for entry in _entries(line_class)):
            pattern = entry[1]
            where = SLOT if pattern.startswith(SLOT) else "^" if pattern.startswith("^") else ""
            index = self._indexes[where]
            # Its first word, up to its first field that may be any text.
            begins = re.sub(r"\{\w*:=([^}]*)\}", r"\1", pattern.removeprefix(where)).partition("{")[0]
            head = begins.split(" ", 1)[0].encode()[:_HEAD]
            if len(head) < _HEAD:
                for listed in index.values():
                    listed.append(entry)
            else:
                index.setdefault(head, list(index[b""])).append(entry)

    def read(self, line: bytes, frame: bytes | None = None) -> ReadLine:
        """What a line is that has no colours and no port in front."""
        frame = line.translate(DIGITS) if frame is None else frame
        found = self.known.get(frame)
        if found is None:
            found = self._read(line)
            if len(frame) <= _MAX_FRAME:
                if len(self.known) >= MAX_FRAMES:
                    self.known.clear()
                self.known[frame] = found
        return found

    def _read(self, line: bytes) -> ReadLine:
        found = self._read_from(line, 0)
        if found.pattern is None and (glued := _GLUED.match(line)) is not None:
            behind = self._read_from(line, glued.end())
            return found if behind.pattern is None else behind
        return found

    def _read_from(self, line: bytes, start: int) -> ReadLine:
        stamped, foreign = _STAMP.match(line, start), None
        if stamped is None and (foreign := _FOREIGN.match(line, start)) is not None:
            # Quotes may stand in what syslog adds.
            stamped = _STAMP.match(line, foreign.end())
        end = len(line.rstrip(b" \t\r\0"))
        if stamped is not None:
            level, clock = stamped[2].decode(), slice(*stamped.span(1))
            found = self._message(line, stamped.end(), end, level, clock)
            return found or self._no_class(line, level, clock)
        begins = [start]
        if foreign is not None and foreign.end() > start:
            begins.append(foreign.end())
        levels = [(begin, "") for begin in begins]
        levels += [(m.end(), m[1].decode()) for begin in begins if (m := _LEVEL.match(line, begin)) is not None]
        for begin, level in levels:
            found = self._message(line, begin, end, level, None)
            if found is not None:
                return found
        return self._no_class(line, levels[-1][1], None)

    def _no_class(self, line: bytes, level: str, clock: slice | None) -> ReadLine:
        line_class = self._unknown.get(level, self._unknown[""])
        # A tab goes on with the line before it: the sampler parameters of each request.
        is_step = level in ("D", "I") or line.startswith(b"\t")
        is_step = is_step or (line_class.severity is None and _SLOT.search(line, 0, 400) is not None)
        return ReadLine(line_class, level, clock, False, is_step)

    def _message(self, line: bytes, begin: int, end: int, level: str, clock: slice | None) -> ReadLine | None:
        """The class of the message that stands there: of a whole one, else of one with something appended to it."""
        while line[begin : begin + 1].isspace() and begin < end:
            begin += 1
        slot = _SLOT.match(line, begin, end)
        ids: tuple[Span, ...] = ()
        if slot is not None:
            ids = (("slot", "d", *slot.span(1)), ("task", "d", *slot.span(2)))
            places = [(SLOT, slot.end())]
        else:
            places = [("^", begin), ("", begin)]
            while len(places) < _MAX_FUNCTIONS + 2 and (function := _FUNCTION.match(line, places[-1][1], end)):
                places.append(("", function.end()))
        partly: ReadLine | None = None
        for where, at in places:
            index, stop = self._indexes[where], max(end, at)
            for line_class, pattern, cause in index.get(line[at : at + _HEAD], index[b""]):
                regex, fields = _compiled(pattern.removeprefix(where))
                match = regex.match(line, at, stop)
                if match is None:
                    continue
                behind = line[match.end() : match.end() + 1]
                whole = match.end() == stop
                if not whole and (partly or match.end() - at < _LONG or behind.isalnum() or behind == b"_"):
                    continue
                spans = ids + tuple((name, kind, *match.span(place)) for place, (name, kind) in enumerate(fields, 1))
                made = line_class.make is not None or line_class.event
                read = ReadLine(line_class, level, clock, made, line_class.detail, pattern, cause, spans)
                if whole:
                    return read
                partly = read
        # A warning that goes on after the words of a harmless message may say anything: it stays unknown.
        if partly is not None and level in ("W", "E") and partly.line_class.severity is None:
            return None
        return partly
