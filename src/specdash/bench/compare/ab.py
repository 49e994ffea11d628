"""An A/B of configurations as a report: what each measured, how it compares with the first, and what that shows."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from itertools import pairwise
from math import exp, expm1, log, sqrt
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.bench.compare.trials import rounds_of
from specdash.bench.load.figures import Figure, value_of
from specdash.bench.report import BenchReport, bounds, bullets, measured_on, page, section
from specdash.core.structs import json_of
from specdash.system import stats
from specdash.system.stats import median, spread
from specdash.system.text import (
    UNKNOWN,
    change,
    counted,
    gain,
    markdown_table,
    percent,
    seconds,
    significant,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.compare.trials import BootMeasurement, Candidate
    from specdash.system.stats import Spread

    Boot = Mapping[str, tuple[float, float]]
    """What one boot measured: tokens and seconds of each prompt, by its id."""


# Whether one configuration is faster than another, or the difference is within noise.
#
# The unit of replication is the boot: speeds differ from boot to boot by more than they do within one. So each round
# boots every configuration once, two configurations are compared round by round and prompt by prompt (`paired_log`),
# and every second round goes through them backwards, so that a drift of the machine cancels. Nothing is called real
# that its interval does not hold apart from no difference, and nothing is called better that gains less than is worth
# a restart.

LEAST_GAIN = 0.02
ALPHA = 0.05
MOST_ROUNDS = 200
"""More are not worth naming: no one waits for them."""


class ComparisonVerdict(StrEnum):
    FASTER = "real: faster"
    SLOWER = "real: slower"
    SMALL = "real, but too small to matter"
    SAME = "the same"
    """The whole interval lies within what does not matter."""
    NOISE = "within noise"


class CandidateComparison(Struct, frozen=True):
    """One configuration beside the reference. `gain` and its bounds are shares of the reference's speed, `figure` of
    the 95 % interval of this pair alone; the verdict holds all comparisons of a trial to 5 % together."""

    name: str
    verdict: ComparisonVerdict
    gain: float
    low: float | None
    high: float | None
    pairs: int
    before: stats.Spread
    after: stats.Spread
    """Decode tok/s of the boots, as UAP reports results: mean and sample standard deviation."""
    over_one_sigma: bool | None
    """UAP's "real (> 1 sigma)", for comparison; with three boots a side it calls a third of equals real."""
    more_rounds: int | None = None
    """How many more would decide, as far as these tell; None where it is decided, or no number would."""
    only_alone: bool = False
    """Its own interval holds no zero, but not at the strictness that all comparisons together need."""
    hopeless: bool = False
    """It is not decided, and more rounds alone will not do it: the difference is as small as what matters, or prompts
    gain too differently."""


def order(names: Sequence[str], rounds: int, seed: int) -> list[tuple[int, str]]:
    """Which configuration is booted in which round: every round has each once; each pair of rounds is one random order,
    and that backwards.

    Over such a pair all names stand at the same place on average, so that a steady change cancels.
    """
    random = Random(f"rounds/{seed}")  # noqa: S311 - an order, no secret
    turns: list[list[str]] = []
    for number in range(rounds):
        turns.append(random.sample(list(names), len(names)) if number % 2 == 0 else turns[-1][::-1])
    return [(number, name) for number, turn in enumerate(turns) for name in turn]


def compare(
    name: str,
    blocks: Sequence[tuple[Boot, Boot]],
    *,
    comparisons: int = 1,
    least_gain: float = LEAST_GAIN,
) -> CandidateComparison | None:
    """Judge pairs of boots of the reference and of `name`; None where no two boots have a prompt in common.

    `comparisons` is how many configurations are compared with the reference: the more, the surer each has to be.
    """
    found = paired_log(blocks)
    if found is None:
        return None
    before, after = (stats.spread([_rate(pair[side]) for pair in blocks]) for side in (0, 1))
    if before is None or after is None:
        return None
    low, high = _bounds(found, ALPHA)
    verdict = judge(found, ALPHA / comparisons, least_gain)
    more = None
    if verdict is ComparisonVerdict.NOISE:
        more = rounds_to_decide(found, ALPHA / comparisons, least_gain)
    return CandidateComparison(
        name=name,
        verdict=verdict,
        gain=expm1(found.mean),
        low=None if low is None else expm1(low),
        high=None if high is None else expm1(high),
        pairs=found.pairs,
        before=before,
        after=after,
        over_one_sigma=is_over_one_sigma(before, after),
        more_rounds=more,
        only_alone=verdict is ComparisonVerdict.NOISE
        and judge(found, ALPHA, least_gain) is not ComparisonVerdict.NOISE,
        hopeless=verdict is ComparisonVerdict.NOISE and more is None,
    )


