"""The counter log: windows between scrapes, and a restart is a fact, never a negative rate."""

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.readings import Counters
from specdash.insight.log.counter_log import CounterLog, between


def scrape(drafted: int, accepted: int, **more: float) -> Counters:
    return Counters(draft_tokens=drafted, accepted_tokens=accepted, **more)  # type: ignore[arg-type]


def test_a_window_is_bounded_by_the_scrape_at_its_beginning_and_the_newest() -> None:
    log = CounterLog()
    for second in range(100):
        log.add(float(second), scrape(second * 10, second * 5))
    bounds = log.window(99.0, 30.0)
    assert bounds is not None
    assert (bounds[0].at, bounds[1].at) == (69.0, 99.0)


def test_totals_that_went_back_are_a_restart_and_count_from_zero() -> None:
    log = CounterLog()
    log.add(1.0, scrape(1000, 900))
    assert log.add(2.0, scrape(40, 10))
    assert log.restarted_at == 2.0
    bounds = log.window(2.0, 60.0)
    assert bounds is not None
    drafted = between(*bounds)
    assert drafted is not None
    assert (drafted.drafted, drafted.accepted) == (40, 10)


@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=80),
    st.floats(1.0, 200.0),
)
def test_no_window_ever_shows_more_accepted_than_generated_or_a_negative_number(
    steps: list[tuple[float, int, int]], window_s: float
) -> None:
    log, at, drafted, accepted = CounterLog(), 0.0, 0, 0
    for step, generated, kept in steps:
        at, drafted, accepted = at + step, drafted + generated, accepted + min(generated, kept)
        log.add(at, scrape(drafted, accepted))
    bounds = log.window(at, window_s)
    assert bounds is not None
    found = between(*bounds)
    assert found is not None
    assert 0 <= found.accepted <= found.drafted
    assert found.acceptance is None or 0 <= found.acceptance <= 1
