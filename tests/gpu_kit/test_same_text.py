"""What the kit makes of `specdash verify --json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpu.checks.same_text import judge
from gpu.report import Report, Result

if TYPE_CHECKING:
    from pathlib import Path


def answer(side: str, verdict: str, *gaps: float | None, drafted: int = 12) -> dict[str, Any]:
    """One of `results`."""
    differences = [{"token": 3, "gap": gap} for gap in gaps]
    return {"side": side, "verdict": verdict, "differences": differences, "drafted": drafted, "accepted": drafted // 2}


def told(directory: Path, *results: dict[str, Any]) -> Report:
    report = Report(directory / "report.json", "verify", "the same text")
    judge(report, "draft-simple", {"verdict": "as it came out", "results": list(results), "notes": []})
    return report


def test_near_ties_pass_and_are_counted(tmp_path: Path) -> None:
    report = told(
        tmp_path,
        answer("baseline", "batch-shape effect", 0.01),
        answer("candidate", "identical"),
        answer("candidate", "batch-shape effect", 0.02, 0.06),
        answer("candidate", "batch-shape effect", 0.03, None),
    )
    assert [finding.result for finding in report.findings] == [Result.PASSED, Result.PASSED, Result.FIGURE]
    assert report.findings[-1].measured == [2, 1, 0.06]


@pytest.mark.parametrize("verdict", ["DAMAGED", "undecided"])
def test_more_than_a_near_tie_fails(verdict: str, tmp_path: Path) -> None:
    report = told(tmp_path, answer("candidate", "identical"), answer("candidate", verdict, 2.5))
    assert report.findings[0].result is Result.FAILED


def test_drafts_that_were_never_made_prove_nothing(tmp_path: Path) -> None:
    report = told(tmp_path, answer("candidate", "identical", drafted=0))
    assert report.findings[1].result is Result.FAILED


def test_a_run_without_answers_fails(tmp_path: Path) -> None:
    assert told(tmp_path, answer("baseline", "identical")).findings[0].result is Result.FAILED
