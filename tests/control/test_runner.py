"""The runner owns the change: what becomes of it when its client goes, when it is stopped itself, or finds one at its
start."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.journal import apply_lock
from specdash.backend.trial import read_trial
from specdash.control.change import Apply, Trial
from specdash.control.connection import RemoteError, RunnerConnection, runner_of, runners
from specdash.control.plan import ApplyOptions
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyProgress, ApplyStep, Role, StepState
from specdash.core.errors import ConflictError, ExitCode
from specdash.core.paths import apply_journal_file, trial_file
from support.deployment import ON_A_SCRIPTED_ENGINE, Rig, misbehaving
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90), ON_A_SCRIPTED_ENGINE]

CHANGE = ("LLAMA_DRAFT_MAX=7", "PROXY_LOOP_WINDOW=9")
LEFT_BY_0_1 = Path(__file__).parents[1] / "data/from_0_1/state"
FALLBACK = "last good settings run again"
REFUSED_OVER = "was edited"


@pytest.fixture(autouse=True)
def lets_go(rig: Rig) -> Iterator[None]:
    yield
    rig.points.go_on()


def runner(rig: Rig) -> int:
    return int(rig.status()["runner_pid"])


def started_apply(rig: Rig, point: str, *words: str) -> Any:
    """The command, waiting at a point of its runner."""
    rig.points.pause_at(point)
    command = rig.start_command("apply", "--yes", *words)
    rig.points.wait(20)
    return command


@pytest.mark.parametrize("point", ["hold:before", "drain:before", "drain:after", "write:before"])
def test_an_edit_before_the_write_is_a_conflict_that_touches_nothing(rig: Rig, point: str) -> None:
    engine = rig.engine()
    theirs = rig.file().read_bytes() + b"# an editor was here\n"
    command = started_apply(rig, point, *CHANGE)
    rig.file().write_bytes(theirs)
    rig.points.go_on()
    _, said = command.communicate(timeout=60)
    assert command.returncode == ExitCode.CONFLICT, said
    assert REFUSED_OVER in said
    assert rig.file().read_bytes() == theirs
    assert rig.file(Role.PROXY).read_bytes() == rig.good[Role.PROXY]
    assert rig.engine() == engine
    assert rig.proxy("/admin/state")["held"] is False
    assert not apply_journal_file(rig.env).exists()


def test_ctrl_c_of_the_client_asks_for_a_cancel(rig: Rig) -> None:
    command = started_apply(rig, "health:before", *CHANGE)
    command.send_signal(signal.SIGINT)
    until(lambda: bool(rig.status()["change"]))
    # The command sends it from a thread; asked once more, it changes nothing.
    rig.cancel()
    rig.points.go_on()
    _, said = command.communicate(timeout=60)
    assert command.returncode == ExitCode.ROLLED_BACK, said
    assert rig.records()[-1].outcome is ApplyOutcome.ROLLED_BACK
    assert rig.records()[-1].reason == "it was interrupted"
    rig.assert_settled(version=rig.good_backend)


@pytest.mark.parametrize("point", ["drain:before", "write:after", "health:before", "probe:before", "settle:before"])
def test_a_runner_that_is_stopped_during_a_change_leaves_the_old_files_and_a_record(rig: Rig, point: str) -> None:
    pid = runner(rig)
    command = started_apply(rig, point, *CHANGE)
    os.kill(pid, signal.SIGTERM)
    until(lambda: rig.engine() is None)
    rig.points.go_on()
    command.communicate(timeout=60)
    assert command.returncode not in (ExitCode.OK, None)
    until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), 20)
    assert rig.file().read_bytes() == rig.good_backend
    assert rig.file(Role.PROXY).read_bytes() == rig.good[Role.PROXY]
    assert not apply_journal_file(rig.env).exists()
    record = rig.records()[-1]
    assert (record.outcome, record.reason) == (ApplyOutcome.ROLLED_BACK, "the runner was stopped")
    rig.order("restart", Role.BACKEND)
    rig.wait_ready()
    rig.assert_settled(version=rig.good_backend)


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_an_apply_of_0_1_that_was_killed_is_undone_at_the_start(rig: Rig) -> None:
    rig.order("stop", Role.BACKEND)
    old, known = rig.file().read_bytes(), len(rig.records())
    left = json.loads((LEFT_BY_0_1 / "apply.journal").read_text(encoding="utf-8"))
    new = old.replace(b'MAX="4"', b"MAX=8")
    left["number"] = max((record.number for record in rig.records()), default=0) + 1
    left["edits"][0] |= {"env_file": str(rig.file()), "old": encoded(old), "new": encoded(new)}
    apply_journal_file(rig.env).write_text(json.dumps(left), encoding="utf-8")
    rig.file().write_bytes(new)
    rig.order("start", Role.BACKEND)
    rig.wait_ready()
    rig.assert_settled(version=old)
    assert len(rig.records()) == known + 1
    record = rig.records()[-1]
    assert (record.kind, record.outcome, record.failed_step) == (
        ApplyKind.RECOVER,
        ApplyOutcome.ROLLED_BACK,
        ApplyStep.RESTART,
    )


def test_a_trial_of_0_1_that_was_killed_goes_back_at_the_start(rig: Rig) -> None:
    import hashlib

    rig.order("stop", Role.BACKEND)
    old = rig.file().read_bytes()
    tried = old + b"LLAMA_DRAFT_P_MIN=0.5\n"
    left = json.loads((LEFT_BY_0_1 / "trial.json").read_text(encoding="utf-8"))
    left |= {"env_file": str(rig.file()), "original": encoded(old), "tried": [hashlib.sha256(tried).hexdigest()]}
    trial_file(rig.env).write_text(json.dumps(left), encoding="utf-8")
    rig.file().write_bytes(tried)
    rig.order("start", Role.BACKEND)
    rig.wait_ready()
    rig.assert_settled(version=old)
    assert not trial_file(rig.env).exists()


@pytest.mark.parametrize("way", ["exits", "dies-on-probe"])
def test_an_edit_by_hand_whose_engine_does_not_stand_lets_the_last_good_settings_run_on(rig: Rig, way: str) -> None:
    good, pid = rig.digest(), runner(rig)
    first = rig.engine()
    said = len((rig.home / "server.log").read_text(encoding="utf-8"))
    words = "".join(f"{word}\n" for word in misbehaving(rig.home, way))
    edited = rig.file().read_bytes() + words.encode()
    rig.file().write_bytes(edited)
    os.kill(pid, signal.SIGUSR1)

    def log() -> str:
        return (rig.home / "server.log").read_text(encoding="utf-8")[said:]

    until(lambda: FALLBACK in log(), 30)
    rig.wait_ready()
    engine = rig.engine()
    assert engine is not None
    assert engine != first
    assert engine.env_digest == good
    assert runner(rig) == pid
    assert rig.file().read_bytes() == edited
    (line,) = [line for line in log().splitlines() if FALLBACK in line]
    assert "warning" in line
    assert "the file was left as it is" in line
    assert rig.ask()


def test_a_change_is_refused_while_another_runs_and_names_it(rig: Rig) -> None:
    command = started_apply(rig, "health:before", *CHANGE)
    late = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=9")
    rig.points.go_on()
    assert command.communicate(timeout=60) is not None
    assert command.returncode == ExitCode.OK
    assert late.returncode == ExitCode.CONFLICT
    assert "LLAMA_DRAFT_MAX 4 -> 7" in late.stderr
    assert rig.values()["LLAMA_DRAFT_MAX"] == "7"


def test_a_change_that_was_refused_does_not_stand_in_the_way_of_the_next(rig: Rig) -> None:
    with apply_lock("something else", rig.env):
        refused = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=9")
    assert refused.returncode == ExitCode.CONFLICT
    assert "something else" in refused.stderr
    assert rig.apply("LLAMA_DRAFT_MAX=9").outcome is ApplyOutcome.APPLIED
    rig.assert_settled()


def trial_change(rig: Rig, trial: Trial, **configuration: str) -> ApplyOutcome:
    options = ApplyOptions(drain_timeout_s=10, health_timeout_s=30, settle_s=0)
    return Apply(trial.plan(configuration), options, lambda _: None, rig.env, trial=trial).run().outcome


@pytest.mark.parametrize("end", ["ended", "hung up"])
def test_a_trial_goes_back_when_it_ends_or_its_client_is_gone(rig: Rig, end: str) -> None:
    trial = Trial(rig.deployment, "tune", rig.env)
    assert trial_change(rig, trial, LLAMA_DRAFT_MAX="9") is ApplyOutcome.APPLIED
    assert rig.values()["LLAMA_DRAFT_MAX"] == "9"
    refused = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=5")
    assert refused.returncode == ExitCode.CONFLICT
    assert "`specdash tune`" in refused.stderr
    if end == "ended":
        trial.end()
    else:
        trial.connection.close()
    until(lambda: rig.status()["trial"] is None, 60)
    rig.assert_settled(version=rig.good_backend)
    assert not trial_file(rig.env).exists()
    assert rig.apply("LLAMA_DRAFT_MAX=5").outcome is ApplyOutcome.APPLIED


def test_a_trial_whose_client_dies_in_the_middle_of_a_start_goes_back(rig: Rig) -> None:
    import subprocess
    import sys

    code = (
        "import os, sys; from specdash.control.change import Trial, Apply; from specdash.control.plan import *\n"
        "from specdash.control.deployment import find_deployment; from specdash.core.config import resolve\n"
        "trial = Trial(find_deployment(resolve({}, {}, None), os.environ), 'tune')\n"
        "Apply(trial.plan({'LLAMA_DRAFT_MAX': '9'}), ApplyOptions(10, 30, 0), lambda _: None, trial=trial).run()"
    )
    rig.points.pause_at("health:before")
    client = subprocess.Popen([sys.executable, "-c", code], env=rig.env)
    try:
        rig.points.wait()
    finally:
        client.kill()
        client.wait(10)
    rig.points.go_on()
    until(lambda: rig.status()["trial"] is None, 60)
    rig.assert_settled(version=rig.good_backend)
    assert not trial_file(rig.env).exists()


def test_an_original_that_does_not_start_again_is_named_and_goes_back_with_the_next_runner(rig: Rig) -> None:
    shared, model, away = rig.values()["LLAMA_MODEL"], rig.home / "own.gguf", rig.home / "away.gguf"
    model.write_bytes(Path(shared).read_bytes())
    assert rig.apply(f"LLAMA_MODEL={model}").outcome is ApplyOutcome.APPLIED
    original = rig.file().read_bytes()
    trial = Trial(rig.deployment, "tune", rig.env)
    assert trial_change(rig, trial, LLAMA_MODEL=shared) is ApplyOutcome.APPLIED
    model.rename(away)
    try:
        ended = trial.end()
        assert ended is not None
        assert ended.outcome is ApplyOutcome.REFUSED
        noted = read_trial(rig.env)
        assert noted is not None
        assert not noted.alive
        with pytest.raises(ConflictError, match="could not be put back"):
            Trial(rig.deployment, "tune", rig.env)
        assert rig.ask()
    finally:
        away.rename(model)
    pid = runner(rig)
    os.kill(pid, signal.SIGKILL)
    until(lambda: any(status["runner_pid"] != pid for status in statuses(rig)), 30)
    rig.wait_ready()
    rig.assert_settled(version=original)
    assert not trial_file(rig.env).exists()


def statuses(rig: Rig) -> list[dict[str, Any]]:
    return [status for _, status in runners(rig.env)]


def test_what_the_socket_cannot_read_is_an_answer_and_no_end(rig: Rig) -> None:
    runner = runner_of(rig.file(), rig.env)
    assert runner is not None
    path, _ = runner
    assert Path(path).stat().st_mode & 0o777 == 0o600
    with contextlib.closing(RunnerConnection(path)) as connection:
        for words in ({"do": "nonsense"}, {"do": "apply", "change": {}}, {"do": "trial"}):
            do = words.pop("do")
            with pytest.raises(RemoteError) as refused:
                connection.ask(str(do), **words)
            assert refused.value.exit_code is ExitCode.USAGE or refused.value.exit_code is ExitCode.BAD_INPUT
        assert connection.ask("status")["env_file"] == str(rig.file())


def test_what_a_client_writes_while_the_backend_comes_up_is_in_force(rig: Rig) -> None:
    """Both take the other for absent: the runner has read the file, and the client has found no runner."""
    rig.order("stop", Role.BACKEND)

    def come_up(progress: ApplyProgress) -> None:
        if (progress.step, progress.state) == (ApplyStep.BACKUP, StepState.DONE):
            rig.order("start", Role.BACKEND)
            rig.wait_ready()

    apply = Apply(rig.prepare("LLAMA_DRAFT_MAX=6").plan, rig.options, come_up, rig.env)
    assert apply.run().outcome is ApplyOutcome.APPLIED
    until(lambda: (engine := rig.engine()) is not None and engine.env_digest == rig.digest(), 30)
    assert rig.values()["LLAMA_DRAFT_MAX"] == "6"


def test_an_edit_between_write_and_restart_is_kept_and_holds_nobody(rig: Rig) -> None:
    command = started_apply(rig, "restart:before", "LLAMA_DRAFT_MAX=7")
    planned, theirs = rig.digest(), rig.file().read_bytes() + b"# an editor was here\n"
    rig.file().write_bytes(theirs)
    rig.points.go_on()
    _, said = command.communicate(timeout=60)
    assert command.returncode == ExitCode.OK, said
    assert rig.file().read_bytes() == theirs
    assert rig.status()["env_digest"] == planned
    assert rig.proxy("/admin/state")["held"] is False
    assert rig.ask()


def test_a_key_that_no_one_reads_is_refused_once_and_swaps_no_engine(rig: Rig) -> None:
    engine = rig.engine()
    done = rig.command("apply", "--yes", "LLAMA_NO_SUCH_KEY=1")
    assert done.returncode == ExitCode.REFUSED
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("error")]
    assert len(said) == 1
    assert said[0].count("LLAMA_NO_SUCH_KEY") == 1
    assert rig.engine() == engine
