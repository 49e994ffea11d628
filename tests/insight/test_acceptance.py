"""Acceptance: nothing drafted is unknown, rounding above a million is not believed, positions are shares of steps."""

from __future__ import annotations

import pytest

from specdash.core.observations import Counters
from specdash.insight.acceptance import (
    DraftWindow,
    ExactWindow,
    exact_accepted,
    per_position,
    resolution,
    since_start,
)


def test_idle_is_unknown_and_not_zero() -> None:
    assert DraftWindow(0, 0).rate is None
    assert since_start(Counters()) is None


def test_nothing_accepted_is_zero() -> None:
    assert DraftWindow(100, 0).rate == 0.0


def test_mean_accepted_length_is_one_plus_accepted_per_step() -> None:
    assert DraftWindow(141, 101, 18).mean_accepted_length == pytest.approx(6.61, abs=0.005)


def test_positions_give_the_exact_number_of_accepted_tokens_above_a_million() -> None:
    counters = Counters(accepted_tokens=1_234_570.0, accepted_per_position=(700_000, 534_567))
    assert exact_accepted(counters) == 1_234_567


def test_positions_that_contradict_the_total_are_not_believed() -> None:
    assert exact_accepted(Counters(accepted_tokens=100.0, accepted_per_position=(10, 5))) == 100.0


@pytest.mark.parametrize(("total", "step"), [(999_999.0, 1.0), (1_010_380.0, 10.0), (12_345_600.0, 100.0)])
def test_six_significant_digits_bound_what_a_counter_can_show(total: float, step: float) -> None:
    assert resolution(total) == step


def test_acceptance_per_position_is_the_share_of_steps_in_the_window() -> None:
    assert per_position((33, 20, 1), (43, 25, 1), 20) == (0.5, 0.25)
    assert per_position(None, (9, 3, 0, 0), 10) == (0.9, 0.3)
    assert per_position(None, (9, 3), 0) is None


def test_an_exact_window_forgets_what_is_older() -> None:
    window = ExactWindow(keep_s=10.0)
    window.add(1.0, 8, 8, 1)
    window.add(9.0, 8, 2, 1)
    window.add(12.0, 8, 4, 1)
    assert window.window(12.0, 5.0) == DraftWindow(16, 6, 2)
    assert window.window(30.0, 5.0) is None
