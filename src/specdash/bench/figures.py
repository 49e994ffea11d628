"""What many requests of one kind say together."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.bench.plausible import CACHED, SHORT
from specdash.bench.statistics import (
    Figure,
    acceptance_parts,
    decode_parts,
    median,
    percentiles,
    prefill_parts,
    rate,
    ratio,
    spread,
    usable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.bench.samples import Sample

_TAILS = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one class of prompts, or of all. Rates are tokens per second, times seconds; None is unknown."""

    requests: int
    failed: int
    unusable: int
    """Answered, but with figures that cannot be."""
    short: int
    empty: int
    prompts: int
    decode: Figure | None
    """Tokens after the first over the time they took, all requests together."""
    decode_median: Figure | None
    """Of single requests."""
    decode_mean: float | None
    """Mean of single requests' rates, as llama.cpp's speed-bench has it."""
    prefill: Figure | None
    ttft: Figure | None
    """Median, from when the request was due."""
    ttft_tail: tuple[float | None, ...]
    """At 50, 95 and 99 %."""
    latency: Figure | None
    latency_tail: tuple[float | None, ...]
    acceptance: Figure | None
    """Accepted over drafted tokens, all requests together."""
    acceptance_mean: float | None
    """Mean of single requests' rates."""
    accepted: int
    drafted: int
    mean_accepted_length: float | None
    """1 + accepted tokens per step that had a draft, where steps are known: llama.cpp's definition."""
    per_position: tuple[float, ...]
    """Share of verification steps whose draft token at position 0, 1, … was accepted; likewise."""
    by_run: tuple[float, ...]
    """Decode speed of each run."""
    acceptance_by_run: tuple[float | None, ...]
    from_drafts_by_run: tuple[float | None, ...]
    """Share of generated tokens that were accepted drafts, of each run."""
    tokens: int
    prompt_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, Any]:
        """For report.json; docs/bench-live.md says what each is."""
        told = spread(self.by_run)
        return {
            "requests": self.requests,
            "failed": self.failed,
            "unusable": self.unusable,
            "short": self.short,
            "empty": self.empty,
            "prompts": self.prompts,
            "decode_tokens_per_s": figure_json(self.decode),
            "decode_tokens_per_s_median": figure_json(self.decode_median),
            "decode_tokens_per_s_mean_of_requests": self.decode_mean,
            "decode_tokens_per_s_by_run": list(self.by_run),
            "decode_tokens_per_s_runs": None
            if told is None
            else {"mean": told.mean, "standard_deviation": told.deviation, "runs": told.count},
            "prefill_tokens_per_s": figure_json(self.prefill),
            "ttft_s": {**(figure_json(self.ttft) or {}), **_tail_json(self.ttft_tail)},
            "latency_s": {**(figure_json(self.latency) or {}), **_tail_json(self.latency_tail)},
            "acceptance": figure_json(self.acceptance),
            "acceptance_mean_of_requests": self.acceptance_mean,
            "acceptance_by_run": list(self.acceptance_by_run),
            "from_drafts_by_run": list(self.from_drafts_by_run),
            "accepted": self.accepted,
            "drafted": self.drafted,
            "mean_accepted_length": self.mean_accepted_length,
            "acceptance_per_position": list(self.per_position),
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
        }


