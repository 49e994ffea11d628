"""systemd's `EnvironmentFile=` dialect, parsed without losing a character.

The rules are those of systemd.exec(5) and of systemd's own reader, against which tests hold this module (v252): `#` and
`;` at the start of a line begin a comment; white space around the key and around an unquoted value is dropped; quoted
and unquoted pieces of one value are joined; a backslash outside quotes takes the next character as it is and joins
lines; inside double quotes it does so only before `"`, `\\`, `` ` ``, `$` and the end of a line; inside single quotes
it is a backslash. There is no expansion of variables.

One rule depends on the version: before systemd 254, a backslash at the end of a comment makes the next line part of the
comment. `parse` reads as 254 does; `traps` are where the older ones may differ.

Where systemd drops a line that it cannot read, or refuses the whole file for it, this module names the line: a typo
must not silently lose a setting.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

from specdash.core.errors import InputError, Problem
from specdash.core.structs import Masked

_NEWLINE = "\n\r"
_BLANK = " \t\n\r"
_COMMENT = "#;"
_ESCAPED_IN_DOUBLE_QUOTES = '"\\`$'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# What systemd's UTF-8 check refuses besides bytes that are none (here: lone surrogates).
_NOT_TEXT = re.compile(
    r"[\ud800-\udfff\ufdd0-\ufdef]|["
    + "".join(chr(p << 16 | 0xFFFE) + "-" + chr(p << 16 | 0xFFFF) for p in range(17))
    + "]"
)
_OPEN_ENDED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL")
_LONG_WORD = 12
_LONGEST = 131071
"""Most bytes of `KEY=value` that Linux hands to a program."""


class EnvFileError(InputError):
    """A line that systemd would drop or misread; the message names the file, the line and the way out."""


class EnvEntry(Masked, Struct, frozen=True):
    """A stretch of the file. `raw` is its exact text, so that joining all `raw` gives the file back.

    An assignment has `key` and `value`; a comment, a blank or an unreadable line has neither. `line` counts from 1.
    `span` is where in `raw` the value is written, `newline` the line end that closes the entry, "" where the file ends.
    """

    hidden = ("raw", "value")

    raw: str
    line: int
    key: str | None = None
    value: str | None = None
    span: tuple[int, int] = (0, 0)
    newline: str = ""
    problem: Problem | None = None
    """What is wrong with the entry, or None."""

    @property
    def trap(self) -> Problem | None:
        """What some versions of systemd read otherwise, or None."""
        if self.key is not None:
            what = f"{self.key} holds a control character; old versions of systemd drop such a variable"
            return Problem(what) if _CONTROL.search(self.value or "") else None
        text = self.raw.removesuffix(self.newline).lstrip(" \t")
        if text[:1] not in tuple(_COMMENT) or self.newline == "\r\n" or not _OPEN_ENDED.search(text):
            return None
        what = "the comment ends in a backslash: before systemd 254 the next line is part of it"
        return Problem(what, "remove the backslash")


class EnvFile(Struct, frozen=True):
    """All entries, in the order of the file."""

    entries: tuple[EnvEntry, ...]

    @property
    def text(self) -> str:
        """The file's text, character for character."""
        return "".join(entry.raw for entry in self.entries)

    @property
    def values(self) -> dict[str, str]:
        """Key to value; the last assignment of a key wins, as in systemd."""
        return {e.key: e.value for e in self.entries if e.key is not None and e.value is not None}

    def check(self, path: str) -> EnvFile:
        """Return this file when every line can be read, else raise `EnvFileError` for the first that cannot."""
        for entry in self.entries:
            if entry.problem is not None:
                raise EnvFileError(f"{path}:{entry.line}: {entry.problem}")
        return self


class Trap(NamedTuple):
    """What the file means to one version of systemd and not to another."""

    line: int
    problem: Problem


def decode(data: bytes) -> str:
    """A file's bytes as text from which `encode` makes the same bytes. What is no UTF-8 becomes a `problem` in `parse`,
    but in a comment, where systemd takes any bytes."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The bytes of `text`; see `decode`."""
    return text.encode("utf-8", "surrogateescape")


def read_values(data: bytes, path: str) -> dict[str, str]:
    """Key to value of a file's bytes. Raises `EnvFileError` naming `path` and the line that cannot be read."""
    return parse(decode(data)).check(path).values


def parse(text: str) -> EnvFile:
    """Parse any text. Never fails: an unreadable line becomes an entry with a `problem`."""
    entries: list[EnvEntry] = []
    at, line = 0, 1
    while at < len(text):
        entry, at = _entry(text, at, line)
        entries.append(entry)
        line += entry.raw.count("\n") + entry.raw.count("\r") - entry.raw.count("\r\n")
    return EnvFile(tuple(entries))


def traps(file: EnvFile) -> tuple[Trap, ...]:
    """Where versions of systemd disagree about the file, in its order."""
    return tuple(Trap(entry.line, entry.trap) for entry in file.entries if entry.trap is not None)


