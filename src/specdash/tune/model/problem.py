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
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.bench.load.samples import BenchSample


OFF = "none"


class Point(Struct, frozen=True):
    """One way to speculate. `types` is the chain, empty for no speculation; a knob that it does not read is None.

    The knobs are those of `LLAMA_DRAFT_MAX`, `_MIN` and `_P_MIN`, of one type of the chain (`moved`).
    """

    types: tuple[str, ...] = ()
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None

    @property
    def moved(self) -> str | None:
        """The type whose knobs are turned: the one that drafts with a model, where there is none the n-gram type."""
        return next((name for name in self.types if not name.startswith("ngram")), next(iter(self.types), None))

    @property
    def name(self) -> str:
        """As people read it, another one for every point: `ngram-mod + draft-mtp n3 min1 p0.5`."""
        words = []
        if self.n_max is not None:
            words.append(f"n{self.n_max}")
        if self.n_min:
            words.append(f"min{self.n_min}")
        if self.p_min:
            words.append(f"p{self.p_min:g}")
        parts = [" ".join([kind, *words]) if kind == self.moved else kind for kind in self.types]
        return " + ".join(parts) or OFF


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

    @property
    def noise_words(self) -> str:
        """By how much boots of one configuration differ: `1.2 %`, or `--`."""
        return UNKNOWN if self.noise is None else percent(self.noise, 1)


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


def points_of(chains: Iterable[Sequence[str]], start: Point, block: int | None = None) -> tuple[Point, ...]:
    """All points of these chains, the start first. `block`: the length of the blocks a block draft was trained on."""
    found = [start]
    for types in map(tuple, chains):
        item = spec_type(Point(types).moved or OFF)
        if item is None or item.max_parameter is None:
            found.append(Point(types))
        elif item.name.startswith("ngram"):
            leasts = NGRAM_LEAST if item.min_parameter is not None else (None,)
            found += [Point(types, longest, least) for longest in NGRAM_LENGTHS for least in leasts]
        else:
            most = item.longest_draft(block)
            lengths = [length for length in LENGTHS if most is None or length <= most]
            found += [Point(types, longest, p_min=gate) for longest in lengths for gate in GATES]
    return tuple(dict.fromkeys(found))


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
