"""Whether a process lives: asked of real processes that run, are stopped, have ended, and have not been reaped."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from specdash.system import processes
from support.ended import zombie
from support.waiting import until

NO_PROCESS = 2**22 + 5
"""Above the largest pid that Linux gives."""


def test_a_process_that_runs_is_known_by_pid_and_start() -> None:
    pid, start = os.getpid(), processes.own_start()
    assert processes.is_alive(pid)
    assert processes.began(pid) == start
    assert processes.same_process(pid, start)
    assert processes.same_process(pid, start + 1.5)
    assert not processes.same_process(pid, start - 10)


def test_one_that_was_stopped_lives() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        try:
            assert processes.is_alive(process.pid)
        finally:
            process.kill()


def test_a_zombie_has_ended() -> None:
    with zombie() as pid:
        start = processes.began(pid)
        assert start is not None
        assert not processes.is_alive(pid)
        assert not processes.same_process(pid, start)


@pytest.mark.parametrize("pid", [NO_PROCESS, -1, 2**70])
def test_nothing_is_known_of_a_process_that_is_not_there(pid: int) -> None:
    assert not processes.is_alive(pid)
    assert processes.began(pid) is None
    assert not processes.same_process(pid, 1.0)
    assert processes.name_of(pid) is None
    assert processes.family(pid) == []


def test_a_family_is_a_process_and_all_that_it_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        until(lambda: len(processes.family(process.pid)) == 2)
        process.communicate(b"\n", timeout=20)


def test_a_listening_socket_is_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert processes.listening_pid(server.getsockname()[1]) == os.getpid()
