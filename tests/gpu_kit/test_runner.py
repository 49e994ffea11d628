"""A lease is short and may end at any moment: every check is bounded, and what was seen is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
TIME_UP = 3


def run_kit(work: Path, *words: str, seconds: float = 100.0) -> tuple[int, str, dict[str, dict[str, Any]]]:
    """Exit code, output and results by name of `python -m gpu run` on the sample checks."""
    done = subprocess.run(
        [
            sys.executable, "-m", "gpu", "run", "--kit", str(work), "--work", str(work), "--out", str(work / "out"),
            "--llama-server", "/bin/true", "--until", str(time.time() + seconds), "--checks", "sample_checks", *words,
        ],
        env={"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'tests' / 'gpu_kit'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )  # fmt: skip
    said = json.loads((work / "out" / "results.json").read_text()) if (work / "out" / "results.json").exists() else {}
    return done.returncode, done.stdout + done.stderr, {check["name"]: check for check in said.get("checks", ())}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.slow
def test_one_check_that_fails_hangs_or_dies_costs_the_others_nothing(work: Path) -> None:
    code, said, checks = run_kit(work, "--cpu")
    assert code == 1
    assert {name: check["result"] for name, check in checks.items()} == {
        "sound": "passed", "wrong": "failed", "raises": "failed", "endless": "failed", "killed": "failed",
        "card": "skipped", "last": "passed",
    }  # fmt: skip
    assert "memory agrees with nvidia-smi: 5, not 7" in said
    assert "llama-server ended with 1" in checks["raises"]["findings"][-1]["note"]


@pytest.mark.slow
def test_what_was_seen_before_the_end_is_kept_and_nothing_runs_on(work: Path) -> None:
    _, _, checks = run_kit(work, "--only", "endless,killed")
    assert [finding["what"] for finding in checks["endless"]["findings"]] == [
        "it got as far as this",
        "the check came to its end",
    ]
    assert checks["killed"]["findings"][0]["measured"] == 41.0
    assert not psutil.pid_exists(int((work / "child.pid").read_text()))


def test_a_second_run_goes_on_where_the_first_was_cut_off(work: Path) -> None:
    code, said, checks = run_kit(work, "--only", "sound,last", seconds=0.0)
    assert (code, checks) == (TIME_UP, {})
    assert "no time was left for sound, last" in said
    assert run_kit(work, "--only", "sound")[0] == 0
    assert run_kit(work, "--only", "sound,last")[0] == 0
    assert (work / "runs.txt").read_text().split() == ["sound", "last"]
    assert run_kit(work, "--only", "sound", "--again")[0] == 0
    assert (work / "runs.txt").read_text().split() == ["sound", "last", "sound"]


def test_a_check_that_is_not_there_is_named_beside_those_that_are(work: Path) -> None:
    code, said, _ = run_kit(work, "--only", "nvml,sound")
    assert code == 2
    assert "no check is named nvml; there are sound, wrong" in said
