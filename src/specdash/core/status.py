"""The status line: its fields, declared once; the note in which a program that watches a server leaves them; and the
line that a format makes of them. No I/O. docs/scripting.md."""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.errors import UsageError
from specdash.core.records import JsonRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

STATUS_FIELDS: dict[str, str] = {
    "verdict": "PAYS 1.6×, COSTS 23 %, NO DIFFERENCE, CAN'T TELL YET (needs …), NOT SPECULATING",
    "speedup": "decode against decode without speculation: 1.63×",
    "interval": "its 95 % interval: 1.50 to 1.71",
    "why": "one sentence: why",
    "better": "what would be faster: draft length 1 would be 54 % faster",
    "acceptance": "accepted share of the draft tokens: 67 %",
    "decode": "generated tokens per second: 57.6",
    "prefill": "prompt tokens per second",
    "busy": "busy slots of all: 1/4",
    "alerts": "how many alerts: 2 alerts; nothing where there are none",
    "alert": "the likely cause of what is wrong, in one sentence",
    "state": "state of the server: live, busy, loading, down, …",
    "model": "name of the model",
    "url": "address of the server",
}
"""Every field of `specdash status --format`, and what it holds; `--` where that is not known."""
DEFAULT_FORMAT = "{verdict}  {acceptance} accepted  {decode} tok/s  {alerts}"
FRESH_S = 15.0
"""So long a note holds: a program that watches writes one every second, but for a machine that starves it."""


class StatusNote(JsonRecord, Struct, frozen=True):
    """What a program that watches a server leaves of it, for status bars."""

    url: str
    wall: float
    """Unix time."""
    pid: int
    """Of the program that watches."""
    fields: dict[str, str]


def check_format(form: str) -> None:
    """Raise `UsageError` for a format that names what is no field, or that is none."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(form) if name is not None]
    except ValueError as error:
        raise UsageError(f"--format {form!r}: {error}") from None
    unknown = next((name for name in names if name not in STATUS_FIELDS), None)
    if unknown is not None:
        raise UsageError(f"--format: no field {{{unknown}}}; there are {', '.join(STATUS_FIELDS)}")
    try:
        form.format(**dict.fromkeys(STATUS_FIELDS, ""))
    except (ValueError, KeyError, IndexError) as error:
        raise UsageError(f"--format {form!r}: {error}") from None


def status_line(form: str, fields: Mapping[str, str]) -> str:
    """One line of printable text, of a format that `check_format` lets pass."""
    line = form.format(**{**dict.fromkeys(STATUS_FIELDS, "--"), **fields})
    return "".join(character if character.isprintable() else " " for character in line).rstrip()
