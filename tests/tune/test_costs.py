"""The step time: a line from two boots."""

from __future__ import annotations

import statistics

import pytest
from benchmarks.tuner_lab.step_line import step_line

REAL = {1: 13.05, 2: 14.98, 3: 16.71, 4: 18.77, 5: 20.60, 6: 21.71, 8: 24.74, 10: 28.81, 12: 31.80}
"""Milliseconds a step by draft length, llama-server b11434 on a CPU with `--spec-synth-rates`; off takes 11.32."""


def test_two_boots_predict_the_step_time_of_every_draft_length() -> None:
    line = step_line(11.32, REAL[6], 6)
    errors = [abs(line(length) / real - 1) for length, real in REAL.items() if length != 6]
    assert statistics.median(errors) <= 0.02
    assert max(errors) <= 0.05


@pytest.mark.parametrize(
    ("cap", "per_token_ms"),
    [(600, {1: 115.7, 2: 144.4, 3: 156.0, 4: 162.1, 5: 159.7, 6: 153.2}), (400, {1: 108.4, 4: 132.8, 6: 123.3})],
)
def test_a_published_power_study_is_near_a_line_too(cap: int, per_token_ms: dict[int, float]) -> None:
    off = {600: 74.8, 400: 71.2}[cap]
    acceptance = {1: 0.889, 2: 0.790, 3: 0.725, 4: 0.647, 5: 0.591, 6: 0.537}
    step = {n: (1 + n * acceptance[n]) / speed for n, speed in per_token_ms.items()}
    line = step_line(1 / off, step[6], 6)
    assert max(abs(line(n) / each - 1) for n, each in step.items()) <= 0.07


def test_drafts_that_cost_nothing_are_not_taken_to_save_time() -> None:
    assert step_line(10.0, 9.5, 6)(12) == 10.0
