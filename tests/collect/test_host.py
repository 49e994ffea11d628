"""The machine's figures, and the backend's process tree with its secrets masked; real processes throughout."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from collect.seen import Seen
from specdash.collect.host import HostCollector, ProcessWatch
from specdash.core.masking import MASK, masked_command
from specdash.core.readings import ProcessTree, Source
from specdash.core.target import Target, local_port
from support.waiting import until

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
end = time.monotonic() + 0.3
while time.monotonic() < end: pass
time.sleep(60)
"""
HERE, ME = Target("http://127.0.0.1:1"), os.getpid()


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process that works for a moment, with one child, started with a secret."""
    command = [sys.executable, "-c", PARENT, "--api-key", "hunter2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            yield parent
        finally:
            parent.kill()
            psutil.Process(child).kill()


class Watched(Seen):
    """What a collector published, by a clock of its own."""

    def __init__(self, target: Target, find_pid: Callable[[int], int | None] | None = None, **more: Any) -> None:
        super().__init__()
        self.now = 0.0
        if find_pid is not None:
            more |= {"clock": lambda: self.now, "find_pid": find_pid}
        self.collector = HostCollector(target, self.take, **more)

    def step(self, seconds: float = 1.0) -> float:
        pause = self.collector.step(seconds)
        self.now += seconds
        return pause


class TestHost:
    def test_the_machine_is_shown_in_full(self) -> None:
        watched = Watched(HERE)
        assert watched.step(5.0) < 1.0, "CPU figures need two looks"
        assert watched.last(Source.HOST).cpu_utilisation is None
        time.sleep(0.1)
        assert watched.step(5.0) == 5.0
        host = watched.last(Source.HOST)
        assert (host.cpu_count, host.memory_total_bytes) == (os.cpu_count(), psutil.virtual_memory().total)
        assert 0 <= host.cpu_utilisation <= 1
        assert 0 < host.memory_used_bytes < host.memory_total_bytes
        assert host.load_1m is not None
        assert 0 < host.disk_free_bytes <= host.disk_total_bytes

    def test_swap_rates_are_those_between_two_looks(self) -> None:
        swapped = [(10, 20), (30, 20), (40, 60)]
        looks = iter([*(SimpleNamespace(total=100, used=7, sin=sin, sout=sout) for sin, sout in swapped), None])
        watched = Watched(HERE, lambda _: None, swap=lambda: next(looks))
        for _ in range(4):
            watched.step(2.0)
        hosts = watched.values(Source.HOST)
        rates = [(host.swap_in_bytes_per_s, host.swap_out_bytes_per_s) for host in hosts]
        assert rates == [(None, None), (10, 0), (5, 20), (None, None)]
        assert [host.swap_used_bytes for host in hosts] == [7, 7, 7, None]


def sampled(watch: ProcessWatch) -> ProcessTree:
    tree = watch.sample()
    assert tree is not None
    return tree


class TestProcess:
    def test_a_tree_is_measured_together(self, family: subprocess.Popen[str]) -> None:
        watch = ProcessWatch(family.pid)
        assert sampled(watch).cpu_cores is None
        time.sleep(0.2)
        tree = sampled(watch)
        assert tree.pid == tree.pids[0] == family.pid
        assert tree.processes == len(tree.pids) == 2
        assert (tree.threads or 0) >= 2
        assert (tree.memory_bytes or 0) > 5_000_000
        assert (tree.cpu_cores or 0) > 0.05
        assert tree.started_wall == pytest.approx(time.time(), abs=30)
        assert tree.command[-2:] == ("--api-key", MASK)

    @pytest.mark.parametrize("reaped", [True, False])
    def test_an_ended_process_is_no_more_though_it_be_a_zombie(self, reaped: bool) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            watch = ProcessWatch(process.pid)
            assert watch.sample() is not None
            process.kill()
            if reaped:
                process.wait(10)
            until(lambda: watch.sample() is None)

    def test_the_owner_of_a_port_is_found_unless_the_target_names_its_pid(self, family: subprocess.Popen[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            for pid, expected in ((None, os.getpid()), (family.pid, family.pid)):
                watched = Watched(Target(url, pid=pid))
                watched.step()
                assert watched.last(Source.PROCESS).pid == expected

    def test_a_port_without_a_process_and_another_machine_say_so(self) -> None:
        for url, words in ((HERE.url, "listens on port 1"), ("http://10.0.0.1:1", "another machine")):
            watched = Watched(Target(url))
            watched.step()
            assert words in watched.detail(Source.PROCESS)

    def test_a_pid_that_ended_is_not_trusted_again_and_the_port_is_asked(self) -> None:
        asked: list[int] = []

        def find_pid(port: int) -> int:
            asked.append(port)
            return ME

        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            watched = Watched(Target("http://127.0.0.1:7", pid=process.pid), find_pid)
            watched.step()
            assert watched.collector.backend_pids() == {process.pid}
            process.communicate(b"\n", timeout=10)
        watched.step()
        watched.step()
        pids = [reading.value and reading.value.pid for reading in watched.of(Source.PROCESS)]
        assert pids == [process.pid, None, ME]
        assert asked == [7]

    def test_the_owner_of_a_port_is_not_sought_at_every_look(self) -> None:
        asked: list[int] = []
        watched = Watched(HERE, asked.append)
        for _ in range(11):
            watched.step()
        assert len(asked) == 3

    def test_a_process_that_was_stopped_is_named_be_it_the_root_or_a_child(self, family: subprocess.Popen[str]) -> None:
        watch = ProcessWatch(family.pid)
        first = sampled(watch)
        assert first.stopped == ()
        for pid in reversed(first.pids):
            os.kill(pid, signal.SIGSTOP)
            until(lambda pid=pid: sampled(watch).stopped == (pid,))  # type: ignore[misc]
            os.kill(pid, signal.SIGCONT)
            until(lambda: sampled(watch).stopped == ())


def test_which_addresses_are_on_this_machine() -> None:
    urls = ("http://127.0.0.1:8080", "http://localhost", "https://[::1]", "http://127.0.5.1:3", "http://box:8080")
    assert list(map(local_port, urls)) == [8080, 80, 443, 3, None]


def test_secrets_in_a_command_are_masked() -> None:
    command = (
        "--api-key K1 --port 1 --api_key=K1 --np=1 -hft K1 --note hf_abcdefghijkl --model-url https://me:K1@host/x"
    )
    shown = "--api-key *** --port 1 --api_key=*** --np=1 -hft *** --note *** --model-url https://***@host/x"
    files = " --api-key-file /run/key --hf-token"
    assert " ".join(masked_command((command + files).split())) == shown + files
