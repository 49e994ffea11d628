"""The catalogue of spec types: names, the engine's order, and which knob each type reads."""

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
    chain = [t.name for t in parse_chain(",".join(names), "X")]
    assert chain == [name for name in NAMES if name in set(names)]


def test_none_is_the_empty_chain() -> None:
    assert parse_chain("none", "X") == ()


def test_none_beside_a_type_is_refused_because_it_disables_the_type() -> None:
    with pytest.raises(InputError, match=r"LLAMA_SPEC_TYPE=ngram-mod,none: 'none' would silently disable"):
        parse_chain("ngram-mod,none", "LLAMA_SPEC_TYPE")


def test_an_unknown_type_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown speculative type 'turbo'; use one of: none, ngram-simple"):
        parse_chain("turbo", "LLAMA_SPEC_TYPE")


def test_every_knob_of_every_type_is_a_parameter_of_the_catalogue() -> None:
    knobs = {k for t in SPEC_TYPES for k in (t.max_parameter, t.min_parameter, t.p_min_parameter) if k}
    assert knobs <= set(BY_NAME)


def test_ngram_cache_has_no_knob_and_says_its_fixed_length() -> None:
    cache = spec_type("ngram-cache")
    assert cache is not None
    assert [cache.knob(key) for key in ("LLAMA_DRAFT_MAX", "LLAMA_DRAFT_MIN", "LLAMA_DRAFT_P_MIN")] == [None] * 3
    assert cache.fixed_draft_length == 8


def test_only_draft_types_read_the_probability_threshold() -> None:
    assert all(name.startswith("draft-") for name in readers_of("spec-draft-p-min"))
    assert readers_of("spec-ngram-mod-n-max") == ("ngram-mod",)


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


def test_what_each_type_says_of_itself_agrees_with_the_grammar_of_the_log() -> None:
    classes = {line_class.id for line_class in TABLE}
    assert {name for spec_kind in SPEC_TYPES for name in spec_kind.log_classes} <= classes


def test_a_type_whose_draft_reads_layers_names_the_architectures_of_such_drafts() -> None:
    for spec_kind in SPEC_TYPES:
        assert (spec_kind.reads_layers is not None) == bool(spec_kind.draft_architectures), spec_kind.name
        assert spec_kind.block_margin is None or spec_kind.reads_layers is not None
        assert set(spec_kind.detected_from) <= set(spec_kind.draft_architectures)


def test_only_types_that_draft_with_a_model_have_a_context_of_their_own_or_keep_states() -> None:
    assert {spec_kind.name for spec_kind in SPEC_TYPES if spec_kind.reads_draft_model} == {
        n for n in NAMES if n.startswith("draft-")
    }
    assert {spec_kind.name for spec_kind in SPEC_TYPES if spec_kind.keeps_states} == {
        *("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
    }


@pytest.mark.parametrize(("name", "longest"), [("draft-dflash", 15), ("draft-dspark", 16), ("draft-simple", None)])
def test_a_block_limits_the_draft(name: str, longest: int | None) -> None:
    item = spec_type(name)
    assert item is not None
    assert item.longest_draft(16) == longest
    assert item.longest_draft(None) is None


def test_every_type_says_when_it_pays_and_each_own_parameter_has_one_reader() -> None:
    assert all(spec_kind.pays_when for spec_kind in SPEC_TYPES)
    for parameter in SPECULATION:
        readers = readers_of(parameter.name)
        assert readers, parameter.name
        assert len(readers) == 1 or parameter.name.startswith(("spec-draft-", "spec-synth-"))


def test_auto_stands_alone() -> None:
    assert [is_auto(text) for text in ("auto", " AUTO ", "auto,ngram-mod", "none", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    with pytest.raises(InputError, match=r"unknown speculative type 'auto'; use one of: .*auto \(alone\)"):
        parse_chain("auto,ngram-mod", "X")
