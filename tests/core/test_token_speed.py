"""Tokens over seconds are a speed only on enough evidence, and never one that no machine reaches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import DECODE, PREFILL, SpeedLimits, plausible_rate, speed, with_credible_speeds

MAYBE = st.none() | st.floats() | st.integers(-1, 10**9)


@pytest.mark.parametrize(
    ("tokens", "ms", "limits"),
    [(1, 0.001, DECODE), (7, 70.0, DECODE), (8, 0.5, DECODE), (10**6, 1.0, DECODE), (1, 1020.0, PREFILL),
     (31, 100.0, PREFILL), (None, 5.0, DECODE), (50, None, DECODE), (50, 0, DECODE), (50, float("nan"), DECODE)],
)  # fmt: skip
def test_this_is_no_speed(tokens: float | None, ms: float | None, limits: SpeedLimits) -> None:
    assert speed(tokens, ms, limits) is None


def test_enough_tokens_over_enough_time_are() -> None:
    assert speed(120, 900.0, DECODE) == pytest.approx(133.33, abs=0.01)
    assert speed(122, 19.23, PREFILL) == pytest.approx(6344.25, abs=0.01)


@given(MAYBE, MAYBE, st.sampled_from([DECODE, PREFILL]))
def test_whatever_is_told_a_speed_is_possible(tokens: float | None, ms: float | None, limits: SpeedLimits) -> None:
    for found in (speed(tokens, ms, limits), plausible_rate(tokens, ms, limits)):
        assert found is None or 0 < found <= limits.most


def test_speeds_that_their_own_tokens_do_not_bear_out_are_left_out() -> None:
    told = {"prompt_tokens": 2001, "cached_tokens": 2000, "prefill_rate": 0.98, "completion_tokens": 1}
    found = with_credible_speeds({**told, "decode_rate": 1e6})
    assert (found["prefill_rate"], found["decode_rate"]) == (None, None)
    sound = {"prompt_tokens": 900, "prefill_rate": 400.0, "completion_tokens": 90, "decode_rate": 40.0}
    assert with_credible_speeds(dict(sound)) == sound
