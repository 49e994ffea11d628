"""The in-process supervisor behind the interface that all service managers share, with real processes."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from specdash.control.services import ServiceState
from specdash.control.supervised import SupervisedManager
from specdash.control.supervisor import Restart, Service, Supervisor
from specdash.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from specdash.control.services import ServiceManager

WAIT_S = 20.0
SLEEPS = "import time; time.sleep(300)"
COUNTS_RELOADS = """
import signal, time
time.sleep({delay})
signal.signal(signal.SIGUSR1, lambda *_: print("reloaded", flush=True))
print("ready", flush=True)
while True: time.sleep(1)
"""
SLOW_TO_STOP = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0)))
print("ready", flush=True)
while True: time.sleep(1)
"""


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as one:
        yield one


@pytest.fixture
def manager(supervisor: Supervisor) -> ServiceManager:
    return SupervisedManager(supervisor)


def add(supervisor: Supervisor, code: str, log: Path | None = None, **more: Any) -> None:
    argv = (sys.executable, "-c", textwrap.dedent(code))
    supervisor.add(Service("s", argv, dict(os.environ), log=str(log) if log else None, **more))


def pid_of(manager: ServiceManager) -> int:
    pid = manager.status("s").pid
    assert pid is not None
    return pid


def test_an_unknown_service_is_missing_and_cannot_be_commanded(manager: ServiceManager) -> None:
    assert manager.status("x").state is ServiceState.MISSING
    for command in (manager.start, manager.stop, manager.restart, manager.reload, manager.log_tail):
        with pytest.raises(ServiceError, match="no service 'x'; known: none"):
            command("x")


def test_a_service_that_was_never_started_is_stopped(supervisor: Supervisor, manager: ServiceManager) -> None:
    add(supervisor, SLEEPS)
    assert manager.status("s").state is ServiceState.STOPPED


def test_start_returns_with_a_process_and_stop_without(supervisor: Supervisor, manager: ServiceManager) -> None:
    add(supervisor, SLEEPS)
    began = time.time()
    manager.start("s")
    pid = pid_of(manager)
    assert psutil.pid_exists(pid)
    assert manager.status("s").alive
    assert began <= (manager.status("s").since or 0.0) <= time.time()
    manager.stop("s")
    assert not psutil.pid_exists(pid)
    assert manager.status("s").state is ServiceState.STOPPED


def test_starting_what_runs_changes_nothing(supervisor: Supervisor, manager: ServiceManager) -> None:
    add(supervisor, SLEEPS)
    manager.start("s")
    pid = pid_of(manager)
    manager.start("s")
    assert pid_of(manager) == pid