def judge(found: PairedLog, alpha: float, least_gain: float = LEAST_GAIN) -> ComparisonVerdict:
    """The verdict on one difference, wrong in at most `alpha` of the cases where there is none.

    One pair of boots is never enough: how much boots differ is not known of it.
    """
    if found.pairs < 2 or found.variance is None:
        return ComparisonVerdict.NOISE
    low, high = _bounds(found, alpha)
    if low is None or high is None:
        return ComparisonVerdict.NOISE
    least = log(1 + least_gain)
    if -least < low and high < least:
        return ComparisonVerdict.SAME
    if low <= 0 <= high:
        return ComparisonVerdict.NOISE
    if abs(found.mean) < least:
        return ComparisonVerdict.SMALL
    return ComparisonVerdict.FASTER if found.mean > 0 else ComparisonVerdict.SLOWER


def rounds_to_decide(found: PairedLog, alpha: float, least_gain: float = LEAST_GAIN) -> int | None:
    """How many more rounds would take the verdict out of the noise if mean and scatter stay; None for no number."""
    for pairs in range(max(2, found.pairs + 1), MOST_ROUNDS + 1):
        then = replace(found, of_boots=found.of_boots * found.pairs / pairs, pairs=pairs)
        if judge(then, alpha, least_gain) is not ComparisonVerdict.NOISE:
            return pairs - found.pairs
    return None


def boots_figure(boots: Sequence[Boot]) -> Figure | None:
    """Tokens a second over all boots, with a 95 % interval from boot to boot."""
    rates = [log(_rate(boot)) for boot in boots if boot]
    if not rates:
        return None
    mean, reach = sum(rates) / len(rates), stats.mean_reach(rates, ALPHA)
    if reach is None:
        return Figure(exp(mean), None, None, 1)
    return Figure(exp(mean), exp(mean - reach), exp(mean + reach), len(rates))


def is_over_one_sigma(before: stats.Spread, after: stats.Spread) -> bool | None:
    """UAP's "REAL (>1sigma)": the means are further apart than one standard deviation, pooled over both sides.

    With three values a side it calls three in ten pairs of equals real, so it stands beside an interval, never alone.
    None where a side has one value.
    """
    of_before, of_after = before.standard_deviation, after.standard_deviation
    if of_before is None or of_after is None:
        return None
    freedom = before.count + after.count - 2
    pooled = sqrt(((before.count - 1) * of_before**2 + (after.count - 1) * of_after**2) / freedom)
    return abs(after.mean - before.mean) > pooled


def speed_ratio(before: Boot, after: Boot) -> float | None:
    """How many times faster `after` was on the prompts that both measured, all tokens weighing the same."""
    common = before.keys() & after.keys()
    old, new = stats.ratio(before[name] for name in common), stats.ratio(after[name] for name in common)
    return new / old if old and new else None


class PairedLog(Struct, frozen=True):
    """The logarithm of a ratio of speeds, `mean`, and the parts of its variance.

    `of_boots` is from pair to pair, which holds the luck of a boot and shrinks with more pairs; `of_prompts` is what
    prompts add by gaining differently, and shrinks with more prompts only.
    """

    mean: float
    of_boots: float
    of_prompts: float
    pairs: int
    prompts: int

    @property
    def variance(self) -> float | None:
        """None where there is too little to tell: one pair and one prompt."""
        found = self.of_boots + self.of_prompts
        return found if found > 0 and (self.pairs > 1 or self.prompts >= 2) else None

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance, by Satterthwaite's rule."""
        found = (self.of_boots**2 / (self.pairs - 1) if self.pairs > 1 else 0.0) + (
            self.of_prompts**2 / (self.prompts - 1) if self.prompts > 1 else 0.0
        )
        return (self.of_boots + self.of_prompts) ** 2 / found if found > 0 else 1.0


def paired_log(blocks: Sequence[tuple[Boot, Boot]]) -> PairedLog | None:
    """How the second of each pair of boots compares with the first, prompt by prompt.

    Prompts and pairs of boots both vary, and cross: the variance is that between pairs, plus that between prompts, less
    what is in both (Cameron, Gelbach and Miller 2011); checked on simulated boots without a difference, where
    resampling both was far too wide. Of one pair it knows prompts only, not how much boots differ.
    """
    pairs = [(before, after, found) for before, after in blocks if (found := speed_ratio(before, after)) is not None]
    if not pairs:
        return None
    logs = [log(found) for _, _, found in pairs]
    count = len(pairs)
    of_boots = (stats.variance(logs) or 0.0) / count
    cells = [_shares_of_gain(before, after) for before, after, _ in pairs]
    names = {name for cell in cells for name in cell}
    sums = [sum(cell.get(name, 0.0) for cell in cells) / count for name in names]
    widened = len(names) / max(1, len(names) - 1)
    of_prompts = widened * sum(value**2 for value in sums)
    of_both = widened * sum(value**2 for cell in cells for value in cell.values()) / count**2 if count > 1 else 0.0
    return PairedLog(sum(logs) / count, of_boots, max(0.0, of_prompts - of_both), count, len(names))


