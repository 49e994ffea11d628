"""The generated pages of docs/ are what the catalogues say, whole and current."""

import ast
from functools import cache
from pathlib import Path

import pytest

from make_docs import outdated
from pages.settings import page
from specdash.core import parameter_catalogue as backend
from specdash.core import proxy_parameters
from specdash.core.speculation import KNOBS, SPEC_TYPES

DOCS = Path(__file__).parents[2] / "docs"
ROWS = {line.split("`")[1]: line for line in page().splitlines() if line.startswith("| `")}


def test_the_pages_in_the_repository_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    # Pydantic parses a whole module for the docstrings of each of its classes.
    monkeypatch.setattr(ast, "parse", cache(ast.parse))
    assert list(outdated()) == [], "run: python tools/make_docs.py"


def test_every_key_and_every_flag_without_one_has_a_row_with_its_meaning_and_default() -> None:
    for parameter in (*backend.PARAMETERS, *backend.PASSED_ON.values(), *proxy_parameters.PARAMETERS):
        row = ROWS[parameter.key]
        assert parameter.meaning in row
        assert parameter.allowed in row


def test_there_is_one_section_per_group() -> None:
    groups = [title for title, _ in (*backend.GROUPS, *proxy_parameters.GROUPS)]
    assert [page().count(f"\n### {title}\n") for title in groups] == [1] * len(groups)


def test_the_table_of_spec_types_says_what_each_knob_sets() -> None:
    for spec_kind in SPEC_TYPES:
        for key in KNOBS:
            knob = spec_kind.knob(key)
            assert knob is None or f"`--{knob}`" in ROWS[spec_kind.name]
    assert "nothing: always 8" in ROWS["ngram-cache"]


def test_docs_that_speak_of_settings_point_here() -> None:
    assert "settings.md" in (DOCS / "backend.md").read_text(encoding="utf-8")
