"""The engine simulator: one seed is one environment, and what it counts adds up."""

import numpy as np
import pytest
from benchmarks.tuner_lab.grid import ENGINE_DEFAULT, KINDS, OFF_POINT, both, mtp, points
from benchmarks.tuner_lab.simulator import TOKENS, Environment
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.tune.model.problem import mixture_speed


def test_the_same_seed_boot_and_point_measure_the_same() -> None:
    point = both(4, 0.5, 48)
    first, again = (Environment.draw(3, "noisy").boot(point, 2) for _ in range(2))
    assert first == again
    assert first != Environment.draw(3, "noisy").boot(point, 3)


def test_another_seed_is_another_environment_and_noise_is_nothing_else() -> None:
    environment, other = Environment.draw(1, "quiet"), Environment.draw(2, "quiet")
    assert environment.true_speed(OFF_POINT) != other.true_speed(OFF_POINT)
    noisy = Environment.draw(1, "noisy")
    assert [noisy.true_speed(point) for point in points()] == [environment.true_speed(point) for point in points()]
    assert noisy.start == environment.start
    assert noisy.disturbance.boot > 0.019 > 0.0121 > environment.disturbance.boot


@settings(max_examples=15)
@given(seed=st.integers(0, 999), place=st.integers(0, 111), number=st.integers(0, 30))
def test_what_a_boot_counts_is_conserved(seed: int, place: int, number: int) -> None:
    environment = Environment.draw(seed)
    point = points()[place]
    boot = environment.boot(point, number)
    if boot.failure:
        assert environment.true_speed(point) == 0
        return
    assert [prompt.kind for prompt in boot.prompts] == [kind for kind in KINDS for _ in range(6)]
    longest = max(point.n_max or 0, point.ngram_max or 0)
    for prompt in boot.prompts:
        assert prompt.steps + prompt.accepted == prompt.tokens == TOKENS
        assert 0 <= prompt.accepted <= prompt.drafted <= longest * prompt.steps
        assert sum(prompt.accepted_per_position) == prompt.accepted
        assert len(prompt.accepted_per_position) == longest
        assert list(prompt.accepted_per_position) == sorted(prompt.accepted_per_position, reverse=True)
        assert prompt.seconds > 0
    assert (boot.draft_s is None) == (not environment.has_draft_time or not point.types)


def test_prompts_are_the_same_in_every_boot_so_that_their_difference_is_small() -> None:
    environment = Environment.draw(4)
    first, again = environment.boot(mtp(3, 0.0), 0), environment.boot(mtp(3, 0.0), 1)
    assert [prompt.accepted for prompt in first.prompts] == [prompt.accepted for prompt in again.prompts]
    across = np.quantile([np.log(prompt.seconds) for prompt in first.prompts], (0.25, 0.75))
    pairs = zip(first.prompts, again.prompts, strict=True)
    paired = np.quantile([np.log(a.seconds / b.seconds) for a, b in pairs], (0.25, 0.75))
    assert np.ptp(paired) < np.ptp(across) / 5


@pytest.mark.parametrize(("noise", "low", "high"), [("quiet", 0.002, 0.02), ("noisy", 0.015, 0.08)])
def test_boots_differ_by_as_much_as_the_noise_says(noise: str, low: float, high: float) -> None:
    spreads = []
    for seed in range(8):
        environment = Environment.draw(seed, noise)
        boots = [environment.boot(OFF_POINT, number) for number in range(12)]
        spreads.append(np.std([np.log(mixture_speed(boot.prompts, environment.workload) or 0) for boot in boots]))
    assert low < np.median(spreads) < high


def test_points_that_do_not_fit_fail_and_are_never_the_start_or_the_optimum() -> None:
    small = [item for seed in range(60) if (item := Environment.draw(seed)).most_drafted is not None]
    assert 1 <= len(small) <= 15
    for environment in small:
        assert environment.boot(mtp(12, 0.0), 0).out_of_memory
        assert (environment.start.n_max or 0) <= 10
        assert environment.true_speed(environment.start) > 0


def test_the_optimum_depends_on_the_environment_and_the_default_is_seldom_it() -> None:
    drawn = [Environment.draw(seed) for seed in range(6)]
    assert len({environment.optimum for environment in drawn}) > 3
    assert 0.05 < np.median([environment.regret(ENGINE_DEFAULT) for environment in drawn]) < 0.3
