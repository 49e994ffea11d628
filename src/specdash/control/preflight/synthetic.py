"""Synthetic acceptance (`--spec-synth-len`, `--spec-synth-rates`): what llama.cpp b11434 would not start with."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from specdash.core.parameter_catalogue import BY_NAME

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject
    from specdash.core.speculation import SpecType

RATES, LENGTH = "spec-synth-rates", "spec-synth-len"
_DROP = f"remove --{RATES} and --{LENGTH}"


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of simulated acceptance, the first thing only."""
    rates, length = subject.settings.text(RATES), subject.settings.value(LENGTH)
    if rates is None and length is None:
        return
    types = subject.spec_types
    if rates is not None and length is not None:
        said, key = f"{subject.named(RATES)} and {subject.named(LENGTH)} exclude each other", subject.source(RATES)
        fix = "remove one of them"
    elif not subject.readable("llama_spec_type"):
        return
    elif not types:
        key = subject.source(RATES if rates is not None else LENGTH)
        said, fix = (
            f"{key} asks for synthetic acceptance, and nothing speculates",
            f"set {subject.spec_change('TYPE')}, or {_DROP}",
        )
    elif rates is not None:
        key = subject.source(RATES)
        said, fix = _rates(subject, rates, longest_draft(subject, types))
    else:
        key = subject.source(LENGTH)
        said, fix = _length(subject, float(length or 0), longest_draft(subject, types))
    if said:
        out.error("synthetic", f"{said}: the server would not start", key=key, fix=fix)


def _rates(subject: Subject, text: str, longest: int) -> tuple[str, str]:
    """What is wrong with the rates, and what to do; two empty texts where nothing is."""
    named = subject.named(RATES)
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        return f"{named}: not numbers with commas between them", "correct the values"
    if len(rates) != longest:
        said = f"{named}: {len(rates)} rates, and the longest draft has {longest} tokens"
        return said, f"write {longest} values, or {_DROP}"
    if any(not 0 <= one <= 1 for one in rates):
        return f"{named}: a rate is not between 0 and 1", "correct the values"
    if any(later > earlier for earlier, later in pairwise(rates)):
        return f"{named}: rates rise, but no token is accepted more often than the one before it", "correct the values"
    return "", ""


def _length(subject: Subject, length: float, longest: int) -> tuple[str, str]:
    if math.isfinite(length) and 1 <= length <= longest + 1:
        return "", ""
    said = f"{subject.named(LENGTH)}: not between 1 and {longest + 1}, the longest draft and the token after it"
    return said, "correct the value, or draft longer"


def longest_draft(subject: Subject, types: list[SpecType]) -> int:
    """Tokens of the longest draft that any type of the chain makes."""
    return max(_longest(subject, one) for one in types)


def _longest(subject: Subject, one: SpecType) -> int:
    if one.max_parameter is None:
        return one.fixed_draft_length or 0
    asked = int(subject.settings.value(one.max_parameter) or BY_NAME[one.max_parameter].default or 0)
    size = subject.draft.number("block_size") if subject.draft is not None else None
    if one.block_margin is None or not size:
        return asked
    return min(asked, size - one.block_margin)