def test_restart_returns_when_the_old_is_gone_and_the_new_has_started(
    supervisor: Supervisor, manager: ServiceManager, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    add(supervisor, SLOW_TO_STOP, log)
    manager.start("s")
    until(lambda: "ready" in log.read_text())
    old = pid_of(manager)
    manager.restart("s")
    assert not psutil.pid_exists(old)
    assert psutil.pid_exists(pid_of(manager))
    assert manager.status("s").restarts == 0


def test_restart_starts_what_does_not_run(supervisor: Supervisor, manager: ServiceManager) -> None:
    add(supervisor, SLEEPS)
    manager.restart("s")
    assert pid_of(manager)


def test_a_crash_loop_fails_with_its_last_words_and_a_start_forgets_it(
    supervisor: Supervisor, manager: ServiceManager, tmp_path: Path
) -> None:
    add(supervisor, "raise SystemExit('no such model')", tmp_path / "log", backoff=0.01, crash_limit=3)
    manager.start("s")
    until(lambda: manager.status("s").state is ServiceState.FAILED)
    status = manager.status("s")
    assert (status.restarts, status.exit_code, status.pid) == (2, 1, None)
    assert status.detail.endswith("exit code 1: no such model")
    add(supervisor, SLEEPS)
    manager.start("s")
    assert manager.status("s").restarts == 0
    assert pid_of(manager)


def test_a_start_cuts_the_pause_before_a_restart_short(supervisor: Supervisor, manager: ServiceManager) -> None:
    add(supervisor, "raise SystemExit(1)", backoff=300, backoff_limit=300)
    manager.start("s")
    until(lambda: manager.status("s").state is ServiceState.WAITING)
    add(supervisor, SLEEPS)
    manager.start("s")
    assert pid_of(manager)


def test_a_service_restarted_by_itself_is_counted(supervisor: Supervisor, manager: ServiceManager) -> None:
    add(supervisor, SLEEPS, backoff=0.01)
    manager.start("s")
    os.kill(pid_of(manager), signal.SIGKILL)
    until(lambda: manager.status("s").restarts == 1 and manager.status("s").state is ServiceState.RUNNING)


def test_what_cannot_be_run_is_an_error_of_start(supervisor: Supervisor, manager: ServiceManager) -> None:
    supervisor.add(Service("s", (sys.executable, "-c", SLEEPS), dict(os.environ), cwd="/no/such/place"))
    with pytest.raises(ServiceError, match="s cannot be started: "):
        manager.start("s")


def test_a_reload_reaches_a_process_that_is_still_starting_without_ending_it(
    supervisor: Supervisor, manager: ServiceManager, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    add(supervisor, COUNTS_RELOADS.format(delay=0.5), log, reload_signal=signal.SIGUSR1)
    manager.start("s")
    pid = pid_of(manager)
    manager.reload("s")
    until(lambda: log.read_text().split() == ["ready", "reloaded"])
    manager.reload("s")
    until(lambda: log.read_text().split() == ["ready", "reloaded", "reloaded"])
    assert pid_of(manager) == pid


def test_a_service_without_reload_or_that_does_not_run_says_so(supervisor: Supervisor, manager: ServiceManager) -> None:
    add(supervisor, SLEEPS)
    with pytest.raises(ServiceError, match="s cannot reload its settings; restart it"):
        manager.reload("s")
    add(supervisor, SLEEPS, reload_signal=signal.SIGUSR1)
    with pytest.raises(ServiceError, match=r"s does not run \(stopped\)"):
        manager.reload("s")


def test_the_log_tail_is_the_last_lines_oldest_first(
    supervisor: Supervisor, manager: ServiceManager, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    add(supervisor, "for n in range(100): print('line', n)", log, restart=Restart.NEVER)
    assert manager.log_tail("s") == ()
    manager.start("s")
    until(lambda: manager.status("s").state is ServiceState.STOPPED)
    assert manager.log_tail("s", 2) == ("line 98", "line 99")
    assert len(manager.log_tail("s")) == 20
    assert manager.log_tail("s", 0) == ()


def test_a_slow_stop_does_not_hold_up_a_status(supervisor: Supervisor, manager: ServiceManager, tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(supervisor, SLOW_TO_STOP, log)
    manager.start("s")
    until(lambda: "ready" in log.read_text())
    stopping = threading.Thread(target=manager.stop, args=("s",))
    stopping.start()
    until(lambda: manager.status("s").state is ServiceState.STOPPING)
    assert stopping.is_alive()
    stopping.join(WAIT_S)
    assert manager.status("s").state is ServiceState.STOPPED


def test_orders_of_many_threads_at_once_leave_one_process_or_none(
    supervisor: Supervisor, manager: ServiceManager
) -> None:
    add(supervisor, SLEEPS)
    refused: list[str] = []

    def command(number: int) -> None:
        for turn in range(4):
            try:
                (manager.restart, manager.stop, manager.start)[(number + turn) % 3]("s")
            except ServiceError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=command, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert set(refused) <= {"s was not started: it was stopped meanwhile"}
    manager.restart("s")
    assert [child.pid for child in psutil.Process().children()] == [pid_of(manager)]
    manager.stop("s")
    assert psutil.Process().children() == []
