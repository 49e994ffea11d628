"""What many requests of one kind say together, with its uncertainty.

Rates are sums over sums (tokens over time), never means of rates: a class that decodes at half the speed takes twice
the time. What is drawn again for an interval is what varies on its own: prompts, and boots where there are several;
requests of one prompt, or of one boot, are not independent of each other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from specdash.bench.load.samples import CACHED, SHORT, UNUSABLE
from specdash.core.structs import json_of
from specdash.system import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdash.bench.load.samples import BenchSample

T = TypeVar("T")

LEAST_PROMPT = 16
"""Processing fewer tokens takes as long as one."""
_TAILS = (0.5, 0.95, 0.99)


class Figure(Struct, frozen=True):
    """A value with its 95 % interval; bounds are None where there is too little to tell."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 0
    """Of what it was made: requests, prompts or boots, as the figure says."""


class Figures(Struct, frozen=True):
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
        """For report.json; docs/measuring.md says what each is."""
        runs = stats.spread(self.by_run)
        return {
            **json_of(self, _FIGURES),
            "decode_tokens_per_s": json_of(self.decode),
            "decode_tokens_per_s_median": json_of(self.decode_median),
            "decode_tokens_per_s_mean_of_requests": self.decode_mean,
            "decode_tokens_per_s_by_run": list(self.by_run),
            "prefill_tokens_per_s": json_of(self.prefill),
            "acceptance_mean_of_requests": self.acceptance_mean,
            "acceptance_per_position": list(self.per_position),
            "decode_tokens_per_s_runs": None
            if runs is None
            else {"mean": runs.mean, "standard_deviation": runs.standard_deviation, "runs": runs.count},
            "ttft_s": {**(json_of(self.ttft) or {}), **_tail_json(self.ttft_tail)},
            "latency_s": {**(json_of(self.latency) or {}), **_tail_json(self.latency_tail)},
        }


_FIGURES = (
    "requests failed unusable short empty prompts acceptance acceptance_by_run from_drafts_by_run accepted drafted "
    "mean_accepted_length tokens prompt_tokens cached_tokens"
)


def usable(samples: Iterable[BenchSample]) -> list[BenchSample]:
    """Those that speeds may be computed from: answered, and with nothing that cannot be."""
    return [sample for sample in samples if not sample.failed and not UNUSABLE.intersection(sample.flags)]


def decode_parts(sample: BenchSample) -> tuple[float, float] | None:
    """Tokens after the first, and the seconds they took by the server's own clock."""
    if not sample.predicted_ms or sample.predicted_tokens is None or sample.predicted_tokens < 2:
        return None
    return sample.predicted_tokens - 1.0, sample.predicted_ms / 1000.0


def prefill_parts(sample: BenchSample) -> tuple[float, float] | None:
    """Prompt tokens that had to be processed, and the seconds they took; None where they are too few."""
    if not sample.prompt_ms or sample.prompt_tokens is None:
        return None
    processed = sample.prompt_tokens - (sample.cached_tokens or 0)
    return (float(processed), sample.prompt_ms / 1000.0) if processed >= LEAST_PROMPT else None


def acceptance_parts(sample: BenchSample) -> tuple[float, float] | None:
    if sample.drafted is None or sample.accepted is None:
        return None
    return float(sample.accepted), float(sample.drafted)


def rate(samples: Iterable[BenchSample], parts: Callable[[BenchSample], tuple[float, float] | None]) -> Figure | None:
    """A token-weighted rate, its interval by drawing prompts again; None where nothing has it."""
    sums: dict[str, tuple[float, float]] = {}
    found: list[tuple[str, tuple[float, float]]] = []
    for sample in samples:
        pair = parts(sample)
        if pair is not None:
            found.append((sample.prompt, pair))
            before = sums.get(sample.prompt, (0.0, 0.0))
            sums[sample.prompt] = (before[0] + pair[0], before[1] + pair[1])
    groups = list(sums.values())
    if len(groups) < 2:
        # Of one prompt, its runs are all that varies.
        groups = [pair for _, pair in found]
    return _figure(stats.ratio(groups), groups, stats.ratio, len(found))


def median(samples: Iterable[BenchSample], value_of: Callable[[BenchSample], float | None]) -> Figure | None:
    """The median over requests, its interval by drawing prompts again."""
    by_prompt: dict[str, list[float]] = {}
    for sample in samples:
        value = value_of(sample)
        if value is not None:
            by_prompt.setdefault(sample.prompt, []).append(value)
    groups = list(by_prompt.values())
    values = [value for group in groups for value in group]
    if len(groups) < 2:
        groups = [[value] for value in values]

    def middle(drawn: Sequence[list[float]]) -> float | None:
        return stats.median(value for group in drawn for value in group)

    return _figure(middle(groups), groups, middle, len(values))


