"""Which requests decoded beside which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.insight.request import ServedRequest
from specdash.insight.speedup.speedup import beside


def decoding(start: float, end: float, prefill: float = 0.0) -> ServedRequest:
    return ServedRequest(began=start - prefill, ended=end, decode_tokens=50, decode_ms=1000.0 * (end - start))


def test_time_alone_and_beside_another_are_apart_and_the_others_prefill_is_a_share() -> None:
    first, second = decoding(0, 10), decoding(8, 12, prefill=5)
    assert beside(first, [first]) == ({1: 10.0}, 0.0)
    assert beside(first, [first, second]) == ({1: 8.0, 2: 2.0}, 0.5)
    assert beside(second, [first, second]) == ({1: 2.0, 2: 2.0}, 0.0)


def test_requests_that_follow_each_other_are_not_beside_each_other() -> None:
    first, second = decoding(0, 10.01), decoding(10.0, 20)
    assert set(beside(first, [first, second])[0]) == {1}


spans = st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 30), st.floats(0, 5)), min_size=1, max_size=30)


@given(spans)
def test_every_moment_of_a_decode_is_counted_once_and_with_itself(found: list[tuple[float, float, float]]) -> None:
    samples = [decoding(start, start + length, prefill) for start, length, prefill in found]
    for sample in samples:
        profile, filled = beside(sample, samples)
        assert sum(profile.values()) == pytest.approx(sample.decode_s, abs=1e-3)
        assert 1 <= min(profile) <= max(profile) <= len(samples)
        assert 0 <= filled <= 1
