"""The tuner, on a made-up machine: speeds that rise and fall with the draft length, and boots that differ."""

import math
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from specdash.core.errors import UsageError
from specdash.tune.model.problem import BootResult, Budget, Point, PromptResult, Stage, Task, WorkloadShares, points_of
from specdash.tune.model.tuner import SpecTuner, outgrown

MTP, NGRAM = ("draft-mtp",), ("ngram-mod",)
OFF, FAST, DEEP = Point(), Point(MTP, n_max=3, p_min=0.0), Point(MTP, n_max=8, p_min=0.0)
WORKLOAD = WorkloadShares((("coding", 1.0),))
POINTS = points_of([(), MTP, NGRAM], OFF)
CRASH = "the engine ended with signal 6"


def speed(point: Point) -> float:
    """The best of a chain is 6 tokens long with a gate of 0.5, at 1.5 times the engine without drafts."""
    if not point.types:
        return 60.0
    if point.types == NGRAM:
        return 62.0
    length = abs(math.log((point.n_max or 1) / 6))
    return 90.0 - 14 * length - 12 * abs((point.p_min or 0.0) - 0.5)


def boot(point: Point, tokens_per_s: float) -> BootResult:
    """Eight prompts that gain alike."""
    return BootResult(
        point,
        tuple(PromptResult(f"p{number}", "coding", 256, 256 / tokens_per_s * (1 + number / 10)) for number in range(8)),
    )


def task(points: tuple[Point, ...] = POINTS, start: Point = OFF, restarts: int = 12) -> Task:
    return Task(points, start, WORKLOAD, Budget(restarts))


def drive(tuner: SpecTuner, machine: Callable[[Point], BootResult]) -> SpecTuner:
    while (asked := tuner.ask()) is not None:
        tuner.tell(machine(asked.point))
    return tuner


def test_it_comes_near_the_optimum_within_its_budget() -> None:
    tuner = drive(SpecTuner(task()), lambda point: boot(point, speed(point)))
    outcome = tuner.outcome()
    assert len(tuner.results) <= 12
    assert outcome.improved
    assert speed(outcome.chosen) > 0.97 * max(map(speed, POINTS))
    assert outcome.low is not None
    assert outcome.gain is not None
    assert 0 < outcome.low < outcome.gain
    assert outcome.gain == pytest.approx(speed(outcome.chosen) / speed(OFF) - 1)


def test_from_every_start_the_choice_was_booted_twice_and_so_was_the_start() -> None:
    for start in POINTS:
        tuner = drive(SpecTuner(task(start=start)), lambda point: boot(point, speed(point)))
        booted, outcome = [result.point for result in tuner.results], tuner.outcome()
        assert speed(outcome.chosen) >= speed(start)
        assert not outcome.improved or min(booted.count(outcome.chosen), booted.count(start)) >= 2


def test_every_boot_has_a_reason_and_asking_twice_asks_the_same() -> None:
    tuner = SpecTuner(task(restarts=6))
    while (asked := tuner.ask()) is not None:
        assert asked.why
        assert tuner.ask() == asked
        tuner.tell(boot(asked.point, speed(asked.point)))
    assert tuner.outcome().why


def test_the_results_are_all_the_state_there_is() -> None:
    driven = drive(SpecTuner(task()), lambda point: boot(point, speed(point)))
    resumed = SpecTuner(task())
    for result in driven.results[:5]:
        asked = resumed.ask()
        assert asked is not None
        assert asked.point == result.point
        resumed.tell(result)
    assert drive(resumed, lambda point: boot(point, speed(point))).outcome() == driven.outcome()


def test_points_that_need_more_memory_than_one_that_had_too_little_are_not_booted() -> None:
    def small(point: Point) -> BootResult:
        too_long = point.types == MTP and (point.n_max or 0) >= 6
        return (
            BootResult(point, failure="CUDA out of memory", out_of_memory=True)
            if too_long
            else boot(point, speed(point))
        )

    tuner = drive(SpecTuner(task()), small)
    long = [result.point.n_max or 0 for result in tuner.results if result.failure]
    assert long == sorted(set(long), reverse=True)
    assert (tuner.outcome().chosen.n_max or 0) in (4, 5)


@pytest.mark.parametrize(
    ("point", "needs_as_much"),
    [
        (replace(DEEP, n_max=12), True),
        (replace(DEEP, p_min=0.75), True),
        (replace(DEEP, n_max=6), False),
        (Point((*MTP, *NGRAM), n_max=10), True),
        (Point(NGRAM, n_max=64), False),
        (OFF, False),
    ],
    ids=lambda value: value.name if isinstance(value, Point) else "",
)
def test_memory_of_a_draft_grows_with_its_length_whatever_is_beside_it(point: Point, needs_as_much: bool) -> None:
    assert outgrown(point, DEEP) is needs_as_much


