"""What many requests say together."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from specdash.bench.figures import by_class, faults, figures_of, flags
from specdash.bench.plausible import SHORT, TOO_FAST
from specdash.bench.samples import Sample

GOOD = Sample("p", "coding", 0, 0.0, 0.0, 0.1, 1.1, 100, 0, 100.0, 101, 1000.0, 80, 40, steps=20,
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
    assert {name: one.requests for name, one in found.items()} == {"coding": 2, "prose": 1}


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
