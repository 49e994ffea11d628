"""Warning classes are counted, rated per minute and dated, however many lines come."""

from __future__ import annotations

from specdash.core.log_facts import WarningTally
from specdash.insight.storms import StormBook


def tally(count: int, first: float | None = None, last: float | None = None) -> WarningTally:
    return WarningTally("find_slot_non_consecutive", count, first, last, "find_slot: ...")


def test_counts_add_up_and_the_rate_is_that_of_the_last_minute() -> None:
    book = StormBook()
    book.add(100.0, tally(1_000_000))
    book.add(190.0, tally(30))
    book.add(200.0, tally(12))
    (view,) = book.view(201.0)
    assert view.count == 1_000_042
    assert view.per_minute == 42
    assert (view.first_at, view.last_at) == (100.0, 200.0)
    assert book.view(400.0)[0].per_minute == 0


def test_an_old_log_read_now_is_not_a_storm_of_this_minute() -> None:
    book = StormBook()
    book.add(1000.0, tally(5000, first=10.0, last=20.0), uptime_s=620.0)
    (view,) = book.view(1000.0)
    assert view.count == 5000
    assert view.per_minute == 0
    assert (view.first_at, view.last_at) == (390.0, 400.0)


def test_the_most_recent_class_comes_first() -> None:
    book = StormBook()
    book.add(1.0, tally(1))
    book.add(2.0, WarningTally("context_shift", 1, None, None, "slot context shift"))
    assert [view.warning for view in book.view(3.0)] == ["context_shift", "find_slot_non_consecutive"]
