"""The catalogue of spec types: names, the engine's order, and which knob each type reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.speculation import SPEC_TYPES, detected_type, parse_chain, readers_of, spec_type

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
