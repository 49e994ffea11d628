"""The arithmetic of the speed-up holds whatever the requests did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insight.speedup_data import request
from specdash.insight.request import ServedRequest
from specdash.insight.speedup.estimate import Pair, break_even, compared, effort_of, leviathan

tokens = st.integers(2, 4000)
requests = st.builds(
    lambda count, hit, missed, rate: request(
        tokens=count, accepted=min(hit, count - 1), drafted=hit + missed, rate=rate
    ),
    tokens,
    st.integers(0, 3999),
    st.integers(0, 3999),
    st.floats(0.1, 5000),
)


def test_the_published_formula_is_the_upper_bound() -> None:
    # Leviathan et al. 2023: E = (1 - a^(g+1)) / (1 - a), speed-up E / (g c + 1), here for a = 0.8, g = 5, c = 0.1.
    length, drafted, cost = (1 - 0.8**6) / (1 - 0.8), 5, 0.1
    assert leviathan(length, drafted, (0.0, 0.2, 0.8), (cost,) * 3).high == pytest.approx(length / (drafted * cost + 1))


@given(requests)
def test_at_the_break_even_length_the_estimate_is_one(request_sample: ServedRequest) -> None:
    effort = effort_of([request_sample])
    assert effort.length is not None
    drafted = effort.drafted_per_step
    found = leviathan(effort.length, drafted)
    length, acceptance = break_even(effort.length, found.value, drafted)
    assert leviathan(length, drafted).value == pytest.approx(1.0)
    if acceptance is not None and length >= 1:
        assert 1 + acceptance * drafted == pytest.approx(length)


pairs = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=200)


@given(pairs, st.floats(0, 0.05))
def test_an_interval_holds_what_it_is_of(found: list[tuple[float, float]], deviation: float) -> None:
    told = compared([Pair(*pair) for pair in found], deviation)
    assert told.low <= told.value <= told.high
    assert told.value == pytest.approx(sum(a for a, _ in found) / sum(b for _, b in found), rel=1e-3)


def test_replays_are_among_the_decode_calls_that_tokens_tell() -> None:
    # Counted by a real server (n_decode_total): 60 tokens, 40 accepted in 9 steps, 9 replays, 1 step without a draft.
    effort = effort_of([request(tokens=60, accepted=40, drafted=72)])
    assert effort.drafts.steps == 19
