"""Secrets inside texts that are no secrets themselves: flags that carry a key, and passwords in addresses."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from specdash.core.parameter_catalogue import BY_FLAG
from specdash.core.parameters import ValueKind
from specdash.core.speculation import NO_SPECULATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.parameters import Parameter


MASK = "***"
SECRET_FLAGS = frozenset({"--api-key", "--hf-token", "-hft", "--auth-token", "--password", "--mcp-servers-json"})
_TOKEN = re.compile(r"\b(?:hf|sk|ghp|glpat)[_-][A-Za-z0-9_\-]{8,}")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_ADDRESS = re.compile(r"(://[^\s/@:]*):[^\s/@]+@")


@functools.cache
def _flags() -> re.Pattern[str]:
    spelled = sorted({flag for flag, (parameter, _) in BY_FLAG.items() if parameter.secret} | SECRET_FLAGS)
    names = "|".join(re.escape(flag).replace(r"\-", "[-_]") for flag in spelled)
    return re.compile(rf"(?<![\w-])((?:{names})(?:=|\s+))(?:\"[^\"]*\"|'[^']*'|[^\s'\"]+)")


def without_secrets(text: str) -> str:
    """`text` with the value of every flag that carries a key, and every password of a URL, replaced by `***`."""
    return _ADDRESS.sub(rf"\1:{MASK}@", _flags().sub(rf"\1{MASK}", text))


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """The argument vector with the values of secret flags, tokens of known shape and URL passwords masked."""
    masked: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        if hide_next:
            masked.append(MASK)
        elif equals and _is_secret(name):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(_USERINFO.sub(MASK, _TOKEN.sub(MASK, word)))
        hide_next = not hide_next and not equals and _is_secret(word)
    return tuple(masked)


def _is_secret(flag: str) -> bool:
    # llama-server reads underscores as dashes in long flags.
    return flag.replace("_", "-").lower() in SECRET_FLAGS


# The flags in the argument vector of a llama-server, by the parameter catalogue.

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
        if parameter.kind is ValueKind.SWITCH:
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
    chains = [name for name in (before[1], value) if NO_SPECULATION not in (part.strip() for part in name.split(","))]
    return ",".join(chains) or NO_SPECULATION


def speculation(given: Mapping[str, tuple[Parameter, str]]) -> tuple[tuple[str, str], ...]:
    """(flag without dashes, value) of every speculation flag."""
    return tuple((flag.lstrip("-"), value) for flag, (_, value) in given.items() if flag.startswith(SPECULATION))
