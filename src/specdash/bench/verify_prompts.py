"""The prompts that answers are compared on: our own, or the operator's from a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdash.core.errors import InputError

LEAST_TOKENS = 64
"""A shorter prompt is read with other kernels on some backends (PR #19493: 30 tokens on Metal)."""
_MOST = 64
_LARGEST = 16 << 20
_RULE = "---"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a text as it is, or messages for the model's chat template."""

    name: str
    text: str = field(default="", repr=False)
    messages: tuple[dict[str, Any], ...] = field(default=(), repr=False)


def _quicksort(language: str) -> str:
    return (
        f"Write a quicksort demo in {language}. Please, write just code, in one file that compiles as it is, and do "
        "not write any extra comments. Sort the numbers 33, 7, 91, 2, 58, 14, 76, 5, 40 and 19 in place, with the last "
        "element as the pivot, and print the numbers once before they are sorted and once after that, on one line "
        "each, with a single space between two numbers and none at the end of a line. Use no library functions for "
        "sorting, and give the functions for partitioning and for sorting names that say what they do."
    )


_SENTENCES = (
    "A server keeps the weights of its model in memory and reads all of them once for every token that it writes. "
    "A draft guesses the next few tokens, and the model checks all of them in one pass over the same weights. "
    "What the model would have written itself is kept, and from the first wrong guess on everything is thrown away. "
    "So the text is the same as without a draft, and only the time that it takes to write the text is another one. "
)


def _chat(name: str, text: str) -> Prompt:
    return Prompt(name, messages=({"role": "user", "content": text},))


BUILT_IN: tuple[Prompt, ...] = (
    _chat("quicksort-c", _quicksort("C")),
    _chat("quicksort-python", _quicksort("Python")),
    _chat("repetition", f"Write the following text down three times, and nothing else: {_SENTENCES * 2}"),
    _chat(
        "prose",
        f"{_SENTENCES}Explain to a curious reader, without lists, why this can make a server faster, when it makes it "
        "slower, and what decides between the two.",
    ),
)
"""Code as in PR #19493, text that n-gram drafts can copy, and prose that nothing can."""


def read_prompts(path: str) -> tuple[Prompt, ...]:
    """Prompts of a file: JSON or JSON Lines of texts or objects with `prompt` or `messages` and perhaps `name`, or
    plain texts between lines of `---`. Raises `InputError` naming file and entry; quotes nothing of it."""
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > _LARGEST:
            raise InputError(f"prompts {path}: larger than {_LARGEST >> 20} MiB")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"prompts {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"prompts {path}: is not UTF-8 text") from None
    entries = _entries(text, path)
    found = tuple(_prompt(entry, number, path) for number, entry in enumerate(entries, 1))
    if not found:
        raise InputError(f"prompts {path}: has no prompt")
    if len(found) > _MOST:
        raise InputError(f"prompts {path}: {len(found)} prompts; {_MOST} are the most")
    return found


def _entries(text: str, path: str) -> list[Any]:
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return _plain(text)
    try:
        whole = json.loads(text)
    except ValueError:
        return _lines(text, path)
    return whole if isinstance(whole, list) else [whole]


def _plain(text: str) -> list[Any]:
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == _RULE:
            parts.append([])
        else:
            parts[-1].append(line)
    return [found for part in parts if (found := "\n".join(part).strip())]


def _lines(text: str, path: str) -> list[Any]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise InputError(f"prompts {path}, line {number}: is not JSON ({_where(error)})") from None
    return found


def _where(error: ValueError) -> str:
    return f"column {error.colno}" if isinstance(error, json.JSONDecodeError) else "unreadable"


def _prompt(entry: Any, number: int, path: str) -> Prompt:
    where = f"prompts {path}, prompt {number}"
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise InputError(f"{where}: must be a text, or an object with prompt or messages")
    text, messages, name = entry.get("prompt"), entry.get("messages"), entry.get("name", f"prompt {number}")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 64:
        raise InputError(f"{where}: name must be a printable text of at most 64 characters")
    if (text is None) is (messages is None):
        raise InputError(f"{where}: needs either prompt or messages")
    if text is not None:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{where}: prompt must be a text that is not empty")
        return Prompt(name, text=text)
    if not isinstance(messages, list) or not messages or not all(_is_message(one) for one in messages):
        raise InputError(f"{where}: messages must be a list of objects with role and content")
    return Prompt(name, messages=tuple(messages))


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value
