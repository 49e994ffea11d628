"""Masks secrets in command lines, so that no screen, log or bundle ever shows one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SECRET_FLAGS = frozenset({"--api-key", "--hf-token", "-hft", "--auth-token", "--password"})

MASK = "***"

_TOKEN = re.compile(r"\b(?:hf|sk|ghp|glpat)[_-][A-Za-z0-9_\-]{8,}")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


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
