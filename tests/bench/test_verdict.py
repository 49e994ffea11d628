"""Real or within noise: what the verdict promises of boots whose true speeds are known."""

from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.compare.ab import (
    ComparisonVerdict,
    PairedLog,
    compare,
    is_over_one_sigma,
    judge,
    order,
    pairs_of,
    rounds_to_decide,
)
from specdash.system.stats import spread

PROMPTS = [f"p{number}" for number in range(12)]


def boot(random: Random, speed: float, *, boot_sd: float, request_sd: float = 0.01) -> dict[str, tuple[float, float]]:
    """One boot of an engine of this speed: its own luck, and that of each request; prompts differ, alike everywhere."""
    luck = exp(random.gauss(0, boot_sd))
    return {
        name: (128.0, 128.0 / (speed * (1 + 0.05 * number) * luck * exp(random.gauss(0, request_sd))))
        for number, name in enumerate(PROMPTS)
    }


def trial(
    random: Random, speeds: dict[str, float], rounds: int, boot_sd: float
) -> dict[int, dict[str, dict[str, tuple[float, float]]]]:
    """Rounds in the order that the benchmark uses."""
    found: dict[int, dict[str, dict[str, tuple[float, float]]]] = {}
    for number, name in order(list(speeds), rounds, random.randrange(1 << 30)):
        found.setdefault(number, {})[name] = boot(random, speeds[name], boot_sd=boot_sd)
    return found


def verdicts(random: Random, speeds: dict[str, float], rounds: int, boot_sd: float) -> list[ComparisonVerdict]:
    ran = trial(random, speeds, rounds, boot_sd)
    first, *others = speeds
    made = [compare(name, pairs_of(ran, first, name), comparisons=len(others)) for name in others]
    return [comparison.verdict for comparison in made if comparison is not None]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("boot_sd", [0.003, 0.05])
@pytest.mark.parametrize(("names", "rounds"), [("AB", 2), ("AB", 6), ("ABCD", 6)])
def test_equals_are_called_different_in_at_most_one_trial_of_twenty(boot_sd: float, rounds: int, names: str) -> None:
    random = Random(f"{boot_sd}/{rounds}/{names}")
    real = [ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER]
    trials = 300
    wrong = sum(
        any(verdict in real for verdict in verdicts(random, dict.fromkeys(names, 50.0), rounds, boot_sd))
        for _ in range(trials)
    )
    # Three standard deviations of a binomial count over 5 %.
    assert wrong / trials <= 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("gain", "rounds", "boot_sd", "at_least"), [(0.3, 4, 0.028, 0.99), (0.05, 4, 0.008, 0.95)])
def test_what_is_really_faster_is_found(gain: float, rounds: int, boot_sd: float, at_least: float) -> None:
    random = Random(f"{gain}")
    speeds = {"A": 50.0, "B": 50.0 * (1 + gain)}
    found = [verdicts(random, speeds, rounds, boot_sd)[0] for _ in range(200)]
    assert found.count(ComparisonVerdict.FASTER) / 200 >= at_least
    assert ComparisonVerdict.SLOWER not in found


@given(st.integers(2, 5), st.integers(1, 6), st.integers(0, 1 << 30), st.floats(-0.2, 0.2))
def test_a_steady_drift_cancels(count: int, blocks: int, seed: int, slope: float) -> None:
    names = [f"c{number}" for number in range(count)]
    plan = order(names, 2 * blocks, seed)
    assert sorted(plan) == [(turn, name) for turn in range(2 * blocks) for name in names]
    at = [name for _, name in plan]
    logs = {name: [slope * place for place, booted in enumerate(at) if booted == name] for name in names}
    means = [sum(found) / len(found) for found in logs.values()]
    assert means == pytest.approx([means[0]] * count)


@given(st.integers(2, 8), st.floats(-0.3, 0.3), st.floats(1e-6, 0.05), st.floats(0, 0.02))
def test_exchanging_the_sides_exchanges_the_verdict(
    pairs: int, mean: float, of_boots: float, of_prompts: float
) -> None:
    mirrored = {ComparisonVerdict.FASTER: ComparisonVerdict.SLOWER, ComparisonVerdict.SLOWER: ComparisonVerdict.FASTER}
    verdict = judge(PairedLog(mean, of_boots**2, of_prompts**2, pairs, 8), 0.05)
    other = judge(PairedLog(-mean, of_boots**2, of_prompts**2, pairs, 8), 0.05)
    assert other is mirrored.get(verdict, verdict)


