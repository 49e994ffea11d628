"""A grid of settings, each booted once or a few times, as a report: the best five, and what cannot be told apart.

The best of many single boots is flattered: the luckiest boot wins. So intervals come from how much boots of equal
settings differ, which the reference shows by being booted again and again in between, and the verdict is the set of all
settings that may be the best (comparisons with the best, held to 5 % together).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from math import exp, log, sqrt
from random import Random
from typing import TYPE_CHECKING, Any

from specdash.bench.ab import UNKNOWN, aligned, md_table, rates_of
from specdash.bench.results import REPORT_JSON, REPORT_MD
from specdash.bench.verdict import ALPHA, student
from specdash.core.change_words import change_words
from specdash.export.rows_svg import Row, Rows, draw_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.configurations import Candidate
    from specdash.bench.results import Results
    from specdash.bench.trials import Booted

SCHEMA = "specdash.bench.sweep/1"
REFERENCE = "as it is"
BETWEEN = 8
"""Boots of candidates from one boot of the reference to the next, at most."""
_REFERENCES = 6
"""So often at least it is booted: of fewer, noise is hardly known."""
TOP = 5
_MOST_ROWS = 24


@dataclass(frozen=True, slots=True)
class Ranked:
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


@dataclass(frozen=True, slots=True)
class Sweep:
    """All of it."""

    candidates: tuple[Candidate, ...]
    """The reference first."""
    booted: tuple[Booted, ...]
    facts: Mapping[str, Any]
    left_out: tuple[tuple[str, str], ...] = ()
    """Combinations that were not tried, and why."""
    same: tuple[tuple[str, ...], ...] = ()
    """Names that are one to the engine; the first of each was measured for all."""
    notes: tuple[str, ...] = ()
    stopped: bool = False
    ranked: tuple[Ranked, ...] = field(init=False)
    """Fastest first, the reference among them."""
    boot_sd: float | None = field(init=False)
    """Sample standard deviation of the logarithm of speed between boots of equal settings."""
    freedom: int = field(init=False)

    def __post_init__(self) -> None:
        logs = {one.name: [log(rate) for rate in rates_of(self.booted, one.name)] for one in self.candidates}
        sd, freedom = _pooled(logs.values())
        object.__setattr__(self, "boot_sd", sd)
        object.__setattr__(self, "freedom", freedom)
        object.__setattr__(self, "ranked", _ranked(self, {name: found for name, found in logs.items() if found}))

    @property
    def top(self) -> tuple[Ranked, ...]:
        """The best five."""
        return self.ranked[:TOP]

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """Those that did not come up, with the reason."""
        measured = {one.name for one in self.ranked}
        reasons = {one.name: one.failure for one in self.booted if one.failure}
        return tuple((name, reason) for name, reason in reasons.items() if name not in measured)

    @property
    def conclusion(self) -> list[str]:
        """What may be said of it, a sentence each."""
        found: list[str] = []
        if not self.ranked:
            return ["nothing was measured"]
        best, rivals = self.ranked[0], [one.name for one in self.ranked[1:] if one.may_be_best]
        if self.boot_sd is None:
            found.append("how much boots of equal settings differ is not known yet: no interval, and no best")
        elif rivals:
            shown = ", ".join(rivals[:TOP]) + (f" and {len(rivals) - TOP} more" if len(rivals) > TOP else "")
            found.append(f"{best.name} was the fastest, and cannot be told apart from {shown}")
        elif len(self.ranked) == 1:
            found.append(f"only {best.name} was measured, so there is nothing to compare it with")
        else:
            found.append(f"{best.name} is the fastest, and told apart from all others")
        if self.boot_sd is not None:
            found.append(f"boots of equal settings differ by {self.boot_sd:.1%} (standard deviation)")
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


def as_json(sweep: Sweep) -> dict[str, Any]:
    """report.json; docs/bench-sweep.md says what each figure is."""
    return {
        "schema": SCHEMA,
        **sweep.facts,
        "stopped": sweep.stopped,
        "candidates": len(sweep.candidates) - 1,
        "boots": len(sweep.booted),
        "boot_standard_deviation": sweep.boot_sd,
        "top": [_ranked_json(one) for one in sweep.top],
        "ranked": [_ranked_json(one) for one in sweep.ranked],
        "failed": [{"name": name, "reason": reason} for name, reason in sweep.failed],
        "left_out": [{"name": name, "reason": reason} for name, reason in sweep.left_out],
        "same_to_the_engine": [list(names) for names in sweep.same],
        "conclusion": sweep.conclusion,
        "notes": list(sweep.notes),
    }


def text(sweep: Sweep) -> list[str]:
    """For the terminal."""
    shown = list(sweep.top)
    if all(one.name != REFERENCE for one in shown):
        shown += [one for one in sweep.ranked if one.name == REFERENCE]
    lines = [*aligned(table(shown)), ""] if shown else []
    lines += [f"{name} did not come up: {reason}" for name, reason in sweep.failed]
    lines += [f"- {one}" for one in (*sweep.conclusion, *sweep.notes)]
    if sweep.left_out:
        name, reason = sweep.left_out[0]
        more = f", and {len(sweep.left_out) - 1} more" if len(sweep.left_out) > 1 else ""
        lines.append(f"- left out: {name} ({reason}){more}")
    return lines


def markdown(sweep: Sweep) -> str:
    """report.md."""
    lines = ["# bench sweep", "", "## The best five", "", *md_table(table(sweep.top)), "", "![Speeds](sweep.svg)", ""]
    lines += ["## Conclusion", "", *(f"- {one}" for one in (*sweep.conclusion, *sweep.notes)), ""]
    lines += ["## All", "", *md_table(table(sweep.ranked)), ""]
    for title, found in (("Did not come up", sweep.failed), ("Left out", sweep.left_out)):
        if found:
            lines += [f"## {title}", "", *md_table([["settings", "reason"], *map(list, found)]), ""]
    if sweep.same:
        lines += ["## One to the engine", "", *(f"- {', '.join(names)}" for names in sweep.same), ""]
    facts = [["", ""], *([key, str(value)] for key, value in dict(sweep.facts.get("fingerprint", {})).items())]
    return "\n".join([*lines, "## Measured on", "", *md_table(facts), ""])


def save(sweep: Sweep, results: Results) -> None:
    """All files of the report."""
    results.write_json(REPORT_JSON, as_json(sweep))
    results.write(REPORT_MD, markdown(sweep))
    rows = tuple(
        Row(one.name, one.speed, one.low, one.high, rates_of(sweep.booted, one.name), one.may_be_best)
        for one in sweep.ranked[:_MOST_ROWS]
    )
    if rows:
        words = "may be the fastest"
        chart = Rows("Decode speed, with 95 % intervals", "tokens/s", rows, origin=None, best_words=words)
        results.write("sweep.svg", draw_rows(chart))


def table(ranked: Sequence[Ranked]) -> list[list[str]]:
    """Headings, then a row a candidate."""
    rows = [["settings", "boots", "decode tok/s", "95 % interval", "gain", "acceptance", "may be the best"]]
    for one in ranked:
        bounds = UNKNOWN if one.low is None or one.high is None else f"{one.low:.4g} to {one.high:.4g}"
        rows.append(
            [
                one.name,
                str(one.boots),
                f"{one.speed:.4g}",
                bounds,
                change_words(one.gain),
                UNKNOWN if one.acceptance is None else f"{one.acceptance:.1%}",
                "yes" if one.may_be_best else "no",
            ]
        )
    return rows


def _ranked(sweep: Sweep, logs: Mapping[str, Sequence[float]]) -> tuple[Ranked, ...]:
    means = {name: statistics.fmean(found) for name, found in logs.items()}
    if not means:
        return ()
    by_name = {one.name: one for one in sweep.candidates}
    best = max(means, key=lambda name: means[name])
    reference = means.get(REFERENCE)
    made = []
    for name in sorted(means, key=lambda name: -means[name]):
        reach = None if sweep.boot_sd is None else student(sweep.freedom, ALPHA) * sweep.boot_sd / sqrt(len(logs[name]))
        accepted = [value for one in sweep.booted if one.name == name and (value := one.acceptance()) is not None]
        made.append(
            Ranked(
                name=name,
                words=by_name[name].words,
                boots=len(logs[name]),
                speed=exp(means[name]),
                low=None if reach is None else exp(means[name] - reach),
                high=None if reach is None else exp(means[name] + reach),
                gain=None if reference is None or name == REFERENCE else exp(means[name] - reference) - 1,
                acceptance=statistics.fmean(accepted) if accepted else None,
                may_be_best=_may_be_best(sweep, logs, means, best, name),
            )
        )
    return tuple(made)


def _may_be_best(
    sweep: Sweep, logs: Mapping[str, Sequence[float]], means: Mapping[str, float], best: str, name: str
) -> bool:
    if name == best or sweep.boot_sd is None:
        return True
    alpha = ALPHA / max(1, len(means) - 1)
    apart = sweep.boot_sd * sqrt(1 / len(logs[best]) + 1 / len(logs[name]))
    return means[best] - means[name] <= student(sweep.freedom, alpha) * apart


def _pooled(groups: Any) -> tuple[float | None, int]:
    """Standard deviation within groups, and its degrees of freedom."""
    repeated = [found for found in groups if len(found) > 1]
    freedom = sum(len(found) - 1 for found in repeated)
    if not freedom:
        return None, 0
    squares = sum((len(found) - 1) * statistics.variance(found) for found in repeated)
    return sqrt(squares / freedom), freedom


def _ranked_json(one: Ranked) -> dict[str, Any]:
    return {
        "name": one.name,
        "sets": one.words,
        "boots": one.boots,
        "decode_tokens_per_s": {"value": one.speed, "low": one.low, "high": one.high, "count": one.boots},
        "gain": one.gain,
        "acceptance": one.acceptance,
        "may_be_best": one.may_be_best,
    }
