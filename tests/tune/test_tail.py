"""Latency of the slowest requests: which prompts these are, and that points which are equal are told to be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.tune.model.problem import TAIL, BootResult, Point, PromptResult, TuneOutcome
from specdash.tune.model.race import in_the_tail, marked, slowest_of, tail_gain
from specdash.tune.model.tuner import SpecTuner
from support.latencies import POINTS, Latencies

ONE, OTHER = Point(("draft-simple",), n_max=2, p_min=0.0), Point()


def result(point: Point, seconds: list[float]) -> BootResult:
    prompts = tuple(PromptResult(f"p{place:02}", "prose", 100, second) for place, second in enumerate(seconds))
    return BootResult(point, prompts)


def test_the_slowest_fifth_is_marked_and_never_fewer_than_three() -> None:
    assert [slowest_of(prompts) for prompts in (1, 2, 3, 8, 15, 24, 100)] == [1, 2, 3, 3, 3, 5, 20]
    found = marked(result(ONE, [float(place % 7) for place in range(24)]).prompts)
    slowest = {prompt_result.prompt for prompt_result in found if prompt_result.kind == TAIL}
    assert slowest == {"p06", "p13", "p20", "p05", "p12"}
    assert [prompt_result.prompt for prompt_result in found] == [f"p{place:02}" for place in range(24)]


@given(st.lists(st.floats(0.1, 100), min_size=4, max_size=30))
def test_no_prompt_that_is_left_out_is_slower_than_one_that_is_marked(seconds: list[float]) -> None:
    found = marked(result(ONE, seconds).prompts)
    slow = [prompt_result.seconds for prompt_result in found if prompt_result.kind == TAIL]
    assert len(slow) == slowest_of(len(seconds))
    assert min(slow) >= max(
        (prompt_result.seconds for prompt_result in found if prompt_result.kind != TAIL), default=0.0
    )


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.floats(0.2, 5.0))
def test_a_point_that_is_faster_throughout_gains_just_that(seed: int, factor: float) -> None:
    world = Latencies(seed, own=0.0, prompt=0.0, boot=0.0)
    start = world.booted(POINTS[1], 0)
    faster = BootResult(OTHER, tuple(replace(prompt, seconds=prompt.seconds / factor) for prompt in start.prompts))
    told = tail_gain([start], [faster])
    assert told is not None
    assert told.gain == pytest.approx(factor - 1)
    assert told.low == pytest.approx(told.gain)
    against = tail_gain([faster], [start])
    assert against is not None
    assert (1 + against.gain) * (1 + told.gain) == pytest.approx(1)


def test_what_boots_differ_by_widens_the_interval() -> None:
    world = Latencies(4)
    start, other = [world.booted(POINTS[1], 0)], [world.booted(POINTS[2], 1)]
    alone, noisy = tail_gain(start, other), tail_gain(start, other, noise=0.2)
    assert alone is not None
    assert noisy is not None
    assert alone.low is not None
    assert noisy.low is not None
    assert noisy.gain == alone.gain
    assert noisy.low < alone.low - 0.1


def test_too_few_prompts_tell_nothing() -> None:
    few = [result(ONE, [1.0, 2.0, 3.0])]
    assert tail_gain(few, [result(OTHER, [1.0, 1.0, 1.0])]) is None
    assert tail_gain([], few) is None
    task = Latencies(1).task
    outcome = TuneOutcome(OTHER, True, 0.5, 0.4, 0.6)
    found = in_the_tail(outcome, [*few], replace(task, start=ONE))
    assert (found.chosen, found.improved) == (ONE, False)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("each", [3, 6])
@pytest.mark.parametrize("own", [0.0, 0.08, 0.2])
def test_an_interval_of_equal_points_lies_above_nothing_in_at_most_one_of_twenty(each: int, own: float) -> None:
    wrong, worlds = 0, 300
    for seed in range(worlds):
        world = Latencies(seed, each=each, own=own)
        start = [world.booted(POINTS[1], number) for number in (0, 1)]
        told = tail_gain(start, [world.booted(POINTS[2], number) for number in (2, 3)], noise=world.boot)
        assert told is not None
        assert told.low is not None
        wrong += told.low > 0
    assert wrong <= 0.05 * worlds


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_point_that_is_faster_is_told_to_be_and_by_how_much() -> None:
    sure, held, worlds = 0, 0, 100
    for seed in range(worlds):
        world = Latencies(seed, gain=0.3)
        start = [world.booted(POINTS[1], number) for number in (0, 1)]
        told = tail_gain(start, [world.booted(POINTS[-1], number) for number in (2, 3)], noise=world.boot)
        assert told is not None
        assert told.low is not None
        assert told.high is not None
        sure += told.low > 0
        held += told.low <= math.expm1(0.3) <= told.high
    assert sure >= 0.95 * worlds
    assert held >= 0.85 * worlds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_equal_points_hardly_any_is_promoted() -> None:
    """With the slowest marked by the start's own times, 25 of 60 are."""
    wrong = [seed for seed in range(40) if concluded(Latencies(seed)).improved]
    assert len(wrong) <= 2


def concluded(world: Latencies) -> TuneOutcome:
    """What a whole run makes of it."""
    tuner = SpecTuner(world.task, 1)
    while (asked := tuner.ask()) is not None:
        tuner.tell(world.booted(asked.point, len(tuner.results)))
    outcome = tuner.outcome()
    return in_the_tail(outcome, tuner.results, world.task) if outcome.improved else outcome