@given(st.integers(2, 8), st.floats(-0.3, 0.3), st.floats(1e-4, 0.05), st.integers(1, 6))
def test_more_comparisons_never_make_a_difference_real(pairs: int, mean: float, sd: float, others: int) -> None:
    found = PairedLog(mean, sd**2, 0.0, pairs, 8)
    if judge(found, 0.05) is ComparisonVerdict.NOISE:
        assert judge(found, 0.05 / others) is ComparisonVerdict.NOISE


@given(st.integers(2, 6), st.floats(-0.3, 0.3), st.floats(1e-3, 0.1), st.floats(0, 0.02))
def test_as_many_rounds_as_it_asks_for_would_decide(pairs: int, mean: float, sd: float, of_prompts: float) -> None:
    found = PairedLog(mean, sd**2, of_prompts**2, pairs, 8)
    more = rounds_to_decide(found, 0.05)
    if judge(found, 0.05) is ComparisonVerdict.NOISE and more is not None:
        scaled = PairedLog(mean, sd**2 * pairs / (pairs + more), of_prompts**2, pairs + more, 8)
        assert judge(scaled, 0.05) is not ComparisonVerdict.NOISE


def test_one_round_tells_nothing_however_large_the_difference() -> None:
    ran = trial(Random(1), {"A": 50.0, "B": 100.0}, 1, 0.01)
    found = compare("B", pairs_of(ran, "A", "B"))
    assert found is not None
    assert found.verdict is ComparisonVerdict.NOISE
    assert found.over_one_sigma is None
    assert found.gain == pytest.approx(1.0, abs=0.1)


def test_a_difference_that_is_sure_and_does_not_matter_is_not_crowned() -> None:
    assert judge(PairedLog(0.01, 0.0018**2, 0.0, 8, 8), 0.05) is ComparisonVerdict.SAME
    assert judge(PairedLog(0.018, 0.002**2, 0.0, 8, 8), 0.05) is ComparisonVerdict.SMALL


def test_seed_004_calls_equals_real_where_the_interval_does_not() -> None:
    random = Random("seed 004")
    ran = [compare("B", pairs_of(trial(random, {"A": 50.0, "B": 50.0}, 3, 0.028), "A", "B")) for _ in range(300)]
    found = [comparison for comparison in ran if comparison is not None]
    by_sigma = sum(comparison.over_one_sigma is True for comparison in found) / 300
    by_interval = (
        sum(comparison.verdict in (ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER) for comparison in found) / 300
    )
    assert by_sigma > 0.15
    assert by_interval <= 0.08


def test_a_difference_that_only_its_own_interval_shows_is_told_as_such() -> None:
    random = Random("several")
    found = [
        compare("B", pairs_of(trial(random, {"A": 50.0, "B": 55.0}, 4, 0.02), "A", "B"), comparisons=9)
        for _ in range(60)
    ]
    alone = [comparison for comparison in found if comparison is not None and comparison.only_alone]
    assert alone
    assert all(
        comparison.verdict is ComparisonVerdict.NOISE and comparison.low is not None and comparison.low > 0
        for comparison in alone
    )


def test_one_sigma_calls_three_in_ten_equal_pairs_real() -> None:
    source, real, trials = Random(3), 0, 4000
    for _ in range(trials):
        before, after = (spread([source.gauss(0, 1) for _ in range(3)]) for _ in "ab")
        assert before is not None
        assert after is not None
        real += bool(is_over_one_sigma(before, after))
    assert 0.26 < real / trials < 0.31


def test_one_sigma_of_single_values_is_unknown() -> None:
    item = spread([1.0])
    assert item is not None
    assert is_over_one_sigma(item, item) is None


def test_a_gain_shows_although_prompts_differ_ten_times_more() -> None:
    found = compare("B", pairs_of(trial(Random(1), {"A": 50.0, "B": 55.0}, 4, 0.005), "A", "B"))
    assert found is not None
    assert found.low is not None
    assert 0.05 < found.low < found.gain < 0.15


def test_exchanging_the_sides_turns_the_ratio_over() -> None:
    pairs = pairs_of(trial(Random(2), {"A": 50.0, "B": 55.0}, 3, 0.01), "A", "B")
    there, back = compare("B", pairs), compare("B", [(after, before) for before, after in pairs])
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert back.high is not None
    assert 1 + there.gain == pytest.approx(1 / (1 + back.gain))
    assert 1 + there.low == pytest.approx(1 / (1 + back.high))


def test_prompts_that_one_side_lacks_do_not_count() -> None:
    before = {"a": (100.0, 1.0), "b": (100.0, 2.0)}
    found = compare("B", [(before, {"a": (100.0, 0.5), "c": (100.0, 9.0)})])
    assert found is not None
    assert found.gain == pytest.approx(1.0)
    assert found.low is None
    assert compare("B", [(before, {"c": (1.0, 1.0)})]) is None
    assert compare("B", []) is None
