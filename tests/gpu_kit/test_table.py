"""Results of a run become a file beside the kit and a table in docs/performance.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpu.table import BEGIN, END, PAGE, publish

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {
    "date": "2026-12-01",
    "gpu": {"name": "NVIDIA H200", "driver_version": "580.159.03", "memory.total": "143771 MiB"},
    "cuda": "13.0",
    "llama_cpp": "11434.0.0",
    "cores": 16,
}
CHECK = {
    "name": "nvml",
    "title": "NVML | nvidia-smi",
    "result": "failed",
    "seconds": 12.3,
    "findings": [
        {"what": "power agrees", "result": "passed", "measured": 1.0, "expected": 1.0, "unit": "W", "note": ""},
        {"what": "decode", "result": "figure", "measured": 6.91234, "expected": None, "unit": "ms", "note": ""},
        {"what": "clocks agree", "result": "failed", "measured": 345, "expected": 1980, "unit": "MHz", "note": ""},
    ],
}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n\n{BEGIN}\nnothing yet\n{END}\n\nafter\n")
    return page


def results(tmp_path: Path, whole: Any) -> Path:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(whole))
    return file


def test_figures_and_failures_are_shown_and_what_passed_is_counted(tmp_path: Path, page: Path) -> None:
    file = results(tmp_path, {"machine": MACHINE, "checks": [CHECK]})
    assert publish(file, tmp_path / "kept", page) == 0
    text = page.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter\n")
    assert "nothing yet" not in text
    assert "2026-12-01, NVIDIA H200 (143771 MiB), driver 580.159.03, CUDA 13.0" in text
    assert "| **nvml**: NVML / nvidia-smi | 1 of 2 | | 12 s |" in text
    assert "| | | decode | 6.912 ms |" in text
    assert "| | | clocks agree | **345 MHz**, expected 1980 |" in text
    assert "power agrees" not in text
    assert json.loads((tmp_path / "kept" / "2026-12-01-nvidia-h200.json").read_text())["checks"] == [CHECK]


def test_publishing_again_replaces_the_table(tmp_path: Path, page: Path) -> None:
    file = results(tmp_path, {"machine": MACHINE, "checks": [CHECK]})
    publish(file, tmp_path / "kept", page)
    once = page.read_text()
    publish(file, tmp_path / "kept", page)
    assert page.read_text() == once


@pytest.mark.parametrize("whole", [{"machine": {**MACHINE, "gpu": {}}, "checks": []}, [], {}])
def test_a_dry_run_is_not_published(tmp_path: Path, page: Path, whole: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = page.read_text()
    assert publish(results(tmp_path, whole), tmp_path / "kept", page) == 2
    assert "holds no results from a GPU" in capsys.readouterr().err
    assert page.read_text() == before
    assert not (tmp_path / "kept").exists()


def test_the_page_of_the_project_has_a_place_for_it() -> None:
    assert BEGIN in PAGE.read_text()
    assert END in PAGE.read_text()
