"""Which requests decoded beside which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.insight.request import ServedRequest
from specdash.insight.speedup.speedup import Overlap


def decoding(start: float, end: float, prefill: float = 0.0) -> ServedRequest:
    return ServedRequest(began=start - prefill, ended=end, decode_tokens=50, decode_ms=1000.0 * (end - start))


def test_alone_it_is_alone() -> None:
    request_sample = decoding(0, 10)
    profile, filled = Overlap([request_sample]).profile(request_sample)
    assert profile == {1: pytest.approx(10)}
    assert filled == 0.0


def test_time_beside_another_is_told_apart() -> None:
    request_sample, two = decoding(0, 10), decoding(6, 16)
    both = Overlap([request_sample, two])
    assert both.profile(request_sample)[0] == {1: pytest.approx(6), 2: pytest.approx(4)}
    assert both.profile(two)[0] == {1: pytest.approx(6), 2: pytest.approx(4)}


def test_anothers_prefill_is_told_as_a_share() -> None:
    request_sample, two = decoding(0, 10), decoding(8, 12, prefill=5)
    profile, filled = Overlap([request_sample, two]).profile(request_sample)
    assert profile == {1: pytest.approx(8), 2: pytest.approx(2)}
    assert filled == pytest.approx(0.5)


def test_requests_that_follow_each_other_are_not_beside_each_other() -> None:
    request_sample, two = decoding(0, 10.01), decoding(10.0, 20)
    assert set(Overlap([request_sample, two]).profile(request_sample)[0]) == {1}


spans = st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 30), st.floats(0, 5)), min_size=1, max_size=30)


@given(spans)
def test_every_moment_of_a_decode_is_counted_once_and_with_itself(found: list[tuple[float, float, float]]) -> None:
    samples = [decoding(start, start + length, prefill) for start, length, prefill in found]
    every = Overlap(samples)
    for sample in samples:
        profile, filled = every.profile(sample)
        assert sum(profile.values()) <= (sample.decode_s or 0.0) + 1e-6
        assert min(profile) >= 1
        assert max(profile) <= len(samples)
        assert 0 <= filled <= 1 + 1e-9
