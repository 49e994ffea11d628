"""After the probe: a request through the proxy, and a period in which what was changed has to go on serving."""

from __future__ import annotations

import os
import signal
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from specdash.control.apply.apply import Apply, ApplyOptions, plan_apply
from specdash.control.apply.forward import ProxyStanding

from specdash.backend.journal import journal_file
from specdash.backend.steps import StepFailedError
from specdash.cli.main import main
from specdash.control.services.services import ManagedService, ServiceState, ServiceStatus
from specdash.core.changes import ApplyOutcome, ApplyProgress, ApplyStep, Role, StepState
from specdash.core.config import resolve
from support.deployment import ON_A_SCRIPTED_ENGINE, UNDER_THE_DAEMON, Rig, misbehaving
from support.engines import llama_server_binary
from support.help_engine import SIGN

if TYPE_CHECKING:
    from pathlib import Path

on_an_engine = [pytest.mark.slow, pytest.mark.timeout(180)]


def kill_engine(rig: Rig) -> None:
    engine = rig.engine()
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)


class TestOnAnEngine:
    pytestmark = on_an_engine

    def test_an_engine_that_dies_after_it_was_verified_is_rolled_back(self, rig: Rig) -> None:
        old = rig.file().read_bytes()
        record = rig.during(ApplyStep.SETTLE, lambda: kill_engine(rig), "LLAMA_DRAFT_MAX=9", settle_s=30).run()
        assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.SETTLE), record.reason
        rig.assert_settled(version=old)

    @UNDER_THE_DAEMON
    def test_clients_are_served_while_it_settles(self, rig: Rig) -> None:
        answers: list[str] = []
        record = rig.during(ApplyStep.SETTLE, lambda: answers.append(rig.ask()), "LLAMA_DRAFT_MAX=9", settle_s=1).run()
        assert record.outcome is ApplyOutcome.APPLIED, record.reason
        assert answers
        assert record.step_seconds["settle"] >= 1
        assert record.downtime_s is not None
        assert record.downtime_s < record.ended_at - record.at - 1
        assert next(report.detail for report in rig.reports if report.step is ApplyStep.SETTLE) == "settling 1 s"

    @ON_A_SCRIPTED_ENGINE
    def test_a_server_that_stops_drafting_while_it_settles_is_rolled_back(self, rig: Rig) -> None:
        old = rig.file().read_bytes()
        words = misbehaving(rig.home, "stops-drafting")
        record = rig.during(ApplyStep.SETTLE, lambda: (rig.home / SIGN).touch(), *words, settle_s=3).run()
        assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.SETTLE), record.reason
        assert "does not speculate any more" in record.reason
        rig.assert_settled(version=old)

    @ON_A_SCRIPTED_ENGINE
    def test_a_backend_that_generates_but_gives_no_turn_to_the_proxy_is_rolled_back(self, rig: Rig) -> None:
        old = rig.file().read_bytes()
        record = rig.apply(*misbehaving(rig.home, "no-turns"))
        assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.REQUEST), record.reason
        assert f"a request through the proxy at {rig.proxy_url} failed: HTTP 5" in record.reason
        rig.assert_settled(version=old)

    @ON_A_SCRIPTED_ENGINE
    def test_a_proxy_before_nobody_s_service_is_asked_where_that_one_answers(self, rig: Rig) -> None:
        alone, backend = replace(rig.deployment, backend=None), rig.service(Role.BACKEND)
        for window, state in ((15, StepState.DONE), (16, StepState.SKIPPED)):
            reports: list[ApplyProgress] = []
            plan = plan_apply(alone, {Role.PROXY: {"PROXY_LOOP_WINDOW": str(window)}}, env=rig.env)
            record = Apply(plan, ApplyOptions(settle_s=0), reports.append, rig.env).run()
            assert record.outcome is ApplyOutcome.APPLIED, record.reason
            assert [report.state for report in reports if report.step is ApplyStep.REQUEST][-1] is state
            backend.manager.stop(backend.name)

    def test_a_restarted_proxy_that_ends_while_it_settles_takes_its_settings_back(self, rig: Rig) -> None:
        def kill_proxy() -> None:
            pid = rig.service(Role.PROXY).status().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        record = rig.during(ApplyStep.SETTLE, kill_proxy, "PROXY_MAX_CONNECTIONS=31", settle_s=30).run()
        assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.SETTLE), record.reason
        rig.wait_ready()
        assert "PROXY_MAX_CONNECTIONS" not in rig.values(Role.PROXY)
        rig.assert_settled()

    @ON_A_SCRIPTED_ENGINE
    @pytest.mark.parametrize("way", ["--finish", "--rollback"])
    def test_what_was_killed_while_it_settled_is_finished_without_a_restart_or_undone(self, rig: Rig, way: str) -> None:
        old = rig.file().read_bytes()
        killed = rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=9", fault="settle:after")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        journal = journal_file(rig.env).read()
        assert journal is not None
        assert journal.step is ApplyStep.SETTLE
        engine = rig.engine()
        assert rig.ask()
        done = rig.command("recover", way, "--yes")
        assert done.returncode == 0, done.stderr
        if way == "--finish":
            assert rig.engine() == engine
            assert "hold         --" in done.stderr
        rig.assert_settled(version=None if way == "--finish" else old)

    @ON_A_SCRIPTED_ENGINE
    def test_one_killed_while_it_settled_whose_engine_died_meanwhile_is_not_finished(self, rig: Rig) -> None:
        killed = rig.command("apply", "--yes", *misbehaving(rig.home, "stops-drafting"), fault="settle:before")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        (rig.home / SIGN).touch()
        done = rig.command("recover", "--finish", "--yes")
        assert done.returncode == 11, done.stderr
        rig.assert_settled(version=rig.good_backend)

    @UNDER_THE_DAEMON
    @pytest.mark.llama_server
    def test_a_real_server_that_is_ended_two_seconds_later_is_rolled_back(self, rig: Rig) -> None:
        real = llama_server_binary()
        script = rig.home / "llama-server-that-ends"
        sign = rig.home / SIGN
        script.write_text(
            f"""#!/bin/sh
case "$1" in --version|--help|--list-devices) exec {real} "$@";; esac
{real} "$@" &
server=$!
trap 'kill $server' TERM INT
(while [ ! -e {sign} ]; do sleep 0.1; kill -0 $server || exit; done; sleep 2; kill -9 $server) &
wait $server
""",
            encoding="utf-8",
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        old = rig.file().read_bytes()
        words = ("LLAMA_ENGINE=llama-server", f"LLAMA_BIN={script}")
        record = rig.during(ApplyStep.SETTLE, sign.touch, *words, settle_s=30).run()
        assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.SETTLE), record.reason
        assert 2 <= record.step_seconds["settle"] < 20
        rig.assert_settled(version=old)