def figures_of(samples: Sequence[BenchSample]) -> Figures:
    """Everything about these requests. Speeds leave out what failed and what cannot be; acceptance is exact counts and
    leaves out only what failed."""
    answered = [sample for sample in samples if not sample.failed]
    good = usable(samples)
    runs = sorted({sample.run for sample in samples})
    return Figures(
        requests=len(samples),
        failed=len(samples) - len(answered),
        unusable=len(answered) - len(good),
        short=sum(SHORT in bench_sample.flags for bench_sample in answered),
        empty=sum(bench_sample.empty for bench_sample in answered),
        prompts=len({sample.prompt for sample in samples}),
        decode=rate(good, decode_parts),
        decode_median=median(good, lambda bench_sample: bench_sample.decode_rate),
        decode_mean=stats.mean(bench_sample.decode_rate for bench_sample in good),
        prefill=rate(good, prefill_parts),
        ttft=median(answered, lambda bench_sample: bench_sample.ttft_s),
        ttft_tail=_tail(answered, lambda bench_sample: bench_sample.ttft_s),
        latency=median(answered, lambda bench_sample: bench_sample.latency_s),
        latency_tail=_tail(answered, lambda bench_sample: bench_sample.latency_s),
        acceptance=rate(answered, acceptance_parts),
        acceptance_mean=stats.mean(
            (bench_sample.accepted or 0) / bench_sample.drafted for bench_sample in answered if bench_sample.drafted
        ),
        accepted=sum(bench_sample.accepted or 0 for bench_sample in answered),
        drafted=sum(bench_sample.drafted or 0 for bench_sample in answered),
        mean_accepted_length=_mean_accepted_length(answered),
        per_position=_per_position(answered),
        by_run=tuple(value for run in runs if (value := _of_run(good, run, decode_parts)) is not None),
        acceptance_by_run=tuple(_of_run(answered, run, acceptance_parts) for run in runs),
        from_drafts_by_run=tuple(_of_run(answered, run, _from_drafts) for run in runs),
        tokens=sum(bench_sample.predicted_tokens or 0 for bench_sample in answered),
        prompt_tokens=sum(bench_sample.prompt_tokens or 0 for bench_sample in answered),
        cached_tokens=sum(bench_sample.cached_tokens or 0 for bench_sample in answered),
    )


def by_class(samples: Sequence[BenchSample]) -> dict[str, Figures]:
    """Of each class, by name."""
    kinds: dict[str, list[BenchSample]] = {}
    for sample in samples:
        kinds.setdefault(sample.kind, []).append(sample)
    return {kind: figures_of(kinds[kind]) for kind in sorted(kinds)}


def faults(samples: Sequence[BenchSample]) -> dict[str, int]:
    """How many failed in which way."""
    return dict(Counter(sample.fault or "unknown" for sample in samples if sample.failed).most_common())


def flags(samples: Sequence[BenchSample]) -> dict[str, int]:
    """How many are odd in which way."""
    return dict(Counter(flag for sample in samples for flag in sample.flags).most_common())


def was_cached(samples: Sequence[BenchSample]) -> int:
    """How many used a cache although none was to be used."""
    return sum(CACHED in sample.flags for sample in samples)


def value_of(figure: Figure | None) -> float | None:
    """Its value, where there is one."""
    return None if figure is None else figure.value


def _figure(
    value: float | None, groups: Sequence[T], statistic: Callable[[Sequence[T]], float | None], count: int
) -> Figure | None:
    if value is None:
        return None
    if len(groups) < 2:
        return Figure(value, None, None, count)
    found = stats.bootstrap([groups], statistic)
    return Figure(value, found.low, found.high, count)


def _tail(samples: Sequence[BenchSample], value_of: Callable[[BenchSample], float | None]) -> tuple[float | None, ...]:
    return tuple(stats.quantiles([value for sample in samples if (value := value_of(sample)) is not None], _TAILS))


def _tail_json(tail: tuple[float | None, ...]) -> dict[str, Any]:
    return {f"p{share * 100:g}": value for share, value in zip(_TAILS, tail, strict=True)}


def _of_run(
    samples: Sequence[BenchSample], run: int, parts: Callable[[BenchSample], tuple[float, float] | None]
) -> float | None:
    return stats.ratio(pair for sample in samples if sample.run == run and (pair := parts(sample)) is not None)


def _from_drafts(sample: BenchSample) -> tuple[float, float] | None:
    if sample.accepted is None or not sample.predicted_tokens:
        return None
    return float(sample.accepted), float(sample.predicted_tokens)


def _mean_accepted_length(samples: Sequence[BenchSample]) -> float | None:
    known = [(sample.accepted, sample.steps) for sample in samples if sample.steps and sample.accepted is not None]
    steps = sum(count for _, count in known)
    return 1.0 + sum(accepted for accepted, _ in known) / steps if steps else None


def _per_position(samples: Sequence[BenchSample]) -> tuple[float, ...]:
    known = [sample for sample in samples if sample.steps]
    steps = sum(bench_sample.steps or 0 for bench_sample in known)
    longest = max((len(bench_sample.accepted_per_position) for bench_sample in known), default=0)
    sums = [
        sum(
            bench_sample.accepted_per_position[at]
            for bench_sample in known
            if at < len(bench_sample.accepted_per_position)
        )
        for at in range(longest)
    ]
    return tuple(value / steps for value in sums) if steps else ()
