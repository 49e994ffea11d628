"""UAP's formula and its circular simulation, to the last digit of the program they come from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.errors import UsageError
from specdash.tune.model.heuristic import (
    FormulaProfile,
    FormulaTrace,
    Knobs,
    acceptances,
    fixed,
    half_up,
    simulate,
    speed,
    tune,
)

GOLDEN = {
    (0.70, 0.15): ("19/5/0.76", "17/4/0.78", "18/5/0.77"),
    (0.40, 0.32): ("13/4/0.84", "11/2/0.87", "12/3/0.85"),
    (0.90, 0.05): ("21/6/0.72", "19/4/0.75", "20/6/0.73"),
    (0.20, 0.50): ("11/3/0.88", "9/2/0.9", "10/3/0.89"),
    (1.0, 0.0): ("22/6/0.71", "20/4/0.73", "21/6/0.72"),
    (0.0, 1.0): ("7/2/0.93", "5/1/0.95", "6/2/0.94"),
    (0.45, 0.35): ("16/4/0.81", "14/3/0.83", "15/4/0.82"),
    (0.449, 0.35): ("14/4/0.84", "12/3/0.86", "13/4/0.85"),
    (0.45, 0.351): ("14/4/0.84", "12/3/0.86", "13/4/0.85"),
}
PROFILES = (FormulaProfile.THROUGHPUT, FormulaProfile.LATENCY, FormulaProfile.STABLE)
RUNS = {
    (120, 42, FormulaTrace.MIXED): (
        102.66,
        (124.95, 114.28, 122.57),
        (21.71, 11.32, 19.39),
        "21/6/0.73 18/4/0.76 19/5/0.74",
    ),
    (120, 42, FormulaTrace.STABLE): (
        101.48,
        (132.60, 119.47, 129.66),
        (30.67, 17.73, 27.77),
        "21/6/0.72 18/4/0.76 19/5/0.74",
    ),
    (120, 42, FormulaTrace.VOLATILE): (
        103.10,
        (115.76, 104.89, 113.13),
        (12.28, 1.74, 9.73),
        "20/6/0.73 17/4/0.77 19/5/0.75",
    ),
}


@pytest.mark.parametrize(("rates", "expected"), GOLDEN.items())
def test_the_formula_gives_the_golden_knobs(rates: tuple[float, float], expected: tuple[str, ...]) -> None:
    assert tuple(str(tune(*rates, profile)) for profile in PROFILES) == expected


@pytest.mark.parametrize(("run", "expected"), RUNS.items())
def test_the_simulation_gives_the_golden_figures(
    run: tuple[int, int, FormulaTrace], expected: tuple[float, tuple[float, ...], tuple[float, ...], str]
) -> None:
    found = [simulate(*run, profile) for profile in PROFILES]
    static, adaptive, improvement, final = expected
    assert [simulation.static for simulation in found] == [static] * 3
    assert [simulation.adaptive for simulation in found] == list(adaptive)
    assert [simulation.improvement_percent for simulation in found] == list(improvement)
    assert " ".join(str(simulation.final) for simulation in found) == final


def test_another_seed_and_length() -> None:
    found = simulate(240, 7, FormulaTrace.MIXED)
    assert (found.static, found.adaptive, found.improvement_percent) == (102.61, 125.89, 22.69)
    assert str(found.final) == "21/6/0.73"


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (FormulaTrace.STABLE, [0.720188, 0.707050, 0.746182, 0.717804, 0.730053]),
        (FormulaTrace.MIXED, [0.755235, 0.738813, 0.597002, 0.686707, 0.705079]),
        (FormulaTrace.VOLATILE, [0.560563, 0.415084, 0.788547, 0.447347, 0.590158]),
    ],
)
def test_the_made_up_traces(trace: FormulaTrace, expected: list[float]) -> None:
    assert acceptances(5, 42, trace) == pytest.approx(expected, abs=5e-7)


def test_the_circular_speed() -> None:
    assert speed(Knobs(), 0.7) == 102.84
    assert speed(Knobs(12, 2, 0.8), 0.7) == 84.54
    assert speed(Knobs(21, 6, 0.72), 0.9) == 141.01


@given(st.floats(-1, 2), st.floats(-1, 2), st.sampled_from(PROFILES), st.integers(1, 64), st.floats(0, 1))
def test_whatever_the_rates_the_knobs_are_usable(
    a: float, r: float, profile: FormulaProfile, base: int, p_min: float
) -> None:
    found = tune(a, r, profile, Knobs(base, 3, p_min))
    assert 4 <= found.draft_max <= 32
    assert 1 <= found.draft_min <= min(8, found.draft_max)
    assert 0.6 <= found.p_min <= 0.95


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="must be a number"):
        tune(bad, 0.1)
    with pytest.raises(UsageError, match="must be a number"):
        tune(0.5, bad)


@pytest.mark.parametrize("steps", [0, -1, 10**9])
def test_steps_out_of_range_are_refused(steps: int) -> None:
    with pytest.raises(UsageError, match="steps"):
        simulate(steps)


def test_halves_go_up() -> None:
    assert [half_up(value) for value in (0.5, 1.5, 2.5, -0.5)] == [1, 2, 3, 0]
    # 1.005 is a little less than that in binary, 0.125 is exact.
    assert [fixed(value) for value in (1.005, 0.125, 0.375)] == [1.0, 0.13, 0.38]
