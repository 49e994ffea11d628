"""Tokens over seconds are a speed only on enough evidence, and never one that no machine reaches."""

import pytest

from specdash.core.proxy_events import DECODE, PREFILL, SpeedLimits, speed, with_credible_speeds


@pytest.mark.parametrize(
    ("tokens", "ms", "limits", "expected"),
    [
        (120, 900.0, DECODE, 133.33), (122, 19.23, PREFILL, 6344.25), (8, 80.0, DECODE, 100.0),
        (1, 0.001, DECODE, None), (7, 70.0, DECODE, None), (8, 0.5, DECODE, None), (10**6, 1.0, DECODE, None),
        (1, 1020.0, PREFILL, None), (31, 100.0, PREFILL, None), (None, 5.0, DECODE, None), (50, None, DECODE, None),
        (50, 0, DECODE, None), (50, float("nan"), DECODE, None), (float("nan"), 5.0, DECODE, None),
    ],
)  # fmt: skip
def test_a_speed_needs_enough_tokens_and_time(
    tokens: float | None, ms: float | None, limits: SpeedLimits, expected: float | None
) -> None:
    assert speed(tokens, ms, limits) == pytest.approx(expected, abs=0.01)


def test_speeds_that_their_own_tokens_do_not_bear_out_are_left_out() -> None:
    written = {"prompt_tokens": 2001, "cached_tokens": 2000, "prefill_rate": 0.98, "completion_tokens": 1}
    found = with_credible_speeds({**written, "decode_rate": 1e6})
    assert (found["prefill_rate"], found["decode_rate"]) == (None, None)
    sound = {"prompt_tokens": 900, "prefill_rate": 400.0, "completion_tokens": 90, "decode_rate": 40.0}
    assert with_credible_speeds(dict(sound)) == sound
