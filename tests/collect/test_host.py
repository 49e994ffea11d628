"""The machine's figures, and the backend's process tree with its secrets masked; real processes throughout."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from specdash.collect.host import (
    HostCollector,
    ProcessWatch,
    disk_of,
    written_places,
)
from specdash.core.masking import MASK, masked_command
from specdash.core.readings import Disk, ProcessTree, Reading, ReadingStatus, Source
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


def value_of(reading: Reading[Any]) -> Any:
    assert reading.value is not None, reading.failure
    return reading.value


def collected(target: Target, steps: int = 1) -> dict[Source, list[Reading[Any]]]:
    readings: dict[Source, list[Reading[Any]]] = {Source.HOST: [], Source.PROCESS: []}
    collector = HostCollector(target, lambda reading: readings[reading.source].append(reading))
    for step in range(steps):
        if step:
            time.sleep(0.1)
        collector.step(1.0)
    return readings


class TestHost:
    def test_the_machine_is_told_in_full(self) -> None:
        first, host = map(value_of, collected(Target("http://127.0.0.1:1"), steps=2)[Source.HOST])
        assert first.cpu_utilisation is None
        assert host.cpu_count == os.cpu_count()
        assert host.cpu_utilisation is not None
        assert 0 <= host.cpu_utilisation <= 1
        assert host.memory_total_bytes == psutil.virtual_memory().total
        assert host.memory_used_bytes is not None
        assert 0 < host.memory_used_bytes < host.memory_total_bytes
        assert host.load_1m is not None
        assert host.disk_free_bytes is not None
        assert host.disk_total_bytes is not None
        assert host.disk_free_bytes <= host.disk_total_bytes

    def test_the_folders_that_are_written_to_are_told_with_their_disks(self, tmp_path: Path) -> None:
        log, state = tmp_path / "log" / "server.log", tmp_path / "state"
        log.parent.mkdir()
        target = Target("http://127.0.0.1:1", log=str(log), proxy_log="journal:proxy")
        places = written_places(target, {"XDG_STATE_HOME": str(state)})
        assert places == [("server log", str(log.parent)), ("specdash's state", str(state / "specdash"))]
        readings: list[Reading[Any]] = []
        collector = HostCollector(target, readings.append, places=lambda: places)
        assert collector.step(5.0) < 1.0, "CPU figures need two looks"
        assert collector.step(5.0) == 5.0
        disks: tuple[Disk, ...] = value_of(readings[0]).disks
        assert [(disk.use, disk.path) for disk in disks] == places
        # The second is not there yet: the folder that it will be made in tells.
        assert disks[0].device == disks[1].device == tmp_path.stat().st_dev
        assert 0 < disks[0].free_bytes <= disks[0].total_bytes
        assert disk_of("log", "/proc/self") is None
        (tmp_path / "link.log").symlink_to("/var/log/specdash/server.log")
        link = replace(target, log=str(tmp_path / "link.log"))
        assert ("server log", "/var/log/specdash") in written_places(link, {})

    def test_swap_rates_are_those_between_two_looks(self) -> None:
        now, swapped = [0.0], [(10, 20), (30, 20), (40, 60)]
        looks = iter([*(SimpleNamespace(total=100, used=7, sin=sin, sout=sout) for sin, sout in swapped), None])
        readings: list[Reading[Any]] = []
        collector = HostCollector(
            Target("http://127.0.0.1:1"),
            readings.append,
            swap=lambda: next(looks),
            clock=lambda: now[0],
            find_pid=lambda _: None,
        )
        for _ in range(4):
            collector.step(2.0)
            now[0] += 2.0
        hosts = [value_of(reading) for reading in readings if reading.source is Source.HOST]
        rates = [(host.swap_in_bytes_per_s, host.swap_out_bytes_per_s) for host in hosts]
        assert rates == [(None, None), (10, 0), (5, 20), (None, None)]
        assert [host.swap_used_bytes for host in hosts] == [7, 7, 7, None]


class TestProcess:
    def test_a_tree_is_measured_together(self, family: subprocess.Popen[str]) -> None:
        watch = ProcessWatch(family.pid)
        first = watch.sample()
        assert first is not None
        assert first.cpu_cores is None
        time.sleep(0.2)
        tree = watch.sample()
        assert tree is not None
        assert tree.pid == tree.pids[0] == family.pid
        assert tree.processes == len(tree.pids) == 2
        assert tree.threads is not None
        assert tree.threads >= 2
        assert tree.memory_bytes is not None
        assert tree.memory_bytes > 5_000_000
        assert tree.cpu_cores is not None
        assert tree.cpu_cores > 0.05
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
                tree: ProcessTree = value_of(collected(Target(url, pid=pid))[Source.PROCESS][0])
                assert tree.pid == expected

    def test_a_port_of_nobody_and_another_machine_say_so(self) -> None:
        for url, words in (("http://127.0.0.1:1", "listens on port 1"), ("http://10.0.0.1:1", "another machine")):
            reading = collected(Target(url))[Source.PROCESS][0]
            assert reading.status is ReadingStatus.UNKNOWN
            assert reading.failure is not None
            assert words in reading.failure.detail

    def test_a_pid_that_ended_is_not_trusted_again_and_the_port_is_asked(self) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            readings: list[Reading[Any]] = []
            now = [0.0]
            asked: list[int] = []

            def find_pid(port: int) -> int | None:
                asked.append(port)
                return os.getpid()

            collector = HostCollector(
                Target("http://127.0.0.1:7", pid=process.pid),
                lambda reading: readings.append(reading) if reading.source is Source.PROCESS else None,
                clock=lambda: now[0],
                find_pid=find_pid,
            )
            collector.step(1.0)
            assert collector.backend_pids() == {process.pid}
            process.communicate(b"\n", timeout=10)
        for _ in range(2):
            now[0] += 1.0
            collector.step(1.0)
        assert [reading.value.pid if reading.value else None for reading in readings] == [
            process.pid,
            None,
            os.getpid(),
        ]
        assert asked == [7]

    def test_the_owner_of_a_port_is_not_sought_at_every_look(self) -> None:
        now, asked = [0.0], []
        collector = HostCollector(
            Target("http://127.0.0.1:7"), lambda _: None, clock=lambda: now[0], find_pid=lambda port: asked.append(port)
        )
        for _ in range(11):
            collector.step(1.0)
            now[0] += 1.0
        assert len(asked) == 3


def test_a_process_that_was_stopped_is_named_be_it_the_root_or_a_child(family: subprocess.Popen[str]) -> None:
    watch = ProcessWatch(family.pid)
    tree = watch.sample()
    assert tree is not None
    assert tree.stopped == ()
    child = next(pid for pid in tree.pids if pid != family.pid)
    for pid in (child, family.pid):
        os.kill(pid, signal.SIGSTOP)
        until(lambda pid=pid: _stopped(watch) == (pid,))  # type: ignore[misc]
        os.kill(pid, signal.SIGCONT)
        until(lambda: _stopped(watch) == ())


def _stopped(watch: ProcessWatch) -> tuple[int, ...] | None:
    tree = watch.sample()
    return tree.stopped if tree is not None else None


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://127.0.0.1:8080", 8080),
        ("http://localhost", 80),
        ("https://[::1]", 443),
        ("http://127.0.5.1:3", 3),
        ("http://box:8080", None),
    ],
)
def test_which_addresses_are_on_this_machine(url: str, port: int | None) -> None:
    assert local_port(url) == port


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("--api-key", "K1", "--port", "1"), ("--api-key", MASK, "--port", "1")),
        (("--api_key=K1",), (f"--api_key={MASK}",)),
        (("-hft", "K1"), ("-hft", MASK)),
        (("--hf-token",), ("--hf-token",)),
        (("--note", "hf_abcdefghijkl"), ("--note", MASK)),
        (("--model-url", "https://me:pw@host/x"), ("--model-url", f"https://{MASK}@host/x")),
        (("--api-key-file", "/run/key"), ("--api-key-file", "/run/key")),
    ],
)
def test_secrets_in_a_command_are_masked(command: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert masked_command(command) == shown
