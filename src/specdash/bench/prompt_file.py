"""Files of prompts as people have them: JSON, JSON Lines, plain text. What an entry means is for the reader to say."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdash.core.errors import InputError

RULE = "---"
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: a text, or whatever JSON it is. `where` names it for people."""

    value: Any
    where: str


def entries(path: str, *, largest: int, lines: bool = False) -> list[Entry]:
    """What the file holds: a JSON list or object, JSON Lines, or plain texts between lines of `---`.

    A plain text without such lines is one entry or, with `lines`, one a line. Raises `InputError` naming the file and
    the line, quoting nothing of it; `largest` is in bytes.
    """
    text = _read(path, largest)
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return _plain(text, path, lines=lines)
    try:
        whole = json.loads(text)
    except RecursionError:
        raise InputError(f"prompts {path}: nested too deeply") from None
    except ValueError as error:
        return _json_lines(text, path, error)
    found = whole if isinstance(whole, list) else [whole]
    return [Entry(one, f"prompts {path}, prompt {number}") for number, one in enumerate(found, 1)]


def _read(path: str, largest: int) -> str:
    file = Path(path).expanduser()
    try:
        if stat.S_ISCHR(file.stat().st_mode) or stat.S_ISBLK(file.stat().st_mode):
            raise InputError(f"prompts {path}: is a device, not a file")
        with file.open("rb") as opened:
            data = opened.read(largest + 1)
    except OSError as error:
        raise InputError(f"prompts {path}: {error.strerror or error}") from None
    if len(data) > largest:
        raise InputError(f"prompts {path}: larger than {largest >> 20} MiB; name a part of it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"prompts {path}: is not UTF-8 text (line {line})") from None


def _plain(text: str, path: str, *, lines: bool) -> list[Entry]:
    rows = text.splitlines()
    if lines and not any(row.strip() == RULE for row in rows):
        return [
            Entry(row.strip(), f"prompts {path}, line {number}") for number, row in enumerate(rows, 1) if row.strip()
        ]
    parts: list[list[str]] = [[]]
    for row in rows:
        if row.strip() == RULE:
            parts.append([])
        else:
            parts[-1].append(row)
    found = [one for part in parts if (one := "\n".join(part).strip())]
    return [Entry(one, f"prompts {path}, prompt {number}") for number, one in enumerate(found, 1)]


def _json_lines(text: str, path: str, whole: ValueError) -> list[Entry]:
    found: list[Entry] = []
    # Not splitlines(): JSON may hold other characters that end a line as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"prompts {path}, line {number}"
        try:
            found.append(Entry(json.loads(line), where))
        except RecursionError:
            raise InputError(f"{where}: nested too deeply") from None
        except ValueError as error:
            told = error
            if not found and isinstance(whole, json.JSONDecodeError):
                # Not even the first line is JSON: it is one broken document.
                told, where = whole, f"prompts {path}, line {whole.lineno}"
            column = f"column {told.colno}" if isinstance(told, json.JSONDecodeError) else "unreadable"
            raise InputError(f"{where}: is not JSON ({column})") from None
    return found


def name_of(entry: Entry, given: object, otherwise: str) -> str:
    """The name of an entry; raises `InputError` for one that is none."""
    if given is None:
        return otherwise
    if not isinstance(given, str) or not given.isprintable() or not 0 < len(given) <= _LONGEST_NAME:
        raise InputError(f"{entry.where}: name must be a printable text of at most {_LONGEST_NAME} characters")
    return given
