"""What benchmarks ask: prompts of declared classes, our own or from a file.

The bundled ones are in prompts/CLASS.jsonl. `agentic` ones are turns in the middle of a session, with tools, calls and
their results; `pattern` ones are answered with text that is mostly in the prompt.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from specdash.bench.prompt_file import Entry, entries, name_of
from specdash.bench.samples import Prompt
from specdash.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CLASSES = ("coding", "pattern", "prose", "agentic")
UNCLASSED = "unclassed"
"""The class of a file's prompts that name none."""
LARGEST = 64 << 20
MOST = 10_000
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def bundled(kinds: Iterable[str] = CLASSES, each: int | None = None) -> tuple[Prompt, ...]:
    """Our own prompts of these classes, the first `each` of every class. Raises `UsageError` for an unknown class."""
    found: list[Prompt] = []
    for kind in kinds:
        if kind not in CLASSES:
            raise UsageError(f"no prompts of class {kind!r}; there are {', '.join(CLASSES)}")
        text = (files("specdash.bench") / "prompts" / f"{kind}.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        found += [_prompt(Entry(row, row["id"]), number) for number, row in enumerate(rows[:each], 1)]
    return tuple(found)


def read_prompts(path: str, kinds: Sequence[str] = ()) -> tuple[Prompt, ...]:
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
    chosen = tuple(one for one in found if not kinds or one.kind in kinds)
    if not chosen:
        there = ", ".join(sorted({one.kind for one in found}))
        raise InputError(f"prompts {path}: none of class {', '.join(kinds)}; there are {there}")
    return chosen


def _prompt(entry: Entry, number: int) -> Prompt:
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
    return Prompt(
        id=name_of(entry, value.get("id", value.get("name")), f"{kind}-{number}"),
        kind=kind,
        messages=_messages(entry, messages),
        tools=_tools(entry, value.get("tools")),
        max_tokens=_length(entry, value.get("max_tokens")),
    )


def _messages(entry: Entry, value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{entry.where}: messages must be a list that is not empty")
    for number, one in enumerate(value, 1):
        if not isinstance(one, dict) or one.get("role") not in _ROLES:
            raise InputError(f"{entry.where}: message {number} must be an object with a role: {', '.join(_ROLES)}")
        content = one.get("content")
        if not isinstance(content, str | list) and not (content is None and one.get("tool_calls")):
            raise InputError(f"{entry.where}: message {number} has no content")
    return tuple(value)


def _tools(entry: Entry, value: object) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    good = isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("function"), dict) and isinstance(one["function"].get("name"), str)
        for one in value
    )
    if not good:
        raise InputError(f"{entry.where}: tools must be a list of OpenAI function tools")
    return tuple(value)  # type: ignore[arg-type]


def _length(entry: Entry, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise InputError(f"{entry.where}: max_tokens must be a whole number from 2 on")
    return value