def test_a_crash_rules_out_the_point_alone() -> None:
    tuner = drive(
        SpecTuner(task()),
        lambda point: BootResult(point, failure=CRASH) if point.n_max == 4 else boot(point, speed(point)),
    )
    failed = [result.point for result in tuner.results if result.failure]
    assert len(failed) == len(set(failed))
    assert tuner.outcome().improved


def test_a_start_that_does_not_boot_stays_and_the_reason_is_named() -> None:
    tuner = SpecTuner(task())
    tuner.tell(BootResult(OFF, failure="CUDA error"))
    outcome = tuner.outcome()
    assert tuner.ask() is None
    assert (outcome.chosen, outcome.improved) == (OFF, False)
    assert "CUDA error" in outcome.why


def test_a_start_and_a_choice_that_fail_when_they_are_booted_again_leave_the_start() -> None:
    tuner = SpecTuner(task((OFF, FAST), restarts=6))
    for point, failure in ((OFF, ""), (FAST, ""), (OFF, CRASH), (FAST, CRASH)):
        tuner.tell(BootResult(point, failure=failure) if failure else boot(point, speed(point)))
    assert tuner.ask() is None
    assert (tuner.outcome().chosen, tuner.outcome().improved) == (OFF, False)


def test_one_prompt_of_a_class_is_enough_for_a_choice() -> None:
    def one(point: Point) -> BootResult:
        return BootResult(point, boot(point, speed(point)).prompts[:1])

    assert drive(SpecTuner(task()), one).outcome().improved


def test_nothing_measured_is_no_improvement() -> None:
    outcome = SpecTuner(task()).outcome()
    assert (outcome.improved, outcome.gain) == (False, None)


def test_a_point_of_another_task_is_refused() -> None:
    other = Point(("draft-eagle3",), n_max=3)
    with pytest.raises(UsageError, match="start"):
        SpecTuner(task(start=other))
    with pytest.raises(UsageError, match="draft-eagle3"):
        SpecTuner(task()).tell(BootResult(other))


def test_points_that_are_all_alike_leave_the_start() -> None:
    wobble = iter((0, 2, -1, 1, -2, 1))
    tuner = drive(
        SpecTuner(task((OFF, FAST, DEEP), restarts=6)), lambda point: boot(point, 50 * (1 + next(wobble) / 200))
    )
    assert tuner.outcome().chosen == OFF
    assert "no improvement found" in tuner.outcome().why


def test_a_gain_that_later_boots_do_not_bear_out_is_raced_and_not_believed() -> None:
    luck = iter((0.04, 0.0, -0.03, -0.04, 0.03, 0.02, 0.04, -0.03))
    speeds, stages = {OFF: 50.0, FAST: 52.0, DEEP: 33.0}, []
    tuner = SpecTuner(task((OFF, FAST, DEEP), restarts=8))
    while (asked := tuner.ask()) is not None:
        stages.append(asked.stage)
        tuner.tell(boot(asked.point, speeds[asked.point] / (1 + next(luck))))
    assert {Stage.RACE, Stage.CONFIRM} <= set(stages)
    assert tuner.outcome().chosen == OFF


def test_a_gain_that_no_fresh_boot_of_the_start_confirmed_is_named_and_not_chosen() -> None:
    tuner = SpecTuner(task((OFF, FAST, DEEP), restarts=4))
    for point in (OFF, FAST, FAST, FAST):
        tuner.tell(boot(point, 50 if point == OFF else 125))
    outcome = tuner.outcome()
    assert (outcome.chosen, outcome.improved) == (OFF, False)
    assert outcome.low is not None
    assert outcome.low > 0
    assert "no fresh boot of both confirmed it" in outcome.why


def test_no_run_ends_before_the_engine_without_drafts_was_measured() -> None:
    tuner = drive(SpecTuner(task((FAST, DEEP, OFF), FAST)), lambda point: boot(point, speed(point)))
    assert OFF in {result.point for result in tuner.results}


def test_among_points_of_one_speed_boots_that_differ_by_a_third_crown_none_more_often_than_by_chance() -> None:
    drawn, promoted = random.Random(5), 0
    for _ in range(40):
        tuner = drive(SpecTuner(task()), lambda point: boot(point, 50 * math.exp(drawn.gauss(0, 0.3))))
        promoted += tuner.outcome().improved
    assert promoted <= 4  # of 40: five in a hundred may be, and twice as many are luck


def test_on_a_machine_as_published_the_best_length_is_found() -> None:
    """Tokens per second of off and n_max 1 to 6, as published of an RTX 5090 at 400 W."""
    published = (71.2, 108.4, 129.3, 133.8, 132.8, 127.5, 123.3)
    speeds = {Point(MTP, n_max=length, p_min=0.0) if length else OFF: at for length, at in enumerate(published)}
    drawn = random.Random(2)
    tuner = drive(
        SpecTuner(task(tuple(speeds), restarts=8)),
        lambda point: boot(point, speeds[point] * math.exp(drawn.gauss(0, 0.008))),
    )
    assert speeds[tuner.outcome().chosen] > 0.98 * max(published)