def pairs_of(rounds: Mapping[int, Mapping[str, Boot]], before: str, after: str) -> list[tuple[Boot, Boot]]:
    """The rounds in which both were measured."""
    return [
        (mapping[before], mapping[after]) for mapping in rounds.values() if mapping.get(before) and mapping.get(after)
    ]


def _bounds(found: PairedLog, alpha: float) -> tuple[float | None, float | None]:
    variance = found.variance
    if variance is None:
        return None, None
    # Pairs that agree by chance make the share of prompts look large, and with it the freedom: that of pairs is safe.
    freedom = min(found.freedom, found.pairs - 1) if found.pairs > 1 else found.freedom
    reach = stats.student(freedom, alpha) * sqrt(variance)
    return found.mean - reach, found.mean + reach


def _rate(boot: Boot) -> float:
    return stats.ratio(boot.values()) or float("nan")


def _shares_of_gain(before: Boot, after: Boot) -> dict[str, float]:
    """How much each prompt pulls the logarithm of the ratio of speeds up; all together nothing."""
    common = before.keys() & after.keys()
    sums = [sum(side[name][part] for name in common) for side in (before, after) for part in (0, 1)]
    return {
        name: (after[name][0] / sums[2] - after[name][1] / sums[3])
        - (before[name][0] / sums[0] - before[name][1] / sums[1])
        for name in common
    }


SCHEMA = "specdash.bench.compare.ab/1"
_TREND = 0.02


class AbSide(Struct, frozen=True):
    """What one configuration measured. Rates are tokens per second, times seconds."""

    name: str
    words: str
    boots: int
    failures: tuple[str, ...]
    decode: Figure | None
    """Geometric mean over boots, with a 95 % interval from boot to boot."""
    decode_boots: Spread | None
    acceptance: Spread | None
    ttft_s: float | None
    """Median."""
    up_s: float | None
    """Median time until it was up."""


