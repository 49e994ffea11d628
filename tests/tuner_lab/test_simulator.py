"""The engine simulator: one seed is one environment, true speeds are exact, published measurements lie within it."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.tuner_lab import text as texts
from benchmarks.tuner_lab.decode import Prompts
from benchmarks.tuner_lab.exact import Exact
from benchmarks.tuner_lab.grid import (
    ENGINE_DEFAULT,
    KINDS,
    OFF_POINT,
    PRESETS,
    Equal,
    Noise,
    both,
    mtp,
    ngram,
    points,
)
from benchmarks.tuner_lab.simulator import TOKENS, Environment
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.tune.model.problem import Point, mixture_speed

LONG = 4096


def test_the_grid_has_112_points_and_every_preset() -> None:
    assert len(points()) == len(set(points())) == 112
    assert set(PRESETS) <= set(points())


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


@pytest.mark.parametrize("point", [OFF_POINT, mtp(6, 0.0), mtp(12, 0.75), ngram(64), both(3, 0.5, 16)])
def test_true_speeds_are_those_of_long_streams(point: Point) -> None:
    environment = Environment.draw(11)
    prompts = Prompts(environment.text, np.random.default_rng(5), 8, LONG)
    simulated = prompts.decode(point, environment.rig).seconds / LONG
    exact = Exact(environment.text, environment.rig).seconds_per_token((point,))[0][prompts.chains]
    ratio = simulated / exact - 1
    assert abs(ratio.mean()) < max(4 * ratio.std() / np.sqrt(len(ratio)), 1e-9)
    assert np.abs(ratio).max() < 0.3


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
    assert (boot.draft_s is None) == (not environment.tells_draft_time or not point.types)


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


@pytest.mark.parametrize(("equal", "apart"), [(True, 0.03), (Equal.PROMPTS, 0.03), (Equal.TEXT, 0.2)])
def test_where_all_are_equal_every_point_is_as_fast_as_no_speculation(equal: Equal | bool, apart: float) -> None:
    """On the prompts within the noise; on the text they only sample it."""
    environment = Environment.draw(6, equal=equal)
    assert np.ptp([environment.true_speed(point) for point in points()]) == 0
    found = (mixture_speed(environment.boot(point, 0).prompts, environment.workload) for point in points()[::8])
    measured = np.array([value or 0 for value in found]) / environment.true_speed(OFF_POINT) - 1
    assert np.abs(measured - measured[0]).max() < apart
    plain = Environment.draw(6).boot(mtp(6, 0.0), 0).prompts
    assert [prompt_result.accepted for prompt_result in plain] == [
        prompt.accepted for prompt in environment.boot(mtp(6, 0.0), 0).prompts
    ]


def test_points_that_do_not_fit_fail_and_are_never_the_start_or_the_optimum() -> None:
    small = [item for seed in range(60) if (item := Environment.draw(seed)).most_drafted is not None]
    assert 1 <= len(small) <= 15
    for environment in small:
        assert environment.boot(mtp(12, 0.0), 0).out_of_memory
        assert (environment.start.n_max or 0) <= 10
        assert environment.true_speed(environment.start) > 0


def test_the_optimum_depends_on_the_environment_and_the_default_is_seldom_it() -> None:
    drawn = [Environment.draw(seed) for seed in range(12)]
    assert len({environment.optimum for environment in drawn}) > 5
    assert 0.05 < np.median([environment.regret(ENGINE_DEFAULT) for environment in drawn]) < 0.3


def test_acceptance_by_position_shows_selection() -> None:
    """One-token drafts are accepted more often than the first token of long ones, as published."""
    text = texts.draw(np.random.default_rng(0))
    exact = Exact(text, Environment.draw(0).rig)
    alone, first = exact.acceptance(1)[:, 0], exact.acceptance(12)[:, 0]
    assert (alone > first).mean() > 0.9


def test_quiet_and_noisy_are_the_only_noises() -> None:
    assert [noise.value for noise in Noise] == ["quiet", "noisy"]
    with pytest.raises(ValueError, match="loud"):
        Environment.draw(0, "loud")
