"""The built-in supervisor's daemon, a real process with real services: it outlives whoever asked, and its own death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.control.services import supervisor_client
from specdash.control.services.services import ServiceState
from specdash.control.services.supervisor_client import NOT_RUNNING, SupervisorClient
from specdash.control.services.supervisor_daemon import wanted_file
from specdash.core.changes import Role
from specdash.core.errors import ServiceError
from specdash.core.paths import services_file, supervisor_socket
from support.supervised import RunningDaemon, gone, running_daemon
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLEEPS = ("sleep", "300")
SLOW_TO_STOP = (
    sys.executable,
    "-c",
    """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))
print('ready', flush=True)
time.sleep(300)
""",
)
SERVES = (
    sys.executable,
    "-c",
    "import socket; one = socket.socket(fileno=3)\nwhile True: one.accept()[0].close()",
)


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningDaemon]:
    with running_daemon() as item:
        yield item


@pytest.fixture
def daemon(shared: RunningDaemon) -> RunningDaemon:
    """One that runs and knows no service, whatever the test before did to it."""
    shared.clear()
    return shared


def pid_of(daemon: RunningDaemon, name: str) -> int:
    pid = daemon.client.status(name).pid
    assert pid is not None
    return pid


def test_it_runs_what_it_is_told_to(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    assert daemon.client.kind == "supervisor"
    assert daemon.client.status("a").state is ServiceState.STOPPED
    daemon.client.start("a")
    first = pid_of(daemon, "a")
    assert psutil.Process(first).ppid() == daemon.pid
    daemon.client.restart("a")
    assert gone(first)
    assert [status.name for status in daemon.client.statuses()] == ["a"]
    daemon.client.stop("a")
    assert daemon.client.status("a").state is ServiceState.STOPPED


def test_what_it_does_not_know_is_missing_and_named(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    assert daemon.client.status("x").state is ServiceState.MISSING
    client = daemon.client
    for command in (client.start, client.stop, client.restart, client.reload, client.log_tail):
        with pytest.raises(ServiceError, match="no service 'x'; known: a"):
            command("x")


def test_its_socket_and_its_files_are_private(daemon: RunningDaemon) -> None:
    daemon.add("a", ("sh", "-c", "touch made; exec sleep 300"))
    daemon.client.start("a")
    made = daemon.home / "made"
    until(made.exists)
    state = daemon.socket.parent.parent
    assert daemon.socket.stat().st_mode & 0o777 == 0o600
    assert daemon.socket.parent.stat().st_mode & 0o777 == 0o700
    files = [state / "supervisor.log", wanted_file(daemon.environment), state / "logs/service-a.log", made]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 4


def test_it_is_a_session_of_its_own_without_a_parent_or_a_terminal(daemon: RunningDaemon) -> None:
    assert os.getsid(daemon.pid) not in (os.getsid(0), 0)
    assert psutil.Process(daemon.pid).ppid() != os.getpid()
    assert psutil.Process(daemon.pid).terminal() is None
    assert psutil.Process(daemon.pid).cwd() == "/"


def test_services_outlive_the_program_that_started_them(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    code = (
        "from specdash.control.services.supervisor_client import SupervisorClient as C; import os;"
        "C.ensure_running(os.environ).start('a'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=daemon.environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert daemon.client.status("a").state is ServiceState.RUNNING


def test_killed_it_takes_its_services_along_and_the_next_one_starts_what_was_wanted(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    daemon.add("b", SLEEPS)
    daemon.add("c", SLEEPS)
    for name in "abc":
        daemon.client.start(name)
    daemon.client.stop("b")
    before, pids = daemon.pid, [pid_of(daemon, "a"), pid_of(daemon, "c")]
    daemon.kill()
    assert all(gone(pid) for pid in pids)
    assert daemon.socket.exists()
    assert not daemon.client.available()
    with pytest.raises(ServiceError, match="specdash services start"):
        daemon.client.status("a")
    daemon.start_again()
    assert daemon.pid != before
    until(lambda: [status.state for status in daemon.client.statuses()] == [
        ServiceState.RUNNING, ServiceState.STOPPED, ServiceState.RUNNING
    ])  # fmt: skip


def test_ended_in_an_orderly_way_it_stops_its_services_which_are_still_wanted(daemon: RunningDaemon) -> None:
    daemon.add("a", SLOW_TO_STOP)
    daemon.client.start("a")
    until(lambda: daemon.client.log_tail("a") == ("ready",))
    before, pid = daemon.pid, pid_of(daemon, "a")
    os.kill(before, signal.SIGTERM)
    until(lambda: gone(before))
    assert gone(pid)
    assert not daemon.socket.exists()
    assert "a: stopped" in daemon.said
    daemon.start_again()
    until(lambda: daemon.client.status("a").state is ServiceState.RUNNING)


def test_shutdown_returns_when_everything_is_gone_and_the_place_is_free(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    daemon.client.start("a")
    pid = pid_of(daemon, "a")
    daemon.client.shutdown()
    assert gone(pid)
    assert not daemon.client.available()
    daemon.start_again()
    until(lambda: daemon.client.status("a").state is ServiceState.RUNNING)


def test_there_is_one_however_many_want_it(daemon: RunningDaemon) -> None:
    pids: list[int] = []

    def ensure() -> None:
        pids.append(SupervisorClient.ensure_running(daemon.environment).daemon()[0])

    threads = [threading.Thread(target=ensure) for _ in range(6)]
    daemon.client.shutdown()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pids == [daemon.pid] * 6
    second = subprocess.run(
        [sys.executable, "-m", "specdash.control.services.supervisor_daemon"],
        env=daemon.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (second.returncode, second.stderr) == (0, "specdash: the built-in supervisor is running already\n")
    assert daemon.client.available()


def test_a_slow_stop_holds_up_no_other_command(daemon: RunningDaemon) -> None:
    daemon.add("slow", SLOW_TO_STOP)
    daemon.add("other", SLEEPS)
    daemon.client.start("slow")
    until(lambda: daemon.client.log_tail("slow") == ("ready",))
    stopping = threading.Thread(target=daemon.client.stop, args=("slow",))
    stopping.start()
    until(lambda: daemon.client.status("slow").state is ServiceState.STOPPING)
    daemon.client.start("other")
    daemon.client.restart("other")
    assert daemon.client.status("other").state is ServiceState.RUNNING
    assert daemon.client.status("slow").state is ServiceState.STOPPING
    assert stopping.is_alive()
    stopping.join(60)
    assert daemon.client.status("slow").state is ServiceState.STOPPED


def test_a_changed_description_counts_from_the_next_start_and_a_removed_service_is_stopped(
    daemon: RunningDaemon,
) -> None:
    daemon.add("a", SLEEPS)
    daemon.client.start("a")
    pid = pid_of(daemon, "a")
    daemon.add("a", ("sleep", "301"))
    assert pid_of(daemon, "a") == pid
    daemon.client.restart("a")
    assert psutil.Process(pid_of(daemon, "a")).cmdline()[-1] == "301"
    pid = pid_of(daemon, "a")
    daemon.remove("a")
    assert gone(pid)
    assert daemon.client.status("a").state is ServiceState.MISSING
    daemon.add("a", SLEEPS)
    daemon.kill()
    daemon.start_again()
    assert daemon.client.status("a").state is ServiceState.STOPPED


def test_a_broken_services_file_is_refused_and_changes_nothing(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    daemon.client.start("a")
    services_file(daemon.environment).write_text("{", encoding="utf-8")
    with pytest.raises(ServiceError, match=r"services\.json is not valid JSON"):
        daemon.client.rescan()
    assert daemon.client.status("a").state is ServiceState.RUNNING


def test_a_daemon_that_cannot_start_says_why(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path)}
    file = services_file(env)
    file.parent.mkdir(parents=True)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ServiceError, match=r"cannot be started: .*services\.json is not valid JSON"):
        SupervisorClient.ensure_running(env)
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(ServiceError, match=r"cannot be started: .*run cannot be used: Not a directory"):
        SupervisorClient.ensure_running({**env, "XDG_STATE_HOME": str(in_the_way)})


def test_wanted_services_that_cannot_be_read_are_none(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    daemon.client.start("a")
    daemon.kill()
    wanted_file(daemon.environment).write_text('{"wanted": 3', encoding="utf-8")
    daemon.start_again()
    assert daemon.client.status("a").state is ServiceState.STOPPED
    assert "supervisor-wanted.json cannot be read" in daemon.said


def test_a_disk_that_cannot_keep_what_is_wanted_stops_no_service_from_starting(daemon: RunningDaemon) -> None:
    daemon.add("a", SLEEPS)
    wanted_file(daemon.environment).unlink(missing_ok=True)
    wanted_file(daemon.environment).mkdir()
    daemon.client.start("a")
    assert daemon.client.status("a").state is ServiceState.RUNNING
    wanted_file(daemon.environment).rmdir()
    assert "the next supervisor will not know what shall run" in daemon.said


def test_a_home_too_deep_for_a_socket_works_too(tmp_path: Path) -> None:
    home = tmp_path / ("d" * 100) / ("e" * 100)
    home.mkdir(parents=True)
    with running_daemon(home) as daemon:
        assert len(str(daemon.socket)) > 200
        daemon.add("a", SLEEPS)
        daemon.client.start("a")
        assert daemon.client.status("a").state is ServiceState.RUNNING


def test_a_reload_is_the_signal_of_its_role(daemon: RunningDaemon) -> None:
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('USR1', flush=True))\n"
        "signal.signal(signal.SIGHUP, lambda *_: print('HUP', flush=True))\n"
        "while True: time.sleep(1)"
    )
    for name, role in (("b", Role.BACKEND), ("p", Role.PROXY)):
        daemon.add(name, (sys.executable, "-c", code), role=role)
        daemon.client.start(name)
        daemon.client.reload(name)
    until(lambda: daemon.client.log_tail("b") == ("USR1",) and daemon.client.log_tail("p") == ("HUP",))


def test_a_held_socket_survives_the_restart_of_its_service_and_nothing_leaks(daemon: RunningDaemon) -> None:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        port = item.getsockname()[1]
    daemon.add("p", SERVES, role=Role.PROXY, listen=f"127.0.0.1:{port}")
    daemon.client.start("p")
    daemon.client.restart("p")
    process = psutil.Process(daemon.pid)
    until(lambda: process.num_threads() == 2)
    before = process.num_fds()
    for _ in range(5):
        daemon.client.restart("p")
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
    until(lambda: (process.num_fds(), process.num_threads()) == (before, 2))
    assert psutil.Process(pid_of(daemon, "p")).num_fds() <= 5


def test_where_none_runs_every_command_says_how_to_start_it(tmp_path: Path) -> None:
    client = SupervisorClient(tmp_path / "run" / "supervisor.sock")
    assert not client.available()
    for command in (client.status, client.start, client.stop, client.restart, client.reload, client.log_tail):
        with pytest.raises(ServiceError, match="specdash services start"):
            command("a")
    for whole in (client.statuses, client.rescan, client.shutdown, client.daemon):
        with pytest.raises(ServiceError) as caught:
            whole()
        assert str(caught.value) == NOT_RUNNING


def test_a_daemon_that_does_not_answer_is_given_up(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_client, "_ANSWER_S", 0.2)
    monkeypatch.setattr(supervisor_client, "_AVAILABLE_S", 0.2)
    pid = daemon.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert not daemon.client.available()
        with pytest.raises(ServiceError, match="did not answer to 'status' in time"):
            daemon.client._call("status", answer_s=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert daemon.client.available()


def test_the_socket_is_where_the_environment_says(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "HOME": "/nowhere"}
    assert supervisor_socket(env) == tmp_path / "specdash/run/supervisor.sock"
