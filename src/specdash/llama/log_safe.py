"""Log lines as they may leave the machine: what llama-server prints of itself, without anything that others wrote.

A verbose server prints prompts, answers, tool calls and chat templates. So a line is not cleaned but rebuilt: the
literal words are those of the table of line classes, numbers are taken over, and a text field only where its value is
one of the words that specdash itself knows. A line that no table has is left out, with its level and time.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from specdash.core.parameter_catalogue import BY_FLAG, BY_KEY, REMOVED_FLAGS, REMOVED_KEYS
from specdash.core.speculation import SPEC_TYPES
from specdash.llama.log_grammar import DROPPED, LINE_CLASSES, Context
from specdash.llama.log_grammar.server_lines import LIFE_CYCLE
from specdash.llama.log_reading import (
    ANSI,
    Clock,
    Prefix,
    ShapeMeaning,
    is_behind_text,
    json_message_end,
    read_shape,
    seconds_of,
    whole_pattern,
)
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.log_facts import ServerEvent

ELLIPSIS: Final = "…"
"""Stands for a text that was left out."""
MAX_LINE: Final = 16 * 1024
LIFE_CYCLE_CLASSES: Final = frozenset(line_class.id for line_class in LIFE_CYCLE)
UNKNOWN_CLASSES: Final = frozenset({"unrecognised", "other_warning", "other_error"})
_NEVER: Final = frozenset(
    {"chat_template", "continuation", "json_record", "comment", "debug", "stream", "mcp", "blank"}
)
"""Classes whose lines are about nothing but what others wrote."""
_FIELD: Final = re.compile(r"\{(\w*):(\w+)\}")
_NUMERIC: Final = frozenset({"d", "f", "x", "dots", "list"})
_WORDS: Final = frozenset(
    {spelling for kind in SPEC_TYPES for spelling in kind.spellings}
    | {"true", "false", "yes", "no", "on", "off", "none", "auto", "enabled", "disabled", "GET", "POST"}
    | {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}
)
_SPLIT: Final = re.compile(r"[\s'\"(),;:=]+")
_SHAPED: Final = (
    re.compile(r"[-+]?\d{1,18}(?:\.\d{1,15})?"),
    re.compile(r"b?\d{1,7}-(?:[0-9a-f]{7,12}|unknown)"),
    re.compile(r"[0-9a-f]{7,12}"),
    re.compile(r"https?://(?:127\.0\.0\.1|0\.0\.0\.0|localhost|\[::1?\]|\d{1,3}(?:\.\d{1,3}){3}):\d{1,5}/?"),
    re.compile(r"127\.0\.0\.1|0\.0\.0\.0|localhost"),
)


@dataclass(frozen=True, slots=True)
class SafeLine:
    """A rebuilt line; it begins with the seconds since the server's start, where the line's own clock tells them."""

    line_class: str
    text: str

    @property
    def is_unknown(self) -> bool:
        """Whether nothing of it could be kept."""
        return self.line_class in UNKNOWN_CLASSES


def is_shown(known: ShapeMeaning) -> bool:
    """Whether lines of this kind may be shown once rebuilt."""
    return known.form is not None and known.line_class.id not in _NEVER


def recognise(line: bytes) -> ShapeMeaning:
    """What a line is."""
    return _recognise(line.translate(None, DROPPED), behind_text=is_behind_text(line))


@lru_cache(maxsize=8192)
def _recognise(shape: bytes, *, behind_text: bool) -> ShapeMeaning:
    known = read_shape(shape, behind_text=behind_text)
    if known.line_class.id == "debug" and known.form is None:
        # Its level alone says so: it is counted among the lines left out, unlike those known to be about prompts.
        return ShapeMeaning(LINE_CLASSES["unrecognised"], None, known.prefix)
    return known


def bare(line: bytes) -> bytes:
    """The line without colours, and no longer than is looked at."""
    line = line[:MAX_LINE]
    return ANSI.sub(b"", line) if b"\x1b" in line else line


def safe_line(line: bytes) -> SafeLine | None:
    """The rebuilt line; None for one with nothing but text that others wrote."""
    line = bare(line)
    known = recognise(line)
    if known.line_class.id in _NEVER:
        return None
    if known.form is None:
        return _unknown(known, line)
    captured = _captures(known, line)
    if captured is None:
        return _unknown(ShapeMeaning(LINE_CLASSES["unrecognised"], None, known.prefix), line)
    seconds = seconds_of(known.prefix, line)
    return SafeLine(known.line_class.id, _stamp(known.prefix, seconds) + _remade(known, captured))


def safe_text(line: str) -> str:
    """`safe_line` for a text that was a log line; what is not recognised becomes a remark."""
    made = safe_line(line.encode("utf-8", "replace"))
    return made.text if made is not None else f"({ELLIPSIS} left out)"


def safe_word(value: str) -> str:
    """The value of a text field, if it is a word of llama.cpp's own; else the flags, env keys and spec types in it."""
    if not value or value in _WORDS or any(pattern.fullmatch(value) for pattern in _SHAPED):
        return value
    masked = [ELLIPSIS if part not in _names() else part for part in _SPLIT.split(value) if part]
    kept = [name for at, name in enumerate(masked) if name != ELLIPSIS or at == 0 or masked[at - 1] != ELLIPSIS]
    return " ".join(kept) or ELLIPSIS


