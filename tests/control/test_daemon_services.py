"""specdash's own services under the built-in supervisor's daemon: the real proxy, the real engine."""

from __future__ import annotations

import http.client
import socket
import threading

import psutil
import pytest

from specdash.backend import demo
from specdash.backend.launch import free_port
from specdash.control.services.services import ServiceState
from specdash.control.services.supervisor_services import ServiceEntry, write_services
from specdash.core.changes import Role
from specdash.core.paths import services_file
from support.supervised import RunningDaemon, gone, running_daemon
from support.waiting import until

LOOPBACK = "127.0.0.1"


def is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def answers(port: int) -> bool:
    """Waits for whoever is starting there."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
    try:
        connection.request("GET", "/health")
        return bool(connection.getresponse().read())
    finally:
        connection.close()


def is_refused(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=20).close()
    except ConnectionRefusedError:
        return True
    return False


def add_proxy(daemon: RunningDaemon, upstream_port: int) -> tuple[ServiceEntry, int]:
    port = free_port(LOOPBACK)
    file = daemon.home / "proxy.env"
    upstream = f"http://{LOOPBACK}:{upstream_port}"
    file.write_text(demo.proxy_env_text(port=port, upstream=upstream, events=daemon.home / "events.jsonl"))
    return ServiceEntry("proxy", Role.PROXY, file, listen="env"), port


@pytest.mark.slow
def test_restarts_of_the_proxy_refuse_no_connection_and_its_port_moves_with_its_env_file() -> None:
    with running_daemon() as daemon:
        entry, port = add_proxy(daemon, 1)
        write_services(services_file(daemon.environment), [entry])
        daemon.client.rescan()
        daemon.client.start("proxy")
        assert answers(port)
        refused: list[int] = []
        done = threading.Event()

        def ask() -> None:
            while not done.wait(0.01):
                if is_refused(port):
                    refused.append(port)

        thread = threading.Thread(target=ask)
        thread.start()
        for _ in range(5):
            daemon.client.restart("proxy")
            assert answers(port)
        done.set()
        thread.join(20)
        assert refused == []
        entry.env_file.write_text("PROXY_PORT=soon\n")
        daemon.client.restart("proxy")
        until(lambda: daemon.client.status("proxy").state is ServiceState.FAILED)
        assert daemon.client.status("proxy").restarts == 0
        assert "PROXY_PORT=soon" in daemon.client.status("proxy").detail
        assert not is_refused(port)
        other = free_port(LOOPBACK)
        entry.env_file.write_text(f"PROXY_PORT={other}\nLLAMA_CPP_BASE=http://{LOOPBACK}:1/v1\n")
        daemon.client.restart("proxy")
        assert answers(other)
        assert is_refused(port)


@pytest.mark.engine
@pytest.mark.slow
def test_backend_and_proxy_end_with_a_killed_daemon_and_come_back_with_the_next() -> None:
    with running_daemon() as daemon:
        port = free_port(LOOPBACK)
        file = daemon.home / "backend.env"
        text = demo.env_text(port=port, log=daemon.home / "server.log", spec_types=("draft-simple",), engine="auto")
        file.write_text(text)
        proxy, proxy_port = add_proxy(daemon, port)
        entries = [ServiceEntry("backend", Role.BACKEND, file), proxy]
        write_services(services_file(daemon.environment), entries)
        assert daemon.client.rescan() == ("backend", "proxy")
        for entry in entries:
            daemon.client.start(entry.name)
        until(lambda: is_healthy(port) and is_healthy(proxy_port))
        family = psutil.Process(daemon.pid).children(recursive=True)
        assert len(family) >= 3
        daemon.kill()
        assert all(gone(process.pid) for process in family)
        daemon.start_again()
        until(lambda: is_healthy(port) and is_healthy(proxy_port))
        assert [status.restarts for status in daemon.client.statuses()] == [0, 0]
