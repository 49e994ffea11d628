"""A grid of settings, each booted once or a few times, as a report: the best five, and what cannot be distinguished.

The best of many single boots is flattered: the luckiest boot wins. So intervals come from how much boots of equal
settings differ, which the reference shows by being booted again and again in between, and the verdict is the set of all
settings that may be the best (comparisons with the best, held to 5 % together).
"""

from __future__ import annotations

import dataclasses
from math import exp, log, sqrt
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.bench.compare.ab import ALPHA, rates_of
from specdash.bench.report import BenchReport, bounds, bullets, measured_on, page, section
from specdash.core.structs import json_of
from specdash.system.stats import mean, pooled_deviation, student
from specdash.system.text import change, markdown_table, percent, significant
from specdash.system.text import table as text_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.compare.trials import BootMeasurement, Candidate

SCHEMA = "specdash.bench.compare.sweep/1"
REFERENCE = "as it is"
BETWEEN = 8
"""Boots of candidates from one boot of the reference to the next, at most."""
_REFERENCES = 6
"""So often at least it is booted: of fewer, noise is hardly known."""
TOP = 5
_MOST_ROWS = 24


class RankedCandidate(Struct, frozen=True):
    """One candidate. `speed` is decode tok/s, the geometric mean of its boots; `gain` over the reference."""

    name: str
    words: str
    boots: int
    speed: float
    low: float | None
    high: float | None
    gain: float | None
    acceptance: float | None
    may_be_best: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SweepReport:
    candidates: tuple[Candidate, ...]
    """The reference first."""
    booted: tuple[BootMeasurement, ...]
    facts: Mapping[str, Any]
    left_out: tuple[tuple[str, str], ...] = ()
    """Combinations that were not tried, and why."""
    same: tuple[tuple[str, ...], ...] = ()
    """Names that are one to the engine; the first of each was measured for all."""
    notes: tuple[str, ...] = ()
    stopped: bool = False
    ranked: tuple[RankedCandidate, ...] = dataclasses.field(init=False)
    """Fastest first, the reference among them."""
    boot_sd: float | None = dataclasses.field(init=False)
    """Sample standard deviation of the logarithm of speed between boots of equal settings."""
    freedom: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        logs = {
            candidate.name: [log(rate) for rate in rates_of(self.booted, candidate.name)]
            for candidate in self.candidates
        }
        sd, freedom = pooled_deviation(logs.values())
        object.__setattr__(self, "boot_sd", sd)
        object.__setattr__(self, "freedom", freedom)
        object.__setattr__(self, "ranked", _ranked(self, {name: found for name, found in logs.items() if found}))

    @property
    def top(self) -> tuple[RankedCandidate, ...]:
        return self.ranked[:TOP]

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """Those that did not come up, with the reason."""
        measured = {candidate.name for candidate in self.ranked}
        reasons = {measurement.name: measurement.failure for measurement in self.booted if measurement.failure}
        return tuple((name, reason) for name, reason in reasons.items() if name not in measured)

    @property
    def conclusion(self) -> list[str]:
        """Its conclusions, a sentence each."""
        found: list[str] = []
        if not self.ranked:
            return ["nothing was measured"]
        best, rivals = self.ranked[0], [candidate.name for candidate in self.ranked[1:] if candidate.may_be_best]
        if self.boot_sd is None:
            found.append("how much boots of equal settings differ is not known yet: no interval, and no best")
        elif rivals:
            shown = ", ".join(rivals[:TOP]) + (f" and {len(rivals) - TOP} more" if len(rivals) > TOP else "")
            found.append(f"{best.name} was the fastest, and cannot be distinguished from {shown}")
        elif len(self.ranked) == 1:
            found.append(f"only {best.name} was measured, so there is nothing to compare it with")
        else:
            found.append(f"{best.name} is the fastest, and distinguishable from all others")
        if self.boot_sd is not None:
            found.append(f"boots of equal settings differ by {percent(self.boot_sd, 1)} (standard deviation)")
        if best.gain is not None and best.gain > 0:
            found.append(f'confirm it before use: specdash bench ab current "{best.words.replace(" ", ",")}"')
        return found


