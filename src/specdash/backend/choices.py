"""What specdash decides by itself where a setting says `auto`, and why: data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """The spec types that `LLAMA_SPEC_TYPE=auto` stands for, and why. `uses_draft`: a draft model given is loaded."""

    types: tuple[str, ...]
    because: str
    uses_draft: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """One value that `auto` became: the parameter, the value in words, why, and the arithmetic line by line."""

    name: str
    value: str
    because: str
    steps: tuple[str, ...] = ()
