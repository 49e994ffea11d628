"""The built-in supervisor, with real child processes: it starts, restarts, gives up, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from specdash.control.services.services import ServiceState
from specdash.control.services.supervisor import Restart, Service, SupervisedManager, Supervisor
from specdash.core.errors import ServiceError
from support.supervised import WAIT_S, gone
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from specdash.control.services.services import ServiceManager

SLEEPS = "import time; time.sleep(300)"
IGNORES_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
time.sleep(300)
"""
STOPS_ON_SECOND_SIGTERM = """
import signal, sys, time
seen = []
signal.signal(signal.SIGTERM, lambda *_: (seen.append(1), len(seen) > 1 and sys.exit(7)))
print('listening', flush=True)
while True: time.sleep(0.05)
"""
FORKS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])
print(child.pid, flush=True)
time.sleep(300)
"""


def service(code: str, log: Path | None = None, **more: Any) -> Service:
    argv = (sys.executable, "-c", textwrap.dedent(code))
    return Service("s", argv, dict(os.environ), log=str(log) if log else None, **more)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as item:
        yield item


@pytest.fixture
def manager(supervisor: Supervisor) -> ServiceManager:
    return SupervisedManager(supervisor)


def pid_of(manager: ServiceManager) -> int:
    pid = manager.status("s").pid
    assert pid is not None
    return pid


def run(supervisor: Supervisor, what: Service) -> int:
    supervisor.add(what)
    supervisor.start(what.name)
    status = supervisor.wait_ready(what.name, WAIT_S)
    assert status.state is ServiceState.RUNNING, status
    assert status.pid is not None
    return status.pid


def says(log: Path, word: str) -> Callable[[], bool]:
    return lambda: log.exists() and word in log.read_text()


def test_a_service_is_ready_when_its_probe_says_so(supervisor: Supervisor, tmp_path: Path) -> None:
    mark = tmp_path / "ready"
    supervisor.add(service(f"open({str(mark)!r}, 'w'); {SLEEPS}", ready=mark.exists))
    assert supervisor.start("s").state is ServiceState.STARTING
    assert supervisor.wait_ready("s", WAIT_S).state is ServiceState.RUNNING
    assert mark.exists()


def test_a_probe_that_raises_means_not_ready(supervisor: Supervisor) -> None:
    supervisor.add(service(SLEEPS, ready=lambda: 1 / 0 > 0, ready_timeout=0.3, restart=Restart.NEVER))
    supervisor.start("s")
    status = supervisor.wait_ready("s", WAIT_S)
    assert (status.state, status.detail) == (ServiceState.FAILED, "not ready within 0.3 s")


def test_output_goes_to_a_private_log(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "s.log"
    run(supervisor, service("import sys; print('out'); print('err', file=sys.stderr); " + SLEEPS, log))
    until(says(log, "err"))
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_service_that_ignores_sigterm_is_killed_after_its_grace(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = run(supervisor, service(IGNORES_SIGTERM, log, stop_timeout=0.2))
    until(says(log, "deaf"))
    assert supervisor.stop("s").exit_code == -signal.SIGKILL
    assert gone(pid)


def test_a_second_sigterm_is_sent_before_the_kill(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(supervisor, service(STOPS_ON_SECOND_SIGTERM, log, stop_timeout=0.2))
    until(says(log, "listening"))
    assert supervisor.stop("s").exit_code == 7


@pytest.mark.parametrize("crashes", [False, True])
def test_what_a_service_forked_dies_with_it(supervisor: Supervisor, tmp_path: Path, *, crashes: bool) -> None:
    log = tmp_path / "log"
    pid = run(supervisor, service(FORKS, log, restart=Restart.NEVER))
    until(says(log, "\n"))
    grandchild = int(log.read_text())
    if crashes:
        os.kill(pid, signal.SIGKILL)
        until(lambda: supervisor.status("s").state is ServiceState.FAILED)
    else:
        supervisor.stop("s")
    until(lambda: gone(grandchild))


def test_a_crash_loop_is_given_up_with_its_last_words(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "import sys; print('no such model', file=sys.stderr); sys.exit(3)"
    supervisor.add(service(code, tmp_path / "log", backoff=0.01, crash_limit=3))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is ServiceState.FAILED)
    status = supervisor.status("s")
    assert (status.exit_code, status.restarts) == (3, 2)
    assert status.detail.startswith("ended 3 times within")
    assert status.detail.endswith("exit code 3: no such model")


def test_stopping_during_the_pause_before_a_restart_is_at_once(supervisor: Supervisor) -> None:
    supervisor.add(service("raise SystemExit(1)", backoff=300, backoff_limit=300))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is ServiceState.WAITING)
    assert supervisor.stop("s").state is ServiceState.STOPPED


def test_start_and_stop_in_quick_turns_end_in_the_last_state_asked_for(supervisor: Supervisor) -> None:
    supervisor.add(service(SLEEPS))
    for _ in range(10):
        supervisor.start("s")
        assert supervisor.stop("s").state is ServiceState.STOPPED
    assert psutil.Process().children() == []


def test_a_program_that_does_not_exist_is_a_failure_with_its_name(supervisor: Supervisor, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    supervisor.add(Service("s", ("/no/such/program",), dict(os.environ), log=log, restart=Restart.NEVER))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is ServiceState.FAILED)
    assert "/no/such/program cannot be run" in supervisor.status("s").detail


def test_leaving_by_an_exception_stops_everything() -> None:
    pids = []

    def fails() -> None:
        with Supervisor() as supervisor:
            pids.append(run(supervisor, service(SLEEPS)))
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fails()
    assert gone(pids[0])


def test_a_start_cuts_the_pause_before_a_restart_short(supervisor: Supervisor, manager: ServiceManager) -> None:
    supervisor.add(service("raise SystemExit(1)", backoff=300, backoff_limit=300))
    manager.start("s")
    until(lambda: manager.status("s").state is ServiceState.WAITING)
    supervisor.add(service(SLEEPS))
    manager.start("s")
    assert pid_of(manager)


def test_what_cannot_be_run_is_an_error_of_start(supervisor: Supervisor, manager: ServiceManager) -> None:
    supervisor.add(Service("s", (sys.executable, "-c", SLEEPS), dict(os.environ), cwd="/no/such/place"))
    with pytest.raises(ServiceError, match="s cannot be started: "):
        manager.start("s")


def test_a_service_without_reload_or_that_does_not_run_says_so(supervisor: Supervisor, manager: ServiceManager) -> None:
    supervisor.add(service(SLEEPS))
    with pytest.raises(ServiceError, match="s cannot reload its settings; restart it"):
        manager.reload("s")
    supervisor.add(service(SLEEPS, reload_signal=signal.SIGUSR1))
    with pytest.raises(ServiceError, match=r"s does not run \(stopped\)"):
        manager.reload("s")


def test_the_log_tail_is_the_last_lines_oldest_first(
    supervisor: Supervisor, manager: ServiceManager, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    supervisor.add(service("for n in range(100): print('line', n)", log, restart=Restart.NEVER))
    assert manager.log_tail("s") == ()
    manager.start("s")
    until(lambda: manager.status("s").state is ServiceState.STOPPED)
    assert manager.log_tail("s", 2) == ("line 98", "line 99")
    assert len(manager.log_tail("s")) == 20
    assert manager.log_tail("s", 0) == ()


def test_orders_of_many_threads_at_once_leave_one_process_or_none(
    supervisor: Supervisor, manager: ServiceManager
) -> None:
    supervisor.add(service(SLEEPS))
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


OWNER = """
import os, sys, time
from specdash.control.services.supervisor import Service, Supervisor
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
supervisor = Supervisor()
def main():
    supervisor.add(Service("s", (sys.executable, "-c", code), dict(os.environ), stop_timeout=0.2, log=sys.argv[2]))
    supervisor.start("s")
    print(supervisor.wait_ready("s", 20).pid, flush=True)
    if sys.argv[1] == "exit": return
    if sys.argv[1] == "raise": raise RuntimeError
    time.sleep(300)
if sys.argv[1] == "exit": main()
else:
    with supervisor: main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exit", "raise", "SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_no_process_outlives_the_supervising_program_however_it_ends(way: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", OWNER, way, str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        if way.startswith("SIG"):
            until(says(log, "deaf"))
            owner.send_signal(signal.Signals[way])
        owner.wait(WAIT_S)
    until(lambda: gone(pid))
