"""Drafters by classes of prompts, on one target model or several, as UAP benches them: mean and sample standard
deviation over runs, a run being a boot; what is refused stands there with its reason instead of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.bench.compare.ab import (
    SIGMA,
    CandidateComparison,
    alone_words,
    compare,
    comparison_json,
    gain_words,
    pairs_of,
    rates_of,
    spread_words,
)
from specdash.bench.compare.trials import rounds_of
from specdash.bench.report import BenchReport, bullets, page, section
from specdash.core.structs import json_of
from specdash.system.stats import spread
from specdash.system.text import UNKNOWN, markdown_table
from specdash.system.text import table as text_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.bench.compare.trials import BootMeasurement, Candidate
    from specdash.system.stats import Spread

SCHEMA = "specdash.bench.compare.matrix/1"
ALL = "all"


class Pairing(Struct, frozen=True):
    """A target with a drafter, and the candidate that boots them."""

    target: str
    drafter: str
    candidate: Candidate


class MatrixCell(Struct, frozen=True):
    """One pairing on one class of prompts. `refused` is the reason where there are no numbers."""

    target: str
    drafter: str
    kind: str
    boots: int
    decode: Spread | None
    acceptance: Spread | None
    refused: str = ""


class MatrixReport(Struct, frozen=True):
    pairings: tuple[Pairing, ...]
    booted: tuple[BootMeasurement, ...]
    facts: Mapping[str, Any]
    stopped: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The classes, and all of them together where there are several."""
        found = sorted({sample.kind for measurement in self.booted for sample in measurement.samples})
        return (*found, ALL) if len(found) > 1 else tuple(found)

    @property
    def cells(self) -> tuple[MatrixCell, ...]:
        """Pairing by pairing, class by class."""
        return tuple(self.cell(pairing, kind) for pairing in self.pairings for kind in self.kinds or (ALL,))

    def cell(self, pairing: Pairing, kind: str) -> MatrixCell:
        chosen = None if kind == ALL else kind
        mine = [measurement for measurement in self.booted if measurement.name == pairing.candidate.name]
        good = [measurement for measurement in mine if not measurement.failure and measurement.boot(chosen)]
        accepted = [value for measurement in good if (value := measurement.acceptance(chosen)) is not None]
        return MatrixCell(
            pairing.target,
            pairing.drafter,
            kind,
            len(good),
            spread(rates_of(good, pairing.candidate.name, chosen)),
            spread(accepted),
            mine[-1].failure if mine and not good else "",
        )

    @property
    def comparisons(self) -> dict[str, tuple[CandidateComparison, ...]]:
        """For each target, its drafters beside the first one that was measured with it."""
        rounds = rounds_of(self.booted)
        found: dict[str, tuple[CandidateComparison, ...]] = {}
        for target in dict.fromkeys(pairing.target for pairing in self.pairings):
            measured = [
                pairing for pairing in self.pairings if pairing.target == target and self.cell(pairing, ALL).boots
            ]
            if len(measured) < 2:
                continue
            first, *others = measured
            made = []
            for pairing in others:
                pairs = pairs_of(rounds, first.candidate.name, pairing.candidate.name)
                judged = compare(pairing.drafter, pairs, comparisons=len(others))
                if judged is not None:
                    made.append(judged)
            found[f"{target}: against {first.drafter}"] = tuple(made)
        return found


def report(matrix: MatrixReport) -> BenchReport:
    """All files of the report, and what the terminal shows."""
    document = {
        "schema": SCHEMA,
        **matrix.facts,
        "stopped": matrix.stopped,
        "cells": [
            {
                **json_of(cell, "target drafter boots acceptance"),
                "class": cell.kind,
                "decode_tokens_per_s": json_of(cell.decode),
                "refused": cell.refused or None,
            }
            for cell in matrix.cells
        ],
        "comparisons": {
            name: [comparison_json(comparison) for comparison in made] for name, made in matrix.comparisons.items()
        },
    }
    rows, refused = table(matrix), refusals(matrix)
    lines = [*text_table(rows), ""]
    for name, made in matrix.comparisons.items():
        lines += [f"{name}: {_outcome(comparison)}" for comparison in made]
        lines += bullets(alone_words(comparison) for comparison in made if comparison.only_alone)
    lines += bullets(f"refused: {line}" for line in refused)
    text = page(
        "bench matrix",
        "Mean ± sample standard deviation over boots.",
        markdown_table(rows),
        *(section(name, map(_outcome, made)) for name, made in matrix.comparisons.items()),
        section("Refused", refused) if refused else "",
    )
    return BenchReport(document, lines, text)


def _outcome(comparison: CandidateComparison) -> str:
    sigma = SIGMA[comparison.over_one_sigma]
    rule = f" (1-sigma rule: {sigma})" if sigma else ""
    return f"{comparison.name} {gain_words(comparison)}, {comparison.verdict}{rule}"


def table(matrix: MatrixReport) -> list[list[str]]:
    """A row a pairing, two columns a class."""
    kinds = matrix.kinds
    several = len({pairing.target for pairing in matrix.pairings}) > 1
    heads = [*(["target"] if several else []), "drafter"]
    rows = [[*heads, "boots", *(head for kind in kinds for head in (f"{kind} tok/s", f"{kind} acceptance"))]]
    for pairing in matrix.pairings:
        cells = [matrix.cell(pairing, kind) for kind in kinds]
        boots = max((cell.boots for cell in cells), default=0)
        refused = not boots and any(
            measurement.name == pairing.candidate.name and measurement.failure for measurement in matrix.booted
        )
        figures = [
            word
            for cell in cells
            for word in (
                ("refused", UNKNOWN)
                if refused
                else (spread_words(cell.decode), spread_words(cell.acceptance, share=True))
            )
        ]
        rows.append([*([pairing.target] if several else []), pairing.drafter, str(boots), *figures])
    return rows


def refusals(matrix: MatrixReport) -> list[str]:
    """What was not measured, and why."""
    found = []
    for pairing in matrix.pairings:
        matrix_cell = matrix.cell(pairing, ALL)
        if matrix_cell.refused:
            found.append(f"{pairing.drafter} with {pairing.target}: {matrix_cell.refused}")
    return found
