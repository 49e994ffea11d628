"""Figures of benchmarks and their intervals."""

from __future__ import annotations

import math
import random
import statistics as plain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.plausible import MISSING, SHORT
from specdash.bench.samples import Sample
from specdash.bench.statistics import (
    acceptance_parts,
    decode_parts,
    is_over_one_sigma,
    median,
    paired_speed,
    percentiles,
    prefill_parts,
    rate,
    ratio,
    spread,
    student_95,
    usable,
)


def sample(prompt: str = "p", tokens: int = 101, ms: float = 1000.0, **more: object) -> Sample:
    fields = {"drafted": 40, "accepted": 20, "prompt_tokens": 100, "cached_tokens": 0, "prompt_ms": 50.0} | more
    return Sample(prompt, "coding", 0, 0.0, 0.0, predicted_tokens=tokens, predicted_ms=ms, **fields)  # type: ignore[arg-type]


def test_a_rate_is_a_sum_over_a_sum_and_never_a_mean_of_rates() -> None:
    slow, fast = sample("a", 101, 10_000.0), sample("b", 101, 100.0)
    found = rate([slow, fast], decode_parts)
    assert found is not None
    assert found.value == pytest.approx(200 / 10.1)
    assert slow.decode_rate is not None
    assert fast.decode_rate is not None
    assert found.value < (slow.decode_rate + fast.decode_rate) / 2


def test_acceptance_is_accepted_over_drafted_of_all_requests_together() -> None:
    found = rate([sample("a", drafted=1000, accepted=100), sample("b", drafted=10, accepted=10)], acceptance_parts)
    assert found is not None
    assert found.value == 110 / 1010


def test_cached_tokens_are_no_work() -> None:
    assert prefill_parts(sample(prompt_tokens=100, cached_tokens=80, prompt_ms=10.0)) == (20.0, 0.01)


def test_a_prompt_that_was_all_but_cached_tells_no_speed() -> None:
    assert prefill_parts(sample(prompt_tokens=100, cached_tokens=99, prompt_ms=10.0)) is None


def test_a_rate_of_nothing_is_unknown() -> None:
    assert rate([], decode_parts) is None
    assert rate([sample(ms=0.0)], decode_parts) is None
    assert rate([sample(drafted=0, accepted=0)], acceptance_parts) is None


def test_one_request_has_a_value_and_no_interval() -> None:
    found = rate([sample()], decode_parts)
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_of_one_prompt_its_runs_make_the_interval_and_of_several_the_prompts() -> None:
    runs = [sample("p", 101, ms) for ms in (990.0, 1000.0, 1010.0)]
    prompts = [*runs, *(sample("q", 101, ms * 3) for ms in (990.0, 1000.0, 1010.0))]
    of_runs, of_prompts = rate(runs, decode_parts), rate(prompts, decode_parts)
    assert of_runs is not None
    assert of_prompts is not None
    assert of_runs.low is not None
    assert of_runs.high is not None
    assert of_prompts.low is not None
    assert of_prompts.high is not None
    assert of_runs.high / of_runs.low < 1.2 < of_prompts.high / of_prompts.low


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    source, hits, trials = random.Random(11), 0, 100
    for _ in range(trials):
        samples = []
        for prompt in range(10):
            of_prompt = source.gauss(0, 0.2)
            samples += [sample(f"p{prompt}", 101, 1000 * math.exp(of_prompt + source.gauss(0, 0.02))) for _ in "ab"]
        found = rate(samples, decode_parts)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 100 / math.exp(0.2**2 / 2) <= found.high
    assert hits >= 86


def test_failed_and_implausible_requests_tell_no_speed_but_short_ones_do() -> None:
    good, short = sample("a"), sample("b", flags=(SHORT,))
    assert usable([good, sample("c", error="no"), sample("d", flags=(MISSING,)), short]) == [good, short]


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_a_median_lies_in_its_interval_and_among_its_values(values: list[float]) -> None:
    found = median([sample(f"p{n % 4}", ms=value) for n, value in enumerate(values)], lambda one: one.predicted_ms)
    assert found is not None
    assert found.value == plain.median(values)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value <= found.high


def test_percentiles_interpolate_and_of_nothing_are_unknown() -> None:
    assert percentiles([1.0, 2.0, 3.0], (0.0, 0.5, 0.75)) == [1.0, 2.0, 2.5]
    assert percentiles([], (0.5,)) == [None]


def test_ratio_of_nothing_is_unknown() -> None:
    assert ratio([]) is None


def test_the_seeds_spread_is_mean_and_sample_deviation() -> None:
    found = spread([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.mean, found.deviation, found.count) == (2.0, 1.0, 3)
    alone = spread([4.0])
    assert alone is not None
    assert alone.deviation is None


def test_one_sigma_calls_three_in_ten_equal_pairs_real() -> None:
    source, real, trials = random.Random(3), 0, 4000
    for _ in range(trials):
        before, after = (spread([source.gauss(0, 1) for _ in range(3)]) for _ in "ab")
        assert before is not None
        assert after is not None
        real += bool(is_over_one_sigma(before, after))
    assert 0.26 < real / trials < 0.31


def test_one_sigma_of_single_values_is_unknown() -> None:
    one = spread([1.0])
    assert one is not None
    assert is_over_one_sigma(one, one) is None


def _pairs(
    source: random.Random, count: int, gain: float, boot: float, prompts: int = 12
) -> list[tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]]:
    base = {f"p{n}": source.gauss(0, 0.3) for n in range(prompts)}

    def measured(gained: float) -> dict[str, tuple[float, float]]:
        luck = source.gauss(0, boot) - gained
        return {name: (255.0, 2.55 * math.exp(at + luck + source.gauss(0, 0.03))) for name, at in base.items()}

    return [(measured(0.0), measured(gain)) for _ in range(count)]


@pytest.mark.parametrize("pairs", [2, 3, 4, 6])
def test_boots_without_a_difference_are_seldom_called_different(pairs: int) -> None:
    source, called, trials = random.Random(pairs), 0, 1000
    for _ in range(trials):
        found = paired_speed(_pairs(source, pairs, 0.0, 0.01))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        called += not found.low <= 1.0 <= found.high
    assert called / trials <= 0.1


def test_a_gain_shows_although_prompts_differ_ten_times_more() -> None:
    found = paired_speed(_pairs(random.Random(1), 4, math.log(1.1), 0.005))
    assert found is not None
    assert found.low is not None
    assert 1.05 < found.low < found.value < 1.15


def test_exchanging_the_sides_turns_the_ratio_over() -> None:
    pairs = _pairs(random.Random(2), 3, 0.1, 0.01)
    there, back = paired_speed(pairs), paired_speed([(after, before) for before, after in pairs])
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert back.high is not None
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)


def test_prompts_that_one_side_lacks_do_not_count() -> None:
    before = {"a": (100.0, 1.0), "b": (100.0, 2.0)}
    found = paired_speed([(before, {"a": (100.0, 0.5), "c": (100.0, 9.0)})])
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.low is None
    assert paired_speed([(before, {"c": (1.0, 1.0)})]) is None


@pytest.mark.parametrize(
    ("freedom", "wanted"), [(1, 12.706), (2, 4.303), (5, 2.571), (6, 2.447), (10, 2.228), (60, 2.0)]
)
def test_students_quantile_is_that_of_the_tables(freedom: float, wanted: float) -> None:
    assert student_95(freedom) == pytest.approx(wanted, rel=0.005)
