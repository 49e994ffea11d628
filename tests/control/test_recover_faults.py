"""kill -9 of specdash at every point of an apply, of a rollback and of a recovery: always the old or the new, whole."""

from __future__ import annotations

import json
import signal

import pytest
from support.crash import FORWARD_POINTS, RECOVER_POINTS, ROLLBACK_POINTS, dies_at

from specdash.backend.journal import journal_file
from specdash.core.changes import ApplyKind, ApplyOutcome
from support.deployment import ON_A_SCRIPTED_ENGINE, UNDER_THE_DAEMON, Rig, misbehaving, sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHANGE = ("LLAMA_DRAFT_MAX=7", "LLAMA_DRAFT_P_MIN=0.25")
BOTH = (*CHANGE, "PROXY_LOOP_WINDOW=9")
BEFORE_THE_JOURNAL = ("lock:before", "preflight:before", "backup:before", "backup:saved")
RECORDED = {"record:appended", "record:after"}
FINISHING = [point for point in FORWARD_POINTS if point not in BEFORE_THE_JOURNAL and point != "backup:journal"]
RECOVERIES = [
    (cut, point)
    for cut in ("write:renamed", "probe:after")
    for point in (*RECOVER_POINTS, *ROLLBACK_POINTS)
    # What was not asked to restart need not be restarted.
    if (cut, point) != ("write:renamed", "rollback:restarted")
]


def killed(rig: Rig, fault: str, *words: str) -> None:
    dies_at(fault, lambda: rig.apply(*words, health_timeout_s=20))


def recovered(rig: Rig, *, finish: bool, well: bool = True) -> None:
    record = rig.recover(finish=finish)
    if record is not None and finish:
        assert (record.outcome is ApplyOutcome.APPLIED) is well, record.reason
    assert journal_file(rig.env).read() is None
    assert rig.recover(finish=finish) is None


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize("point", BEFORE_THE_JOURNAL)
def test_an_apply_killed_before_it_asked_a_manager_for_anything_has_changed_nothing(rig: Rig, point: str) -> None:
    old = rig.file().read_bytes()
    killed(rig, point, *BOTH)
    assert rig.file().read_bytes() == old
    assert rig.recover(finish=True) is None
    rig.assert_settled(version=old)


@pytest.mark.parametrize("finish", [False, True], ids=["rolled back", "finished"])
@sweep("point", ["backup:journal", *FINISHING], "restart:asked", "settle:before")
def test_an_apply_killed_anywhere_is_rolled_back_or_finished(rig: Rig, point: str, *, finish: bool) -> None:
    old = rig.file().read_bytes()
    killed(rig, point, *BOTH)
    assert rig.file().read_bytes() in (old, old.replace(b'MAX="4"', b"MAX=7") + b"LLAMA_DRAFT_P_MIN=0.25\n")
    recovered(rig, finish=finish)
    new = point in RECORDED or finish
    assert rig.values().get("LLAMA_DRAFT_MAX") == ("7" if new else "4")
    rig.assert_settled(version=None if new else old)
    assert old in rig.backups()
    last = rig.records()[-1]
    assert last.outcome is (ApplyOutcome.APPLIED if new else ApplyOutcome.ROLLED_BACK)
    assert last.kind is (ApplyKind.APPLY if new else ApplyKind.RECOVER)
    assert [record.number for record in rig.records()] == list(range(1, len(rig.records()) + 1))


@pytest.mark.parametrize("finish", [False, True], ids=["to roll back", "to finish"])
@sweep("point", ROLLBACK_POINTS, "rollback:restarted")
def test_an_apply_killed_while_it_rolls_back_is_rolled_back(rig: Rig, point: str, *, finish: bool) -> None:
    old = rig.file().read_bytes()
    killed(rig, point, *misbehaving(rig.home, "exits"))
    recovered(rig, finish=finish, well=False)
    rig.assert_settled(version=old)
    last = rig.records()[-1]
    assert last.outcome is ApplyOutcome.ROLLED_BACK
    assert last.failed_step == "health"
    assert any("failed to load the model of the test" in line for line in last.log_lines)


@sweep("point", [*RECOVER_POINTS, *ROLLBACK_POINTS], "rollback:restarted")
def test_a_recovery_that_is_killed_can_be_run_again(rig: Rig, point: str) -> None:
    recovered_twice(rig, "restart:asked", point)


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize(("cut", "point"), RECOVERIES)
def test_so_it_can_however_far_the_apply_had_come(rig: Rig, cut: str, point: str) -> None:
    """Above is the cut that leaves most to a manager."""
    recovered_twice(rig, cut, point)


def recovered_twice(rig: Rig, cut: str, point: str) -> None:
    old = rig.file().read_bytes()
    killed(rig, cut, *BOTH)
    dies_at(point, lambda: rig.recover(finish=False))
    recovered(rig, finish=False)
    rig.assert_settled(version=old)


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize("point", FINISHING)
def test_a_recovery_killed_while_it_finishes_can_be_finished_or_rolled_back(rig: Rig, point: str) -> None:
    old = rig.file().read_bytes()
    killed(rig, "backup:journal", *BOTH)
    dies_at(point, lambda: rig.recover(finish=True))
    finish = len(point) % 2 == 1
    recovered(rig, finish=finish)
    new = finish or point in RECORDED
    rig.assert_settled(version=None if new else old)
    assert rig.values().get("LLAMA_DRAFT_MAX") == ("7" if new else "4")


@ON_A_SCRIPTED_ENGINE
def test_finishing_what_cannot_be_finished_rolls_back_and_says_so(rig: Rig) -> None:
    old = rig.file().read_bytes()
    # Without the runner's own probe, which might end the engine before it is asked for its health.
    killed(rig, "write:after", *misbehaving(rig.home, "dies-on-probe"), "LLAMA_START_PROBE=0")
    done = rig.command("recover", "--finish", "--json")
    assert done.returncode == 11
    record = json.loads(done.stdout)
    assert (record["outcome"], record["failed_step"]) == ("rolled back", "probe")
    again = rig.command("recover", "--finish", "--yes")
    assert (again.returncode, again.stdout) == (0, "nothing to recover\n")
    rig.assert_settled(version=old)


@UNDER_THE_DAEMON
def test_the_next_apply_says_that_one_was_cut_short_and_rolls_it_back_when_told_yes(rig: Rig) -> None:
    assert rig.command("apply", "--yes", *CHANGE, fault="write:after").returncode == -signal.SIGKILL
    refused = rig.command("apply", "LLAMA_DRAFT_MAX=9")
    assert refused.returncode == 13
    assert "specdash recover" in refused.stderr
    done = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=9")
    assert done.returncode == 0, done.stderr
    assert "rolling it back first" in done.stderr
    assert (rig.values()["LLAMA_DRAFT_MAX"], rig.values().get("LLAMA_DRAFT_P_MIN")) == ("9", None)
    rig.assert_settled()


@UNDER_THE_DAEMON
def test_rollback_of_one_that_was_cut_short_goes_back_to_before_it_and_no_further(rig: Rig) -> None:
    assert rig.apply("LLAMA_DRAFT_MAX=5").outcome is ApplyOutcome.APPLIED
    before = rig.file().read_bytes()
    killed(rig, "health:after", *CHANGE)
    assert rig.command("rollback", "--yes").returncode == 0
    rig.assert_settled(version=before)
