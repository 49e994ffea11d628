"""Drafters by classes of prompts, on one target model or several, as UAP benches them: mean and sample standard
deviation over runs, a run being a boot; what is refused stands there with its reason instead of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.bench.ab import (
    UNKNOWN,
    aligned,
    alone_words,
    comparison_json,
    gain_words,
    md_table,
    rates_of,
    spread_words,
)
from specdash.bench.results import REPORT_JSON, REPORT_MD
from specdash.bench.statistics import spread
from specdash.bench.trials import rounds_of
from specdash.bench.verdict import Comparison, compare, pairs_of
from specdash.export.rows_svg import Row, Rows, draw_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.bench.configurations import Candidate
    from specdash.bench.results import Results
    from specdash.bench.statistics import Spread
    from specdash.bench.trials import Booted

SCHEMA = "specdash.bench.matrix/1"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Pairing:
    """A target with a drafter, and the candidate that boots them."""

    target: str
    drafter: str
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Cell:
    """One pairing on one class of prompts. `refused` is the reason where there are no numbers."""

    target: str
    drafter: str
    kind: str
    boots: int
    decode: Spread | None
    acceptance: Spread | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """All of it."""

    pairings: tuple[Pairing, ...]
    booted: tuple[Booted, ...]
    facts: Mapping[str, Any]
    stopped: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The classes, and all of them together where there are several."""
        found = sorted({sample.kind for one in self.booted for sample in one.samples})
        return (*found, ALL) if len(found) > 1 else tuple(found)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Pairing by pairing, class by class."""
        return tuple(self.cell(one, kind) for one in self.pairings for kind in self.kinds or (ALL,))

    def cell(self, pairing: Pairing, kind: str) -> Cell:
        """One of them."""
        chosen = None if kind == ALL else kind
        mine = [one for one in self.booted if one.name == pairing.candidate.name]
        good = [one for one in mine if not one.failure and one.boot(chosen)]
        accepted = [value for one in good if (value := one.acceptance(chosen)) is not None]
        return Cell(
            pairing.target,
            pairing.drafter,
            kind,
            len(good),
            spread(rates_of(good, pairing.candidate.name, chosen)),
            spread(accepted),
            mine[-1].failure if mine and not good else "",
        )

    @property
    def comparisons(self) -> dict[str, tuple[Comparison, ...]]:
        """For each target, its drafters beside the first one that was measured with it."""
        rounds = rounds_of(self.booted)
        found: dict[str, tuple[Comparison, ...]] = {}
        for target in dict.fromkeys(one.target for one in self.pairings):
            measured = [one for one in self.pairings if one.target == target and self.cell(one, ALL).boots]
            if len(measured) < 2:
                continue
            first, *others = measured
            made = []
            for one in others:
                pairs = pairs_of(rounds, first.candidate.name, one.candidate.name)
                judged = compare(one.drafter, pairs, comparisons=len(others))
                if judged is not None:
                    made.append(judged)
            found[f"{target}: against {first.drafter}"] = tuple(made)
        return found


def as_json(matrix: Matrix) -> dict[str, Any]:
    """report.json."""

    def told(one: Spread | None) -> dict[str, Any] | None:
        return None if one is None else {"mean": one.mean, "standard_deviation": one.deviation, "count": one.count}

    return {
        "schema": SCHEMA,
        **matrix.facts,
        "stopped": matrix.stopped,
        "cells": [
            {
                "target": one.target,
                "drafter": one.drafter,
                "class": one.kind,
                "boots": one.boots,
                "decode_tokens_per_s": told(one.decode),
                "acceptance": told(one.acceptance),
                "refused": one.refused or None,
            }
            for one in matrix.cells
        ],
        "comparisons": {name: [comparison_json(one) for one in made] for name, made in matrix.comparisons.items()},
    }


def text(matrix: Matrix) -> list[str]:
    """For the terminal."""
    lines = [*aligned(table(matrix)), ""]
    for name, made in matrix.comparisons.items():
        lines += [f"{name}: {one.name} {gain_words(one)}, {one.verdict}{_sigma(one)}" for one in made]
        lines += [f"- {alone_words(one)}" for one in made if one.only_alone]
    return [*lines, *(f"- refused: {line}" for line in refusals(matrix))]


def markdown(matrix: Matrix) -> str:
    """report.md."""
    lines = ["# bench matrix", "", "Mean ± sample standard deviation over boots.", "", *md_table(table(matrix)), ""]
    lines += ["![Decode speed](decode.svg)", "", "![Acceptance](acceptance.svg)", ""]
    for name, made in matrix.comparisons.items():
        lines += [
            f"## {name}",
            "",
            *(f"- {one.name} {gain_words(one)}, {one.verdict}{_sigma(one)}" for one in made),
            "",
        ]
    refused = refusals(matrix)
    return "\n".join([*lines, *(["## Refused", "", *(f"- {line}" for line in refused), ""] if refused else [])])


def save(matrix: Matrix, results: Results) -> None:
    """All files of the report."""
    results.write_json(REPORT_JSON, as_json(matrix))
    results.write(REPORT_MD, markdown(matrix))
    several = len({one.target for one in matrix.pairings}) > 1

    def label(one: Cell) -> str:
        return " ".join(((one.target,) if several else ()) + (one.drafter, one.kind))

    cells = [one for one in matrix.cells if one.decode is not None]
    decode = tuple(Row(label(one), one.decode.mean, *_reach(one.decode)) for one in cells if one.decode)
    accepted = tuple(Row(label(one), one.acceptance.mean, *_reach(one.acceptance)) for one in cells if one.acceptance)
    if decode:
        results.write("decode.svg", draw_rows(Rows("Decode speed, ± one standard deviation", "tokens/s", decode)))
    if accepted:
        results.write("acceptance.svg", draw_rows(Rows("Acceptance, ± one standard deviation", "%", accepted)))


def table(matrix: Matrix) -> list[list[str]]:
    """A row a pairing, two columns a class."""
    kinds = matrix.kinds
    several = len({one.target for one in matrix.pairings}) > 1
    heads = [*(["target"] if several else []), "drafter"]
    rows = [[*heads, "boots", *(head for kind in kinds for head in (f"{kind} tok/s", f"{kind} acceptance"))]]
    for pairing in matrix.pairings:
        cells = [matrix.cell(pairing, kind) for kind in kinds]
        boots = max((one.boots for one in cells), default=0)
        refused = not boots and any(one.name == pairing.candidate.name and one.failure for one in matrix.booted)
        told = [
            word
            for one in cells
            for word in (
                ("refused", UNKNOWN)
                if refused
                else (spread_words(one.decode), spread_words(one.acceptance, percent=True))
            )
        ]
        rows.append([*([pairing.target] if several else []), pairing.drafter, str(boots), *told])
    return rows


def refusals(matrix: Matrix) -> list[str]:
    """What was not measured, and why."""
    found = []
    for pairing in matrix.pairings:
        one = matrix.cell(pairing, ALL)
        if one.refused:
            found.append(f"{pairing.drafter} with {pairing.target}: {one.refused}")
    return found


def _sigma(one: Comparison) -> str:
    said = {True: "REAL (> 1 sigma)", False: "within noise", None: ""}[one.over_one_sigma]
    return f" (1-sigma rule: {said})" if said else ""


def _reach(one: Spread) -> tuple[float | None, float | None]:
    return (None, None) if one.deviation is None else (one.mean - one.deviation, one.mean + one.deviation)
