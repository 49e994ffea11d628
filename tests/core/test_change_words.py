"""How changes are written: never with digits that mean nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.change_words import between_words, change_words
from specdash.tui.widgets.tuner_bar import gain_words
from specdash.tune.problem import Outcome, Point


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.1234, "+12.3%"),
        (-0.05, "-5.0%"),
        (0.0, "+0.0%"),
        (None, "--"),
        (float("nan"), "--"),
        (26.77, "more than ×10"),
        (float("inf"), "more than ×10"),
    ],
)
def test_a_change_is_a_percentage_or_more_than_ten_times(share: float | None, words: str) -> None:
    assert change_words(share) == words


@given(st.none() | st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 3))
def test_no_change_is_written_with_four_digits_before_the_point(share: float | None, digits: int) -> None:
    for text in (change_words(share, digits), between_words(share, share), gain_words(share, share, share, digits)):
        assert all(float(one) < 1000 for one in re.findall(r"\+(\d+(?:\.\d+)?)", text)), text


def test_noise_at_the_top_of_what_is_looked_for_is_more_than_that() -> None:
    outcome = Outcome(Point(), False, noise=0.23, noise_is_more=True)
    assert outcome.noise_words == "more than 23%"
    assert Outcome(Point(), False, noise=0.0123).noise_words == "1.2%"
    assert Outcome(Point(), False).noise_words == "--"
