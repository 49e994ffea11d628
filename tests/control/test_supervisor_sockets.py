"""Listening sockets that the supervisor holds: handed over as systemd does, kept over restarts and crashes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest

from specdash.backend.child import Child
from specdash.control.services import supervisor as supervisor_runner
from specdash.control.services import supervisor as supervisor_sockets
from specdash.control.services.services import ServiceState
from specdash.control.services.supervisor import HeldSockets, Restart, Service, SupervisedManager, Supervisor
from specdash.core.errors import PortInUseError, ServiceError, SpecdashError
from specdash.system.sockets import open_listening
from support.fault_server import free_port
from support.supervised import WAIT_S
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
SERVES = """
import os, signal, socket, sys
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
assert os.environ["LISTEN_PID"] == str(os.getpid()) and os.environ["LISTEN_FDS"] == "1"
listening = socket.socket(fileno=3)
listening.settimeout(0.02)
while not ending:
    try:
        connection = listening.accept()[0]
    except TimeoutError:
        continue
    with connection:
        connection.sendall(str(os.getpid()).encode())
"""
TELLS_DESCRIPTORS = """
import os
names = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
print(os.getpid(), [os.environ.get(name) for name in names], sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
"""


def is_refused(port: int) -> bool:
    with socket.socket() as item:
        return item.connect_ex((LOOPBACK, port)) == errno.ECONNREFUSED


def service(code: str, port: int | None, **more: Any) -> Service:
    argv = (sys.executable, "-c", textwrap.dedent(code))
    return Service("s", argv, dict(os.environ), listen=None if port is None else (LOOPBACK, port), **more)


def answer(port: int) -> str:
    """The pid of whoever serves. Raises `OSError`."""
    with socket.create_connection((LOOPBACK, port), timeout=WAIT_S) as item:
        return item.recv(64).decode()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Hammer:
    """Clients that connect all the time. `refused` are connections not taken, `cut` counts those without an answer."""

    def __init__(self, port: int, clients: int) -> None:
        self.refused: list[str] = []
        self.cut = 0
        self.pids: set[str] = set()
        self._port = port
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _ask(self) -> None:
        while not self._done.is_set():
            try:
                item = socket.create_connection((LOOPBACK, self._port), timeout=WAIT_S)
            except OSError as error:
                self.refused.append(repr(error))
                continue
            with item:
                said = ""
                with contextlib.suppress(ConnectionResetError):
                    said = item.recv(64).decode()
            if said:
                self.pids.add(said)
            else:
                self.cut += 1


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as item:
        yield item


def test_a_child_gets_its_sockets_from_descriptor_3_on_and_no_other_descriptor(tmp_path: Path) -> None:
    kept = [open_listening(LOOPBACK, 0)[0] for _ in range(3)]
    extra = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(extra, True)
    output = tmp_path / "out"
    with output.open("wb") as file:
        child = Child.start(
            [sys.executable, "-c", TELLS_DESCRIPTORS],
            {**os.environ, "LISTEN_FDS": "9"},
            output=file,
            sockets=[kept[2].fileno(), kept[0].fileno()],
            sockets_name="a:b",
        )
        assert child.exited(WAIT_S)
    assert child.finish() == 0
    assert output.read_text() == f"{child.pid} ['{child.pid}', '2', 'a_b:a_b'] [0, 1, 2, 3, 4]\n"
    os.close(extra)
    for item in kept:
        item.close()


def test_a_child_without_sockets_is_told_of_none(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with output.open("wb") as file:
        environment = {**os.environ, "LISTEN_FDS": "9", "LISTEN_PID": "1", "LISTEN_FDNAMES": "x"}
        child = Child.start([sys.executable, "-c", TELLS_DESCRIPTORS], environment, output=file)
        assert child.exited(WAIT_S)
    child.finish()
    assert output.read_text() == f"{child.pid} [None, None, None] [0, 1, 2]\n"


def test_restarts_and_a_crash_refuse_no_connection(supervisor: Supervisor) -> None:
    port = free_port()
    supervisor.add(service(SERVES, port, backoff=0.01))
    manager = SupervisedManager(supervisor)
    manager.start("s")
    first = answer(port)
    with Hammer(port, 2) as hammer:
        for _ in range(3):
            manager.restart("s")
        last = answer(port)
        assert last != first
        os.kill(int(last), signal.SIGKILL)
        until(lambda: supervisor.status("s").restarts == 1)
        assert answer(port) != last
    assert hammer.refused == []
    assert hammer.pids


@pytest.mark.slow
def test_fifty_restarts_refuse_no_connection_cut_none_and_leak_no_descriptor(supervisor: Supervisor) -> None:
    port = free_port()
    supervisor.add(service(SERVES, port))
    manager = SupervisedManager(supervisor)
    manager.start("s")
    answer(port)
    before = open_descriptors()
    with Hammer(port, 4) as hammer:
        for _ in range(50):
            manager.restart("s")
            answer(port)
    assert hammer.refused == []
    assert hammer.cut == 0
    assert len(hammer.pids) > 25
    assert open_descriptors() == before
    last = psutil.Process(supervisor.status("s").pid)
    until(lambda: last.num_fds() == 4)  # a connection whose client has its answer is closed a moment later


def test_a_service_stopped_on_purpose_listens_no_longer(supervisor: Supervisor) -> None:
    port = free_port()
    supervisor.add(service(SERVES, port))
    supervisor.launch("s")
    answer(port)
    supervisor.stop("s")
    with pytest.raises(ConnectionRefusedError):
        answer(port)


def test_clients_wait_at_a_service_that_was_given_up_until_it_is_mended(supervisor: Supervisor) -> None:
    port = free_port()
    supervisor.add(service("raise SystemExit(3)", port, restart=Restart.NEVER))
    supervisor.launch("s")
    until(lambda: supervisor.status("s").state is ServiceState.FAILED)
    with socket.create_connection((LOOPBACK, port), timeout=WAIT_S) as waiting:
        supervisor.add(service(SERVES, port))
        supervisor.restart("s")
        assert waiting.recv(64).decode() == str(supervisor.status("s").pid)


def test_nobody_waits_for_ever_at_a_service_that_was_given_up(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_runner, "HELD_AFTER_END_S", 0.2)
    port = free_port()
    supervisor.add(service("raise SystemExit(3)", port, restart=Restart.NEVER))
    supervisor.launch("s")
    until(lambda: is_refused(port))


def test_a_port_that_another_process_owns_is_an_error_of_start_that_names_it(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_runner, "_PORT_WAIT_S", 0.1)
    taken = open_listening(LOOPBACK, 0)[0]
    port = int(taken.getsockname()[1])
    supervisor.add(service(SERVES, port))
    with pytest.raises(ServiceError, match=f"s cannot be started: port {port} of {LOOPBACK} is in use"):
        SupervisedManager(supervisor).start("s")
    taken.close()


def test_a_port_whose_owner_is_just_ending_is_waited_for(supervisor: Supervisor) -> None:
    taken = open_listening(LOOPBACK, 0)[0]
    port = int(taken.getsockname()[1])
    threading.Timer(0.3, taken.close).start()
    supervisor.add(service(SERVES, port))
    SupervisedManager(supervisor).start("s")
    assert answer(port) == str(supervisor.status("s").pid)


def test_another_address_counts_from_the_next_start_and_the_old_one_is_given_back(supervisor: Supervisor) -> None:
    before, after = free_port(), free_port()
    supervisor.add(service(SERVES, before))
    supervisor.launch("s")
    answer(before)
    supervisor.add(service(SERVES, after))
    answer(before)
    supervisor.restart("s")
    answer(after)
    with pytest.raises(ConnectionRefusedError):
        answer(before)


def test_an_address_that_cannot_be_had_leaves_the_old_one_open() -> None:
    taken = open_listening(LOOPBACK, 0)[0]
    port = free_port()
    held = HeldSockets()
    assert held.descriptors(None) == ()
    first = held.descriptors((LOOPBACK, port))
    with pytest.raises(PortInUseError):
        held.descriptors((LOOPBACK, int(taken.getsockname()[1])))
    with pytest.raises(SpecdashError, match=r"cannot listen on 192\.0\.2\.1"):
        held.descriptors(("192.0.2.1", port))
    socket.create_connection((LOOPBACK, port), timeout=WAIT_S).close()
    assert held.descriptors((LOOPBACK, port)) == first
    held.close()
    taken.close()


def test_the_same_port_on_more_addresses_is_no_conflict_with_ourselves() -> None:
    held, port = HeldSockets(), free_port()
    held.descriptors((LOOPBACK, port))
    assert held.descriptors(("0.0.0.0", port))
    held.close()


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(SpecdashError, match=r"no\.such\.host\.invalid:80 is not an address of this machine"):
        supervisor_sockets._opened("no.such.host.invalid", 80)
