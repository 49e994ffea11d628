"""Rates: speeds of running requests from slots, of ended ones from counters; idle is unknown."""

from typing import Any

import pytest

from specdash.core.readings import Counters, Slot, Slots
from specdash.insight.log.counter_log import Scrape
from specdash.insight.rates import SlotRates, counter_rates, mean_busy_slots, tokens_per_decode


def busy(slot: int, task: int, decoded: int, processed: int = 100) -> Slot:
    return Slot(slot, is_processing=True, task=task, n_decoded=decoded, n_prompt_tokens_processed=processed)


IDLE = Slot(0, is_processing=False, n_decoded=0)


@pytest.mark.parametrize(
    ("looks", "rates"),
    [
        # The growth of the same tasks, summed over slots.
        ([(10, busy(0, 7, 100), busy(1, 8, 40)), (12, busy(0, 7, 160), busy(1, 8, 60))], (None, 40.0)),
        # A new task in the slot is never a negative rate, and an idle slot has none.
        ([(10, busy(0, 7, 500)), (11, busy(0, 9, 20))], (None, None)),
        ([(10, busy(0, 7, 500)), (11, IDLE)], (None, None)),
        # Prefill is the growth of processed tokens before the first token; the tail of a prompt is none.
        ([(10, busy(0, 7, 0, 2048)), (12, busy(0, 7, 0, 6144))], (2048.0, None)),
        ([(10, busy(0, 7, 0, 2048)), (11, busy(0, 7, 0, 2049))], (None, None)),
        # Two looks that follow at once, because one came late, say nothing; the one after them does.
        ([(10, busy(0, 7, 100)), (10.01, busy(0, 7, 220))], (None, None)),
        ([(10, busy(0, 7, 100)), (10.01, busy(0, 7, 220)), (11, busy(0, 7, 220))], (None, 120.0)),
    ],
)
def test_running_requests_are_rated_by_their_growth_from_look_to_look(
    looks: list[tuple[Any, ...]], rates: tuple[float | None, float | None]
) -> None:
    slots = SlotRates()
    found = [slots.add(at, Slots(tuple(seen))) for at, *seen in looks]
    assert (found[0], found[-1]) == ((None, None), rates)
    if rates == (None, 40.0):
        assert slots.decode_by_slot == {0: 30.0, 1: 10.0}


def test_ended_requests_are_rated_by_their_own_seconds_times_the_busy_slots() -> None:
    names = ("prompt_tokens", "prompt_seconds", "predicted_tokens", "predicted_seconds", "decode_calls")
    before, after = (
        Counters(**dict(zip(names, totals, strict=True)), busy_slots_per_decode=busy)  # type: ignore[arg-type]
        for *totals, busy in ((0, 0, 0, 0, 0, 0), (500, 0.25, 400, 8, 100, 2))
    )
    assert mean_busy_slots(before, after) == 2
    assert counter_rates(Scrape(0, before), Scrape(10, after), 2) == (2000.0, 100.0)


@pytest.mark.parametrize(
    ("before", "after", "rates"),
    [
        # No request ended; one token after a cache hit, and the first token of an answer; seconds printed too coarsely.
        ((5, 1, 5, 1), (5, 1, 5, 1), (None, None)),
        ((500, 1, 50, 1), (501, 2.02, 51, 1.000001), (None, None)),
        ((0, 0, 900_000, 12345.6), (0, 0, 900_100, 12345.7), (None, None)),
        ((0, 0, 900_000, 12345.6), (0, 0, 901_000, 12355.6), (None, pytest.approx(100.0))),
    ],
)
def test_counters_that_grew_too_little_give_no_rate(
    before: tuple[float, ...], after: tuple[float, ...], rates: tuple[float | None, float | None]
) -> None:
    names = ("prompt_tokens", "prompt_seconds", "predicted_tokens", "predicted_seconds")
    first, last = (Counters(**dict(zip(names, totals, strict=True))) for totals in (before, after))  # type: ignore[arg-type]
    assert counter_rates(Scrape(0, first), Scrape(1, last), 1) == rates


@pytest.mark.parametrize(
    ("before", "after", "slots", "busy_slots"),
    [
        # Between the scrapes and not since the start; no more than there are; unknown where rounding hides them.
        ((100, 1.0), (200, 2.5), None, 4.0),
        ((100, 1.0), (110, 2.5), 3, 3),
        ((2e6, 1.23456), (2.00001e6, 1.23456), None, None),
    ],
)
def test_busy_slots_are_a_mean_over_the_calls_between_two_scrapes(
    before: tuple[float, float], after: tuple[float, float], slots: int | None, busy_slots: float | None
) -> None:
    first, last = (Counters(decode_calls=calls, busy_slots_per_decode=mean) for calls, mean in (before, after))
    assert mean_busy_slots(first, last, slots) == busy_slots


def gain(tokens: float, accepted: float, steps: float) -> float | None:
    """Of the requests that ended between two scrapes."""
    after = Counters(
        predicted_tokens=tokens, draft_tokens=4 * steps, accepted_tokens=accepted, verification_steps=steps,
        accepted_per_position=(0, 0, 0, 0),
    )  # fmt: skip
    return tokens_per_decode(Scrape(0, Counters()), Scrape(10, after))


def test_tokens_per_decode_counts_replays_against_the_gain() -> None:
    assert gain(240, 140, 70) == pytest.approx(2.4), "a step yields 3.0, and 30 of 100 calls are replays"
    assert gain(100, 0, 0) == 1.0


@pytest.mark.parametrize(
    ("tokens", "accepted", "steps"),
    [(27, 18, 9), (720, 650, 65), (50, 100, 40), (0, 0, 0)],
    ids=["too few decode calls", "more than a draft holds", "one total moved before the other", "no request ended"],
)
def test_tokens_per_decode_is_unknown_on(tokens: float, accepted: float, steps: float) -> None:
    assert gain(tokens, accepted, steps) is None