class Manager:
    """Says what a test wants to hear; runs nothing."""

    kind = "fake"

    def __init__(self) -> None:
        self.now = ServiceStatus("p", ServiceState.RUNNING, pid=7)

    def status(self, name: str) -> ServiceStatus:
        return self.now

    def bring_up(self) -> None: ...

    def start(self, name: str) -> None: ...

    stop = restart = reload = start

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        return ("it ran", "error: out of files")


@pytest.mark.parametrize(
    "later",
    [
        ServiceStatus("p", ServiceState.WAITING),
        ServiceStatus("p", ServiceState.RUNNING, pid=8),
        ServiceStatus("p", ServiceState.RUNNING, pid=7, restarts=1),
        ServiceStatus("p", ServiceState.STOPPED),
    ],
)
def test_a_proxy_stands_as_long_as_its_manager_has_not_started_it_again(later: ServiceStatus, tmp_path: Path) -> None:
    manager = Manager()
    standing = ProxyStanding(ManagedService(Role.PROXY, "p", manager, tmp_path / "p.env", True, "test"))
    standing.check()
    manager.now = later
    with pytest.raises(StepFailedError, match=r"p (ended|has stopped).*out of files"):
        standing.check()


def test_the_settle_period_is_a_setting_like_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert resolve({}, {}, None)["settle_time"].value == 15
    assert resolve({}, {"SPECDASH_SETTLE_TIME": "0"}, "settle_time = 3")["settle_time"].value == 0
    with pytest.raises(SystemExit):
        main(["apply", "--help"])
    assert "--settle-time SECONDS" in capsys.readouterr().out
