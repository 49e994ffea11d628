"""LLAMA_EXTRA_ARGS: split as a shell would, known flags told from the rest, removed flags refused."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_FLAG, REMOVED_FLAGS
from specdash.core.parameters import Kind

SOURCE = "LLAMA_EXTRA_ARGS"


@dataclass(frozen=True, slots=True)
class ExtraArgs:
    """`known` maps a parameter's name to its text (the last one wins; chains of spec types are joined).

    `rest` are the arguments no catalogue entry covers, with their values, in their order.
    """

    known: dict[str, str]
    rest: tuple[str, ...]


def parse(text: str) -> ExtraArgs:
    """Parse the value of `LLAMA_EXTRA_ARGS`. Raises `InputError` for bad quoting, removed flags and missing values."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{SOURCE}: {error} in {text!r}; close the quote") from None
    known: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        flag = canonical(word)
        if flag in REMOVED_FLAGS:
            raise InputError(f"{SOURCE}: llama.cpp removed {word}; use {REMOVED_FLAGS[flag]}")
        _refuse_equals(word)
        if flag not in BY_FLAG:
            rest.append(word)
            continue
        parameter, on = BY_FLAG[flag]
        if parameter.kind is Kind.SWITCH:
            known[parameter.name] = "1" if on else "0"
            continue
        if at == len(words):
            raise InputError(f"{SOURCE}: {word} needs a value")
        value = words[at]
        at += 1
        if parameter.name == "llama_spec_type" and parameter.name in known:
            value = f"{known[parameter.name]},{value}"
        known[parameter.name] = value
    return ExtraArgs(known, tuple(rest))


def canonical(word: str) -> str:
    """`word` as the catalogue spells flags: llama-server takes '_' for '-' in long flags."""
    return word.replace("_", "-") if word.startswith("--") else word


def _refuse_equals(word: str) -> None:
    flag, equals, value = word.partition("=")
    if equals and canonical(flag) in BY_FLAG:
        raise InputError(f"{SOURCE}: llama-server does not know {word!r}; write '{flag} {value}'")
