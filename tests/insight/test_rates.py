"""Rates: speeds of running requests from slots, of ended ones from counters; idle is unknown."""

from __future__ import annotations

import pytest

from specdash.core.observations import Counters, Slot, Slots
from specdash.insight.counter_log import Scrape
from specdash.insight.rates import (
    GainPoint,
    SlotRates,
    counter_rates,
    gain_bounds,
    mean_busy_slots,
    tokens_per_decode,
)


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
    assert counter_rates(Scrape(0, before), Scrape(10, after)) == (2000.0, 100.0)


def test_no_request_ended_means_no_rate() -> None:
    same = Counters(prompt_tokens=5, prompt_seconds=1, predicted_tokens=5, predicted_seconds=1)
    assert counter_rates(Scrape(0, same), Scrape(1, same)) == (None, None)


def test_busy_slots_are_those_between_the_scrapes_and_not_since_the_start() -> None:
    before = Counters(decode_calls=100, busy_slots_per_decode=1.0)
    after = Counters(decode_calls=200, busy_slots_per_decode=2.5)
    assert mean_busy_slots(before, after) == 4.0


def test_tokens_per_decode_counts_replays_against_the_gain() -> None:
    before = Counters(predicted_tokens=0, decode_calls=0, busy_slots_per_decode=0)
    after = Counters(predicted_tokens=240, decode_calls=73, busy_slots_per_decode=1)
    assert tokens_per_decode(Scrape(0, before), Scrape(5, after), 0) == pytest.approx(3.29, abs=0.01)


def point(at: float, calls: float, *, idle: bool, in_flight: int = 0) -> GainPoint:
    return GainPoint(Scrape(at, Counters(decode_calls=calls)), in_flight, idle)


def test_tokens_per_decode_is_taken_between_idle_moments_where_there_are_two() -> None:
    points = [point(0, 0, idle=True), point(1, 50, idle=False, in_flight=9), point(2, 90, idle=True)]
    points.append(point(3, 99, idle=False, in_flight=7))
    bounds = gain_bounds(points)
    assert bounds is not None
    assert (bounds[0].scrape.at, bounds[1].scrape.at) == (0, 2)


def test_a_server_that_never_rests_is_measured_all_the_same() -> None:
    points = [point(0, 0, idle=True), point(5, 50, idle=False, in_flight=9), point(10, 90, idle=False, in_flight=7)]
    bounds = gain_bounds(points)
    assert bounds is not None
    assert (bounds[0].scrape.at, bounds[1].scrape.at) == (0, 10)
    assert gain_bounds(points[:1]) is None
