"""The harness: what it sums up and refuses, and the tuner beside random search."""

from dataclasses import replace

import pytest
from benchmarks.tuner_lab.grid import OFF_POINT
from benchmarks.tuner_lab.harness import HELD_OUT, RandomSearch, Trial, judge, summary
from benchmarks.tuner_lab.simulator import Environment

from specdash.core.errors import UsageError
from specdash.tune.model.problem import BootResult, NextBoot, Point, Stage, Task, TuneOutcome
from specdash.tune.model.tuner import SpecTuner


class Greedy:
    """Asks for boots for ever, or knows the answer."""

    def __init__(self, task: Task, answer: Point | None = None, interval: tuple[float, float] | None = None) -> None:
        self.task, self.answer, self.interval = task, answer, interval

    def ask(self) -> NextBoot | None:
        return None if self.answer else NextBoot(self.task.start, Stage.EXPLORE, "again")

    def tell(self, result: BootResult) -> None:
        assert result.point == self.task.start

    def outcome(self) -> TuneOutcome:
        low, high = self.interval or (None, None)
        return TuneOutcome(self.answer or self.task.start, improved=True, gain=0.1, low=low, high=high)


def test_a_tuner_that_asks_for_more_than_its_budget_is_refused() -> None:
    with pytest.raises(UsageError, match="boot 6: its budget is 5"):
        judge(lambda task, _: Greedy(task), Environment.draw(0), 5, 0)


def test_regret_and_harm_are_of_true_speeds() -> None:
    environment = Environment.draw(0)
    best = judge(lambda task, _: Greedy(task, environment.optimum), environment, 12, 0)
    assert (best.regret, best.harmed, best.restarts) == (0, False, 0)
    start = replace(environment, start=environment.optimum)
    worse = judge(lambda task, _: Greedy(task, OFF_POINT), start, 12, 0)
    assert worse.harmed
    assert worse.ratio == pytest.approx(1 - worse.regret)


def test_a_stated_interval_is_held_to_the_true_gain() -> None:
    environment = Environment.draw(0)
    gain = environment.true_speed(environment.optimum) / environment.true_speed(environment.start) - 1

    def judged(interval: tuple[float, float]) -> Trial:
        return judge(lambda task, _: Greedy(task, environment.optimum, interval), environment, 1, 0)

    for interval, covered in (((gain - 0.01, gain + 0.01), True), ((gain + 0.01, gain + 0.02), False)):
        assert judged(interval).covered is covered


def test_to_keep_the_start_is_to_boot_nothing() -> None:
    environment = Environment.draw(1)
    trial = judge(lambda task, _: Greedy(task, task.start), environment, 12, 0)
    assert (trial.restarts, trial.improved, trial.ratio) == (0, False, 1)
    assert summary([trial])["promoted"] == 0


@pytest.mark.slow
def test_on_held_out_machines_the_tuner_beats_random_search_and_harms_none() -> None:
    grounds = [Environment.draw(seed) for seed in range(HELD_OUT, HELD_OUT + 12)]
    ours, random = (
        summary([judge(factory, ground, 12, ground.seed) for ground in grounds])
        for factory in (SpecTuner, RandomSearch)
    )
    assert ours["median_regret"] < random["median_regret"]
    assert ours["within_97"] > random["within_97"]
    assert ours["harmed"] == 0