def name_problem(key: str) -> Problem | None:
    """Why systemd would drop a variable of this name, None when it would not."""
    if _NAME.match(key):
        return None
    if key.startswith("export "):
        fix = f"write {key.removeprefix('export ').strip()}=value"
        return Problem(f"{_shown(key)}: systemd knows no 'export'", fix)
    if key.startswith("\ufeff"):
        what = "the file begins with a byte order mark, and systemd takes it for part of a name"
        return Problem(what, "remove it")
    fix = "use letters, digits and '_', not starting with a digit"
    return Problem(f"{_shown(key)} is not a variable name", fix)


def value_problem(key: str, value: str) -> Problem | None:
    """Why systemd would not take the value of a file that holds it, None when it would. Never contains the value."""
    if found := _NOT_TEXT.search(value):
        what = "is not UTF-8 text" if "\ud800" <= found[0] <= "\udfff" else f"has the noncharacter {_code(found[0])}"
        return Problem(f"{what} in the value of {key}; systemd refuses the whole file")
    if "\0" in value:
        return Problem(f"NUL in the value of {key}; systemd refuses the whole file")
    if len(key) + 1 + len(encode(value)) > _LONGEST:
        most = _LONGEST - 1 - len(key)
        return Problem(f"the value of {key} is longer than the {most} bytes that Linux hands to a program")
    return None


def control_character(value: str) -> str | None:
    """The first control character other than tab and newline, as `U+0007`; None when there is none. systemd before 246
    drops a variable that has one."""
    found = _CONTROL.search(value)
    return _code(found[0]) if found else None


def _code(char: str) -> str:
    return f"U+{ord(char):04X}"


def quote(value: str) -> str:
    """`value` written so that systemd, and `parse`, read exactly it again."""
    if value == "" or _PLAIN.match(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    escaped = re.sub(r'(["\\`$])', r"\\\1", value)
    return f'"{escaped}"'


def _end_of_line(text: str, at: int) -> int:
    while at < len(text) and text[at] not in _NEWLINE:
        at += 1
    return at


def _past_newline(text: str, at: int) -> int:
    if text[at : at + 2] == "\r\n":
        return at + 2
    return min(at + 1, len(text))


def _entry(text: str, start: int, line: int) -> tuple[EnvEntry, int]:
    at = start
    while at < len(text) and text[at] in " \t":
        at += 1
    if at == len(text) or text[at] in _NEWLINE or text[at] in _COMMENT:
        end = _end_of_line(text, at)
        stop = _past_newline(text, end)
        refused = Problem("NUL in the line; systemd refuses the whole file")
        problem = refused if "\0" in text[start:stop] else None
        return EnvEntry(text[start:stop], line, newline=text[end:stop], problem=problem), stop
    line_end = _end_of_line(text, at)
    equals = text.find("=", at + 1, line_end)
    if equals < 0:
        stop = _past_newline(text, line_end)
        problem = Problem(f"no '=' in {_hushed(text[at:line_end])}", "write KEY=value or start it with '#'")
        return EnvEntry(text[start:stop], line, newline=text[line_end:stop], problem=problem), stop
    key = text[at:equals].rstrip(_BLANK)
    written = _value(text, equals + 1)
    stop = _past_newline(text, written.end)
    raw, newline = text[start:stop], text[written.end : stop]
    problem = written.problem or name_problem(key) or value_problem(key, written.value)
    if problem is not None:
        return EnvEntry(raw, line, newline=newline, problem=problem), stop
    span = (written.start - start, written.stop - start)
    return EnvEntry(raw, line, key, written.value, span, newline), stop


class _Written(NamedTuple):
    """A value and where it is written: from `start` to `stop`, and `end`, the line end that closes it."""

    value: str
    start: int
    stop: int
    end: int
    problem: Problem | None = None


def _value(text: str, at: int) -> _Written:
    """The value that begins after the `=` before `at`, and what is wrong with it."""
    start = stop = at
    while start < len(text) and text[start] in " \t":
        start += 1
    out: list[str] = []
    kept = 0  # length of `out` up to which white space is part of the value
    leading = True  # white space here is dropped: at the start, and after a closing quote
    while at < len(text) and text[at] not in _NEWLINE:
        char = text[at]
        if leading and char in "\"'":
            piece, at = _quoted(text, at)
            if piece is None:
                wrong = Problem(f"the {char} quote is never closed", "close it, or escape it with a backslash")
                return _Written("", start, len(text), len(text), wrong)
            out.append(piece)
            kept, stop = len(out), at
            continue
        at += 1
        if char == "\\":
            leading = False
            out.append(text[at : at + 1].strip(_NEWLINE))
            at = min(at + 1, len(text))
            kept, stop = len(out), at
        elif char not in _BLANK:
            leading = False
            out.append(char)
            kept, stop = len(out), at
        elif not leading:
            out.append(char)
    return _Written("".join(out[:kept]), min(start, stop), stop, at)


def _quoted(text: str, at: int) -> tuple[str | None, int]:
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


def _hushed(line: str) -> str:
    """Enough of a line to know it again: what follows a secret's name is left out, and long words are cut."""
    shown: list[str] = []
    for word in line.split():
        if _SECRET.search(word):
            shown.append(re.split(r"[^\w-]", word)[0] + "...")
            break
        shown.append(word if len(word) <= _LONG_WORD else word[:4] + "...")
    return _shown(" ".join(shown))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
