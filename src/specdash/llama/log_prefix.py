"""What may stand in front of a log line: other programs' prefixes, the router's, the clock and the level.

llama-server itself prints one of four: nothing (older builds, `--no-log-prefix`), `M.SS.mmm.uuu L ` (minutes without
bound since the server's start, level D, I, W or E), `L ` alone (`--no-log-timestamps`), or a JSON object with the
message escaped (`--log-jsonl`, microseconds). A router repeats its children's lines after `[PORT] `. Journald, syslog,
container runtimes and compose put their own text before all that. Colour codes are removed before any of this.

Which prefix a line has is decided on its shape (see `log_grammar.forms`), so it is known once per shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z^_])")
"""Terminal escape sequences: colours, titles, cursor movements."""


class Clock(Enum):
    """How a line tells the time since the server's start."""

    NONE = "none"
    STAMP = "stamp"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A prefix put there by another program: the pattern of its shape, and of the text itself."""

    name: str
    shape: str
    text: str


_STAMPED_BY_ISO = r"\d{4}-\d\d-\d\d[T ][\d:.,]{1,24}(?:Z|[+-][\d:]{1,6})?\s{0,4}"
FOREIGN: tuple[Foreign, ...] = (
    Foreign("none", "", ""),
    Foreign(
        "journald",
        r"[A-Z][a-z]{2}::\.?[^\[\]{}|:]{1,200}\[\]:",
        r"[A-Z][a-z]{2}\s{1,3}[\d:. ]{1,40}[^\[\]{}|]{1,200}\[\d*\]:\s*",
    ),
    Foreign("journald iso", r"T::[.,]?:?[^\[\]{}|:]{1,200}\[\]:", _STAMPED_BY_ISO + r"[^\[\]{}|]{1,200}\[\d*\]:\s*"),
    Foreign("kubernetes", r"T::\.(?:Z|:)std(?:out|err)[FP]", _STAMPED_BY_ISO + r"std(?:out|err)\s[FP]\s"),
    Foreign("docker", r"T::\.(?:Z|:)", _STAMPED_BY_ISO),
    Foreign("compose", r"[\w.]{1,64}\|", r"[\w.-]{1,80}\s*\|\s"),
)
"""Tried in order; the first whose shape fits, and that leaves a prefix of the server's own or a known line, wins."""

_ROUTER_SHAPE = r"(\[\])?"
_ROUTER_TEXT = r"\[(\d{1,9})\]\s*"
_STAMP_SHAPE = r"\.\.\.([DIWE])"
_STAMP_TEXT = r"(\d{1,9}\.\d{1,9})\.(\d{3})\.(\d{3}) *[DIWE] *"
_JSON_SHAPE = r'\{"type":"log","time":,"level":"([a-z])[a-z]*","msg":"'
_JSON_TEXT = (
    r'\{\s*"type"\s*:\s*"log"\s*,\s*"time"\s*:\s*(\d{1,18})\s*,\s*"level"\s*:\s*"[a-z]*"\s*,\s*"msg"\s*:\s*"\s*'
)
_JSON_END = re.compile(rb'(?:\\n|\\r|\s)*"\}\s*\Z')
_JSON_SHAPE_END = re.compile(rb'(?:\\n|\\r)*"\}\Z')
_LEVELS = {"d": "D", "t": "D", "i": "I", "w": "W", "e": "E"}


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of a line: who else wrote in front of it, whether a router did, its clock and its level."""

    foreign: Foreign = FOREIGN[0]
    routed: bool = False
    clock: Clock = Clock.NONE
    level: str | None = None

    @property
    def pattern(self) -> str:
        """The regex of the prefix's text; captures the router's port, then the clock's parts."""
        clock = {Clock.STAMP: _STAMP_TEXT, Clock.JSON: _JSON_TEXT}.get(self.clock)
        if clock is None:
            clock = r"[DIWE]\s*" if self.level else ""
        return rf"[\s\0]*{self.foreign.text}{_ROUTER_TEXT if self.routed else ''}{clock}"


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
    parts = match.groups()[1:] if prefix.routed else match.groups()
    if prefix.clock is Clock.JSON:
        return int(parts[0]) / 1e6
    return (whole_microseconds(parts[0]) + int(parts[1] + parts[2])) / 1e6


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
    return (whole_microseconds(match[1]) + int(match[2] + match[3])) / 1e6


@lru_cache(maxsize=256)
def whole_microseconds(stamp: bytes) -> int:
    """The minutes and seconds with which a time stamp begins (`63.17`), in microseconds."""
    minutes, seconds = stamp.split(b".")
    return (int(minutes) * 60 + int(seconds)) * 1_000_000


def json_message_end(line: bytes) -> int:
    """Where the escaped message of a JSON line ends, its newline not counted."""
    match = _JSON_END.search(line, max(0, len(line) - 64))
    return match.start() if match else len(line)


_HEADS: tuple[tuple[Foreign, re.Pattern[bytes]], ...] = tuple(
    (foreign, re.compile(f"{foreign.shape}{_ROUTER_SHAPE}(?:{_STAMP_SHAPE}|{_JSON_SHAPE})?".encode()))
    for foreign in FOREIGN
)


def split_shape(shape: bytes) -> list[tuple[Prefix, bytes]]:
    """The ways in which a shape can be read as prefix and message, most telling first.

    A clock settles the matter: then there is one way. Without it, another program's prefix and a lone level letter are
    only guesses, which hold if what they leave is a known line.
    """
    guesses: list[tuple[Prefix, bytes]] = []
    for foreign, head in _HEADS:
        match = head.match(shape)
        if match is None:
            continue
        routed = match[1] is not None
        rest = shape[match.end() :]
        if match[2] is not None:
            return [(Prefix(foreign, routed, Clock.STAMP, match[2].decode()), rest)]
        if match[3] is not None:
            end = _JSON_SHAPE_END.search(rest, max(0, len(rest) - 64))
            level = _LEVELS.get(match[3].decode())
            return [(Prefix(foreign, routed, Clock.JSON, level), rest[: end.start()] if end else rest)]
        guesses.append((Prefix(foreign, routed), rest))
        if rest[:1] in (b"D", b"I", b"W", b"E"):
            guesses.append((Prefix(foreign, routed, Clock.NONE, rest[:1].decode()), rest[1:]))
    return guesses
