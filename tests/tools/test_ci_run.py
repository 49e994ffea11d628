"""The second look of `.ci/run` at marked tests that failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = (Path(__file__).parents[2] / ".ci" / "run").read_text(encoding="utf-8")
SECOND_LOOK = RUN[RUN.index("retried=()") : RUN.index('step "make test"')]
LIST = RUN[RUN.index("if ((${#retried[@]}))") :]
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("name", range({count}))
def test_it(name):
    before = pathlib.Path(f"seen-{{name}}")
    runs = len(before.read_text()) + 1 if before.exists() else 1
    before.write_text("x" * runs)
    assert runs >= {passes_at}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    program = tmp_path / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def run(checkout: Path, count: int, passes_at: int) -> subprocess.CompletedProcess[str]:
    """The second look after so many tests failed, which pass in the run of this number."""
    (checkout / "test_some.py").write_text(TESTS.format(count=count, passes_at=passes_at), encoding="utf-8")
    steps = 'set -euo pipefail\nstep() { echo "$1"; }\n'
    marked = ".venv/bin/python -m pytest -q test_some.py || second_look -q test_some.py\n"
    command = ["bash", "-c", f"{steps}{SECOND_LOOK}{marked}{LIST}"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_what_failed_and_passes_alone_is_listed(checkout: Path) -> None:
    done = run(checkout, 2, passes_at=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-3:] == [
        "Failed among others and passed alone:",
        "  test_some.py::test_it[0]",
        "  test_some.py::test_it[1]",
    ]


def test_what_fails_again_counts(checkout: Path) -> None:
    done = run(checkout, 1, passes_at=3)
    assert done.returncode != 0
    assert "passed alone" not in done.stdout


def test_more_than_ten_are_not_tried_again(checkout: Path) -> None:
    done = run(checkout, 11, passes_at=2)
    assert done.returncode != 0
    assert "11 failed" in done.stdout
    assert (checkout / "seen-0").read_text() == "x"
