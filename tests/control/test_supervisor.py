"""The built-in supervisor, with real child processes: it starts, restarts, gives up, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from specdash.control.supervisor import Restart, Service, State, Supervisor
from specdash.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT_S = 20.0

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


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as one:
        yield one


def run(supervisor: Supervisor, what: Service) -> int:
    supervisor.add(what)
    supervisor.start(what.name)
    status = supervisor.wait_ready(what.name, WAIT_S)
    assert status.state is State.READY, status
    assert status.pid is not None
    return status.pid


def says(log: Path, word: str) -> Callable[[], bool]:
    return lambda: log.exists() and word in log.read_text()


def test_a_service_runs_until_it_is_stopped(supervisor: Supervisor) -> None:
    pid = run(supervisor, service(SLEEPS))
    assert not gone(pid)
    status = supervisor.stop("s")
    assert (status.state, status.exit_code) == (State.STOPPED, -signal.SIGTERM)
    assert gone(pid)


def test_a_service_is_ready_when_its_probe_says_so(supervisor: Supervisor, tmp_path: Path) -> None:
    mark = tmp_path / "ready"
    supervisor.add(service(f"open({str(mark)!r}, 'w'); {SLEEPS}", ready=mark.exists))
    assert supervisor.start("s").state is State.STARTING
    assert supervisor.wait_ready("s", WAIT_S).state is State.READY
    assert mark.exists()


def test_a_probe_that_raises_means_not_ready(supervisor: Supervisor) -> None:
    supervisor.add(service(SLEEPS, ready=lambda: 1 / 0 > 0, ready_timeout=0.3, restart=Restart.NEVER))
    supervisor.start("s")
    status = supervisor.wait_ready("s", WAIT_S)
    assert (status.state, status.detail) == (State.FAILED, "not ready within 0.3 s")


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


def test_what_a_service_forked_dies_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(supervisor, service(FORKS, log))
    until(says(log, "\n"))
    grandchild = int(log.read_text())
    supervisor.stop("s")
    until(lambda: gone(grandchild))


def test_what_a_service_forked_dies_when_the_service_crashes(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = run(supervisor, service(FORKS, log, restart=Restart.NEVER))
    until(says(log, "\n"))
    grandchild = int(log.read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: supervisor.status("s").state is State.FAILED)
    until(lambda: gone(grandchild))


def test_a_crash_is_restarted_with_a_new_process(supervisor: Supervisor) -> None:
    first = run(supervisor, service(SLEEPS, backoff=0.01))
    os.kill(first, signal.SIGKILL)
    until(lambda: supervisor.status("s").restarts == 1 and supervisor.status("s").state is State.READY)
    assert supervisor.status("s").pid != first


def test_a_clean_end_is_not_restarted_on_failure_only(supervisor: Supervisor) -> None:
    supervisor.add(service("pass"))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is State.STOPPED)
    assert supervisor.status("s").restarts == 0


def test_a_crash_loop_is_given_up_with_its_last_words(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "import sys; print('no such model', file=sys.stderr); sys.exit(3)"
    supervisor.add(service(code, tmp_path / "log", backoff=0.01, crash_limit=3))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is State.FAILED)
    status = supervisor.status("s")
    assert (status.exit_code, status.restarts) == (3, 2)
    assert status.detail.startswith("ended 3 times within")
    assert status.detail.endswith("exit code 3: no such model")


def test_a_service_that_was_given_up_can_be_started_again(supervisor: Supervisor) -> None:
    supervisor.add(service("raise SystemExit(1)", restart=Restart.NEVER))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is State.FAILED)
    run(supervisor, service(SLEEPS))


def test_stopping_during_the_pause_before_a_restart_is_at_once(supervisor: Supervisor) -> None:
    supervisor.add(service("raise SystemExit(1)", backoff=300, backoff_limit=300))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is State.WAITING)
    assert supervisor.stop("s").state is State.STOPPED


def test_start_and_stop_in_quick_turns_end_in_the_last_state_asked_for(supervisor: Supervisor) -> None:
    supervisor.add(service(SLEEPS))
    for _ in range(10):
        supervisor.start("s")
        assert supervisor.stop("s").state is State.STOPPED
    assert psutil.Process().children() == []


def test_a_program_that_does_not_exist_is_a_failure_with_its_name(supervisor: Supervisor, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    supervisor.add(Service("s", ("/no/such/program",), dict(os.environ), log=log, restart=Restart.NEVER))
    supervisor.start("s")
    until(lambda: supervisor.status("s").state is State.FAILED)
    assert "/no/such/program cannot be run" in supervisor.status("s").detail


def test_an_unknown_service_is_named_with_the_known_ones(supervisor: Supervisor) -> None:
    supervisor.add(service(SLEEPS))
    with pytest.raises(UsageError, match="no service 'x'; known: s"):
        supervisor.stop("x")


def test_leaving_by_an_exception_stops_everything() -> None:
    pids = []

    def fails() -> None:
        with Supervisor() as supervisor:
            pids.append(run(supervisor, service(SLEEPS)))
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fails()
    assert gone(pids[0])


OWNER = """
import os, sys, time
from specdash.control.supervisor import Service, Supervisor
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
