"""What a tuner is asked and told, as data: points of the search space, and what one boot of one point measured.

A *boot* is one start of the engine with one point, and the same prompts measured on it: the unit of replication,
because speeds differ from boot to boot by more than they do within one. Prompts are the same in every boot, so that two
boots are compared prompt by prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

OFF = "none"


@dataclass(frozen=True, slots=True)
class Point:
    """One way to speculate. `types` is the chain, empty for no speculation; a knob that it does not read is None.

    `n_max` and `p_min` are of the type that drafts with a model (`--spec-draft-n-max`, `--spec-draft-p-min`);
    `ngram_max` is the longest draft of the n-gram type (`--spec-ngram-mod-n-max`, `--spec-ngram-*-size-m`).
    """

    types: tuple[str, ...] = ()
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None
    ngram_max: int | None = None
    ngram_min: int | None = None
    ngram_size: int | None = None

    @property
    def name(self) -> str:
        """As people read it, another one for every point: `draft-mtp n3 min1 p0.5 + ngram-mod 48 min2 size12`."""
        if not self.types:
            return OFF
        parts = []
        for one in self.types:
            ngram = one.startswith("ngram")
            longest = self.ngram_max if ngram else self.n_max
            words = [one] if longest is None else [one, f"{longest}" if ngram else f"n{longest}"]
            if least := self.ngram_min if ngram else self.n_min:
                words.append(f"min{least}")
            if not ngram and self.p_min:
                words.append(f"p{self.p_min:g}")
            if ngram and self.ngram_size is not None:
                words.append(f"size{self.ngram_size}")
            parts.append(" ".join(words))
        return " + ".join(parts)

    @property
    def drafts_every_step(self) -> bool:
        """Whether no step is without a draft: a gate or a least length drops drafts, n-grams are often not found."""
        copies = any(one.startswith("ngram") for one in self.types)
        return bool(self.types) and not (copies or self.p_min or self.n_min)


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt on one boot. `seconds` is its decode time, without the first token, which is the prompt's."""

    prompt: str
    """Its id; the same prompt has the same id in every boot."""
    kind: str
    """Its declared class: coding, pattern, prose, agentic."""
    tokens: int
    seconds: float
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    """Verification steps."""
    accepted_per_position: tuple[int, ...] = ()
    """Steps whose draft token at position 0, 1, ... was accepted; empty where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class BootResult:
    """What one boot measured, or why it could not: out of memory, a refused setting, a crash."""

    point: Point
    prompts: tuple[PromptResult, ...] = ()
    draft_s: float | None = None
    """Time that went into drafting, of all prompts together; None where the log does not tell."""
    failure: str = ""
    ttft_s: float | None = None
    """Median over the prompts."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Which share of the tokens each class of prompts has in the user's traffic; the shares add up to 1."""

    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent. `restarts` counts boots, those of the race and of the confirmation too."""

    restarts: int = 12
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be tuned: the points to choose from, the one in force (one of them), and the limits."""

    points: tuple[Point, ...]
    start: Point
    workload: Workload
    budget: Budget = field(default_factory=Budget)
    least_gain: float = 0.02
    """What a change must gain to be worth a restart of a live service."""


class Stage(StrEnum):
    """What a boot is for."""

    CALIBRATE = "calibrate"
    EXPLORE = "explore"
    RACE = "race"
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True)
class Ask:
    """The next boot, and why in one sentence."""

    point: Point
    stage: Stage
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `gain` is of decode speed over the start, with its 90 % interval; `chosen` is the start itself when
    nothing was confirmed to be better."""

    chosen: Point
    improved: bool
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    restarts: int = 0
    why: str = ""
    noise: float | None = None
    """Standard deviation of the logarithm of speed from boot to boot, as it was seen."""
    confirmed: bool = True
    """Whether the start was booted once more since, so that its first boot alone did not make the gain."""
    noise_is_more: bool = False
    """Whether the noise may be larger than that: it is the largest that is looked for."""

    @property
    def noise_words(self) -> str:
        """`1.2%`, `more than 23%`, or `--`."""
        return noise_words(self.noise, is_more=self.noise_is_more)


def noise_words(noise: float | None, *, is_more: bool) -> str:
    """By how much boots of one configuration differ."""
    if noise is None:
        return "--"
    return f"more than {noise:.0%}" if is_more else f"{noise:.1%}"


class Tuner(Protocol):
    """Asked for boots until it has an outcome. Pure: whoever drives it boots, measures and restores."""

    def ask(self) -> Ask | None:
        """The next boot; None when it is done."""

    def tell(self, result: BootResult) -> None:
        """What the boot asked for last measured."""

    def outcome(self) -> Outcome:
        """The verdict so far; final once `ask` gives None."""


def mixture_speed(prompts: tuple[PromptResult, ...], workload: Workload) -> float | None:
    """Tokens per second on this workload: one over the sum of shares times seconds per token of each class.

    Never a mean of rates: a class that decodes at half the speed takes twice the time. None where a class with a share
    was not measured.
    """
    total = 0.0
    for kind, share in workload.shares:
        if share <= 0:
            continue
        tokens = sum(one.tokens for one in prompts if one.kind == kind)
        seconds = sum(one.seconds for one in prompts if one.kind == kind)
        if not tokens or seconds <= 0:
            return None
        total += share * seconds / tokens
    return 1.0 / total if total > 0 else None
