"""systemd's `EnvironmentFile=` dialect, parsed without losing a character.

The rules are those of systemd.exec(5) and of systemd's own reader: `#` and `;` at the start of a line begin a comment
(a backslash does not continue it, since systemd 254); white space around the key and around an unquoted value is
dropped; quoted and unquoted pieces of one value are joined; a backslash outside quotes takes the next character as it
is and joins lines; inside double quotes it does so only before `"`, `\\`, `` ` ``, `$` and the end of a line; inside
single quotes it is a backslash. There is no expansion of variables.

Where systemd ignores a line it cannot read, this module names the line: a typo must not silently lose a setting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdash.core.errors import InputError

_NEWLINE = "\n\r"
_BLANK = " \t\n\r"
_COMMENT = "#;"
_ESCAPED_IN_DOUBLE_QUOTES = '"\\`$'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")


class EnvFileError(InputError):
    """A line that systemd would drop or misread; the message names the file, the line and the way out."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stretch of the file. `raw` is its exact text, so that joining all `raw` gives the file back.

    An assignment has `key` and `value`; a comment, a blank or an unreadable line has neither. `line` counts from 1.
    """

    raw: str
    line: int
    key: str | None = None
    value: str | None = None
    problem: str | None = None
    """What is wrong with the entry, in words, or None."""


@dataclass(frozen=True, slots=True)
class EnvFile:
    """All entries, in the order of the file."""

    entries: tuple[Entry, ...]

    @property
    def text(self) -> str:
        """The file's text, character for character."""
        return "".join(entry.raw for entry in self.entries)

    @property
    def values(self) -> dict[str, str]:
        """Key to value; the last assignment of a key wins, as in systemd."""
        return {e.key: e.value for e in self.entries if e.key is not None and e.value is not None}

    def line_of(self, key: str) -> int | None:
        """Line of the assignment of `key` that counts, or None."""
        lines = [entry.line for entry in self.entries if entry.key == key]
        return lines[-1] if lines else None

    def check(self, path: str) -> EnvFile:
        """Return this file when every line can be read, else raise `EnvFileError` for the first that cannot."""
        for entry in self.entries:
            if entry.problem is not None:
                raise EnvFileError(f"{path}:{entry.line}: {entry.problem}")
        return self


def read_values(data: bytes, path: str) -> dict[str, str]:
    """Key to value of a file's bytes. Raises `EnvFileError` naming `path` and the line that cannot be read."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise EnvFileError(f"{path}:{line}: is not UTF-8 text") from None
    return parse(text).check(path).values


def parse(text: str) -> EnvFile:
    """Parse any text. Never fails: an unreadable line becomes an entry with a `problem`."""
    entries: list[Entry] = []
    at, line = 0, 1
    while at < len(text):
        entry, at = _entry(text, at, line)
        entries.append(entry)
        line += _newlines(entry.raw)
    return EnvFile(tuple(entries))


def quote(value: str) -> str:
    """`value` written so that systemd, and `parse`, read exactly it again."""
    if value == "" or _PLAIN.match(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    escaped = re.sub(r'(["\\`$])', r"\\\1", value)
    return f'"{escaped}"'


def _newlines(raw: str) -> int:
    return raw.count("\n") + raw.count("\r") - raw.count("\r\n")


def _end_of_line(text: str, at: int) -> int:
    while at < len(text) and text[at] not in _NEWLINE:
        at += 1
    return at


def _past_newline(text: str, at: int) -> int:
    if text[at : at + 2] == "\r\n":
        return at + 2
    return min(at + 1, len(text))


def _entry(text: str, start: int, line: int) -> tuple[Entry, int]:
    at = start
    while at < len(text) and text[at] in " \t":
        at += 1
    if at == len(text) or text[at] in _NEWLINE or text[at] in _COMMENT:
        stop = _past_newline(text, _end_of_line(text, at))
        return Entry(text[start:stop], line), stop
    line_end = _end_of_line(text, at)
    equals = text.find("=", at, line_end)
    if equals < 0:
        stop = _past_newline(text, line_end)
        word = text[at:line_end].strip()
        return Entry(
            text[start:stop], line, problem=f"no '=' in {_shown(word)}; write KEY=value or start it with '#'"
        ), stop
    key = text[at:equals].rstrip(_BLANK)
    value, end, problem = _value(text, equals + 1)
    stop = _past_newline(text, end)
    problem = problem or _name_problem(key)
    if problem is not None:
        return Entry(text[start:stop], line, problem=problem), stop
    return Entry(text[start:stop], line, key, value), stop


def _value(text: str, at: int) -> tuple[str, int, str | None]:
    """The value that starts at `at`, the position of the line end that closes it, and what is wrong with it."""
    out: list[str] = []
    kept = 0  # length of `out` up to which white space is part of the value
    leading = True  # white space here is dropped: at the start, and after a closing quote
    while at < len(text) and text[at] not in _NEWLINE:
        char = text[at]
        if leading and char in "\"'":
            piece, at = _quoted(text, at)
            if piece is None:
                return "", len(text), f"the {char} quote is never closed; close it, or escape it with a backslash"
            out.append(piece)
            kept = len(out)
            continue
        if char == "\\":
            leading = False
            at += 1
            if at < len(text):
                if text[at] not in _NEWLINE:
                    out.append(text[at])
                kept = len(out)
        elif char in _BLANK:
            if not leading:
                out.append(char)
        else:
            leading = False
            out.append(char)
            kept = len(out)
        at += 1
    return "".join(out[:kept]), at, None


def _quoted(text: str, at: int) -> tuple[str | None, int]:
    """The text inside the quotes that open at `at`, and the position after them; None when they never close."""
    mark = text[at]
    at += 1
    out: list[str] = []
    while at < len(text):
        char = text[at]
        if char == mark:
            return "".join(out), at + 1
        if char == "\\" and mark == '"' and at + 1 < len(text):
            at += 1
            if text[at] in _ESCAPED_IN_DOUBLE_QUOTES:
                out.append(text[at])
            elif text[at] != "\n":
                out.append("\\" + text[at])
        else:
            out.append(char)
        at += 1
    return None, at


def _name_problem(key: str) -> str | None:
    if _NAME.match(key):
        return None
    if key.startswith("export "):
        return f"{_shown(key)}: systemd knows no 'export'; write {key.removeprefix('export ').strip()}=value"
    return f"{_shown(key)} is not a variable name; use letters, digits and '_', not starting with a digit"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
