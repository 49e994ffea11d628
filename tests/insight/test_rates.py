"""Rates: speeds of running requests from slots, of ended ones from counters; idle is unknown."""

from __future__ import annotations

import pytest

from specdash.core.observations import Counters, Slot, Slots
from specdash.insight.counter_log import Scrape
from specdash.insight.rates import GainPoint, SlotRates, counter_rates, gain_point, mean_busy_slots, tokens_per_decode


def busy(slot: int, task: int, decoded: int, processed: int = 100) -> Slot:
    return Slot(slot, is_processing=True, task=task, n_decoded=decoded, n_prompt_tokens_processed=processed)


def test_decode_is_the_growth_of_the_same_tasks_summed_over_slots() -> None:
    rates = SlotRates()
    assert rates.add(10.0, Slots((busy(0, 7, 100), busy(1, 8, 40)))) == (None, None)
    assert rates.add(12.0, Slots((busy(0, 7, 160), busy(1, 8, 60)))) == (None, 40.0)
    assert rates.decode_by_slot == {0: 30.0, 1: 10.0}


def test_a_new_task_in_the_same_slot_is_never_a_negative_rate() -> None:
    rates = SlotRates()
    rates.add(10.0, Slots((busy(0, 7, 500),)))
    assert rates.add(11.0, Slots((busy(0, 9, 20),))) == (None, None)


def test_an_idle_slot_has_no_rate() -> None:
    rates = SlotRates()
    rates.add(10.0, Slots((busy(0, 7, 500),)))
    assert rates.add(11.0, Slots((Slot(0, is_processing=False, n_decoded=0),))) == (None, None)


def test_prefill_is_the_growth_of_processed_prompt_tokens_before_the_first_token() -> None:
    rates = SlotRates()
    rates.add(10.0, Slots((busy(0, 7, 0, 2048),)))
    assert rates.add(12.0, Slots((busy(0, 7, 0, 6144),))) == (2048.0, None)


def test_ended_requests_are_rated_by_their_own_seconds_times_the_busy_slots() -> None:
    before = Counters(
        prompt_tokens=0,
        prompt_seconds=0,
        predicted_tokens=0,
        predicted_seconds=0,
        decode_calls=0,
        busy_slots_per_decode=0,
    )
    after = Counters(
        prompt_tokens=500,
        prompt_seconds=0.25,
        predicted_tokens=400,
        predicted_seconds=8,
        decode_calls=100,
        busy_slots_per_decode=2,
    )
    assert mean_busy_slots(before, after) == 2
    assert counter_rates(Scrape(0, before), Scrape(10, after), 2) == (2000.0, 100.0)


def test_no_request_ended_means_no_rate() -> None:
    same = Counters(prompt_tokens=5, prompt_seconds=1, predicted_tokens=5, predicted_seconds=1)
    assert counter_rates(Scrape(0, same), Scrape(1, same), 1) == (None, None)


def test_one_token_after_a_cache_hit_has_no_prefill_and_the_first_token_no_decode() -> None:
    before = Counters(prompt_tokens=500, prompt_seconds=1, predicted_tokens=50, predicted_seconds=1)
    after = Counters(prompt_tokens=501, prompt_seconds=2.02, predicted_tokens=51, predicted_seconds=1.000001)
    assert counter_rates(Scrape(0, before), Scrape(1, after), 1) == (None, None)


def test_seconds_that_are_printed_too_coarsely_give_no_rate() -> None:
    before = Counters(predicted_tokens=900_000, predicted_seconds=12345.6)
    after = Counters(predicted_tokens=900_100, predicted_seconds=12345.7)
    assert counter_rates(Scrape(0, before), Scrape(1, after), 1) == (None, None)
    later = Counters(predicted_tokens=901_000, predicted_seconds=12355.6)
    assert counter_rates(Scrape(0, before), Scrape(9, later), 1)[1] == pytest.approx(100.0)


def test_two_looks_that_follow_at_once_because_one_came_late_give_no_rate() -> None:
    rates = SlotRates()
    rates.add(10.0, Slots((busy(0, 7, 100),)))
    assert rates.add(10.01, Slots((busy(0, 7, 220),))) == (None, None)
    assert rates.add(11.0, Slots((busy(0, 7, 220),))) == (None, 120.0)


def test_the_tail_of_a_prompt_is_no_prefill() -> None:
    rates = SlotRates()
    rates.add(10.0, Slots((busy(0, 7, 0, 2048),)))
    assert rates.add(11.0, Slots((busy(0, 7, 0, 2049),))) == (None, None)


