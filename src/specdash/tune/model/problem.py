"""What a tuner is asked and given, as data: points of the search space, and what one boot of one point measured.

A *boot* is one start of the engine with one point, and the same prompts measured on it: the unit of replication,
because speeds differ from boot to boot by more than they do within one. Prompts are the same in every boot, so that two
boots are compared prompt by prompt.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.core.speculation import spec_type
from specdash.system.text import UNKNOWN, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from specdash.bench.load.samples import BenchSample


OFF = "none"


class Point(Struct, frozen=True):
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
        for kind in self.types:
            ngram = kind.startswith("ngram")
            longest = self.ngram_max if ngram else self.n_max
            words = [kind] if longest is None else [kind, f"{longest}" if ngram else f"n{longest}"]
            if least := self.ngram_min if ngram else self.n_min:
                words.append(f"min{least}")
            if not ngram and self.p_min:
                words.append(f"p{self.p_min:g}")
            if ngram and self.ngram_size is not None:
                words.append(f"size{self.ngram_size}")
            parts.append(" ".join(words))
        return " + ".join(parts)


class PromptResult(Struct, frozen=True):
    """One prompt on one boot. `seconds` is its decode time, without the first token, which is the prompt's."""

    prompt: str
    """Its id; the same prompt has the same id in every boot."""
    kind: str
    """Its declared class: coding, pattern, prose, agentic."""
    tokens: int
    seconds: float
    drafted: int = 0
    accepted: int = 0


class BootResult(Struct, frozen=True):
    """What one boot measured, or why it could not: out of memory, a refused setting, a crash."""

    point: Point
    prompts: tuple[PromptResult, ...] = ()
    failure: str = ""
    ttft_s: float | None = None
    """Median over the prompts."""
    out_of_memory: bool = False
    """Whether it failed for want of memory, so that points that need as much would fail too."""


class WorkloadShares(Struct, frozen=True):
    """Which share of the tokens each class of prompts has in the user's traffic; the shares add up to 1."""

    shares: tuple[tuple[str, float], ...]


class Budget(Struct, frozen=True):
    """How much may be spent. `restarts` counts boots, those of the race and of the confirmation too."""

    restarts: int = 12
    minutes: float | None = None


class Task(Struct, frozen=True):
    """What is to be tuned: the points to choose from, the one in force (one of them), and the limits."""

    points: tuple[Point, ...]
    start: Point
    workload: WorkloadShares
    budget: Budget = field(default_factory=Budget)
    least_gain: float = 0.02
    """What a change must gain to be worth a restart of a live service."""


class Stage(StrEnum):
    """What a boot is for."""

    CALIBRATE = "calibrate"
    EXPLORE = "explore"
    RACE = "race"
    CONFIRM = "confirm"


class NextBoot(Struct, frozen=True):
    """The next boot, and why in one sentence."""

    point: Point
    stage: Stage
    why: str


class TuneOutcome(Struct, frozen=True):
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

    @property
    def noise_words(self) -> str:
        """`1.2 %`, or `--`."""
        return noise_words(self.noise)


def noise_words(noise: float | None) -> str:
    """By how much boots of one configuration differ."""
    return UNKNOWN if noise is None else percent(noise, 1)


def mixture_speed(prompts: tuple[PromptResult, ...], workload: WorkloadShares) -> float | None:
    """Tokens per second on this workload: one over the sum of shares times seconds per token of each class.

    Never a mean of rates: a class that decodes at half the speed takes twice the time. None where a class with a share
    was not measured.
    """
    total = 0.0
    for kind, share in workload.shares:
        if share <= 0:
            continue
        tokens = sum(prompt.tokens for prompt in prompts if prompt.kind == kind)
        seconds = sum(prompt.seconds for prompt in prompts if prompt.kind == kind)
        if not tokens or seconds <= 0:
            return None
        total += share * seconds / tokens
    return 1.0 / total if total > 0 else None


# The search space: which points there are of chains of types. Lengths are spaced evenly in logarithms, as effects
# are.
#
# A knob that is None is left to the engine's default; the point in force is always among the points.


LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Longest drafts of a model."""
GATES = (0.0, 0.5, 0.75)
NGRAM_LENGTHS = (4, 8, 16, 32, 64)
NGRAM_LEAST = (None, 2)
"""Shortest drafts of ngram-mod, which keeps those of 48 tokens and more by default."""
NGRAM_SIZES = {"ngram-mod": (None, 12)}
"""Lengths of the n-gram that is looked up; the default of ngram-mod is 24, of the others 12."""
NGRAM_SIZES_ELSEWHERE = (None, 6)
BESIDE_A_MODEL = (16, 48, 64)
"""Lengths of n-gram drafts before a model that drafts where they find nothing."""


def points_of(chains: Iterable[Sequence[str]], start: Point, block: int | None = None) -> tuple[Point, ...]:
    """All points of these chains, the start first. `block`: the length of the blocks a block draft was trained on."""
    found = [start]
    for types in chains:
        found += _of_chain(tuple(types), block)
    return tuple(dict.fromkeys(found))


def _of_chain(types: tuple[str, ...], block: int | None) -> Iterator[Point]:
    models = [name for name in types if not name.startswith("ngram")]
    copies = [name for name in types if name.startswith("ngram")]
    if not types:
        yield Point()
    elif models and copies:
        for longest in _lengths(models[0], block):
            for gate in GATES:
                for copied in BESIDE_A_MODEL:
                    yield Point(types, n_max=longest, p_min=gate, ngram_max=copied)
    elif models:
        for longest in _lengths(models[0], block):
            for gate in GATES:
                yield Point(types, n_max=longest, p_min=gate)
    else:
        yield from _copying(types)


def _lengths(name: str, block: int | None) -> tuple[int, ...]:
    item = spec_type(name)
    longest = item.longest_draft(block) if item is not None else None
    return tuple(length for length in LENGTHS if longest is None or length <= longest)


def _copying(types: tuple[str, ...]) -> Iterator[Point]:
    item = spec_type(types[0])
    if item is None or item.max_parameter is None:
        yield Point(types)
        return
    for longest in NGRAM_LENGTHS:
        for least in NGRAM_LEAST if item.min_parameter is not None else (None,):
            for size in NGRAM_SIZES.get(item.name, NGRAM_SIZES_ELSEWHERE):
                if item.floor_parameter is None or size is None or size <= longest:
                    yield Point(types, ngram_max=longest, ngram_min=least, ngram_size=size)


def plain_results(samples: Iterable[BenchSample]) -> tuple[PromptResult, ...]:
    """Each prompt with its decode time; failed requests are left out."""
    return tuple(
        PromptResult(
            sample.prompt,
            sample.kind,
            sample.predicted_tokens - 1,
            sample.predicted_ms / 1000.0,
            sample.drafted or 0,
            sample.accepted or 0,
        )
        for sample in sorted(samples, key=lambda sample: sample.prompt)
        if not sample.failed and sample.predicted_ms and sample.predicted_tokens and sample.predicted_tokens >= 2
    )


def workload_of(kinds: Iterable[str], shares: Mapping[str, float] | None = None) -> WorkloadShares:
    """Shares of the classes that there are prompts of; all alike where none are given."""
    known = list(dict.fromkeys(kinds))
    given = {kind: (shares or {}).get(kind, 0.0) for kind in known} if shares else dict.fromkeys(known, 1.0)
    total = sum(given.values())
    if total <= 0:
        given, total = dict.fromkeys(known, 1.0), float(len(known))
    return WorkloadShares(tuple((kind, given[kind] / total) for kind in known))
