"""LLAMA_EXTRA_ARGS: split as a shell would, known flags told from the rest, removed flags refused."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_FLAG, BY_NAME, REMOVED_FLAGS, SHORTHANDS
from specdash.core.parameters import Kind, Parameter, Scalar

SOURCE = "LLAMA_EXTRA_ARGS"


def setting(source: str, parameter: Parameter, value: Scalar | None) -> str:
    """A value as the operator set it, for messages: `KEY=VALUE`, or the flag inside LLAMA_EXTRA_ARGS."""
    return f"{SOURCE} {_words(parameter, value)}" if source == SOURCE else f"{source}={_text(parameter, value)}"


def change(source: str, parameter: Parameter, value: Scalar | None) -> str:
    """What to set instead, for fixes: `KEY=VALUE`, or the flag, so that nobody overwrites all of LLAMA_EXTRA_ARGS."""
    return f"{_words(parameter, value)} in {SOURCE}" if source == SOURCE else setting(source, parameter, value)


def _words(parameter: Parameter, value: Scalar | None) -> str:
    if parameter.kind is not Kind.SWITCH:
        return f"{parameter.flags[0]} {_text(parameter, value)}"
    return (parameter.flags if value else (*parameter.off_flags, *parameter.flags))[0]


def _text(parameter: Parameter, value: Scalar | None) -> str:
    return "" if value is None else parameter.text(value)


@dataclass(frozen=True, slots=True)
class ExtraArgs:
    """`known` maps a parameter's name to its text (the last one wins; chains of spec types are joined).

    `rest` are the arguments no catalogue entry covers, with their values, in their order.
    """

    known: dict[str, str]
    rest: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    """What one argument takes from another: lines without secrets."""


def parse(text: str) -> ExtraArgs:
    """Parse the value of `LLAMA_EXTRA_ARGS`. Raises `InputError` for bad quoting, removed flags and missing values."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{SOURCE}: {error} in {text!r}; close the quote") from None
    reader = _Reader()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        flag = canonical(word)
        if flag in REMOVED_FLAGS:
            raise InputError(f"{SOURCE}: llama.cpp removed {word}; use {REMOVED_FLAGS[flag]}")
        _refuse_equals(word)
        if flag in SHORTHANDS:
            for name, value in SHORTHANDS[flag].items():
                reader.take(BY_NAME[name], value, word)
        elif flag not in BY_FLAG:
            reader.rest.append(word)
        elif BY_FLAG[flag][0].kind is Kind.SWITCH:
            reader.take(BY_FLAG[flag][0], "1" if BY_FLAG[flag][1] else "0", word)
        else:
            if at == len(words):
                raise InputError(f"{SOURCE}: {word} needs a value")
            reader.take(BY_FLAG[flag][0], words[at], word)
            at += 1
    return ExtraArgs(
        {name: text for name, (text, _) in reader.known.items()}, tuple(reader.rest), tuple(reader.remarks)
    )


class _Reader:
    """Takes arguments one after the other, as llama.cpp does: the last one wins, but spec types add up."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, str]] = {}
        """Name of a parameter to its text, and to the word that gave it."""
        self.rest: list[str] = []
        self.remarks: list[str] = []

    def take(self, parameter: Parameter, text: str, word: str) -> None:
        before = self.known.get(parameter.name)
        if before is not None and parameter.name == "llama_spec_type":
            text = f"{before[0]},{text}"
            self.remarks.append(
                f"{SOURCE} names spec types twice: llama.cpp would chain them, and so the chain is {text}"
            )
        elif before is not None and before[0] != text:
            self.remarks.append(
                f"{SOURCE}: {_given(parameter, before)} is ignored: {_given(parameter, (text, word))} after it wins"
            )
        self.known[parameter.name] = (text, word)


def _given(parameter: Parameter, given: tuple[str, str]) -> str:
    text, word = given
    return word if parameter.secret or parameter.kind is Kind.SWITCH else f"{word} {text}"


def canonical(word: str) -> str:
    """`word` as the catalogue spells flags: llama-server takes '_' for '-' in long flags."""
    return word.replace("_", "-") if word.startswith("--") else word


def _refuse_equals(word: str) -> None:
    flag, equals, value = word.partition("=")
    if equals and canonical(flag) in BY_FLAG:
        raise InputError(f"{SOURCE}: llama-server does not know {word!r}; write '{flag} {value}'")
