"""The harness: what it sums up, what it refuses, and the rivals it compares with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmarks.tuner_lab.grid import ENGINE_DEFAULT, OFF_POINT, Noise, mtp
from benchmarks.tuner_lab.harness import Trial, figure, judge, paired, run, score, set_aside, share
from benchmarks.tuner_lab.recorded_sweeps import RIGS, Recorded, grounds, usual_picks
from benchmarks.tuner_lab.rivals import RIVALS, Formula, Keep
from benchmarks.tuner_lab.simulator import Environment

from specdash.core.errors import UsageError
from specdash.tune.model.problem import BootResult, NextBoot, Point, Stage, Task, TuneOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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


@pytest.mark.parametrize("seeds", [range(5000, 5002), range(6299, 6301), [10_500], [0, 5100]])
def test_seeds_set_aside_are_opened_by_the_flag_alone_and_written_down(seeds: Sequence[int], tmp_path: Path) -> None:
    ledger = tmp_path / "deep" / "held_out.jsonl"
    with pytest.raises(UsageError, match="--held-out"):
        run(RIVALS["keep"], "keep", Noise.QUIET, seeds, 12, ledger=ledger)
    assert not ledger.exists()
    for _ in range(2):
        run(RIVALS["keep"], "keep", Noise.QUIET, seeds, 12, held_out=True, ledger=ledger)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [line["count"] for line in lines] == [len(set_aside(seeds))] * 2
    assert lines[0]["tuner"] == "keep"


def test_development_seeds_are_free_and_leave_no_line(tmp_path: Path) -> None:
    run(RIVALS["keep"], "keep", Noise.NOISY, range(2), 12, ledger=tmp_path / "ledger")
    assert not list(tmp_path.iterdir())


def test_a_share_of_none_and_of_all_has_an_exact_interval() -> None:
    assert share(np.zeros(1000, dtype=bool)).high == pytest.approx(0.00368, abs=1e-5)
    assert share(np.ones(300, dtype=bool)).low == pytest.approx(1 - 0.01222, abs=1e-5)
    half = share(np.arange(100) < 50)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.4, 0.6), abs=0.02)


def test_a_figures_interval_holds_the_figure_and_narrows_with_more() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 400)
    wide, narrow = (figure(some, lambda row: row.mean(axis=-1)) for some in (values[:40], values))
    assert wide.low < wide.value < wide.high
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2


def test_pairs_are_of_the_same_seeds_and_opposite_when_turned_around() -> None:
    scores = {name: run(RIVALS[name], name, Noise.QUIET, range(3), 12) for name in ("keep", "defaults")}
    item, other = scores["keep"], scores["defaults"]
    assert paired(item, other)["mean_regret"].value == pytest.approx(-paired(other, item)["mean_regret"].value)
    with pytest.raises(UsageError, match="different seeds"):
        paired(item, run(RIVALS["keep"], "keep", Noise.QUIET, range(2), 12))
    with pytest.raises(UsageError, match="nothing to sum up"):
        score([], "keep", "quiet", 12)


def test_exhaustive_search_is_nearly_right_and_the_others_are_not() -> None:
    mean = {
        name: run(RIVALS[name], name, Noise.QUIET, range(2), 112 if name == "exhaustive" else 12).mean_regret.value
        for name in ("exhaustive", "random", "defaults")
    }
    assert mean["exhaustive"] < 0.02
    assert mean["exhaustive"] <= mean["random"] < mean["defaults"]


def test_the_sweep_boots_the_start_and_one_to_six_once_each() -> None:
    trial = judge(RIVALS["sweep"], replace(Environment.draw(0), start=OFF_POINT), 12, 0)
    assert trial.restarts == 7
    assert judge(RIVALS["sweep"], replace(Environment.draw(0), start=mtp(3, 0.0)), 12, 0).restarts == 6
    assert judge(RIVALS["sweep"], replace(Environment.draw(0), start=OFF_POINT), 4, 0).restarts == 4


def test_the_formula_needs_a_draft_and_goes_on_until_it_repeats_itself() -> None:
    environment = replace(Environment.draw(2), start=OFF_POINT)
    formula = Formula(environment.task())
    asked = []
    while (wanted := formula.ask()) is not None:
        asked.append(wanted.point)
        formula.tell(environment.boot(wanted.point, len(asked)))
    assert asked[:2] == [OFF_POINT, ENGINE_DEFAULT]
    assert all((point.n_max or 0) >= 4 and (point.p_min or 0) >= 0.5 for point in asked[2:])
    assert len(asked) == len(set(asked)) <= Formula.MOST_BOOTS


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


def test_the_usual_picks_lose_what_was_computed_from_the_sweeps() -> None:
    """tuning notes, D2: always n2 loses 0 to 15.9 %, the best for code 0 to 9.4 %, the best for prose 0 to 11.5 %."""
    picks = [usual_picks(rig) for rig in RIGS]
    assert min(pick["always n2"] for pick in picks if "always n2" in pick) == 0
    assert max(pick["always n2"] for pick in picks if "always n2" in pick) <= 0.159
    assert max(pick["best for coding"] for pick in picks if "best for coding" in pick) == pytest.approx(
        0.094, abs=0.001
    )
    assert max(pick["best for prose"] for pick in picks if "best for prose" in pick) <= 0.115


def test_to_keep_is_to_boot_nothing() -> None:
    environment = Environment.draw(1)
    trial = judge(lambda task, _: Keep(task), environment, 12, 0)
    assert (trial.restarts, trial.improved, trial.ratio) == (0, False, 1)
