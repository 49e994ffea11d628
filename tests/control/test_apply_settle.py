"""After the probe: a request through the proxy, and a period in which what was changed has to go on serving."""

from __future__ import annotations

import os
import signal

import pytest
from msgspec.structs import replace

from specdash.control.change import Apply
from specdash.control.plan import ApplyOptions, plan_apply
from specdash.core.changes import ApplyOutcome, ApplyProgress, ApplyStep, Role, StepState
from support.deployment import ON_A_SCRIPTED_ENGINE, Rig, misbehaving
from support.help_engine import SIGN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), ON_A_SCRIPTED_ENGINE]
SETTLING = f"{ApplyStep.SETTLE}:before"


def kill_engine(rig: Rig) -> None:
    engine = rig.engine()
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)


def test_an_engine_that_dies_after_it_was_verified_is_rolled_back(rig: Rig) -> None:
    old = rig.file().read_bytes()
    record = rig.during(SETTLING, lambda: kill_engine(rig), "LLAMA_DRAFT_MAX=9", settle_s=30)
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.SETTLE), record.reason
    rig.assert_settled(version=old)


def test_clients_are_served_while_it_settles(rig: Rig) -> None:
    answers: list[str] = []
    record = rig.during(SETTLING, lambda: answers.append(rig.ask()), "LLAMA_DRAFT_MAX=9", settle_s=1)
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    assert answers
    assert record.step_seconds["settle"] >= 1
    assert record.downtime_s is not None
    assert record.downtime_s < record.ended_at - record.at - 1
    said = next(report.detail for report in rig.reports if report.step is ApplyStep.SETTLE)
    assert said == "settling 1 s, clients are served"


def test_a_server_that_stops_drafting_while_it_settles_is_rolled_back(rig: Rig) -> None:
    old = rig.file().read_bytes()
    words = misbehaving(rig.home, "stops-drafting")
    record = rig.during(SETTLING, (rig.home / SIGN).touch, *words, settle_s=3)
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.SETTLE), record.reason
    assert "does not speculate any more" in record.reason
    rig.assert_settled(version=old)


def test_a_backend_that_generates_but_gives_no_turn_to_the_proxy_is_rolled_back(rig: Rig) -> None:
    old = rig.file().read_bytes()
    record = rig.apply(*misbehaving(rig.home, "no-turns"))
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.REQUEST), record.reason
    assert f"a request through the proxy at {rig.proxy_url} failed: HTTP 5" in record.reason
    rig.assert_settled(version=old)


def test_a_proxy_before_no_service_is_asked_where_its_upstream_answers(rig: Rig) -> None:
    alone = replace(rig.deployment, backend=None)
    for window, state in ((15, StepState.DONE), (16, StepState.SKIPPED)):
        reports: list[ApplyProgress] = []
        plan = plan_apply(alone, {Role.PROXY: {"PROXY_LOOP_WINDOW": str(window)}}, env=rig.env)
        record = Apply(plan, ApplyOptions(settle_s=0), reports.append, rig.env).run()
        assert record.outcome is ApplyOutcome.APPLIED, record.reason
        assert [report.state for report in reports if report.step is ApplyStep.REQUEST][-1] is state
        rig.order("stop", Role.BACKEND)


def test_a_restarted_proxy_that_ends_while_it_settles_takes_its_settings_back(rig: Rig) -> None:
    def kill_proxy() -> None:
        pid = rig.service(Role.PROXY).status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    record = rig.during(SETTLING, kill_proxy, "PROXY_MAX_CONNECTIONS=31", settle_s=30)
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.SETTLE), record.reason
    rig.wait_ready()
    assert "PROXY_MAX_CONNECTIONS" not in rig.values(Role.PROXY)
    rig.assert_settled()
