"""The catalogue of spec types: names, the engine's order, and which knob each type reads (docs/settings.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_NAME, SPECULATION
from specdash.core.speculation import SPEC_TYPES, detected_type, is_auto, parse_chain, readers_of, spec_type
from specdash.llama.log import TABLE

NAMES = [t.name for t in SPEC_TYPES]


def test_names_of_older_builds_mean_todays_types() -> None:
    found = [spec_type(name) for name in ("draft", "mtp", "ngram_mod", "Draft-Simple", "ngram_map_k4v")]
    assert [t.name for t in found if t] == ["draft-simple", "draft-mtp", "ngram-mod", "draft-simple", "ngram-map-k4v"]


@given(st.lists(st.sampled_from(NAMES), min_size=1))
def test_a_chain_is_put_into_the_engines_priority_without_repeats(names: list[str]) -> None:
    assert [t.name for t in parse_chain(",".join(names), "X")] == [name for name in NAMES if name in set(names)]


@pytest.mark.parametrize(
    ("chain", "complaint"),
    [
        ("ngram-mod,none", r"LLAMA_SPEC_TYPE=ngram-mod,none: 'none' would silently disable"),
        ("turbo", r"unknown speculative type 'turbo'; use one of: none, ngram-simple"),
        ("auto,ngram-mod", r"unknown speculative type 'auto'; use one of: .*auto \(alone\)"),
    ],
)
def test_a_chain_that_cannot_be_meant_is_refused(chain: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_chain(chain, "LLAMA_SPEC_TYPE")
    assert not is_auto(chain)


def test_a_type_that_only_the_engine_lists_has_the_knobs_of_its_kind() -> None:
    listed = parse_chain("new,draft-new", "X", lambda _: True)
    assert {t.name: t.max_parameter for t in listed} == {"new": None, "draft-new": "spec-draft-n-max"}


def test_none_is_the_empty_chain_and_auto_in_any_case_stands_alone() -> None:
    assert parse_chain("none", "X") == ()
    assert [is_auto(text) for text in ("auto", " AUTO ", "none", "")] == [True, True, False, False]


def test_only_draft_types_read_the_probability_threshold_and_each_other_parameter_has_one_reader() -> None:
    assert all(name.startswith("draft-") for name in readers_of("spec-draft-p-min"))
    for parameter in SPECULATION:
        readers = readers_of(parameter.name)
        assert readers, parameter.name
        assert len(readers) == 1 or parameter.name.startswith(("spec-draft-", "spec-synth-"))


@pytest.mark.parametrize(
    ("architecture", "nextn", "expected"),
    [
        ("dflash", None, "draft-dflash"),
        ("dspark", None, "draft-dspark"),
        ("llama", 1, "draft-mtp"),
        ("llama", None, None),
    ],
)
def test_the_engine_picks_a_type_only_from_some_draft_models(
    architecture: str, nextn: int | None, expected: str | None
) -> None:
    found = detected_type(architecture, nextn)
    assert (found.name if found else None) == expected


def test_rows_of_the_table_agree_with_each_other_the_catalogue_and_the_grammar_of_the_log() -> None:
    classes = {line_class.id for line_class in TABLE}
    for row in SPEC_TYPES:
        assert {knob for knob in (row.max_parameter, row.min_parameter, row.p_min_parameter) if knob} <= set(BY_NAME)
        assert set(row.log_classes) <= classes
        assert row.pays_when
        assert row.reads_draft_model == row.name.startswith("draft-")
        assert (row.reads_layers is not None) == bool(row.draft_architectures), row.name
        assert row.block_margin is None or row.reads_layers is not None
        assert set(row.detected_from) <= set(row.draft_architectures)
    keeping = {row.name for row in SPEC_TYPES if row.keeps_states}
    assert keeping == {"draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"}


@pytest.mark.parametrize(("name", "longest"), [("draft-dflash", 15), ("draft-dspark", 16), ("draft-simple", None)])
def test_a_block_limits_the_draft(name: str, longest: int | None) -> None:
    item = spec_type(name)
    assert item is not None
    assert (item.longest_draft(16), item.longest_draft(None)) == (longest, None)
