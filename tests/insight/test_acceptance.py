"""Acceptance: nothing drafted is unknown, rounding above a million is not believed, positions are shares of steps."""

import pytest

from specdash.core.readings import Counters
from specdash.insight.log.counter_log import exact_accepted, resolution
from specdash.insight.request import NO_DRAFTS, DraftTally
from specdash.insight.windowed import Windowed


@pytest.mark.parametrize(
    ("tally", "acceptance", "length", "positions"),
    [
        (DraftTally(), None, None, None),
        (DraftTally(100, 0, None), 0.0, None, None),
        (DraftTally(141, 101, 18), pytest.approx(101 / 141), pytest.approx(6.61, abs=0.005), None),
        (DraftTally(80, 15, 20, (10, 5, 0)), 0.1875, 1.75, (0.5, 0.25)),
        (DraftTally(80, 65, 20, (43, 25, 1)) - DraftTally(0, 0, 0, (33, 20, 1)), 0.8125, 4.25, (0.5, 0.25)),
        (DraftTally(8, 8, None) + DraftTally(8, 0, 1), 0.5, None, None),
    ],
)
def test_a_tally_says_what_its_sums_say_and_nothing_drafted_is_unknown(
    tally: DraftTally, acceptance: float | None, length: float | None, positions: tuple[float, ...] | None
) -> None:
    assert (tally.acceptance, tally.mean_accepted_length) == (acceptance, length)
    assert tally.acceptance_per_position == positions
    assert tally + tally - tally == tally


def test_positions_give_the_exact_number_of_accepted_tokens_above_a_million() -> None:
    counters = Counters(accepted_tokens=1_234_570.0, accepted_per_position=(700_000, 534_567))
    assert exact_accepted(counters) == 1_234_567


@pytest.mark.parametrize(("total", "step"), [(999_999.0, 1.0), (1_010_380.0, 10.0), (12_345_600.0, 100.0)])
def test_six_significant_digits_bound_what_a_counter_can_show(total: float, step: float) -> None:
    assert resolution(total) == step


def test_a_window_is_what_came_in_it() -> None:
    totals = Windowed(NO_DRAFTS, keep_s=10.0)
    for at, accepted in ((1.0, 8), (9.0, 2), (12.0, 4)):
        totals.add(at, DraftTally(8, accepted, 1))
    assert totals.since(7.0) == DraftTally(16, 6, 2)
    assert totals.since(25.0) == DraftTally()
    assert (totals.total, totals.newest) == (DraftTally(24, 14, 3), 12.0)
