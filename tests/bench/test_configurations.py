"""Configurations as people write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.backend import demo
from specdash.bench.compare.beds import laid_over
from specdash.bench.compare.trials import (
    GRIDS,
    UAP_80,
    candidates,
    engine_arguments,
    grid_candidates,
    meant,
    parse_candidate,
    parse_grid,
    preset,
    same_to_the_engine,
    unread_knobs,
)
from specdash.core.errors import InputError, UsageError

VALUES = {
    "LLAMA_MODEL": str(demo.bundled_model(demo.TARGET_MODEL)),
    "LLAMA_DRAFT_MODEL": str(demo.bundled_model(demo.DRAFT_MODEL)),
    "LLAMA_SPEC_TYPE": "draft-simple",
    "LLAMA_DRAFT_MAX": "4",
}


@pytest.mark.parametrize(
    ("word", "name", "sets"),
    [
        ("none", "none", {"LLAMA_SPEC_TYPE": "none"}),
        ("current", "current", {}),
        ("default", "default", {"LLAMA_DRAFT_MAX": "", "LLAMA_DRAFT_MIN": "", "LLAMA_DRAFT_P_MIN": ""}),
        ("LLAMA_DRAFT_MAX=8", "LLAMA_DRAFT_MAX=8", {"LLAMA_DRAFT_MAX": "8"}),
        ("fast:LLAMA_DRAFT_MAX=8,LLAMA_DRAFT_MIN=", "fast", {"LLAMA_DRAFT_MAX": "8", "LLAMA_DRAFT_MIN": ""}),
        (
            "both:LLAMA_SPEC_TYPE=ngram-mod,draft-simple,LLAMA_DRAFT_MAX=8",
            "both",
            {"LLAMA_SPEC_TYPE": "ngram-mod,draft-simple", "LLAMA_DRAFT_MAX": "8"},
        ),
    ],
)
def test_a_word_is_a_configuration(word: str, name: str, sets: dict[str, str]) -> None:
    found = parse_candidate(word)
    assert (found.name, dict(found.configuration)) == (name, sets)


def test_a_profile_is_one_too() -> None:
    assert dict(parse_candidate("max-throughput").configuration)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("no-such", "no-such"),
        ("LLAMA_DRAFT_MAX=1,LLAMA_DRAFT_MAX=2", "twice"),
        ("PROXY_PORT=1", "PROXY_PORT"),
        ("LLAMA_PORT=1", "LLAMA_PORT"),
        ("WHATEVER=1", "WHATEVER"),
    ],
)
def test_what_cannot_be_meant_is_named(word: str, named: str) -> None:
    with pytest.raises((UsageError, InputError), match=named):
        parse_candidate(word)


def test_the_same_word_twice_is_two_configurations_with_names_of_their_own() -> None:
    assert [candidate.name for candidate in candidates(["current", "none", "current", "current"])] == [
        "current",
        "none",
        "current (2)",
        "current (3)",
    ]


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in parse_candidate("x:LLAMA_ARG_HF_TOKEN=hush").words


def test_the_seeds_presets_are_those_of_the_seed() -> None:
    assert [candidate.name for candidate in preset("uap")] == ["none", "default", "tuned"]
    assert list(preset("uap")[2].configuration.values()) == ["21", "6", "0.72"]
    kept, left_out = grid_candidates(GRIDS[UAP_80])
    assert (len(kept), left_out) == (80, ())
    assert len({tuple(candidate.configuration.items()) for candidate in kept}) == 80


@given(st.lists(st.integers(0, 9), min_size=1, unique=True), st.lists(st.integers(0, 9), min_size=1, unique=True))
def test_of_a_grid_what_can_be_meant_is_kept_and_the_rest_told(longest: list[int], least: list[int]) -> None:
    words = [f"LLAMA_DRAFT_MAX={','.join(map(str, longest))}", f"LLAMA_DRAFT_MIN={','.join(map(str, least))}"]
    kept, left_out = grid_candidates(parse_grid(words))
    assert len(kept) + len(left_out) == len(longest) * len(least)
    pairs = {tuple(map(int, candidate.configuration.values())) for candidate in kept}
    assert pairs == {(most, low) for most in longest for low in least if low <= most and most >= 1}
    assert all(re.search("longer than the longest|below 1", reason) for _, reason in left_out)


def test_of_a_grid_what_a_key_cannot_be_is_left_out_with_its_range() -> None:
    kept, _ = grid_candidates(parse_grid(["LLAMA_DRAFT_MAX=4,5000,x"]))
    good, left_out = meant(VALUES, kept)
    assert [candidate.name for candidate in good] == ["max=4"]
    assert [name for name, _ in left_out] == ["max=5000", "max=x"]
    assert "must be from 1 to 1024" in left_out[0][1]


def test_a_chain_in_a_grid_is_written_with_plus() -> None:
    assert parse_grid(["LLAMA_SPEC_TYPE=ngram-mod+draft-simple,none"]) == {
        "LLAMA_SPEC_TYPE": ("ngram-mod,draft-simple", "none")
    }


def test_what_is_one_to_the_engine_is_seen() -> None:
    tried = candidates(["none", "x:LLAMA_SPEC_TYPE=none,LLAMA_DRAFT_MAX=8", "current", "y:LLAMA_DRAFT_MAX=4"])
    same = same_to_the_engine(VALUES, tried)
    assert same["current"] == ("current", "y")
    assert engine_arguments(VALUES, tried[0]) != engine_arguments(VALUES, tried[2])


def test_the_seeds_sweep_of_ngram_cache_is_one_configuration_to_todays_engine() -> None:
    values = {**VALUES, "LLAMA_SPEC_TYPE": "ngram-cache", "LLAMA_DRAFT_MODEL": ""}
    kept, _ = grid_candidates(GRIDS[UAP_80])
    (names,) = same_to_the_engine(values, kept).values()
    assert len(names) == 80
    assert len(unread_knobs(values, kept)) == 3


def test_an_empty_value_unsets_a_key_and_keeps_what_was_empty_already() -> None:
    assert laid_over({"A": "1", "B": "", "C": "3"}, {"C": "", "D": "4"}) == {"A": "1", "B": "", "D": "4"}