def schedule(names: Sequence[str], passes: int, seed: int) -> list[tuple[int, str]]:
    """Every name once a pass, in a random order, with the reference before, in between and after."""
    random = Random(f"sweep/{seed}")  # noqa: S311 - an order, no secret
    found: list[tuple[int, str]] = []
    references = 0
    between = max(1, min(BETWEEN, len(names) * passes // (_REFERENCES - 1)))

    def refer() -> None:
        nonlocal references
        found.append((references, REFERENCE))
        references += 1

    for turn in range(passes):
        for number, name in enumerate(random.sample(list(names), len(names))):
            if number % between == 0:
                refer()
            found.append((turn, name))
    refer()
    return found


def report(sweep: SweepReport) -> BenchReport:
    """All files of the report, and what the terminal shows; docs/measuring.md says what each figure is."""
    named = {"failed": sweep.failed, "left_out": sweep.left_out}
    document = {
        "schema": SCHEMA,
        **sweep.facts,
        "stopped": sweep.stopped,
        "candidates": len(sweep.candidates) - 1,
        "boots": len(sweep.booted),
        "boot_standard_deviation": sweep.boot_sd,
        "top": [_ranked_json(candidate) for candidate in sweep.top],
        "ranked": [_ranked_json(candidate) for candidate in sweep.ranked],
        **{key: [{"name": name, "reason": reason} for name, reason in pairs] for key, pairs in named.items()},
        **json_of(sweep, "conclusion notes"),
        "same_to_the_engine": json_of(sweep.same),
    }
    notes = (*sweep.conclusion, *sweep.notes)
    shown = list(sweep.top)
    if all(candidate.name != REFERENCE for candidate in shown):
        shown += [candidate for candidate in sweep.ranked if candidate.name == REFERENCE]
    lines = [*text_table(table(shown)), ""] if shown else []
    lines += [f"{name} did not come up: {reason}" for name, reason in sweep.failed]
    lines += bullets(notes)
    if sweep.left_out:
        name, reason = sweep.left_out[0]
        more = f", and {len(sweep.left_out) - 1} more" if len(sweep.left_out) > 1 else ""
        lines.append(f"- left out: {name} ({reason}){more}")
    titles = {"Did not come up": sweep.failed, "Left out": sweep.left_out}
    text = page(
        "bench sweep",
        section("The best five", markdown_table(table(sweep.top))),
        section("Conclusion", notes),
        section("All", markdown_table(table(sweep.ranked))),
        *(
            section(title, markdown_table([["settings", "reason"], *map(list, pairs)]))
            for title, pairs in titles.items()
            if pairs
        ),
        section("One to the engine", map(", ".join, sweep.same)) if sweep.same else "",
        measured_on(sweep.facts),
    )
    return BenchReport(document, lines, text)


def table(ranked: Sequence[RankedCandidate]) -> list[list[str]]:
    """Headings, then a row a candidate."""
    return [
        ["settings", "boots", "decode tok/s", "95 % interval", "gain", "acceptance", "may be the best"],
        *(
            [
                candidate.name,
                str(candidate.boots),
                significant(candidate.speed, 4),
                bounds(candidate.low, candidate.high),
                change(candidate.gain),
                percent(candidate.acceptance, 1),
                "yes" if candidate.may_be_best else "no",
            ]
            for candidate in ranked
        ),
    ]


def _ranked(sweep: SweepReport, logs: Mapping[str, Sequence[float]]) -> tuple[RankedCandidate, ...]:
    means = {name: middle for name, found in logs.items() if (middle := mean(found)) is not None}
    if not means:
        return ()
    by_name = {candidate.name: candidate for candidate in sweep.candidates}
    best = max(means, key=lambda name: means[name])
    reference = means.get(REFERENCE)
    made = []
    for name in sorted(means, key=lambda name: -means[name]):
        reach = None if sweep.boot_sd is None else student(sweep.freedom, ALPHA) * sweep.boot_sd / sqrt(len(logs[name]))
        made.append(
            RankedCandidate(
                name=name,
                words=by_name[name].words,
                boots=len(logs[name]),
                speed=exp(means[name]),
                low=None if reach is None else exp(means[name] - reach),
                high=None if reach is None else exp(means[name] + reach),
                gain=None if reference is None or name == REFERENCE else exp(means[name] - reference) - 1,
                acceptance=mean(measurement.acceptance() for measurement in sweep.booted if measurement.name == name),
                may_be_best=_may_be_best(sweep, logs, means, best, name),
            )
        )
    return tuple(made)


def _may_be_best(
    sweep: SweepReport, logs: Mapping[str, Sequence[float]], means: Mapping[str, float], best: str, name: str
) -> bool:
    if name == best or sweep.boot_sd is None:
        return True
    alpha = ALPHA / max(1, len(means) - 1)
    apart = sweep.boot_sd * sqrt(1 / len(logs[best]) + 1 / len(logs[name]))
    return means[best] - means[name] <= student(sweep.freedom, alpha) * apart


def _ranked_json(candidate: RankedCandidate) -> dict[str, Any]:
    speed = {"value": candidate.speed, "low": candidate.low, "high": candidate.high, "count": candidate.boots}
    value = {**json_of(candidate, "name boots gain acceptance may_be_best"), "sets": candidate.words}
    return {**value, "decode_tokens_per_s": speed}
