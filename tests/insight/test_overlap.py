"""Which requests decoded beside which."""

import pytest

from specdash.insight.request import ServedRequest
from specdash.insight.speedup.speedup import beside


def decoding(start: float, end: float, prefill: float = 0.0) -> ServedRequest:
    return ServedRequest(began=start - prefill, ended=end, decode_tokens=50, decode_ms=1000.0 * (end - start))


def test_those_beside_it_count_for_as_long_as_they_were_and_their_prefill_is_a_share() -> None:
    first, second = decoding(0, 10), decoding(8, 12, prefill=5)
    assert beside(first, [first]) == (1.0, 0.0)
    assert beside(first, [first, second]) == pytest.approx((1.2, 0.5))
    assert beside(second, [first, second]) == (1.5, 0.0)
