"""Points as settings of an env file, and settings as points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.backend import demo
from specdash.backend.settings import settings_from_env
from specdash.bench.compare.beds import laid_over
from specdash.core.errors import InputError, UsageError
from specdash.core.speculation import SPEC_TYPES
from specdash.tune.model.problem import Point, points_of
from specdash.tune.run.knobs import allowed_chains, configuration, point_of, settings_in_force, untunable

TARGET, DRAFT = (str(demo.bundled_model(name)) for name in (demo.TARGET_MODEL, demo.DRAFT_MODEL))
VALUES = {"LLAMA_MODEL": TARGET, "LLAMA_DRAFT_MODEL": DRAFT}
CHAINS = (
    (),
    ("draft-simple",),
    ("ngram-mod",),
    ("ngram-simple",),
    ("ngram-map-k",),
    ("ngram-mod", "draft-simple"),
    ("ngram-map-k4v", "draft-simple"),
)
POINTS = points_of(CHAINS, Point())
STARTS = (
    {"LLAMA_SPEC_TYPE": "none"},
    {"LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_DRAFT_MAX": "5", "LLAMA_DRAFT_MIN": "1", "LLAMA_DRAFT_P_MIN": "0.6"},
    {"LLAMA_ARG_SPEC_TYPE": "draft-simple", "LLAMA_ARG_SPEC_DRAFT_N_MAX": "7"},
    {"LLAMA_SPEC_TYPE": "ngram-mod", "LLAMA_DRAFT_MAX": "21", "LLAMA_DRAFT_MIN": "6"},
    {"LLAMA_EXTRA_ARGS": "--spec-default --no-warmup"},
    {"LLAMA_EXTRA_ARGS": "--spec-type ngram-simple --spec_ngram_simple_size_m 9 --chat-template-kwargs '{\"a\": 1}'"},
    {"LLAMA_SPEC_TYPE": "ngram-mod,draft-simple", "LLAMA_DRAFT_MAX": "12", "LLAMA_EXTRA_ARGS": "-fa on"},
)


@given(st.sampled_from(STARTS), st.sampled_from(POINTS))
def test_a_point_comes_back_from_the_settings_it_became(start: dict[str, str], point: Point) -> None:
    values = {**VALUES, **start}
    after = laid_over(values, configuration(point, values, {}))
    assert point_of(settings_in_force(after, {})) == point


@given(st.sampled_from(STARTS), st.sampled_from(POINTS))
def test_no_point_touches_what_is_not_about_drafts(start: dict[str, str], point: Point) -> None:
    values = {**VALUES, "LLAMA_CTX_SIZE": "2048", **start}
    after = laid_over(values, configuration(point, values, {}))
    about = ("LLAMA_SPEC_TYPE", "LLAMA_DRAFT_M", "LLAMA_DRAFT_P", "LLAMA_ARG_SPEC", "LLAMA_EXTRA_ARGS")
    untouched = [key for key in values if not key.startswith(about)] + ["LLAMA_DRAFT_MODEL"]
    assert {key: after.get(key) for key in untouched} == {key: values[key] for key in untouched}
    for flags in ("--no-warmup", "--chat-template-kwargs", "'{\"a\": 1}'", "-fa on"):
        if flags in values.get("LLAMA_EXTRA_ARGS", ""):
            assert flags in after["LLAMA_EXTRA_ARGS"]


@pytest.mark.parametrize("start", STARTS)
def test_the_point_in_force_changes_nothing(start: dict[str, str]) -> None:
    values = {**VALUES, **start}
    assert configuration(point_of(settings_in_force(values, {})), values, {}) == {}


@given(st.sampled_from(POINTS))
def test_every_point_is_read_without_a_warning_but_for_the_draft_that_is_not_loaded(point: Point) -> None:
    values = {**VALUES, "LLAMA_SPEC_TYPE": "ngram-map-k4v"}
    told = settings_from_env(laid_over(values, configuration(point, values, {}))).remarks
    assert [name for name in map(str, told) if "is not loaded" not in name and "lowered" not in name] == []


def test_the_start_is_the_first_point_and_no_point_comes_twice() -> None:
    start = Point(("draft-simple",), n_max=7, n_min=2, p_min=0.3)
    points = points_of(CHAINS, start)
    assert points[0] == start
    assert len(set(points)) == len(points)


def test_a_block_draft_is_no_longer_than_its_block_allows() -> None:
    points = points_of([("draft-dflash",)], Point(), block=8)
    assert max(point.n_max or 0 for point in points) == 6


@pytest.mark.parametrize(("types", "said"), [((), "off"), (("ngram-cache",), "8 tokens, always")])
def test_a_chain_without_a_knob_says_so(types: tuple[str, ...], said: str) -> None:
    assert said in (untunable(types) or "")


@pytest.mark.parametrize("name", [spec_kind.name for spec_kind in SPEC_TYPES if spec_kind.max_parameter is not None])
def test_a_chain_with_a_knob_can_be_tuned(name: str) -> None:
    assert untunable((name,)) is None


KNOWN: dict[tuple[str, ...], str] = {("ngram-mod",): "", ("draft-mtp",): "there are no such layers"}


def test_without_permission_only_the_types_in_force_and_none_are_tried() -> None:
    assert allowed_chains(None, Point(("ngram-mod",), n_max=8), KNOWN) == (("ngram-mod",), ())


def test_all_types_that_fit_can_be_allowed_or_some() -> None:
    assert allowed_chains("all", Point(), KNOWN) == ((), ("ngram-mod",))
    assert allowed_chains("ngram_mod", Point(), KNOWN) == ((), ("ngram-mod",))


def test_a_type_that_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="no such layers"):
        allowed_chains("mtp", Point(), KNOWN)


@pytest.mark.parametrize("start", [Point(), Point(("ngram-cache",))])
def test_where_there_is_nothing_to_tune_it_is_said_what_to_allow(start: Point) -> None:
    with pytest.raises(UsageError, match=r"nothing to tune: .*--allow-types all, or some of: ngram-mod"):
        allowed_chains(None, start, KNOWN)


def test_two_types_whose_knobs_are_the_same_cannot_be_told_apart() -> None:
    values = {**VALUES, "LLAMA_SPEC_TYPE": "ngram-mod,ngram-simple"}
    with pytest.raises(InputError, match="cannot be tuned apart"):
        point_of(settings_in_force(values, {}))


STARTING_POINTS = st.builds(
    Point,
    types=st.sampled_from(CHAINS),
    n_max=st.integers(1, 64),
    n_min=st.integers(0, 8),
    p_min=st.sampled_from((0.0, 0.1, 0.5, 0.75)),
).map(
    lambda point: Point(
        point.types,
        *((point.n_max, point.n_min) if point.types else (None, None)),
        point.p_min if any("draft" in kind for kind in point.types) else None,
    )
)


@given(STARTING_POINTS)
def test_no_two_points_of_a_search_have_one_name(start: Point) -> None:
    points = points_of(((spec_kind.name,) for spec_kind in SPEC_TYPES), start) + points_of(CHAINS, start)[1:]
    by_name: dict[str, set[Point]] = {}
    for point in points:
        # No shortest draft and one of 0 are the same setting.
        by_name.setdefault(point.name, set()).add(replace(point, n_min=point.n_min or None, p_min=point.p_min or None))
    assert [name for name, found in by_name.items() if len(found) > 1] == []
