"""The syntax of systemd's unit files: words quoted as systemd reads them, and what a unit's files say.

Sources: systemd.syntax(7), systemd.service(5) "Command lines", systemd.unit(5) "Specifiers".
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+\Z")
_NO_PROGRAM = re.compile(r"[\"'\\\x00-\x1f\x7f]")
_UNSAYABLE = re.compile(r"[\0\ud800-\udfff]")
"""No text can hold it, or no UTF-8: bytes of a path that were none (PEP 383)."""
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_WRITTEN = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}
_FILE_OUTPUT = ("append:", "truncate:", "file:")
_CODED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


def word(text: str, *, program: bool = False) -> str:
    """`text` as one word of a command line, so that systemd hands over exactly it.

    `program` marks the first word: `$` is nothing special there, and systemd takes no quotes, backslashes or control
    characters. Raises `InputError` for what cannot be written.
    """
    if not text or _UNSAYABLE.search(text):
        raise InputError(f"{text!r} cannot be a word of a unit file")
    if program and _NO_PROGRAM.search(text):
        raise InputError(f"systemd runs no program whose path has quotes or backslashes: {text!r}; move it")
    written = "".join(_written(char) for char in text)
    if not program:
        written = written.replace("$", "$$")
    return written if _PLAIN.match(text) else f'"{written}"'


def assignment(key: str, value: str) -> str:
    """`KEY=VALUE` as `Environment=` takes it. Raises `InputError` for a value that systemd leaves out."""
    if _UNSAYABLE.search(value) or any(_is_no_character(ord(char)) for char in value):
        raise InputError(f"{key}={value!r} cannot be given to a service: systemd takes no such characters; change it")
    text = f"{key}={value}"
    return text if _PLAIN.match(text) else '"' + "".join(_written(char) for char in text) + '"'


def _is_no_character(code: int) -> bool:
    """The code points that are none, which systemd's `unichar_is_valid` refuses (src/basic/utf8.c)."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def path_value(path: str) -> str:
    """A path that takes all of a line, as after `append:`. Raises `InputError` where the syntax cannot say it."""
    if path != path.strip() or path.endswith("\\") or not path.isprintable() or not path.startswith("/"):
        raise InputError(f"the path {path!r} cannot be written into a unit file; use a plainer one")
    return path.replace("%", "%%")


def directives(text: str) -> list[tuple[str, str, str]]:
    """Section, key and value of each assignment, lines joined as systemd joins them."""
    found: list[tuple[str, str, str]] = []
    section, pending = "", ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(("#", ";")):
            continue
        if stripped.endswith("\\"):
            pending += stripped[:-1] + " "
            continue
        whole, pending = (pending + stripped).strip(), ""
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
            continue
        key, equals, value = whole.partition("=")
        if equals:
            found.append((section, key.strip(), value.strip()))
    return found


def split_words(text: str) -> list[str] | None:
    """The words of a command line with quotes and escapes taken out; None when a quote is never closed."""
    words: list[str] = []
    word_so_far: str | None = None
    at, quote = 0, ""
    while at < len(text):
        char = text[at]
        if char == "\\":
            at, piece = _unescape(text, at)
            word_so_far = (word_so_far or "") + piece
            continue
        at += 1
        if quote == char:
            quote = ""
        elif not quote and char in "\"'":
            quote, word_so_far = char, word_so_far or ""
        elif quote or not char.isspace():
            word_so_far = (word_so_far or "") + char
        elif word_so_far is not None:
            words.append(word_so_far)
            word_so_far = None
    if quote:
        return None
    # Bytes that were written one by one are text together.
    return [os.fsdecode(os.fsencode(one)) for one in ([*words, word_so_far] if word_so_far is not None else words)]


def expand(text: str, env: Mapping[str, str] = os.environ) -> str | None:
    """`text` with its specifiers replaced; None where one is not known here."""
    home = env.get("HOME") or str(Path.home())
    known = {
        "%": "%",
        "h": home,
        "t": env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}",
        "S": env.get("XDG_STATE_HOME") or f"{home}/.local/state",
        "E": env.get("XDG_CONFIG_HOME") or f"{home}/.config",
        "C": env.get("XDG_CACHE_HOME") or f"{home}/.cache",
        "U": str(os.getuid()),
    }
    pieces = re.split(r"%(.)", text)
    replaced = [known.get(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
    return None if None in replaced else "".join(piece or "" for piece in replaced)


def read_directives(paths: Iterable[str]) -> list[tuple[str, str, str]]:
    """The assignments of a unit's files in their order: its own, then its drop-ins. What cannot be read is left out."""
    found: list[tuple[str, str, str]] = []
    for path in paths:
        try:
            found += directives(Path(path).read_text(encoding="utf-8", errors="replace") if path else "")
        except OSError:
            continue
    return found


def command_words(paths: Iterable[str], env: Mapping[str, str] = os.environ) -> list[str] | None:
    """The words of ExecStart= that has no variables; None where there is none, or it cannot be told."""
    words = shown_words(paths, env)
    return [one.replace("$$", "$") if index else one for index, one in enumerate(words)] if words else None


def shown_words(paths: Iterable[str], env: Mapping[str, str] = os.environ) -> list[str] | None:
    """The words of ExecStart= as systemd shows them: without prefixes, variables and `$$` as they are written."""
    lines: list[str] = []
    for section, key, value in read_directives(paths):
        if (section, key) == ("Service", "ExecStart"):
            lines = [*lines, value] if value else []
    expanded = expand(lines[-1], env) if lines else None
    words = split_words(expanded) if expanded is not None else None
    return [words[0].lstrip("-:+!@|"), *words[1:]] if words else None


def output_file(paths: Iterable[str], env: Mapping[str, str] = os.environ) -> Path | None:
    """The file that the service's errors go to, else its output; None where they go elsewhere."""
    outputs = {"StandardOutput": "", "StandardError": ""}
    for section, key, value in read_directives(paths):
        if section == "Service" and key in outputs:
            outputs[key] = value
    errors, output = outputs["StandardError"], outputs["StandardOutput"]
    for value in (output if errors in ("", "inherit") else errors, output):
        kind = next((prefix for prefix in _FILE_OUTPUT if value.startswith(prefix)), None)
        path = expand(value.removeprefix(kind), env) if kind is not None else None
        if path is not None:
            return Path(path)
    return None


def _written(char: str) -> str:
    if char in _WRITTEN:
        return _WRITTEN[char]
    if "\udc80" <= char <= "\udcff" or not char.isprintable():
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
    return char


def _unescape(text: str, at: int) -> tuple[int, str]:
    found = _CODED.match(text, at)
    if found is None:
        return at + 1, "\\"
    two, octal, four, eight, plain = found.groups()
    if plain is not None:
        return found.end(), _ESCAPES.get(plain, plain if plain in "\\\"'" else f"\\{plain}")
    if four or eight:
        return found.end(), chr(int(four or eight, 16))
    return found.end(), os.fsdecode(bytes([int(two, 16) if octal is None else int(octal, 8) & 255]))
