"""An A/B of configurations as a report: what each measured, how it compares with the first, and what that tells."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specdash.bench.figures import figure_json
from specdash.bench.results import REPORT_JSON, REPORT_MD
from specdash.bench.statistics import spread
from specdash.bench.trials import rounds_of
from specdash.bench.verdict import LEAST_GAIN, Comparison, Verdict, boots_figure, compare, pairs_of
from specdash.core.change_words import between_words, change_words
from specdash.export.rows_svg import Row, Rows, draw_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.configurations import Candidate
    from specdash.bench.results import Results
    from specdash.bench.statistics import Figure, Spread
    from specdash.bench.trials import Booted

SCHEMA = "specdash.bench.ab/1"
UNKNOWN = "--"
_TREND = 0.02


@dataclass(frozen=True, slots=True)
class Side:
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


@dataclass(frozen=True, slots=True)
class Ab:
    """All of it. The first candidate is the reference."""

    candidates: tuple[Candidate, ...]
    booted: tuple[Booted, ...]
    facts: Mapping[str, Any]
    """How it was measured, for report.json: fingerprint, bed, options, seed."""
    notes: tuple[str, ...] = ()
    least_gain: float = LEAST_GAIN
    stopped: bool = False
    identical: frozenset[str] = frozenset()
    """Those that are the reference under another name: the engine is told the same."""
    sides: tuple[Side, ...] = field(init=False)
    comparisons: tuple[Comparison, ...] = field(init=False)
    by_class: Mapping[str, tuple[Comparison, ...]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sides", tuple(_side(one, self.booted) for one in self.candidates))
        kinds = sorted({sample.kind for one in self.booted for sample in one.samples})
        object.__setattr__(self, "comparisons", self._compared(None))
        by_class = {kind: found for kind in kinds if (found := self._compared(kind))} if len(kinds) > 1 else {}
        object.__setattr__(self, "by_class", by_class)

    def _compared(self, kind: str | None) -> tuple[Comparison, ...]:
        rounds = rounds_of(self.booted, kind)
        first, *others = [one.name for one in self.candidates]
        count = max(1, len(others))
        made = (
            compare(one, pairs_of(rounds, first, one), comparisons=count, least_gain=self.least_gain) for one in others
        )
        return tuple(one for one in made if one is not None)

    @property
    def reference(self) -> str:
        """Its name."""
        return self.candidates[0].name

    @property
    def more_rounds(self) -> int:
        """How many rounds more would tell apart what can be told apart."""
        return max((one.more_rounds or 0 for one in self.comparisons if one.name not in self.identical), default=0)

    @property
    def winner(self) -> str | None:
        """The one with the largest gain of those that are really faster than the reference; None when none is."""
        different = [one for one in self.comparisons if one.name not in self.identical]
        faster = [one for one in different if one.verdict is Verdict.FASTER]
        return max(faster, key=lambda one: one.gain).name if faster else None

    @property
    def not_apart(self) -> tuple[str, ...]:
        """Those that the winner cannot be told apart from, the reference never among them."""
        best = self.winner
        if best is None:
            return ()
        rounds = rounds_of(self.booted)
        found = []
        for one in self.comparisons:
            if one.name == best:
                continue
            other = compare(one.name, pairs_of(rounds, best, one.name), comparisons=len(self.comparisons))
            if other is None or other.verdict is not Verdict.SLOWER:
                found.append(one.name)
        return tuple(found)

    @property
    def decided(self) -> bool:
        """Whether every configuration that came up was told apart from the reference, or found to be as fast."""
        return bool(self.comparisons) and all(
            one.verdict is not Verdict.NOISE or one.name in self.identical for one in self.comparisons
        )

    @property
    def conclusion(self) -> list[str]:
        """What may be said of it, a sentence each."""
        found = []
        best = self.winner
        if best is not None:
            one = next(one for one in self.comparisons if one.name == best)
            found.append(f"{best} is faster than {self.reference}: {gain_words(one)}")
            if self.not_apart:
                found.append(f"it cannot be told apart from {' and '.join(self.not_apart)}")
        elif self.comparisons:
            found.append(f"nothing was found to be faster than {self.reference}")
        found += [alone_words(one) for one in self.comparisons if one.only_alone]
        for one in self.comparisons:
            if one.name in self.identical:
                found.append(
                    f"{one.name} is {self.reference} to the engine, with the very same settings: {gain_words(one)} is "
                    "how far boots of one configuration differ, and more rounds can show nothing else"
                )
            elif one.more_rounds is not None:
                rounds = "round" if one.more_rounds == 1 else "rounds"
                found.append(f"{one.name}: {one.more_rounds} more {rounds} would decide, if boots go on to differ so")
            elif one.hopeless:
                found.append(
                    f"{one.name}: more rounds alone will not decide; the difference is about as small as what matters "
                    f"({self.least_gain:.0%}), or prompts gain too differently: more prompts, or a class of its own"
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


def as_json(ab: Ab) -> dict[str, Any]:
    """report.json; docs/bench-ab.md says what each figure is."""
    return {
        "schema": SCHEMA,
        **ab.facts,
        "stopped": ab.stopped,
        "reference": ab.reference,
        "winner": ab.winner,
        "winner_not_told_apart_from": list(ab.not_apart),
        "least_gain": ab.least_gain,
        "conclusion": ab.conclusion,
        "notes": list(ab.notes),
        "same_as_the_reference": sorted(ab.identical),
        "configurations": [
            {
                "name": side.name,
                "sets": side.words,
                "boots": side.boots,
                "failures": list(side.failures),
                "decode_tokens_per_s": figure_json(side.decode),
                "decode_tokens_per_s_boots": _spread_json(side.decode_boots),
                "acceptance_boots": _spread_json(side.acceptance),
                "ttft_s": side.ttft_s,
                "up_s": side.up_s,
            }
            for side in ab.sides
        ],
        "comparisons": [comparison_json(one) for one in ab.comparisons],
        "by_class": {kind: [comparison_json(one) for one in found] for kind, found in ab.by_class.items()},
    }


def comparison_json(one: Comparison) -> dict[str, Any]:
    """One comparison."""
    return {
        **{key: value for key, value in asdict(one).items() if key not in ("before", "after")},
        "verdict": str(one.verdict),
        "reference_tokens_per_s": _spread_json(one.before),
        "tokens_per_s": _spread_json(one.after),
    }


def text(ab: Ab) -> list[str]:
    """For the terminal."""
    lines = [*aligned(speeds_table(ab)), "", *aligned(comparison_table(ab)), ""]
    for kind, found in ab.by_class.items():
        lines += [f"{kind + ':':<10} {', '.join(f'{one.name} {gain_words(one)}' for one in found)}"]
    return [*lines, *([""] if ab.by_class else []), *(f"- {one}" for one in (*ab.conclusion, *ab.notes))]


def markdown(ab: Ab) -> str:
    """report.md."""
    lines = ["# bench ab", "", *md_table(speeds_table(ab)), "", *md_table(comparison_table(ab)), ""]
    lines += ["![Decode speed](decode.svg)", "", "![Gain over the reference](gain.svg)", ""]
    if ab.by_class:
        head = ["class", *(one.name for one in ab.comparisons)]
        told = {kind: {one.name: gain_words(one) for one in found} for kind, found in ab.by_class.items()}
        rows = [[kind, *(found.get(name, "--") for name in head[1:])] for kind, found in told.items()]
        lines += ["## By class", "", *md_table([head, *rows]), ""]
    lines += ["## Conclusion", "", *(f"- {one}" for one in (*ab.conclusion, *ab.notes)), ""]
    sets = [["configuration", "sets"], *([one.name, f"`{one.words}`"] for one in ab.sides)]
    lines += ["## Configurations", "", *md_table(sets), ""]
    facts = [["", ""], *([key, str(value)] for key, value in dict(ab.facts.get("fingerprint", {})).items())]
    return "\n".join([*lines, "## Measured on", "", *md_table(facts), ""])


def save(ab: Ab, results: Results) -> None:
    """All files of the report."""
    results.write_json(REPORT_JSON, as_json(ab))
    results.write(REPORT_MD, markdown(ab))
    rows = tuple(
        Row(
            side.name,
            side.decode.value if side.decode is not None else None,
            side.decode.low if side.decode is not None else None,
            side.decode.high if side.decode is not None else None,
            rates_of(ab.booted, side.name),
            side.name == ab.winner,
        )
        for side in ab.sides
    )
    results.write("decode.svg", draw_rows(Rows("Decode speed, and of single boots", "tokens/s", rows)))
    gains = tuple(Row(one.name, one.gain, one.low, one.high, (), one.name == ab.winner) for one in ab.comparisons)
    if gains:
        chart = Rows(f"Gain over {ab.reference}, with 95 % intervals", "%", gains, origin=None, reference=0.0)
        results.write("gain.svg", draw_rows(chart))


def speeds_table(ab: Ab) -> list[list[str]]:
    """Headings, then a row a configuration."""
    rows = [["configuration", "boots", "decode tok/s", "95 % interval", "mean ± sd", "acceptance", "TTFT"]]
    for one in ab.sides:
        decode = one.decode
        bounds = UNKNOWN if decode is None or decode.low is None else f"{decode.low:.4g} to {decode.high:.4g}"
        rows.append(
            [
                one.name,
                f"{one.boots}" + (f" ({len(one.failures)} failed)" if one.failures else ""),
                UNKNOWN if decode is None else f"{decode.value:.4g}",
                bounds,
                spread_words(one.decode_boots),
                spread_words(one.acceptance, percent=True),
                UNKNOWN if one.ttft_s is None else f"{one.ttft_s * 1000:.0f} ms",
            ]
        )
    return rows


def comparison_table(ab: Ab) -> list[list[str]]:
    """Headings, then a row for each configuration but the reference."""
    rows = [[f"against {ab.reference}", "gain", "95 % interval", "verdict", "1-sigma rule", "rounds"]]
    by_name = {one.name: one for one in ab.comparisons}
    for candidate in ab.candidates[1:]:
        one = by_name.get(candidate.name)
        if one is None:
            rows.append([candidate.name, UNKNOWN, UNKNOWN, "not measured", UNKNOWN, "0"])
            continue
        sigma = {True: "REAL (> 1 sigma)", False: "within noise", None: UNKNOWN}[one.over_one_sigma]
        verdict = "same settings" if one.name in ab.identical else str(one.verdict)
        rows.append(
            [one.name, change_words(one.gain), between_words(one.low, one.high), verdict, sigma, str(one.pairs)]
        )
    return rows


def gain_words(one: Comparison) -> str:
    """`+12.3 % [8.1 %, 16.7 %]`."""
    bounds = "" if one.low is None or one.high is None else f" [{change_words(one.low)}, {change_words(one.high)}]"
    return f"{change_words(one.gain)}{bounds}"


def alone_words(one: Comparison) -> str:
    """Why the verdict is stricter than the interval beside it."""
    return (
        f"{one.name}: its interval alone says more, but of several comparisons one goes wrong easily: compare it alone"
    )


def spread_words(one: Spread | None, *, percent: bool = False) -> str:
    """Mean ± sample standard deviation."""
    if one is None:
        return UNKNOWN
    if percent:
        return f"{one.mean:.1%}" + ("" if one.deviation is None else f" ± {one.deviation * 100:.1f}")
    return f"{one.mean:.4g}" + ("" if one.deviation is None else f" ± {one.deviation:.2g}")


def rates_of(booted: Sequence[Booted], name: str, kind: str | None = None) -> tuple[float, ...]:
    """Decode speed of each boot of a configuration."""
    found = (boots_figure([one.boot(kind)]) for one in booted if one.name == name and not one.failure)
    return tuple(one.value for one in found if one is not None)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of a terminal."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def md_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The same in Markdown."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    head, *body = [f"| {' | '.join(row)} |" for row in escaped]
    return [head, f"|{'---|' * len(rows[0])}", *body]


def _side(candidate: Candidate, booted: Sequence[Booted]) -> Side:
    mine = [one for one in booted if one.name == candidate.name]
    good = [one for one in mine if not one.failure and one.boot()]
    ttft = [sample.ttft_s for one in good for sample in one.samples if sample.ttft_s is not None]
    up = [one.up_s for one in good if one.up_s is not None]
    return Side(
        name=candidate.name,
        words=candidate.words,
        boots=len(good),
        failures=tuple(one.failure for one in mine if one.failure),
        decode=boots_figure([one.boot() for one in good]),
        decode_boots=spread(rates_of(good, candidate.name)),
        acceptance=spread([value for one in good if (value := one.acceptance()) is not None]),
        ttft_s=statistics.median(ttft) if ttft else None,
        up_s=statistics.median(up) if up else None,
    )


def _spread_json(one: Spread | None) -> dict[str, Any] | None:
    return None if one is None else {"mean": one.mean, "standard_deviation": one.deviation, "count": one.count}


def _drift(booted: Sequence[Booted], reference: str) -> str | None:
    """A reference that got slower or faster all the time: the order cancels that, but somebody should know."""
    rates = rates_of(booted, reference)
    if len(rates) < 4:
        return None
    falling = all(after < before for before, after in pairwise(rates))
    rising = all(after > before for before, after in pairwise(rates))
    change = rates[-1] / rates[0] - 1
    if not (falling or rising) or abs(change) < _TREND:
        return None
    words = change_words(change)
    return f"{reference} changed by {words} from its first boot to its last, steadily: heat or a power limit?"
