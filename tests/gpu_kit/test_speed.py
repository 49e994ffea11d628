"""What the kit makes of decode's speed, with and without speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu.checks import speed
from gpu.kit import Kit
from gpu.report import Report, Result
from specdash.backend.demo import TARGET_MODEL, bundled_model
from support.engines import llama_server_binary

ROW = {
    "spec_type": "draft-simple",
    "off_tok_s": 400.0,
    "on_tok_s": 800.0,
    "direct": 2.0,
    "dashboard": 2.02,
    "low": 2.01,
    "high": 2.03,
    "basis": "measured",
    "verdict": "paying",
    "error_percent": 1.0,
    "error_percent_before": 2.0,
}
FAR: dict[str, Any] = {"dashboard": 2.2, "error_percent": 10.0}


def judged(directory: Path, *, cpu: bool = False, **changed: Any) -> list[Result]:
    report = Report(directory / "report.json", "speedup", "the speed-up")
    speed.judge_speedup(report, {**ROW, **changed}, cpu=cpu)
    return [finding.result for finding in report.findings]


def test_a_small_error_passes_whatever_its_interval(tmp_path: Path) -> None:
    assert judged(tmp_path) == [Result.PASSED, Result.PASSED, Result.FIGURE]


def test_a_large_error_passes_within_its_interval_only(tmp_path: Path) -> None:
    assert judged(tmp_path, **FAR, low=1.9, high=2.5)[1] is Result.PASSED
    assert judged(tmp_path, **FAR, low=2.1, high=2.3)[1] is Result.FAILED


def test_an_estimate_is_no_measurement(tmp_path: Path) -> None:
    assert judged(tmp_path, basis="estimate")[0] is Result.FAILED


def test_busy_processors_judge_no_speed(tmp_path: Path) -> None:
    assert judged(tmp_path, cpu=True, **FAR) == [Result.PASSED, Result.SKIPPED, Result.FIGURE]


@pytest.mark.slow
@pytest.mark.llama_server
def test_each_size_has_its_bandwidth(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for size in speed.SIZES:
        (tmp_path / "models" / f"target-{size:g}gb.gguf").symlink_to(bundled_model(TARGET_MODEL))
    report = Report(tmp_path / "report.json", "sizes", "decode")
    speed.run_sizes(Kit(tmp_path, tmp_path, tmp_path, Path(llama_server_binary()), cpu=True), report)
    weights = bundled_model(TARGET_MODEL).stat().st_size
    *figures, last = report.findings
    for figure in figures:
        each_ms, bandwidth = figure.measured
        assert bandwidth == pytest.approx(weights / each_ms / 1e6, abs=0.1)
    assert (len(figures), last.result) == (len(speed.SIZES), Result.SKIPPED)