@cache
def _names() -> frozenset[str]:
    """Flags, env keys and spec types that specdash knows."""
    types = {spelling for spec_kind in SPEC_TYPES for spelling in spec_kind.spellings}
    return frozenset(types | BY_FLAG.keys() | BY_KEY.keys() | REMOVED_FLAGS.keys() | REMOVED_KEYS.keys())


def safe_error(text: str) -> str:
    """The text of an error that the server answered with: only where it is one of its own, without values."""
    found = next((error for error in _ERRORS if text.lower().startswith(error)), None)
    return f"{found} {ELLIPSIS}" if found is not None else ELLIPSIS


def safe_event(event: ServerEvent) -> tuple[tuple[str, str], ...]:
    """The fields of a life-cycle line."""
    return tuple((name, safe_word(value)) for name, value in event.fields)


_ERRORS: Final = (
    "the request exceeds the available context size",
    "request exceeds the available context size",
    "the request exceeds",
    "input is too large to process",
    "input prompt is too big",
    "context size has been exceeded",
    "context size exceeded",
    "failed to process speculative batch",
    "failed to decode",
    "failed to find free space in the kv cache",
    "compute error",
    "invalid input batch",
    "failed to parse grammar",
    "failed to initialize samplers",
    "failed to tokenize",
    "failed to truncate tokens",
    "invalid slot id",
    "slot is unavailable",
    "the model does not support",
)
"""How errors of the server begin that say what happened and quote nothing."""


def _captures(known: ShapeMeaning, line: bytes) -> Sequence[bytes] | None:
    if known.form is None:
        return None
    every = _FIELD.sub(r"{every:\2}", known.form.template)
    end = json_message_end(line) if known.prefix.is_quoted else len(line)
    match = whole_pattern(known.form.context, every, known.prefix, appended=known.appended).match(line[:end])
    if match is None:
        return None
    return match.groups()[known.prefix.routed + (known.prefix.clock is not Clock.NONE) :]


def _remade(known: ShapeMeaning, captured: Sequence[bytes]) -> str:
    assert known.form is not None  # noqa: S101 - for the type checker
    values = [chunk.decode("utf-8", "replace").strip() for chunk in captured]
    head = ""
    if known.form.context is Context.AFTER_SLOT:
        head = f"slot: id {values[0]} | task {values[1]} | "
        values = values[2:]
    fields = iter(values)

    def filled(field: re.Match[str]) -> str:
        value = next(fields, "")
        return value if field[2] in _NUMERIC else safe_word(value)

    return head + _FIELD.sub(filled, known.form.template)


def _stamp(prefix: Prefix, seconds: float | None) -> str:
    level = f"{prefix.level} " if prefix.level else ""
    return f"{seconds:.3f} s {level}" if seconds is not None else level


def _unknown(known: ShapeMeaning, line: bytes) -> SafeLine:
    seconds = seconds_of(known.prefix, line)
    text = f"{_stamp(known.prefix, seconds)}({known.line_class.title}: left out)"
    return SafeLine(known.line_class.id, text)
