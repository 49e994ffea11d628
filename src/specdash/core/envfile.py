"""systemd's `EnvironmentFile=` dialect, parsed without losing a character.

The rules are those of systemd.exec(5) and of systemd's own reader, against which tests hold this module (v252): `#` and
`;` at the start of a line begin a comment; white space around the key and around an unquoted value is dropped; quoted
and unquoted pieces of one value are joined; a backslash outside quotes takes the next character as it is and joins
lines; inside double quotes it does so only before `"`, `\\`, `` ` ``, `$` and the end of a line; inside single quotes
it is a backslash. There is no expansion of variables.

One rule depends on the version: before systemd 254, a backslash at the end of a comment makes the next line part of the
comment. `parse` reads as 254 does; an entry's `trap` says where the older ones differ.

Where systemd drops a line that it cannot read, or refuses the whole file for it, this module names the line: a typo
must not silently lose a setting.
"""

from __future__ import annotations

import re

from msgspec import Struct

from specdash.core.errors import InputError, Problem
from specdash.core.structs import Masked

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z")
# What systemd's UTF-8 check refuses besides bytes that are none (here: lone surrogates).
_NOT_TEXT = re.compile(
    r"[\ud800-\udfff\ufdd0-\ufdef]|["
    + "".join(chr(p << 16 | 0xFFFE) + "-" + chr(p << 16 | 0xFFFF) for p in range(17))
    + "]"
)
_OPEN_ENDED = re.compile(r"[ \t]*[#;](?:[^\\]|\\.)*\\[\n\r]?\Z")
_QUOTED = re.compile(r"""'([^']*+)'|["]((?:[^"\\]++|\\.)*+)["]""", re.DOTALL)
# No possessive group: before Python 3.11.5 one that fails in the middle keeps what it took.
_PLAIN_PIECE = r"(?:[^\\ \t\n\r]|\\.|\\\Z)"
_LINE = re.compile(
    rf"""[ \t]*(?:
        (?:[#;][^\n\r]*)?(?=[\n\r]|\Z)
        |(?P<key>[^\n\r][^=\n\r]*)=[ \t]*
            (?P<written>
                (?P<quoted>(?:(?:{_QUOTED.pattern})(?:[ \t]*(?:{_QUOTED.pattern}))*)?)
                (?:[ \t]*(?P<unclosed>["']).*|(?P<plain>(?:[ \t]*{_PLAIN_PIECE})*))
            )[ \t]*
        |(?P<nothing>[^\n\r]*)
    )(?P<newline>\r\n|\n|\r|\Z)""",
    re.VERBOSE | re.DOTALL,
)
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
        """That the next line is part of this one, a comment, before systemd 254; None where it is not."""
        if self.key is not None or self.newline == "\r\n" or not _OPEN_ENDED.match(self.raw):
            return None
        what = "the comment ends in a backslash: before systemd 254 the next line is part of it"
        return Problem(what, "remove the backslash")


class EnvFile(Struct, frozen=True):
    """All entries, in the order of the file."""

    entries: tuple[EnvEntry, ...]

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
    line = 1
    for found in _LINE.finditer(text):
        if raw := found[0]:
            entries.append(_entry(found, line))
            line += raw.count("\n") + raw.count("\r") - raw.count("\r\n")
    return EnvFile(tuple(entries))


def _entry(found: re.Match[str], line: int) -> EnvEntry:
    raw, newline = found[0], found["newline"]
    problem = None
    if found["key"] is None:
        if found["nothing"]:
            problem = Problem("no '=' in the line", "write KEY=value or start it with '#'")
        elif "\0" in raw:
            problem = Problem("NUL in the line; systemd refuses the whole file")
        return EnvEntry(raw, line, newline=newline, problem=problem)
    if (mark := found["unclosed"]) is not None:
        problem = Problem(f"the {mark} quote is never closed", "close it, or escape it with a backslash")
        return EnvEntry(raw, line, newline=newline, problem=problem)
    pieces = [
        re.sub(r'\\(?:(["\\`$])|\n)', lambda escaped: escaped[1] or "", double) if single is None else single
        for single, double in (piece.groups() for piece in _QUOTED.finditer(found["quoted"]))
    ]
    plain = found["plain"].lstrip(" \t")
    pieces.append(re.sub(r"\\(.?)", lambda escaped: escaped[1].strip("\n\r"), plain, flags=re.DOTALL))
    key, value = found["key"].rstrip(" \t"), "".join(pieces)
    problem = name_problem(key) or value_problem(key, value)
    if problem is not None:
        return EnvEntry(raw, line, newline=newline, problem=problem)
    start, stop = found.span("written")
    return EnvEntry(raw, line, key, value, (start - found.start(), stop - found.start()), newline)


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


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
