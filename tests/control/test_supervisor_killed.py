"""`kill -9` of the built-in supervisor in the middle of what it is needed for, with a real proxy and, where the engine
matters, a real one: both come back, and nothing of the one before is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.backend.journal import journal_file
from specdash.control.change import Apply
from specdash.control.services.supervisor_client import SupervisorClient
from specdash.control.services.supervisor_services import children_file
from specdash.core.changes import ApplyOutcome, ApplyProgress, ApplyStep, StepState
from specdash.core.errors import ServiceError
from support.deployment import ON_A_SCRIPTED_ENGINE, Rig
from support.supervised import RunningDaemon, gone, running_daemon
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

LETS_GO = (
    sys.executable,
    "-c",
    "import ctypes, time; ctypes.CDLL(None).prctl(1, 0); print('free', flush=True); time.sleep(300)",
)
"""Not tied to its parent any more."""


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon() as item:
        yield item


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid))


def test_what_a_killed_supervisor_leaves_is_ended_before_it_is_started_again(daemon: RunningDaemon) -> None:
    daemon.add("a", LETS_GO)
    daemon.client.start("a")
    until(lambda: "free" in daemon.client.log_tail("a"))
    left = daemon.client.status("a").pid
    assert left is not None
    kill(daemon.pid)
    assert not gone(left)
    daemon.start_again()
    assert gone(left)
    until(lambda: daemon.client.status("a").pid not in (None, left))
    assert f"a: ending what the supervisor before this one has left, pid {left}" in daemon.said


def test_a_process_that_only_has_the_pid_of_what_was_left_is_nobodys_business(daemon: RunningDaemon) -> None:
    daemon.add("a", LETS_GO)
    daemon.client.start("a")
    until(lambda: "free" in daemon.client.log_tail("a"))
    kill(daemon.pid)
    path = children_file(daemon.environment)
    told = json.loads(path.read_text(encoding="utf-8"))
    pid = told["children"]["a"][0]
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        path.write_text(json.dumps(told | {"children": {"a": [stranger.pid, 1]}}), encoding="utf-8")
        daemon.start_again()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        psutil.Process(pid).kill()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', '{"boot": "", "children": {"a": 1}}'])
def test_a_list_of_children_that_cannot_be_read_keeps_nothing_from_running(daemon: RunningDaemon, text: str) -> None:
    daemon.add("a", (sys.executable, "-c", "import time; time.sleep(300)"))
    daemon.client.start("a")
    daemon.kill()
    children_file(daemon.environment).write_text(text, encoding="utf-8")
    daemon.start_again()
    until(lambda: daemon.client.status("a").pid is not None)


@pytest.mark.slow
@pytest.mark.timeout(240)
class TestInTheMiddleOfAnApply:
    @pytest.fixture
    def rig(self, running: Rig) -> Rig:
        SupervisorClient.ensure_running(running.env)
        running.reset()
        return running

    def supervisor(self, rig: Rig) -> int:
        return SupervisorClient.ensure_running(rig.env).daemon()[0]

    @ON_A_SCRIPTED_ENGINE
    @pytest.mark.parametrize(
        "step",
        [
            ApplyStep.HOLD,
            ApplyStep.DRAIN,
            ApplyStep.WRITE,
            ApplyStep.RESTART,
            ApplyStep.HEALTH,
            ApplyStep.PROBE,
            ApplyStep.RESUME,
            ApplyStep.RECORD,
        ],
    )
    def test_both_services_come_back_and_the_next_change_works(self, rig: Rig, step: ApplyStep) -> None:
        pid = self.supervisor(rig)

        def report(progress: ApplyProgress) -> None:
            if progress.step is step and progress.state is StepState.RUNNING and not gone(pid):
                kill(pid)

        plan = rig.prepare("LLAMA_DRAFT_MAX=3")
        known = len(rig.records())
        # The runner goes down with its supervisor, or ends the change first; its next start finishes what it left.
        with contextlib.suppress(ServiceError):
            Apply(plan.plan, rig.options, report, rig.env).run()
        assert self.supervisor(rig) != pid
        rig.wait_ready()
        until(lambda: len(rig.records()) > known or not journal_file(rig.env).path.exists())
        assert {record.outcome for record in rig.records()[known:]} <= {ApplyOutcome.APPLIED, ApplyOutcome.ROLLED_BACK}
        rig.assert_settled()
        assert rig.apply("LLAMA_DRAFT_MAX=5").outcome is ApplyOutcome.APPLIED
        rig.wait_ready()
        rig.assert_settled()
