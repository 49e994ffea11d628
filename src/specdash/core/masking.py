"""Secrets inside texts that are no secrets themselves: flags that carry a key, and passwords in addresses; and the
flags in the argument vector of a llama-server, by the parameter catalogue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.core.parameter_catalogue import BY_FLAG
from specdash.core.parameters import ValueKind
from specdash.core.speculation import NO_SPECULATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.parameters import Parameter

    GivenFlags = dict[str, tuple[Parameter, str]]


MASK = "***"
SECRET_FLAGS = {"--hf-token", "--auth-token", "--password", "--mcp-servers-json"} | {
    flag for flag, (parameter, _) in BY_FLAG.items() if parameter.secret
}
_NAMES = "|".join(re.escape(flag).replace(r"\-", "[-_]") for flag in sorted(SECRET_FLAGS))
_FLAGS = re.compile(rf"(?<![\w-])((?:{_NAMES})(?:=|\s+))(?:\"[^\"]*\"|'[^']*'|[^\s'\"]+)")
_TOKEN = re.compile(r"\b(?:hf|sk|ghp|glpat)[_-][A-Za-z0-9_\-]{8,}")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_ADDRESS = re.compile(r"(://[^\s/@:]*):[^\s/@]+@")


def without_secrets(text: str) -> str:
    """`text` with the value of every flag that carries a key, and every password of a URL, replaced by `***`."""
    return _ADDRESS.sub(rf"\1:{MASK}@", _FLAGS.sub(rf"\1{MASK}", text))


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """The argument vector with the values of secret flags, tokens of known shape and URL passwords masked."""
    masked: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        is_secret = not hide_next and _spelled(name).lower() in SECRET_FLAGS
        if hide_next:
            masked.append(MASK)
        elif equals and is_secret:
            masked.append(f"{name}={MASK}")
        else:
            masked.append(_USERINFO.sub(MASK, _TOKEN.sub(MASK, word)))
        hide_next = is_secret and not equals
    return tuple(masked)


def _spelled(flag: str) -> str:
    """As the catalogue spells it: llama-server reads underscores as dashes in long flags."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def flags_of(words: Sequence[str], before: GivenFlags | None = None) -> GivenFlags:
    """Parameter and value of each known flag, by the catalogue's spelling of it; a switch that is on has no value.

    Of a flag that was given before, here or in `before`, the last value counts, but chains of spec types add up; `none`
    disables the chain that it stands in, and no other.
    """
    found = {**(before or {})}
    left = list(reversed(words))
    while left:
        word, equals, value = left.pop().partition("=")
        parameter, turned_on = BY_FLAG.get(_spelled(word), (None, False))
        if parameter is None:
            continue
        if parameter.kind is ValueKind.SWITCH:
            value = "" if turned_on else "off"
        elif not equals:
            if not left:
                break
            value = left.pop()
        flag = parameter.flags[0]
        if parameter.name == "llama_spec_type" and flag in found:
            chains = (found[flag][1], value)
            kept = [chain for chain in chains if NO_SPECULATION not in (part.strip() for part in chain.split(","))]
            value = ",".join(kept) or NO_SPECULATION
        found[flag] = (parameter, value)
    return found


def speculation(given: Mapping[str, tuple[Parameter, str]]) -> tuple[tuple[str, str], ...]:
    """(flag without dashes, value) of every speculation flag."""
    return tuple((flag.lstrip("-"), value) for flag, (_, value) in given.items() if flag.startswith("--spec-"))
