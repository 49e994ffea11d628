"""How often the card is wrong: simulated requests with fixed seeds. Figures of longer runs: docs/experiments.md."""

import random

from insight.experiment_data import T, requests, sides
from specdash.insight.experiments import ExperimentVerdict, MeasureName, compare

CLEAR = (ExperimentVerdict.BETTER, ExperimentVerdict.WORSE)
NONE = sides((), ())


def shares(
    runs: int, count: int, *, gain: float = 1.0, noise: float = 0.25, likeness: float = 10.0
) -> dict[MeasureName, dict[ExperimentVerdict, float]]:
    """How often each verdict came of each measure, over experiments of `count` requests a side."""
    rng = random.Random(20_260)
    found = {name: dict.fromkeys(ExperimentVerdict, 0.0) for name in MeasureName}
    for _ in range(runs):
        before = requests(rng, T, count, noise=noise, likeness=likeness)
        after = requests(rng, T, count, noise=noise, likeness=likeness, speed=50.0 * gain, rate=min(0.6 * gain, 0.95))
        for measure in compare(sides(before, after), NONE):
            found[measure.name][measure.verdict] += 1 / runs
    return found


def test_settings_that_change_nothing_are_called_better_or_worse_about_one_time_in_twenty() -> None:
    for name, verdicts in shares(150, 20).items():
        wrong = sum(verdicts[verdict] for verdict in CLEAR)
        # Of 150 experiments with 5 % wrong ones, at most 16 are in 999 of 1,000 cases.
        assert wrong <= 16 / 150, (name, verdicts)


def test_a_change_of_fifteen_percent_is_mostly_found_and_never_turned_round() -> None:
    for name, verdicts in shares(60, 40, gain=1.15, noise=0.15, likeness=30.0).items():
        assert verdicts[ExperimentVerdict.WORSE] <= 1 / 60, (name, verdicts)
        assert verdicts[ExperimentVerdict.BETTER] >= 0.7, (name, verdicts)
