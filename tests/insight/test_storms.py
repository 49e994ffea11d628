"""Warning classes are counted, rated per minute and dated, however many lines come."""

from msgspec.structs import replace

from specdash.core.log_facts import Touched, WarningTally
from specdash.insight.log.log_view import StormBook


def tally(count: int, first: float | None = None, last: float | None = None) -> WarningTally:
    return WarningTally("find_slot_non_consecutive", count, first, last, "find_slot: ...")


def test_counts_add_up_and_the_rate_is_that_of_the_last_minute() -> None:
    book = StormBook()
    book.add(100.0, tally(1_000_000))
    book.add(190.0, tally(30))
    book.add(200.0, tally(12))
    (view,) = book.newest_first
    assert view.seen.count == 1_000_042
    assert view.per_minute(201.0) == 42
    assert (view.first_at, view.last_at) == (100.0, 200.0)
    assert book.newest_first[0].per_minute(400.0) == 0


def test_an_old_log_read_now_is_not_a_storm_of_this_minute() -> None:
    book = StormBook()
    book.add(1000.0, tally(5000, first=10.0, last=20.0), uptime_s=620.0)
    (view,) = book.newest_first
    assert view.seen.count == 5000
    assert view.per_minute(1000.0) == 0
    assert (view.first_at, view.last_at) == (390.0, 400.0)


def touching(slots: tuple[int, ...], tasks: tuple[int, ...], *, more: bool = False) -> WarningTally:
    return WarningTally("context_shift", 1, None, None, "...", Touched(slots, more), Touched(tasks, more))


def test_slots_and_tasks_are_counted_once_each() -> None:
    book = StormBook()
    for tally in (touching((0,), (7,)), touching((1, 0), (8, 7)), touching((1,), (9,))):
        book.add(1.0, tally)
    (view,) = book.newest_first
    assert view.seen.slots == Touched((0, 1))
    assert (view.seen.tasks_touched, view.seen.tasks.more) == (3, False)


def test_the_busiest_minute_is_remembered() -> None:
    book = StormBook()
    book.add(10.0, tally(90))
    book.add(500.0, tally(4))
    (view,) = book.newest_first
    assert (view.per_minute(501.0), view.seen.peak_per_minute) == (4, 90)


def former(book: StormBook) -> bool:
    return book.newest_first[0].seen.is_former


def test_a_class_is_a_former_servers_until_the_one_that_writes_now_prints_it() -> None:
    book = StormBook()
    book.add(1.0, tally(1))
    assert not former(book)
    book.new_server()
    assert former(book)
    book.add(4.0, replace(tally(1), lives_ago=1))
    assert former(book)
    book.add(5.0, tally(1))
    assert not former(book)
