"""The flags in the argument vector of a llama-server, told by the parameter catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.parameter_catalogue import BY_FLAG
from specdash.core.parameters import Kind
from specdash.core.speculation import NO_SPECULATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.parameters import Parameter

SPECULATION = "--spec-"
"""What the flags of speculation begin with, in the catalogue's spelling."""


def flags_of(words: Sequence[str]) -> dict[str, tuple[Parameter, str]]:
    """Parameter and value of each known flag, by the catalogue's spelling of it; a switch that is on has no value."""
    found: dict[str, tuple[Parameter, str]] = {}
    position = 0
    while position < len(words):
        word, equals, inline = words[position].partition("=")
        position += 1
        # llama-server reads underscores as dashes in long flags.
        known = BY_FLAG.get(word.replace("_", "-") if word.startswith("--") else word)
        if known is None:
            continue
        parameter, turned_on = known
        if parameter.kind is Kind.SWITCH:
            value = "" if turned_on else "off"
        elif equals:
            value = inline
        elif position < len(words):
            value = words[position]
            position += 1
        else:
            break
        flag = parameter.flags[0]
        found[flag] = (parameter, added(parameter, found.get(flag), value))
    return found


def added(parameter: Parameter, before: tuple[Parameter, str] | None, value: str) -> str:
    """The value of a flag that may have been given before: the last one counts, but chains of spec types add up.

    `none` disables the chain that it stands in, and no other.
    """
    if before is None or parameter.name != "llama_spec_type":
        return value
    chains = [one for one in (before[1], value) if NO_SPECULATION not in (part.strip() for part in one.split(","))]
    return ",".join(chains) or NO_SPECULATION


def speculation(given: Mapping[str, tuple[Parameter, str]]) -> tuple[tuple[str, str], ...]:
    """(flag without dashes, value) of every speculation flag."""
    return tuple((flag.lstrip("-"), value) for flag, (_, value) in given.items() if flag.startswith(SPECULATION))