def test_busy_slots_are_those_between_the_scrapes_and_not_since_the_start() -> None:
    before = Counters(decode_calls=100, busy_slots_per_decode=1.0)
    after = Counters(decode_calls=200, busy_slots_per_decode=2.5)
    assert mean_busy_slots(before, after) == 4.0


def test_busy_slots_are_no_more_than_there_are_and_unknown_where_rounding_hides_them() -> None:
    before = Counters(decode_calls=100, busy_slots_per_decode=1.0)
    assert mean_busy_slots(before, Counters(decode_calls=110, busy_slots_per_decode=2.5), slots=3) == 3
    before = Counters(decode_calls=2e6, busy_slots_per_decode=1.23456)
    assert mean_busy_slots(before, Counters(decode_calls=2.00001e6, busy_slots_per_decode=1.23456)) is None


def gain(*points: GainPoint, longest: int | None = None) -> float | None:
    return tokens_per_decode(points, longest)


def rested(at: float, tokens: float, calls: float, **drafted: float) -> GainPoint:
    return GainPoint(Scrape(at, Counters(predicted_tokens=tokens, decode_calls=calls, **drafted)), 0, 0)  # type: ignore[arg-type]


def running(at: float, calls: float, in_flight: float, error: float = 1.0) -> GainPoint:
    return GainPoint(Scrape(at, Counters(predicted_tokens=0, decode_calls=calls)), in_flight, error)


def test_tokens_per_decode_counts_replays_against_the_gain() -> None:
    assert gain(rested(0, 0, 0), rested(5, 240, 73)) == pytest.approx(3.29, abs=0.01)


def test_tokens_per_decode_is_taken_between_moments_of_rest_where_there_are_two() -> None:
    points = [rested(0, 0, 0), running(1, 50, 99), rested(2, 90, 90), running(3, 99, 700)]
    assert gain(*points) == 1.0


def test_a_server_that_never_rests_is_measured_all_the_same() -> None:
    assert gain(running(0, 0, 10), running(5, 50, 160), running(10, 100, 310)) == 3.0
    assert gain(running(0, 0, 10)) is None


@pytest.mark.parametrize(
    "points",
    [
        (rested(0, 0, 0), rested(5, 27, 9)),
        (rested(0, 0, 0), rested(5, 720, 10)),
        (rested(0, 0, 0, draft_tokens=0, accepted_tokens=0, verification_steps=0),
         rested(5, 200, 100, draft_tokens=400, accepted_tokens=20, verification_steps=100)),
        (running(0, 0, 0), running(5, 100, 200, error=150)),
    ],
    ids=["too few decode calls", "more than a draft holds", "more than was accepted", "much may have ended since"],
)  # fmt: skip
def test_tokens_per_decode_is_unknown_on(points: tuple[GainPoint, ...]) -> None:
    assert gain(*points, longest=4) is None


def test_a_little_more_than_is_possible_is_what_is_possible() -> None:
    assert gain(rested(0, 0, 0), rested(5, 102, 100), longest=0) == 1.0


class TestWhatIsInFlight:
    """Tokens that requests under way have generated, at a scrape."""

    BEFORE = Scrape(9.0, Counters(predicted_tokens=100, decode_calls=50, requests_processing=1))

    def point(self, predicted: float = 100, looked: float = 9.5, processing: float = 1) -> GainPoint:
        totals = Counters(predicted_tokens=predicted, decode_calls=60, requests_processing=processing)
        return gain_point(Scrape(10.0, totals), self.BEFORE, (looked, Slots((busy(0, 7, 40),))), {0: 20.0})

    def test_it_is_what_the_slots_told_and_what_came_since(self) -> None:
        assert self.point().in_flight == 50
        assert self.point().error == 2.5

    def test_a_request_that_may_have_ended_since_may_be_in_the_totals_already(self) -> None:
        assert self.point(predicted=140).error == 42.5

    def test_old_slots_tell_nothing(self) -> None:
        assert self.point(looked=5.0).error == float("inf")

    def test_rest_is_what_two_scrapes_agree_on(self) -> None:
        assert self.point(processing=0, predicted=140).error == 40
        totals = Counters(predicted_tokens=140, decode_calls=60, requests_processing=0)
        assert gain_point(Scrape(11.0, totals), Scrape(10.0, totals), None, {}).is_exact
