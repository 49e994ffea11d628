"""`kill -9` of runner and client at every point of a change: old or new settings serve, nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from specdash.core.changes import ApplyOutcome, Role
from specdash.core.paths import apply_journal_file, trial_file
from support.clients import Clients
from support.deployment import ON_A_SCRIPTED_ENGINE, Rig, misbehaving, sweep
from support.points import FORWARD, REPAIR, ROLLBACK
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SERVED_S = 30.0
"""A client that was held when the runner died is served again within this, on a busy machine: the lease of its hold is
10 s, and docs/performance.md has what was measured."""
CHANGED = ("LLAMA_DRAFT_MAX=9", "PROXY_LOOP_WINDOW=11")


@pytest.fixture(autouse=True)
def armed_again(rig: Rig) -> Iterator[None]:
    """No point is left for the next test, and no wait before a restart that earlier deaths have made longer."""
    rig.order("restart", Role.BACKEND)
    rig.wait_ready()
    yield
    rig.points.go_on()


def killed_at(rig: Rig, point: str, *words: str) -> None:
    """Apply until the runner dies at a point; the client is told so."""
    rig.points.kill_at(point)
    done = rig.command("apply", "--yes", *words)
    assert done.returncode != 0 or point == "record:after", done.stdout + done.stderr
    assert rig.points.was_reached, done.stderr


def at_rest(rig: Rig) -> None:
    """Wait until a runner serves and nothing of the change is pending."""
    until(lambda: not apply_journal_file(rig.env).exists() and not trial_file(rig.env).exists(), 30)
    until(lambda: (engine := rig.engine()) is not None and engine.env_digest == rig.digest(), 30)
    rig.wait_ready()
    until(lambda: rig.proxy("/admin/state")["held"] is False, 15)


@sweep("point", FORWARD, "health:before")
def test_a_runner_that_dies_puts_the_old_settings_back_at_its_next_start(rig: Rig, point: str) -> None:
    old = rig.file().read_bytes()
    with Clients(rig, patience_s=60) as clients:
        killed_at(rig, point, *CHANGED)
        at_rest(rig)
    if held(point):
        # Otherwise requests are upstream, and their engine dies with its runner.
        assert clients.errors == []
    kept = point in ("record:appended", "record:after")
    assert (rig.file().read_bytes() == old) is not kept
    assert rig.values(Role.PROXY).get("PROXY_LOOP_WINDOW") == ("11" if kept else None)
    records = rig.records()
    if kept:
        assert records[-1].outcome is ApplyOutcome.APPLIED
    elif journaled(point):
        assert records[-1].outcome is ApplyOutcome.ROLLED_BACK
        assert "killed" in records[-1].reason
    else:
        assert not records
    rig.assert_settled()


def held(point: str) -> bool:
    """Whether no request is upstream at that point, because the proxy holds them and they were drained."""
    return point.partition(":")[0] in ("write", "restart", "health", "speculation", "probe")


def journaled(point: str) -> bool:
    """Whether the journal was there at that point: before, nothing was touched and nothing is to be recorded."""
    return point not in ("lock:before", "preflight:before", "backup:before", "backup:saved")


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize("point", ROLLBACK)
def test_a_runner_that_dies_while_it_rolls_back_goes_on_with_that(rig: Rig, point: str) -> None:
    old = rig.file().read_bytes()
    killed_at(rig, point, *misbehaving(rig.home, "no-tokens"), "PROXY_LOOP_WINDOW=11")
    at_rest(rig)
    assert rig.records()[-1].outcome is ApplyOutcome.ROLLED_BACK
    rig.assert_settled(version=old)


@ON_A_SCRIPTED_ENGINE
@pytest.mark.parametrize("point", REPAIR)
def test_a_runner_that_dies_while_it_repairs_is_repaired_by_the_next(rig: Rig, point: str) -> None:
    old = rig.file().read_bytes()
    rig.points.kill_at("health:before")
    command = rig.start_command("apply", "--yes", *CHANGED)
    rig.points.wait()
    rig.points.kill_at(point)
    command.communicate(timeout=60)
    at_rest(rig)
    assert rig.records()[-1].outcome is ApplyOutcome.ROLLED_BACK
    rig.assert_settled(version=old)


@sweep("point", FORWARD[:-1], "restart:asked")
def test_a_client_that_dies_changes_nothing(rig: Rig, point: str) -> None:
    old = rig.file().read_bytes()
    rig.points.pause_at(point)
    with Clients(rig) as clients:
        command = rig.start_command("apply", "--yes", *CHANGED)
        rig.points.wait()
        command.kill()
        command.communicate(timeout=10)
        rig.points.go_on()
        until(lambda: bool(rig.records()) and rig.file().read_bytes() != old)
        at_rest(rig)
    assert clients.errors == []
    assert rig.records()[-1].outcome is ApplyOutcome.APPLIED
    rig.assert_settled(version=old.replace(b'MAX="4"', b"MAX=9"))


@sweep("point", ["write:renamed", "health:before", "speculation:before"], "health:before")
def test_held_clients_are_served_soon_after_the_runner_dies(rig: Rig, point: str) -> None:
    rig.points.pause_at(point)
    command = rig.start_command("apply", "--yes", "LLAMA_DRAFT_MAX=9")
    rig.points.wait()
    answers: list[float] = []
    client = threading.Thread(target=lambda: answers.append(time.monotonic()) if rig.ask() else None)
    client.start()
    runner = rig.status()["runner_pid"]
    rig.points.go_on()
    began = time.monotonic()
    os.kill(runner, signal.SIGKILL)
    client.join(60)
    command.communicate(timeout=60)
    assert answers
    assert answers[0] - began < SERVED_S
    at_rest(rig)
