"""What the text model makes of counters."""

import numpy as np
import pytest
from benchmarks.tuner_lab.grid import both, mtp, ngram, points
from hypothesis import given
from hypothesis import strategies as st

from specdash.tune.model.acceptance import AcceptanceCounts, BootTally, Design, Parameters, expected, fit
from specdash.tune.model.problem import BootResult, Point, PromptResult
from specdash.tune.model.tuner import chance_to_fit, outgrown

GSM8K = (0.762, 0.616, 0.513, 0.424, 0.364, 0.309, 0.272, 0.237)
"""vLLM#48892: accepted per position with drafts of 8; with drafts of 1 it is .834."""


def boot(point: Point, rates: tuple[float, ...], steps: int = 2000) -> BootResult:
    at = tuple(round(rate * steps) for rate in rates)
    drafted = steps * (point.n_max or 0)
    prompt_result = PromptResult("a", "coding", steps + sum(at), 40.0, drafted, sum(at), steps, at)
    return BootResult(point, (prompt_result,))


def learned(*boots: BootResult) -> Parameters:
    return fit(
        AcceptanceCounts([BootTally(boot_result, ("coding",)) for boot_result in boots], 1), Parameters.prior(1), 30
    )


def tokens_of_a_step(parameters: Parameters, point: Point) -> float:
    found = expected(Design.of([point]), parameters.kinds, parameters.gates)
    return float(1 / found.steps[0, 0])


def test_a_deep_draft_tells_what_a_short_one_does_and_truncating_it_does_not() -> None:
    parameters = learned(boot(mtp(8, 0.0), GSM8K))
    assert tokens_of_a_step(parameters, mtp(8, 0.0)) == pytest.approx(1 + sum(GSM8K), rel=0.02)
    truncated = abs((1 + GSM8K[0]) / 1.834 - 1)
    assert abs(tokens_of_a_step(parameters, mtp(1, 0.0)) / 1.834 - 1) < truncated


def test_a_longer_draft_never_takes_more_steps() -> None:
    parameters = learned(boot(mtp(4, 0.0), (0.8, 0.7, 0.6, 0.5)))
    points = [mtp(length, 0.0) for length in range(1, 13)]
    steps = expected(Design.of(points), parameters.kinds, parameters.gates).steps[:, 0]
    assert np.all(np.diff(steps) <= 1e-9)


def test_a_gate_drafts_less_and_takes_more_steps() -> None:
    parameters = learned(boot(mtp(6, 0.0), (0.8, 0.65, 0.55, 0.45, 0.35, 0.3)))
    found = expected(Design.of([mtp(6, 0.0), mtp(6, 0.5), mtp(6, 0.75)]), parameters.kinds, parameters.gates)
    assert np.all(np.diff(found.drafted[:, 0]) < 0)
    assert np.all(np.diff(found.steps[:, 0]) > 0)


def test_without_drafts_every_token_is_a_step() -> None:
    found = expected(Design.of([Point()]), Parameters.prior(3).kinds, Parameters.prior(3).gates)
    assert np.allclose(found.steps, 1.0)
    assert np.allclose(found.drafted, 0.0)


# Which points a boot without enough memory rules out.


def test_a_draft_that_does_not_fit_does_not_fit_beside_ngrams_either() -> None:
    grid = points()
    out = {grid[at] for at in outgrown(grid, grid.index(both(10, 0.5, 16)))}
    assert {mtp(10, 0.0), mtp(12, 0.75), both(12, 0.0, 64)} <= out
    assert not {mtp(8, 0.0), both(8, 0.5, 16), ngram(64), Point()} & out


@given(st.sampled_from(points()))
def test_a_point_always_outgrows_itself_and_no_speculation_is_never_outgrown(point: Point) -> None:
    grid = points()
    out = outgrown(grid, grid.index(point))
    assert grid.index(point) in out
    assert Point() not in {grid[at] for at in out} or point == Point()


def test_the_limit_may_lie_anywhere_between_what_fits_and_what_does_not() -> None:
    grid = points()
    at = {point: place for place, point in enumerate(grid)}
    chances = chance_to_fit(grid, [at[mtp(4, 0.0)]], [at[mtp(12, 0.0)]])
    assert chances[at[mtp(4, 0.75)]] == chances[at[mtp(2, 0.0)]] == chances[at[ngram(64)]] == chances[at[Point()]] == 1
    assert chances[at[both(8, 0.0, 16)]] == pytest.approx(0.5)
    assert chances[at[mtp(12, 0.5)]] == 0
