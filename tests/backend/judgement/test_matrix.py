"""Every pair of models with every type: preflight refuses what the engine fails with, warns of what drafts badly, and
has nothing against the rest. `tests/e2e/test_speculation_matrix.py` tries the same on the engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.core.speculation import SPEC_TYPES
from support import matrix
from support.matrix import Fit

if TYPE_CHECKING:
    from pathlib import Path

    from backend.judgement.conftest import Check

_ABOUT_PAIRS = {"settings", "nextn-layers", "draft-architecture", "recurrent-draft", "vocabulary"}
"""Rules whose warnings say how well a pair goes together; others say whether it pays."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return matrix.write_models(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("target", list(matrix.TARGETS))
def test_what_fits_is_what_preflight_lets_through(backend: Check, files: dict[str, Path], target: str) -> None:
    wrong = []
    for model, draft, spec_type in matrix.combinations():
        if model.name != target:
            continue
        expected, rule = matrix.fit(model, draft, spec_type)
        values = {"LLAMA_MODEL": str(files[model.name]), "LLAMA_SPEC_TYPE": spec_type.name}
        if draft is not None:
            values["LLAMA_DRAFT_MODEL"] = str(files[draft.name])
        found = backend(values)
        errors = {row.rule for row in found.errors}
        warnings = {row.rule for row in found.warnings} & _ABOUT_PAIRS
        seen = Fit.REFUSED if errors else Fit.POOR if warnings else Fit.FITS
        if seen is not expected or (rule and rule not in errors | warnings):
            lines = [(row.rule, row.line) for row in (*found.errors, *found.warnings)]
            wrong.append((model.name, draft and draft.name, spec_type.name, str(expected), rule, lines))
    assert not wrong, "\n".join(map(str, wrong))


def test_every_type_is_in_the_matrix() -> None:
    assert {spec_kind.name for spec_kind in SPEC_TYPES} == matrix.DRAFTERS
    assert {kind.name for cell in matrix.cells() for kind in cell.types} == matrix.DRAFTERS
