"""Changing keys of an env file's text, and nothing else in it; and showing the difference without its secrets."""

from __future__ import annotations

import difflib
import hashlib
import re
from typing import TYPE_CHECKING

from specdash.core.changes import is_secret, shown_value
from specdash.core.envfile import EnvFile, EnvFileError, control_character, name_problem, parse, quote, value_problem
from specdash.core.masking import MASK, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.envfile import Entry

_CONTEXT_LINES = 2
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*[=:]\s*|([A-Z_][A-Z0-9_]+)\s+")
# Between a masked text and what tells it from another one with the same mask; no text file has it.
_MARK = "\0"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def with_changes(file: EnvFile, changes: Mapping[str, str | None]) -> str:
    """The file's text with each key of `changes` set to its value, or removed where that is None.

    Setting a key rewrites the value of its last assignment, the one that counts, or appends a line; removing it takes
    out all its assignments; a key that is as wanted stays as it is written. Every other character is kept. Raises
    `EnvFileError` for a file with an unreadable line, for a name or value that systemd would not take, and where a
    comment that ends in a backslash would hide the result from systemd before 254.
    """
    for entry in file.entries:
        if entry.problem is not None:
            raise EnvFileError(f"line {entry.line}: {entry.problem}")
    before = file.values
    wanted = {key: value for key, value in changes.items() if before.get(key) != value}
    for key, value in wanted.items():
        if value is not None:
            _check(key, value)
    after = _appended(_rewritten(file, wanted), {k: v for k, v in wanted.items() if v is not None and k not in before})
    _check_result(file, after, wanted)
    return after


def masked_diff(before: str, after: str, name: str) -> list[str]:
    """The lines of a unified diff of two texts of the env file `name`, without line ends. Secrets are masked, also in
    comments and unreadable lines; a changed secret still shows as a change."""
    old, new = _masked_lines(before), _masked_lines(after)
    lines = difflib.unified_diff(old, new, name, name, "before", "after", n=_CONTEXT_LINES, lineterm="")
    return [printable(line.split(_MARK)[0]) for line in lines]


def shown_text(key: str, value: str | None) -> str | None:
    """A value as it may be printed: a secret masked, and secrets inside it (`--api-key`, a password in a URL) too."""
    shown = shown_value(key, value)
    return None if shown is None else without_secrets(shown)


def printable(text: str, *, newlines: bool = False) -> str:
    """`text` with control characters written out, so that none reaches the terminal; `newlines` may stay."""

    def written(found: re.Match[str]) -> str:
        return found[0] if newlines and found[0] == "\n" else f"\\x{ord(found[0]):02x}"

    return _UNPRINTABLE.sub(written, text)


def _check(key: str, value: str) -> None:
    problem = name_problem(key) or value_problem(key, value)
    if problem is None and (code := control_character(value)):
        problem = f"the control character {code} in the value of {key}; only tab and newline can be meant"
    if problem is not None:
        raise EnvFileError(problem)


def _rewritten(file: EnvFile, wanted: Mapping[str, str | None]) -> str:
    """The text with the assignments that are there already set or taken out."""
    counts = {entry.key: at for at, entry in enumerate(file.entries)}
    out: list[str] = []
    for at, entry in enumerate(file.entries):
        if entry.key is None or entry.key not in wanted:
            out.append(entry.raw)
            continue
        value = wanted[entry.key]
        # A blank line keeps what follows out of a comment that ends in a backslash.
        newline = file.entries[at - 1].newline if at and _continues(file.entries[at - 1]) else ""
        if value is None:
            out.append(newline)
        elif counts[entry.key] != at:
            out.append(entry.raw)
        else:
            start, stop = entry.span
            out += [newline, entry.raw[:start], quote(value), entry.raw[stop:]]
    return "".join(out)


def _appended(text: str, new: Mapping[str, str]) -> str:
    """The text with lines for keys that it does not have."""
    if not new:
        return text
    entries = parse(text).entries
    newline = next((entry.newline for entry in reversed(entries) if entry.newline), "\n")
    between = newline if entries and not entries[-1].newline else ""
    if entries and _continues(entries[-1]):
        between += newline
    return text + between + "".join(f"{key}={quote(value)}{newline}" for key, value in new.items())


def _continues(entry: Entry) -> bool:
    """Whether a line after the entry would be read as part of it, be it only before systemd 254, by a comment."""
    text = entry.raw.removesuffix(entry.newline)
    open_ended = entry.newline == "" if entry.key is not None else entry.newline != "\r\n"
    return open_ended and (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _check_result(file: EnvFile, after: str, wanted: Mapping[str, str | None]) -> None:
    """Hold the new text against what was asked for, as every version of systemd reads it."""
    for old in (False, True):
        held = parse(file.text, comments_continue=old).values
        expected = {key: value for key, value in {**held, **wanted}.items() if value is not None}
        found = parse(after, comments_continue=old).values
        odd = sorted(key for key in {*expected, *found} if expected.get(key) != found.get(key))
        if odd:
            raise EnvFileError(
                f"{odd[0]} would not read the same in every version of systemd: a comment of the file ends in a "
                "backslash; remove it, then run the command again"
            )


def _masked_lines(text: str) -> list[str]:
    return [line for entry in parse(text).entries for line in _masked(entry)]


def _masked(entry: Entry) -> list[str]:
    text = entry.raw.removesuffix(entry.newline)
    if entry.key is None:
        shown = _masked_words(text)
    else:
        value, (start, stop) = shown_text(entry.key, entry.value) or "", entry.span
        written = value if value == MASK else quote(value)
        shown = text if value == entry.value else f"{text[:start]}{written}{text[stop:]}"
    if shown == text:
        return text.split("\n")
    return [line + _MARK + _digest(text) for line in shown.split("\n")]


def _masked_words(text: str) -> str:
    """A comment or an unreadable stretch, masked from the value of the first secret that it names."""
    for found in _NAMED.finditer(text):
        if is_secret((found[1] or found[2]).upper()) and found.end() < len(text):
            return text[: found.end()] + MASK
    return without_secrets(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
