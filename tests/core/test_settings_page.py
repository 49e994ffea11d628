"""docs/settings.md is what the catalogues say, whole and current."""

from __future__ import annotations

from pathlib import Path

from specdash.core import parameter_catalogue as backend
from specdash.core import passed_on_parameters, proxy_parameters
from specdash.core.settings_page import page
from specdash.core.speculation import KNOBS, SPEC_TYPES

DOCS = Path(__file__).parents[2] / "docs"
ROWS = {line.split("`")[1]: line for line in page().splitlines() if line.startswith("| `")}


def test_the_page_in_the_repository_is_current() -> None:
    told = "run: python -m specdash.core.settings_page > docs/settings.md"
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == page(), told


def test_every_key_and_every_flag_without_one_has_a_row_with_its_meaning_and_default() -> None:
    for one in (*backend.PARAMETERS, *passed_on_parameters.PASSED_ON, *proxy_parameters.PARAMETERS):
        row = ROWS[one.key]
        assert one.meaning in row
        assert one.allowed in row


def test_there_is_one_section_per_group() -> None:
    groups = [title for title, _ in (*backend.GROUPS, *proxy_parameters.GROUPS)]
    assert [page().count(f"\n### {title}\n") for title in groups] == [1] * len(groups)


def test_the_table_of_spec_types_says_what_each_knob_sets() -> None:
    for one in SPEC_TYPES:
        for key in KNOBS:
            knob = one.knob(key)
            assert knob is None or f"`--{knob}`" in ROWS[one.name]
    assert "nothing: always 8" in ROWS["ngram-cache"]


def test_docs_that_speak_of_settings_point_here() -> None:
    assert "settings.md" in (DOCS / "backend.md").read_text(encoding="utf-8")
