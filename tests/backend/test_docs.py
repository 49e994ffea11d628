"""docs/backend.md says what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from specdash.core.parameter_catalogue import PARAMETERS
from specdash.core.speculation import SPEC_TYPES

TEXT = (Path(__file__).parents[2] / "docs" / "backend.md").read_text(encoding="utf-8")
ROWS = {line.split("`")[1]: line for line in TEXT.splitlines() if line.startswith("| `")}


def test_every_key_of_ours_is_documented_with_its_meaning_and_default() -> None:
    for parameter in PARAMETERS:
        if parameter.keys and not parameter.key.startswith("LLAMA_ARG_"):
            row = ROWS[parameter.key]
            assert parameter.meaning in row
            default = "" if parameter.default is None else f"`{parameter.text(parameter.default)}`"
            assert f"| {default} |" in row


def test_every_spec_type_is_documented_with_the_flags_its_knobs_set() -> None:
    for one in SPEC_TYPES:
        row = ROWS[one.name]
        assert one.meaning in row
        for knob in (one.max_parameter, one.min_parameter, one.p_min_parameter):
            assert knob is None or f"`--{knob}`" in row
