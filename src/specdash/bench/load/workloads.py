"""What benchmarks ask: prompts of declared classes, our own or from a file.

The bundled ones are in prompts/CLASS.jsonl. `agentic` ones are turns in the middle of a session, with tools, calls and
their results; `pattern` ones are answered with text that is mostly in the prompt.
"""

from __future__ import annotations

import errno
import json
import stat
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.bench.load.samples import WorkloadPrompt
from specdash.core.errors import InputError, UsageError
from specdash.system.files import read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# Files of prompts as people have them: JSON, JSON Lines, plain text. What an entry means is for the reader to say.

RULE = "---"
_LONGEST_NAME = 64


class PromptEntry(Struct, frozen=True):
    """One entry: a text, or any JSON. `where` names it for people."""

    value: Any
    where: str


def entries(path: str, *, largest: int, lines: bool = False) -> list[PromptEntry]:
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
    return [PromptEntry(entry, f"prompts {path}, prompt {number}") for number, entry in enumerate(found, 1)]


def _read(path: str, largest: int) -> str:
    file = Path(path).expanduser()
    try:
        if stat.S_ISCHR(file.stat().st_mode) or stat.S_ISBLK(file.stat().st_mode):
            raise InputError(f"prompts {path}: is a device, not a file")
        data = read_bounded(file, largest)
    except OSError as error:
        too_large = f"larger than {largest >> 20} MiB; name a part of it"
        why = too_large if error.errno == errno.EFBIG else error.strerror or error
        raise InputError(f"prompts {path}: {why}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"prompts {path}: is not UTF-8 text (line {line})") from None


def _plain(text: str, path: str, *, lines: bool) -> list[PromptEntry]:
    rows = text.splitlines()
    if lines and not any(row.strip() == RULE for row in rows):
        return [
            PromptEntry(row.strip(), f"prompts {path}, line {number}")
            for number, row in enumerate(rows, 1)
            if row.strip()
        ]
    parts: list[list[str]] = [[]]
    for row in rows:
        if row.strip() == RULE:
            parts.append([])
        else:
            parts[-1].append(row)
    found = [name for part in parts if (name := "\n".join(part).strip())]
    return [PromptEntry(name, f"prompts {path}, prompt {number}") for number, name in enumerate(found, 1)]


def _json_lines(text: str, path: str, whole: ValueError) -> list[PromptEntry]:
    found: list[PromptEntry] = []
    # Not splitlines(): JSON may hold other characters that end a line as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"prompts {path}, line {number}"
        try:
            found.append(PromptEntry(json.loads(line), where))
        except RecursionError:
            raise InputError(f"{where}: nested too deeply") from None
        except ValueError as error:
            fault = error
            if not found and isinstance(whole, json.JSONDecodeError):
                # Not even the first line is JSON: it is one broken document.
                fault, where = whole, f"prompts {path}, line {whole.lineno}"
            column = f"column {fault.colno}" if isinstance(fault, json.JSONDecodeError) else "unreadable"
            raise InputError(f"{where}: is not JSON ({column})") from None
    return found


def name_of(entry: PromptEntry, given: object, otherwise: str) -> str:
    """The name of an entry; raises `InputError` for one that is none."""
    if given is None:
        return otherwise
    if not isinstance(given, str) or not given.isprintable() or not 0 < len(given) <= _LONGEST_NAME:
        raise InputError(f"{entry.where}: name must be a printable text of at most {_LONGEST_NAME} characters")
    return given


CLASSES = ("coding", "pattern", "prose", "agentic")
UNCLASSED = "unclassed"
"""The class of a file's prompts that name none."""
LARGEST = 64 << 20
MOST = 10_000
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def bundled(kinds: Iterable[str] = CLASSES, each: int | None = None) -> tuple[WorkloadPrompt, ...]:
    """Our own prompts of these classes, the first `each` of every class. Raises `UsageError` for an unknown class."""
    found: list[WorkloadPrompt] = []
    for kind in kinds:
        if kind not in CLASSES:
            raise UsageError(f"no prompts of class {kind!r}; there are {', '.join(CLASSES)}")
        text = (files("specdash.bench") / "prompts" / f"{kind}.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        found += [_prompt(PromptEntry(row, row["id"]), number) for number, row in enumerate(rows[:each], 1)]
    return tuple(found)


def read_prompts(path: str, kinds: Sequence[str] = ()) -> tuple[WorkloadPrompt, ...]:
    """Prompts of a file, of these classes only where any are named.

    An entry is a text, or an object with `messages` or `prompt`, and perhaps `id`, `kind`, `tools`, `max_tokens`; plain
    text is one prompt a line, or blocks between lines of `---`. Raises `InputError` naming file and line.
    """
    held = entries(path, largest=LARGEST, lines=True)
    if not held:
        raise InputError(f"prompts {path}: has no prompt; write one a line, or JSON Lines with messages or prompt")
    if len(held) > MOST:
        raise InputError(f"prompts {path}: {len(held)} prompts; {MOST} are the most, name a part of them")
    found = [_prompt(entry, number) for number, entry in enumerate(held, 1)]
    seen: dict[str, str] = {}
    for entry, prompt in zip(held, found, strict=True):
        if prompt.id in seen:
            raise InputError(f"{entry.where}: the id {prompt.id!r} is taken already; ids tell prompts apart")
        seen[prompt.id] = entry.where
    chosen = tuple(prompt for prompt in found if not kinds or prompt.kind in kinds)
    if not chosen:
        there = ", ".join(sorted({prompt.kind for prompt in found}))
        raise InputError(f"prompts {path}: none of class {', '.join(kinds)}; there are {there}")
    return chosen


def _prompt(entry: PromptEntry, number: int) -> WorkloadPrompt:
    value = {"prompt": entry.value} if isinstance(entry.value, str) else entry.value
    if not isinstance(value, dict):
        raise InputError(f"{entry.where}: must be a text, or an object with messages or prompt")
    text, messages = value.get("prompt"), value.get("messages")
    if (text is None) is (messages is None):
        raise InputError(f"{entry.where}: needs either messages or prompt")
    if text is not None:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{entry.where}: prompt must be a text that is not empty")
        messages = [{"role": "user", "content": text}]
    kind = name_of(entry, value.get("kind"), UNCLASSED)
    return WorkloadPrompt(
        id=name_of(entry, value.get("id", value.get("name")), f"{kind}-{number}"),
        kind=kind,
        messages=_messages(entry, messages),
        tools=_tools(entry, value.get("tools")),
        max_tokens=_length(entry, value.get("max_tokens")),
    )


def _messages(entry: PromptEntry, value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{entry.where}: messages must be a list that is not empty")
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict) or item.get("role") not in _ROLES:
            raise InputError(f"{entry.where}: message {number} must be an object with a role: {', '.join(_ROLES)}")
        content = item.get("content")
        if not isinstance(content, str | list) and not (content is None and item.get("tool_calls")):
            raise InputError(f"{entry.where}: message {number} has no content")
    return tuple(value)


def _tools(entry: PromptEntry, value: object) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    good = isinstance(value, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("function"), dict)
        and isinstance(entry["function"].get("name"), str)
        for entry in value
    )
    if not good:
        raise InputError(f"{entry.where}: tools must be a list of OpenAI function tools")
    return tuple(value)  # type: ignore[arg-type]


def _length(entry: PromptEntry, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise InputError(f"{entry.where}: max_tokens must be a whole number from 2 on")
    return value
