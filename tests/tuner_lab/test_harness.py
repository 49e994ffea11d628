"""The harness: what it sums up and refuses, and the recorded rigs beside the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.tuner_lab.grid import OFF_POINT, Noise, mtp
from benchmarks.tuner_lab.harness import Trial, judge, summary
from benchmarks.tuner_lab.recorded_sweeps import Recorded, grounds
from benchmarks.tuner_lab.simulator import Environment

from specdash.core.errors import UsageError
from specdash.tune.model.problem import BootResult, NextBoot, Point, Stage, Task, TuneOutcome


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


def test_an_interval_that_was_told_is_held_to_the_true_gain() -> None:
    environment = Environment.draw(0)
    gain = environment.true_speed(environment.optimum) / environment.true_speed(environment.start) - 1

    def told(interval: tuple[float, float]) -> Trial:
        return judge(lambda task, _: Greedy(task, environment.optimum, interval), environment, 1, 0)

    for interval, covered in (((gain - 0.01, gain + 0.01), True), ((gain + 0.01, gain + 0.02), False)):
        assert told(interval).covered is covered


@pytest.mark.parametrize("ground", grounds(0, Noise.QUIET), ids=lambda item: item.rig.name)
def test_a_recorded_rig_measures_what_was_published(ground: Recorded) -> None:
    task = ground.task(12)
    assert task.start in task.points
    for point in task.points:
        boots = [ground.boot(point, number) for number in range(30)]
        for kind, published in zip(ground.rig.kinds, ground.rig.speeds[point], strict=True):
            some = [prompt for boot in boots for prompt in boot.prompts if prompt.kind == kind]
            speed = sum(prompt_result.tokens for prompt_result in some) / sum(
                prompt_result.seconds for prompt_result in some
            )
            assert speed == pytest.approx(published, rel=0.02)
    assert ground.boot(task.start, 0) == ground.boot(task.start, 0)


def test_a_recorded_rig_tells_acceptance_only_where_it_was_published() -> None:
    by_name = {ground.rig.name: ground for ground in grounds(0, Noise.QUIET)}
    told = by_name["RTX 5090 at 600 W"].boot(mtp(4, 0.0), 0).prompts[0]
    assert told.accepted / told.drafted == pytest.approx(0.647, abs=0.02)
    assert told.steps + told.accepted == told.tokens
    assert by_name["RTX 5090 a"].boot(mtp(4, 0.0), 0).prompts[0].drafted == 0


def test_to_keep_the_start_is_to_boot_nothing() -> None:
    environment = Environment.draw(1)
    trial = judge(lambda task, _: Greedy(task, task.start), environment, 12, 0)
    assert (trial.restarts, trial.improved, trial.ratio) == (0, False, 1)
    assert summary([trial])["promoted"] == 0
