"""What a service wrote since a moment, and which of it says why it failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable

_READ_LIMIT = 512 * 1024
_TELLING = re.compile(
    r"^\s*[\d.]+\s+E\s|^specdash: |\berror\b|failed|GGML_ASSERT|terminate called|couldn't|could not|not found|invalid|"
    r"refused|exit code|signal SIG|cannot|unknown",
    re.IGNORECASE,
)
_CALM = re.compile(r"^\s*[\d.]+\s+[ID]\s|\[(?:INFO|DEBUG)\]")
_SPECULATION = re.compile(r"draft|spec|vocab|ngram", re.IGNORECASE)
_WEIGHTY = re.compile(r"^\s*[\d.]+\s+[EW]\s|error|failed|warn|incompatible|mismatch", re.IGNORECASE)
_LONGEST = 400
MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class LogMark:
    """The end of a log file at one moment. `inode` tells whether it was moved away since."""

    path: Path
    inode: int
    size: int


def mark(path: str | Path | None) -> LogMark | None:
    """The end of the file now; a missing one ends at its beginning."""
    if path is None:
        return None
    file = Path(path)
    try:
        status = file.stat()
    except OSError:
        return LogMark(file, 0, 0)
    return LogMark(file, status.st_ino, status.st_size)


def lines_since(one: LogMark | None) -> list[str]:
    """What was written after the mark, at most the last half MiB of it; empty when the file cannot be read."""
    if one is None:
        return []
    try:
        with one.path.open("rb") as file:
            end = file.seek(0, 2)
            same = one.inode == one.path.stat().st_ino and one.size <= end
            start = max(one.size if same else 0, end - _READ_LIMIT)
            file.seek(start)
            data = file.read(_READ_LIMIT)
    except OSError:
        return []
    return [line for raw in data.decode("utf-8", "replace").splitlines() if (line := raw.strip())]


def telling(lines: Iterable[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """The lines that look like the cause, in their order, each once, without secrets."""
    kept = [line for line in dict.fromkeys(lines) if _TELLING.search(line) and not _CALM.match(line)]
    return _shown(kept[-most:])


def last_lines(lines: list[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """The last of them, without secrets."""
    return _shown(lines[-most:])


def about_speculation(lines: Iterable[str], most: int = MOST_LINES) -> tuple[str, ...]:
    """The errors and warnings that concern drafting."""
    kept = list(dict.fromkeys(lines))
    return _shown([line for line in kept if _SPECULATION.search(line) and _WEIGHTY.search(line)][-most:])


def last_line(lines: list[str]) -> str:
    """The last of them, short."""
    return _shown(lines[-1:])[0][:120] if lines else ""


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """The text without these values."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _shown(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(without_secrets(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…") for line in lines)
