"""The apply storm on real services under both managers: no client notices, every bad apply is undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from specdash.bench.apply_storm import Attempt, StormReport, cases
from specdash.bench.load.messages import RequestSeen
from specdash.core.changes import ApplyOutcome
from support.systemd_user import running_user_manager

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

APPLIES = 12
CLIENTS = 3


def stormed(manager: str, env: Mapping[str, str], *options: str) -> dict[str, Any]:
    """What `specdash bench apply-storm --json` says of a short storm."""
    command = [sys.executable, "-m", "specdash", "bench", "apply-storm", "--manager", manager, "--json"]
    command += ["--applies", str(APPLIES), "--clients", str(CLIENTS), *options]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if told["passed"] else 1)
    return told


def assert_calm(told: dict[str, Any]) -> None:
    """Nothing went wrong, and everything was tried."""
    assert told["errors"] == []
    assert [attempt["fault"] for attempt in told["attempts"] if attempt["fault"]] == []
    assert told["passed"]
    assert told["outcomes"]["applied"] == APPLIES // 2
    assert told["outcomes"]["refused"] == APPLIES // 4
    assert told["outcomes"]["rolled back"] == APPLIES // 4
    assert told["requests"] > APPLIES


@pytest.mark.engine
def test_under_the_supervisor_no_client_notices(tmp_path: Path) -> None:
    assert_calm(stormed("supervisor", {"HOME": str(tmp_path)}, "--seed", "3"))


@pytest.mark.engine
@pytest.mark.systemd
def test_under_systemd_no_client_notices_and_no_unit_is_left(tmp_path: Path) -> None:
    with running_user_manager(tmp_path / "home") as manager:
        assert_calm(stormed("systemd", manager.environment, "--seed", "4"))
        assert "specdash-storm" not in manager.systemctl("list-units", "--all", "specdash*", check=False)


def test_of_each_four_cases_two_work_one_is_refused_and_one_fails(tmp_path: Path) -> None:
    for seed in range(5):
        mix = list(islice(cases(seed, tmp_path / "llama-server", 1), 40))
        for start in range(0, 40, 4):
            kinds = sorted(str(case.outcome) for case in mix[start : start + 4])
            assert kinds == ["applied", "applied", "refused", "rolled back"]


def test_one_failed_request_or_one_wrong_end_fails_the_storm() -> None:
    good = Attempt(1, "another draft length", ApplyOutcome.APPLIED, 1.0, 0.5, 0.4)
    seen = RequestSeen("chat, whole", 0.0, 0.1, None)
    lost = RequestSeen("chat, whole", 0.0, 0.1, "ReadError")
    wrong = Attempt(2, "refused by preflight", ApplyOutcome.APPLIED, 1.0, fault="ended applied, must be refused")
    assert StormReport("systemd", "", (good,), (seen,)).passed
    assert not StormReport("systemd", "", (good,), (seen, lost)).passed
    assert not StormReport("systemd", "", (good, wrong), (seen,)).passed
    assert not StormReport("systemd", "", (good,), ()).passed
    told = StormReport("systemd", "", (good,), (seen,)).as_json()
    assert told["overhead_s"]["max"] == pytest.approx(0.1)
