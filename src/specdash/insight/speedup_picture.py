"""Whether speculation pays, as the picture has it: types only. Method and limits: docs/speedup.md.

Rates are tokens per second, fractions 0 to 1, moments Unix time. None is unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.core.baselines import Baseline


class Basis(StrEnum):
    """What the figure rests on."""

    MEASURED = "measured"
    """Against a recorded baseline of the same model, context and concurrency."""
    ESTIMATED = "estimate"
    """Modelled from the accepted length and the draft's cost (Leviathan et al. 2023)."""
    UNKNOWN = "unknown"


class Paying(StrEnum):
    """What can be said."""

    PAYING = "paying"
    EVEN = "no clear gain"
    HURTING = "hurting"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group of requests: a bucket of context lengths, a phase of the work, a stretch of the answers."""

    name: str
    requests: int
    acceptance: float | None = None
    mean_accepted_length: float | None = None
    decode_rate: float | None = None
    """Median of one request."""
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """One speculative implementation of a chain, since the server's start."""

    type: str
    drafts: int
    """Drafts that it made."""
    drafts_accepted: int
    """Of them, those with at least one accepted token."""
    tokens_drafted: int
    tokens_accepted: int
    acceptance: float | None = None
    mean_accepted_length: float | None = None
    acceptance_per_position: tuple[float, ...] = ()
    seconds: float | None = None
    """Time spent drafting."""


@dataclass(frozen=True, slots=True)
class SpeedUpPicture:
    """Net speed-up of decode against no speculation, over the window: 1 is no gain, below 1 it hurts."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    """Bounds of its 95 % interval."""
    basis: Basis = Basis.UNKNOWN
    verdict: Paying = Paying.UNKNOWN
    why: str = "no request has ended yet"
    """What it rests on, or why it is not known and what to do."""
    requests: int = 0
    """Finished requests that it rests on."""
    baseline: Baseline | None = None
    """The recorded one nearest to them."""
    decode_rate: float | None = None
    """Of these requests: tokens over decode time, of one request."""
    baseline_rate: float | None = None
    """What they would have had without speculation: recorded, or as the estimate has it."""
    mean_accepted_length: float | None = None
    """Their tokens per verification step."""
    draft_share: float | None = None
    """Share of their decode time that went into drafting; None where the log does not tell."""
    break_even_length: float | None = None
    """Tokens per verification step at which the speed-up is 1, with the cost of a step as it is."""
    break_even_acceptance: float | None = None
    """The acceptance that gives this length, with drafts as long as they are; None where none would do."""
    by_context: tuple[GroupFigures, ...] = ()
    """By context length at the request's end, shortest first."""
    by_generated: tuple[GroupFigures, ...] = ()
    """By how far the answer had come, from verification steps (LLAMA_TRACE=1), shortest first; `requests` counts the
    answers that got there."""
    by_phase: tuple[GroupFigures, ...] = ()
    """By kind of work."""
    by_type: tuple[TypeFigures, ...] = ()
    """Per speculative implementation, in their order of priority; empty where the log does not tell."""