def figures_of(samples: Sequence[Sample]) -> Figures:
    """Everything about these requests. Speeds leave out what failed and what cannot be; acceptance is exact counts and
    leaves out only what failed."""
    answered = [one for one in samples if not one.failed]
    good = usable(samples)
    rates = [one.decode_rate for one in good if one.decode_rate is not None]
    drafts = [one for one in answered if one.drafted]
    runs = sorted({one.run for one in samples})
    return Figures(
        requests=len(samples),
        failed=len(samples) - len(answered),
        unusable=len(answered) - len(good),
        short=sum(SHORT in one.flags for one in answered),
        empty=sum(one.empty for one in answered),
        prompts=len({one.prompt for one in samples}),
        decode=rate(good, decode_parts),
        decode_median=median(good, lambda one: one.decode_rate),
        decode_mean=statistics.fmean(rates) if rates else None,
        prefill=rate(good, prefill_parts),
        ttft=median(answered, lambda one: one.ttft_s),
        ttft_tail=_tail(answered, lambda one: one.ttft_s),
        latency=median(answered, lambda one: one.latency_s),
        latency_tail=_tail(answered, lambda one: one.latency_s),
        acceptance=rate(answered, acceptance_parts),
        acceptance_mean=statistics.fmean([(one.accepted or 0) / one.drafted for one in drafts if one.drafted])
        if drafts
        else None,
        accepted=sum(one.accepted or 0 for one in answered),
        drafted=sum(one.drafted or 0 for one in answered),
        mean_accepted_length=_mean_accepted_length(answered),
        per_position=_per_position(answered),
        by_run=tuple(value for run in runs if (value := _of_run(good, run, decode_parts)) is not None),
        acceptance_by_run=tuple(_of_run(answered, run, acceptance_parts) for run in runs),
        from_drafts_by_run=tuple(_of_run(answered, run, _from_drafts) for run in runs),
        tokens=sum(one.predicted_tokens or 0 for one in answered),
        prompt_tokens=sum(one.prompt_tokens or 0 for one in answered),
        cached_tokens=sum(one.cached_tokens or 0 for one in answered),
    )


def by_class(samples: Sequence[Sample]) -> dict[str, Figures]:
    """Of each class, by name."""
    kinds: dict[str, list[Sample]] = {}
    for one in samples:
        kinds.setdefault(one.kind, []).append(one)
    return {kind: figures_of(kinds[kind]) for kind in sorted(kinds)}


def faults(samples: Sequence[Sample]) -> dict[str, int]:
    """How many failed in which way."""
    return dict(Counter(one.fault or "unknown" for one in samples if one.failed).most_common())


def flags(samples: Sequence[Sample]) -> dict[str, int]:
    """How many are odd in which way."""
    return dict(Counter(flag for one in samples for flag in one.flags).most_common())


def was_cached(samples: Sequence[Sample]) -> int:
    """How many used a cache although none was to be used."""
    return sum(CACHED in one.flags for one in samples)


def percent(share: float | None) -> str:
    """`12.3 %`, `--` where it is unknown."""
    return "--" if share is None else f"{share * 100:.1f} %"


def figure_json(figure: Figure | None) -> dict[str, Any] | None:
    """Value, bounds of the 95 % interval, and of how many requests."""
    if figure is None:
        return None
    return {"value": figure.value, "low": figure.low, "high": figure.high, "count": figure.count}


def _tail(samples: Sequence[Sample], value_of: Callable[[Sample], float | None]) -> tuple[float | None, ...]:
    return tuple(percentiles([value for one in samples if (value := value_of(one)) is not None], _TAILS))


def _tail_json(tail: tuple[float | None, ...]) -> dict[str, Any]:
    return {f"p{share * 100:g}": value for share, value in zip(_TAILS, tail, strict=True)}


def _of_run(samples: Sequence[Sample], run: int, parts: Callable[[Sample], tuple[float, float] | None]) -> float | None:
    return ratio(told for one in samples if one.run == run and (told := parts(one)) is not None)


def _from_drafts(sample: Sample) -> tuple[float, float] | None:
    if sample.accepted is None or not sample.predicted_tokens:
        return None
    return float(sample.accepted), float(sample.predicted_tokens)


def _mean_accepted_length(samples: Sequence[Sample]) -> float | None:
    known = [(one.accepted, one.steps) for one in samples if one.steps and one.accepted is not None]
    steps = sum(count for _, count in known)
    return 1.0 + sum(accepted for accepted, _ in known) / steps if steps else None


def _per_position(samples: Sequence[Sample]) -> tuple[float, ...]:
    known = [one for one in samples if one.steps]
    steps = sum(one.steps or 0 for one in known)
    longest = max((len(one.accepted_per_position) for one in known), default=0)
    sums = [
        sum(one.accepted_per_position[at] for one in known if at < len(one.accepted_per_position))
        for at in range(longest)
    ]
    return tuple(value / steps for value in sums) if steps else ()
