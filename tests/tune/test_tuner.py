"""The tuner, on simulated machines and on made-up boots."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.tuner_lab.grid import OFF_POINT, mtp
from benchmarks.tuner_lab.simulator import Environment

from specdash.core.errors import UsageError
from specdash.tune.model.problem import BootResult, Budget, Point, PromptResult, Stage, Task, WorkloadShares
from specdash.tune.model.tuner import SpecTuner

SLOW, FAST = Point(), Point(("draft-mtp",), n_max=3, p_min=0.0)
DEEP = Point(("draft-mtp",), n_max=8, p_min=0.0)


def drive(tuner: SpecTuner, environment: Environment) -> SpecTuner:
    while (asked := tuner.ask()) is not None:
        tuner.tell(environment.boot(asked.point, len(tuner.results)))
    return tuner


@pytest.fixture(scope="module")
def environment() -> Environment:
    return Environment.draw(3)


@pytest.fixture(scope="module")
def driven(environment: Environment) -> SpecTuner:
    return drive(SpecTuner(environment.task(8)), environment)


def test_it_comes_near_the_optimum_within_its_budget(driven: SpecTuner, environment: Environment) -> None:
    outcome = driven.outcome()
    assert outcome.restarts == len(driven.results) == 8
    assert outcome.improved
    assert environment.regret(outcome.chosen) < 0.05
    assert outcome.low is not None
    assert outcome.gain is not None
    assert 0 < outcome.low < outcome.gain


def test_the_chosen_point_was_booted(driven: SpecTuner) -> None:
    assert driven.outcome().chosen in [result.point for result in driven.results]


def test_every_boot_has_a_reason(environment: Environment) -> None:
    tuner, reasons = SpecTuner(environment.task(5)), []
    while (asked := tuner.ask()) is not None:
        reasons.append(asked.why)
        tuner.tell(environment.boot(asked.point, len(tuner.results)))
    assert all(reasons)
    assert tuner.outcome().why


def test_asking_twice_asks_the_same(environment: Environment) -> None:
    tuner = SpecTuner(environment.task(8))
    assert tuner.ask() is tuner.ask()


def test_the_results_are_all_the_state_there_is(driven: SpecTuner, environment: Environment) -> None:
    half = driven.results[:5]
    resumed = SpecTuner(environment.task(8))
    for result in half:
        resumed.ask()
        resumed.tell(result)
    assert resumed.results == half
    assert resumed.remaining() == 3
    assert drive(resumed, environment).outcome() == driven.outcome()


def test_points_that_need_more_memory_than_one_that_had_too_little_are_not_booted(environment: Environment) -> None:
    tuner, asked_for = SpecTuner(replace(environment.task(8), start=OFF_POINT)), []
    while (asked := tuner.ask()) is not None:
        asked_for.append(asked.point)
        too_long = (asked.point.n_max or 0) >= 8
        result = BootResult(asked.point, failure="out of memory", out_of_memory=True) if too_long else None
        tuner.tell(result or environment.boot(asked.point, len(tuner.results)))
    alone = [point for point in asked_for if point.types == ("draft-mtp",) and (point.n_max or 0) >= 8]
    assert len(alone) == 1
    assert (tuner.outcome().chosen.n_max or 0) < 8


def test_a_start_that_does_not_boot_stays_and_the_reason_is_told(environment: Environment) -> None:
    task = environment.task(8)
    tuner = SpecTuner(task)
    tuner.tell(BootResult(task.start, failure="CUDA error"))
    outcome = tuner.outcome()
    assert outcome.chosen == task.start
    assert not outcome.improved
    assert "CUDA error" in outcome.why


def test_nothing_measured_is_no_improvement(environment: Environment) -> None:
    outcome = SpecTuner(environment.task(8)).outcome()
    assert (outcome.improved, outcome.gain) == (False, None)


def test_a_start_that_is_no_point_is_refused(environment: Environment) -> None:
    with pytest.raises(UsageError, match="start"):
        SpecTuner(replace(environment.task(8), start=Point(("draft-eagle3",), n_max=3)))


def test_a_point_of_another_task_is_refused(environment: Environment) -> None:
    with pytest.raises(UsageError, match="draft-eagle3"):
        SpecTuner(environment.task(8)).tell(BootResult(Point(("draft-eagle3",), n_max=3)))


def uncounted(point: Point, per_token: float) -> BootResult:
    return BootResult(point, tuple(PromptResult(f"p{i}", "coding", 256, 256 * per_token) for i in range(4)))


def test_without_counters_it_goes_by_speed_alone() -> None:
    speeds = {SLOW: 0.020, FAST: 0.012, DEEP: 0.025}
    tuner = SpecTuner(Task((SLOW, FAST, DEEP), SLOW, WorkloadShares((("coding", 1.0),)), Budget(6)))
    while (asked := tuner.ask()) is not None:
        tuner.tell(uncounted(asked.point, speeds[asked.point]))
    outcome = tuner.outcome()
    assert outcome.chosen == FAST
    assert outcome.gain == pytest.approx(20 / 12 - 1, abs=0.05)


def test_points_that_are_all_alike_leave_the_start() -> None:
    tuner, wobble = (
        SpecTuner(Task((SLOW, FAST, DEEP), SLOW, WorkloadShares((("coding", 1.0),)), Budget(6))),
        (0, 2, -1, 1, -2, 1),
    )
    while (asked := tuner.ask()) is not None:
        tuner.tell(uncounted(asked.point, 0.02 * (1 + wobble[len(tuner.results)] / 200)))
    outcome = tuner.outcome()
    assert outcome.chosen == SLOW
    assert "no improvement found" in outcome.why


def test_a_gain_that_boots_do_not_bear_out_is_raced_confirmed_and_not_believed() -> None:
    task = Task((SLOW, FAST, DEEP), SLOW, WorkloadShares((("coding", 1.0),)), Budget(6))
    tuner, luck, stages = SpecTuner(task), (0.04, 0.0, -0.03, -0.04, 0.03, 0.02), []
    speeds = {SLOW: 0.020, FAST: 0.0192, DEEP: 0.030}
    while (asked := tuner.ask()) is not None:
        stages.append(asked.stage)
        tuner.tell(uncounted(asked.point, speeds[asked.point] * (1 + luck[len(stages) - 1])))
    assert {Stage.RACE, Stage.CONFIRM} <= set(stages[2:])
    outcome = tuner.outcome()
    assert outcome.chosen == SLOW
    assert outcome.low is not None
    assert outcome.low < 0


def test_where_nothing_tells_the_noise_what_is_promoted_was_booted_twice_and_so_was_the_start() -> None:
    task = Task((SLOW, FAST, DEEP), SLOW, WorkloadShares((("coding", 1.0),)), Budget(8))
    tuner, speeds = SpecTuner(task), {SLOW: 0.020, FAST: 0.018, DEEP: 0.025}
    while (asked := tuner.ask()) is not None:
        tuner.tell(uncounted(asked.point, speeds[asked.point]))
    booted = [result.point for result in tuner.results]
    assert tuner.outcome().chosen == FAST
    assert booted.count(FAST) >= 2
    assert booted.count(SLOW) >= 2


def test_a_crash_rules_out_the_point_alone(environment: Environment) -> None:
    tuner, crashed = SpecTuner(environment.task(12)), "the engine ended with signal 6 (memory_seq_rm [0, end))"
    while (asked := tuner.ask()) is not None:
        first_deep = asked.point.n_max == 8 and not any(result.failure for result in tuner.results)
        tuner.tell(
            BootResult(asked.point, failure=crashed)
            if first_deep
            else environment.boot(asked.point, len(tuner.results))
        )
    assert [result.failure for result in tuner._failed.values()] == [crashed]


@pytest.mark.slow
def test_among_points_of_one_speed_boots_that_differ_by_a_third_crown_none_more_often_than_by_chance() -> None:
    random, promoted = np.random.default_rng(5), 0
    for seed in range(400, 416):
        environment = Environment.draw(seed)
        tuner = SpecTuner(environment.task(12), seed)
        while (asked := tuner.ask()) is not None:
            number = len(tuner.results)
            boot, plain = environment.boot(asked.point, number), environment.boot(OFF_POINT, number)
            luck = float(np.exp(random.normal(0.0, 0.3)))
            pairs = zip(boot.prompts, plain.prompts, strict=not boot.failure)
            even = tuple(replace(prompt, seconds=luck * other.seconds) for prompt, other in pairs)
            tuner.tell(replace(boot, prompts=even))
        promoted += tuner.outcome().improved
    assert promoted <= 2  # of 16: five in a hundred may be, and twice as many are luck


def test_no_run_ends_with_boots_to_spare_before_no_speculation_was_measured() -> None:
    environment = Environment.draw(2)
    task = replace(environment.task(12), points=(FAST, DEEP, SLOW), start=FAST)
    tuner = SpecTuner(task)
    while (asked := tuner.ask()) is not None:
        failed = BootResult(asked.point, failure="it crashed") if asked.point == DEEP else None
        tuner.tell(failed or environment.boot(asked.point, len(tuner.results)))
    assert SLOW in {result.point for result in tuner.results}


@pytest.mark.parametrize("seed", range(8, 12))
def test_nothing_is_promoted_without_a_fresh_boot_of_the_start(seed: int) -> None:
    environment = Environment.draw(seed, "noisy")
    driven = drive(SpecTuner(environment.task(8)), environment)
    boots = [result.point for result in driven.results].count(environment.start)
    outcome = driven.outcome()
    assert outcome.confirmed == (boots >= 2) or not outcome.improved
    assert boots >= 2 or not outcome.improved


def test_a_gain_that_no_fresh_boot_of_the_start_confirmed_is_told_and_not_chosen() -> None:
    task = Task((SLOW, FAST, DEEP), SLOW, WorkloadShares((("coding", 1.0),)), Budget(4))
    tuner, speeds = SpecTuner(task), {SLOW: 0.020, FAST: 0.008}
    for point in (SLOW, FAST, FAST, FAST):
        tuner.ask()
        tuner.tell(uncounted(point, speeds[point]))
    outcome = tuner.outcome()
    assert (outcome.chosen, outcome.improved, outcome.confirmed) == (SLOW, False, False)
    assert outcome.low is not None
    assert outcome.low > 0
    assert "no fresh boot of the start confirmed it" in outcome.why


def test_where_nothing_counts_the_likely_best_is_booted_before_the_end() -> None:
    """Tokens per second of off and n_max 1 to 6, as published of an RTX 5090 at 400 W."""
    published = (71.2, 108.4, 129.3, 133.8, 132.8, 127.5, 123.3)
    speeds = {mtp(length, 0.0) if length else OFF_POINT: speed for length, speed in enumerate(published)}
    random = np.random.default_rng(2)
    tuner = SpecTuner(Task(tuple(speeds), OFF_POINT, WorkloadShares((("coding", 1.0),)), Budget(8)), 2)
    while (asked := tuner.ask()) is not None:
        tuner.tell(uncounted(asked.point, float(np.exp(random.normal(0.0, 0.008)) / speeds[asked.point])))
    assert speeds[tuner.outcome().chosen] > 0.98 * max(published)
