"""The prompts that answers are compared on: our own, or the operator's from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specdash.bench.prompt_file import Entry, entries, name_of
from specdash.core.errors import InputError

LEAST_TOKENS = 64
"""A shorter prompt is read with other kernels on some backends (PR #19493: 30 tokens on Metal)."""
_MOST = 64
_LARGEST = 16 << 20


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
    held = entries(path, largest=_LARGEST)
    if not held:
        raise InputError(f"prompts {path}: has no prompt")
    if len(held) > _MOST:
        raise InputError(f"prompts {path}: {len(held)} prompts; {_MOST} are the most")
    return tuple(_prompt(entry, number) for number, entry in enumerate(held, 1))


def _prompt(entry: Entry, number: int) -> Prompt:
    where, value = entry.where, entry.value
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise InputError(f"{where}: must be a text, or an object with prompt or messages")
    text, messages = value.get("prompt"), value.get("messages")
    name = name_of(entry, value.get("name"), f"prompt {number}")
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