@dataclasses.dataclass(frozen=True, slots=True)
class AbReport:
    """All of it. The first candidate is the reference."""

    candidates: tuple[Candidate, ...]
    booted: tuple[BootMeasurement, ...]
    facts: Mapping[str, Any]
    """How it was measured, for report.json: fingerprint, bed, options, seed."""
    notes: tuple[str, ...] = ()
    least_gain: float = LEAST_GAIN
    stopped: bool = False
    identical: frozenset[str] = frozenset()
    """Those that are the reference under another name: the engine gets the same arguments."""
    sides: tuple[AbSide, ...] = dataclasses.field(init=False)
    comparisons: tuple[CandidateComparison, ...] = dataclasses.field(init=False)
    by_class: Mapping[str, tuple[CandidateComparison, ...]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sides", tuple(_side(candidate, self.booted) for candidate in self.candidates))
        kinds = sorted({sample.kind for measurement in self.booted for sample in measurement.samples})
        object.__setattr__(self, "comparisons", self._compared(None))
        by_class = {kind: found for kind in kinds if (found := self._compared(kind))} if len(kinds) > 1 else {}
        object.__setattr__(self, "by_class", by_class)

    def _compared(self, kind: str | None) -> tuple[CandidateComparison, ...]:
        rounds = rounds_of(self.booted, kind)
        first, *others = [candidate.name for candidate in self.candidates]
        count = max(1, len(others))
        made = (
            compare(name, pairs_of(rounds, first, name), comparisons=count, least_gain=self.least_gain)
            for name in others
        )
        return tuple(comparison for comparison in made if comparison is not None)

    @property
    def reference(self) -> str:
        return self.candidates[0].name

    @property
    def more_rounds(self) -> int:
        """How many more rounds would separate what can be separated."""
        return max(
            (comparison.more_rounds or 0 for comparison in self.comparisons if comparison.name not in self.identical),
            default=0,
        )

    @property
    def winner(self) -> str | None:
        """The one with the largest gain of those that are really faster than the reference; None when none is."""
        different = [comparison for comparison in self.comparisons if comparison.name not in self.identical]
        faster = [comparison for comparison in different if comparison.verdict is ComparisonVerdict.FASTER]
        return max(faster, key=lambda comparison: comparison.gain).name if faster else None

    @property
    def not_apart(self) -> tuple[str, ...]:
        """Those that the winner cannot be distinguished from, the reference never among them."""
        best = self.winner
        if best is None:
            return ()
        rounds = rounds_of(self.booted)
        found = []
        for comparison in self.comparisons:
            if comparison.name == best:
                continue
            other = compare(comparison.name, pairs_of(rounds, best, comparison.name), comparisons=len(self.comparisons))
            if other is None or other.verdict is not ComparisonVerdict.SLOWER:
                found.append(comparison.name)
        return tuple(found)

    @property
    def decided(self) -> bool:
        """Whether every configuration that came up was distinguished from the reference, or found to be as fast."""
        return bool(self.comparisons) and all(
            comparison.verdict is not ComparisonVerdict.NOISE or comparison.name in self.identical
            for comparison in self.comparisons
        )

    @property
    def conclusion(self) -> list[str]:
        """Its conclusions, a sentence each."""
        found = []
        best = self.winner
        if best is not None:
            comparison = next(comparison for comparison in self.comparisons if comparison.name == best)
            found.append(f"{best} is faster than {self.reference}: {gain_words(comparison)}")
            if self.not_apart:
                found.append(f"it cannot be distinguished from {' and '.join(self.not_apart)}")
        elif self.comparisons:
            found.append(f"nothing was found to be faster than {self.reference}")
        found += [alone_words(comparison) for comparison in self.comparisons if comparison.only_alone]
        for comparison in self.comparisons:
            if comparison.name in self.identical:
                apart = gain_words(comparison)
                found.append(
                    f"{comparison.name} is {self.reference} to the engine, with the very same settings: {apart} is "
                    "how far boots of one configuration differ, and more rounds can show nothing else"
                )
            elif comparison.more_rounds is not None:
                rounds = counted(comparison.more_rounds, "more round")
                found.append(f"{comparison.name}: {rounds} would decide, if boots go on to differ so")
            elif comparison.hopeless:
                found.append(
                    f"{comparison.name}: more rounds alone will not decide; the difference is about as small as "
                    f"what matters ({percent(self.least_gain)}), or prompts gain too differently: more prompts, or a "
                    "class of its own"
                )
        found += [
            f"{side.name} was not measured: {side.failures[-1]}"
            if not side.boots
            else f"{side.name}: {side.failures[-1]}"
            for side in self.sides
            if side.failures
        ]
        drift = _drift(self.booted, self.reference)
        if drift is not None:
            found.append(drift)
        return found


def report(ab: AbReport) -> BenchReport:
    """All files of the report, and what the terminal shows; docs/measuring.md says what each figure is."""
    document = {
        "schema": SCHEMA,
        **ab.facts,
        **json_of(ab, "stopped reference winner least_gain conclusion notes"),
        "winner_not_told_apart_from": list(ab.not_apart),
        "same_as_the_reference": sorted(ab.identical),
        "configurations": [
            {
                **json_of(side, "name boots failures ttft_s up_s"),
                "sets": side.words,
                "decode_tokens_per_s": json_of(side.decode),
                "decode_tokens_per_s_boots": json_of(side.decode_boots),
                "acceptance_boots": json_of(side.acceptance),
            }
            for side in ab.sides
        ],
        "comparisons": [comparison_json(comparison) for comparison in ab.comparisons],
        "by_class": {kind: [comparison_json(item) for item in items] for kind, items in ab.by_class.items()},
    }
    tables = speeds_table(ab), comparison_table(ab)
    notes = (*ab.conclusion, *ab.notes)
    gains = {kind: {item.name: gain_words(item) for item in items} for kind, items in ab.by_class.items()}
    lines = [*table(tables[0]), "", *table(tables[1]), ""]
    lines += [
        f"{kind + ':':<10} {', '.join(f'{name} {words}' for name, words in of.items())}" for kind, of in gains.items()
    ]
    lines += [*([""] if gains else []), *bullets(notes)]
    names = [comparison.name for comparison in ab.comparisons]
    rows = [["class", *names], *([kind, *(of.get(name, UNKNOWN) for name in names)] for kind, of in gains.items())]
    sets = [["configuration", "sets"], *([side.name, f"`{side.words}`"] for side in ab.sides)]
    text = page(
        "bench ab",
        *map(markdown_table, tables),
        section("By class", markdown_table(rows)) if gains else "",
        section("Conclusion", notes),
        section("Configurations", markdown_table(sets)),
        measured_on(ab.facts),
    )
    return BenchReport(document, lines, text)


def comparison_json(comparison: CandidateComparison) -> dict[str, Any]:
    """One comparison, in a report of ab or matrix."""
    value: dict[str, Any] = json_of(comparison)
    value["reference_tokens_per_s"], value["tokens_per_s"] = value.pop("before"), value.pop("after")
    return value


def speeds_table(ab: AbReport) -> list[list[str]]:
    """Headings, then a row a configuration."""
    return [
        ["configuration", "boots", "decode tok/s", "95 % interval", "mean ± sd", "acceptance", "TTFT"],
        *(
            [
                side.name,
                f"{side.boots}" + (f" ({len(side.failures)} failed)" if side.failures else ""),
                significant(value_of(side.decode), 4),
                bounds(side.decode.low, side.decode.high) if side.decode is not None else UNKNOWN,
                spread_words(side.decode_boots),
                spread_words(side.acceptance, share=True),
                seconds(side.ttft_s),
            ]
            for side in ab.sides
        ),
    ]


def comparison_table(ab: AbReport) -> list[list[str]]:
    """Headings, then a row for each configuration but the reference."""
    rows = [[f"against {ab.reference}", "gain", "95 % interval", "verdict", "1-sigma rule", "rounds"]]
    by_name = {comparison.name: comparison for comparison in ab.comparisons}
    for candidate in ab.candidates[1:]:
        item = by_name.get(candidate.name)
        if item is None:
            rows.append([candidate.name, UNKNOWN, UNKNOWN, "not measured", UNKNOWN, "0"])
            continue
        verdict = "same settings" if item.name in ab.identical else str(item.verdict)
        sigma = SIGMA[item.over_one_sigma] or UNKNOWN
        interval = UNKNOWN if item.low is None else f"{change(item.low)} to {change(item.high)}"
        rows.append([item.name, change(item.gain), interval, verdict, sigma, str(item.pairs)])
    return rows


SIGMA = {True: "REAL (> 1 sigma)", False: "within noise", None: ""}


def gain_words(comparison: CandidateComparison) -> str:
    """Its gain with the interval: `+12.3 % [+8.1, +16.7]`."""
    return gain(comparison.gain, comparison.low, comparison.high)


def alone_words(comparison: CandidateComparison) -> str:
    """Why the verdict is stricter than the interval beside it."""
    why = "its interval alone says more, but of several comparisons one goes wrong easily: compare it alone"
    return f"{comparison.name}: {why}"


def spread_words(item: Spread | None, *, share: bool = False) -> str:
    """Mean ± sample standard deviation."""
    if item is None:
        return UNKNOWN
    middle, deviation = (
        (percent(item.mean, 1), percent(item.standard_deviation, 1, ""))
        if share
        else (significant(item.mean, 4), significant(item.standard_deviation, 2))
    )
    return middle if item.standard_deviation is None else f"{middle} ± {deviation}"


def rates_of(booted: Sequence[BootMeasurement], name: str, kind: str | None = None) -> tuple[float, ...]:
    """Decode speed of each boot of a configuration."""
    found = (
        boots_figure([measurement.boot(kind)])
        for measurement in booted
        if measurement.name == name and not measurement.failure
    )
    return tuple(figure.value for figure in found if figure is not None)


def _side(candidate: Candidate, booted: Sequence[BootMeasurement]) -> AbSide:
    mine = [measurement for measurement in booted if measurement.name == candidate.name]
    good = [measurement for measurement in mine if not measurement.failure and measurement.boot()]
    return AbSide(
        name=candidate.name,
        words=candidate.words,
        boots=len(good),
        failures=tuple(measurement.failure for measurement in mine if measurement.failure),
        decode=boots_figure([measurement.boot() for measurement in good]),
        decode_boots=spread(rates_of(good, candidate.name)),
        acceptance=spread([value for measurement in good if (value := measurement.acceptance()) is not None]),
        ttft_s=median(sample.ttft_s for measurement in good for sample in measurement.samples),
        up_s=median(measurement.up_s for measurement in good),
    )


def _drift(booted: Sequence[BootMeasurement], reference: str) -> str | None:
    """A reference that got slower or faster all the time: the order cancels that, but someone should know."""
    rates = rates_of(booted, reference)
    if len(rates) < 4:
        return None
    falling = all(after < before for before, after in pairwise(rates))
    rising = all(after > before for before, after in pairwise(rates))
    drift = rates[-1] / rates[0] - 1
    if not (falling or rising) or abs(drift) < _TREND:
        return None
    return f"{reference} changed by {change(drift)} from its first boot to its last, steadily: heat or a power limit?"
