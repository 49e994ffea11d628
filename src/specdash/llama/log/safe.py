"""Log lines as they may leave the machine: what llama-server prints of itself, without anything that others wrote.

A verbose server prints prompts, answers, tool calls and chat templates. So a line is not cleaned but rebuilt: the
literal words are those of the table of line classes, numbers are taken over, and a text field only where its value is
one of the words that specdash itself knows. Of a line of no class only its level and time are left.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdash.core.parameter_catalogue import BY_FLAG, BY_KEY, REMOVED_FLAGS, REMOVED_KEYS
from specdash.core.speculation import SPEC_TYPES
from specdash.llama.log import GRAMMAR, OTHER_ERROR, OTHER_WARNING, warning_class
from specdash.llama.log.forms import ANSI, FIELD, SLOT, split_port, stamp_seconds

if TYPE_CHECKING:
    from specdash.core.log_facts import ServerEvent
    from specdash.llama.log.forms import ReadLine

ELLIPSIS: Final = "…"
"""Stands for a text that was left out."""
MAX_LINE: Final = 16 * 1024
_NUMERIC: Final = frozenset({"d", "f", "list"})
_TYPES: Final = frozenset(spelling for kind in SPEC_TYPES for spelling in kind.spellings)
_NAMES: Final = _TYPES | BY_FLAG.keys() | BY_KEY.keys() | REMOVED_FLAGS.keys() | REMOVED_KEYS.keys()
"""Flags, env keys and spec types that specdash knows."""
_WORDS: Final = (
    _TYPES
    | {"true", "false", "yes", "no", "on", "off", "none", "auto", "enabled", "disabled", "GET", "POST"}
    | {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}
)
_ANYWHERE: Final = re.compile(rb"(?<![\d.])(\d{1,9}\.\d\d\.\d{3}\.\d{3}) *[DIWE]")
"""The server's stamp, behind any text."""
_SPLIT: Final = re.compile(r"[\s'\"(),;:=]+")
_SHAPED: Final = (
    re.compile(r"[-+]?\d{1,18}(?:\.\d{1,15})?"),
    re.compile(r"b?\d{1,7}-(?:[0-9a-f]{7,12}|unknown)"),
    re.compile(r"[0-9a-f]{7,12}"),
    re.compile(r"https?://(?:127\.0\.0\.1|0\.0\.0\.0|localhost|\[::1?\]|\d{1,3}(?:\.\d{1,3}){3}):\d{1,5}/?"),
    re.compile(r"127\.0\.0\.1|0\.0\.0\.0|localhost"),
)


def bare(line: bytes) -> bytes:
    """The line without colours, and no longer than is looked at."""
    line = line[:MAX_LINE]
    return ANSI.sub(b"", line) if b"\x1b" in line else line


def recognise(line: bytes) -> ReadLine:
    """What a line is."""
    return GRAMMAR.read(split_port(line)[1])


def own_seconds(text: str) -> float | None:
    """Seconds since the server's start by a whole line's clock; None where it has none, or is of a router's child."""
    port, line = split_port(text[:400].encode("utf-8", "replace"))
    known = GRAMMAR.read(line)
    if port is not None or (seconds := known.seconds(line)) is not None:
        return None if port is not None else seconds
    stamp = _ANYWHERE.search(line)
    return stamp_seconds(stamp[1]) if stamp is not None else None


def safe_line(line: bytes) -> str:
    """The rebuilt line. It begins with the seconds since the server's start, where the line's own clock has them."""
    _, line = split_port(bare(line))
    known = GRAMMAR.read(line)
    seconds = known.seconds(line)
    head = f"{known.level} " if known.level else ""
    head = f"{seconds:.3f} s {head}" if seconds is not None else head
    if known.pattern is None:
        return f"{head}({known.line_class.title}: left out)"
    values = [(kind, line[begin:end].decode("utf-8", "replace").strip()) for _, kind, begin, end in known.spans]
    message = known.pattern.removeprefix("^")
    if message.startswith(SLOT):
        head += f"slot: id {values[0][1]} | task {values[1][1]} | "
        message, values = message.removeprefix(SLOT), values[2:]
    fields = iter(values)

    def filled(_field: re.Match[str]) -> str:
        kind, value = next(fields)
        return value if kind in _NUMERIC or kind.startswith("=") else safe_word(value)

    return head + FIELD.sub(filled, message)


def safe_text(line: str) -> str:
    """`safe_line` for a text that was a log line."""
    return safe_line(line.encode("utf-8", "replace"))


def safe_sample(warning: str, line: str) -> str:
    """A counted line as it is shown: one of no class may quote a prompt."""
    return safe_text(line) if line and warning_class(warning) in (OTHER_ERROR, OTHER_WARNING) else line


def safe_word(value: str) -> str:
    """The value of a text field, if it is a word of llama.cpp's own; else the flags, env keys and spec types in it."""
    if not value or value in _WORDS or any(pattern.fullmatch(value) for pattern in _SHAPED):
        return value
    masked = [ELLIPSIS if part not in _NAMES else part for part in _SPLIT.split(value) if part]
    kept = [name for at, name in enumerate(masked) if name != ELLIPSIS or at == 0 or masked[at - 1] != ELLIPSIS]
    return " ".join(kept) or ELLIPSIS


def safe_error(text: str) -> str:
    """The text of an error that the server answered with, without what it quotes."""
    line = text.encode("utf-8", "replace")
    return ELLIPSIS if recognise(bare(line)).pattern is None else safe_line(line)


def safe_event(event: ServerEvent) -> tuple[tuple[str, str], ...]:
    """The fields of a life-cycle line."""
    return tuple((name, safe_word(value)) for name, value in event.fields)
