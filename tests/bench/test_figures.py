"""What many requests say together."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.bench.load.figures import (
    acceptance_parts,
    by_class,
    decode_parts,
    faults,
    figures_of,
    flags,
    median,
    prefill_parts,
    rate,
    usable,
)
from specdash.bench.load.samples import MISSING, SHORT, TOO_FAST, BenchSample

GOOD = BenchSample("p", "coding", 0, 0.0, 0.0, 0.1, 1.1, 100, 0, 100.0, 101, 1000.0, 80, 40, steps=20,
    accepted_per_position=(20, 15, 5))  # fmt: skip


def test_acceptance_has_both_averages_and_the_sums() -> None:
    told = figures_of([GOOD, replace(GOOD, drafted=10, accepted=10)])
    assert (told.accepted, told.drafted) == (50, 90)
    assert told.acceptance is not None
    assert told.acceptance.value == 50 / 90
    assert told.acceptance_mean == statistics.fmean([0.5, 1.0])


def test_requests_that_drafted_nothing_count_in_no_mean_of_acceptance() -> None:
    told = figures_of([GOOD, replace(GOOD, drafted=0, accepted=0)])
    assert told.acceptance_mean == 0.5


def test_positions_and_mean_length_are_of_the_steps_that_are_known() -> None:
    told = figures_of([GOOD, replace(GOOD, accepted_per_position=(10,), accepted=10), replace(GOOD, steps=None)])
    assert told.per_position == (30 / 40, 15 / 40, 5 / 40)
    assert told.mean_accepted_length == 1 + 50 / 40


def test_speeds_leave_out_what_cannot_be_and_acceptance_does_not() -> None:
    odd = replace(GOOD, predicted_ms=0.001, flags=(TOO_FAST,), accepted=0)
    told = figures_of([GOOD, odd])
    assert told.decode is not None
    assert told.decode.value == pytest.approx(100.0)
    assert (told.unusable, told.accepted, told.drafted) == (1, 40, 160)


def test_failures_are_counted_and_tell_nothing() -> None:
    told = figures_of([GOOD, replace(GOOD, error="x", fault="timeout", accepted=9, drafted=9)])
    assert (told.requests, told.failed, told.accepted) == (2, 1, 40)
    assert figures_of([replace(GOOD, error="x")]).decode is None


def test_each_run_has_a_speed_of_its_own() -> None:
    told = figures_of([GOOD, replace(GOOD, run=1, predicted_ms=500.0), replace(GOOD, run=2, error="x")])
    assert told.by_run == pytest.approx((100.0, 200.0))
    assert told.acceptance_by_run == (0.5, 0.5, None)


def test_latencies_have_tails() -> None:
    told = figures_of([replace(GOOD, done_s=float(n)) for n in range(1, 101)])
    assert told.latency_tail == pytest.approx((50.5, 95.05, 99.01))


def test_classes_are_kept_apart() -> None:
    found = by_class([GOOD, replace(GOOD, kind="prose"), GOOD])
    assert {name: figures.requests for name, figures in found.items()} == {"coding": 2, "prose": 1}


def test_kinds_of_faults_and_flags_are_counted() -> None:
    samples = [
        replace(GOOD, flags=(SHORT,)),
        replace(GOOD, error="x", fault="busy"),
        replace(GOOD, error="y", fault="busy"),
    ]
    assert faults(samples) == {"busy": 2}
    assert flags(samples) == {SHORT: 1}


def test_of_nothing_nothing_is_known() -> None:
    told = figures_of([])
    assert (told.decode, told.acceptance, told.ttft, told.by_run) == (None, None, None, ())
    assert told.as_json()["ttft_s"] == {"p50": None, "p95": None, "p99": None}


def sample(prompt: str = "p", tokens: int = 101, ms: float = 1000.0, **more: object) -> BenchSample:
    fields = {"drafted": 40, "accepted": 20, "prompt_tokens": 100, "cached_tokens": 0, "prompt_ms": 50.0} | more
    return BenchSample(prompt, "coding", 0, 0.0, 0.0, predicted_tokens=tokens, predicted_ms=ms, **fields)  # type: ignore[arg-type]


def test_a_rate_is_a_sum_over_a_sum_and_never_a_mean_of_rates() -> None:
    slow, fast = sample("a", 101, 10_000.0), sample("b", 101, 100.0)
    found = rate([slow, fast], decode_parts)
    assert found is not None
    assert found.value == pytest.approx(200 / 10.1)
    assert slow.decode_rate is not None
    assert fast.decode_rate is not None
    assert found.value < (slow.decode_rate + fast.decode_rate) / 2


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
    found = median(
        [sample(f"p{n % 4}", ms=value) for n, value in enumerate(values)],
        lambda bench_sample: bench_sample.predicted_ms,
    )
    assert found is not None
    assert found.value == statistics.median(values)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value <= found.high
