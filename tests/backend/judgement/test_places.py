"""Ports and their owners, addresses, disks, and the engine: real sockets, real processes, real disks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backend.judgement.conftest import Check, Machine
    from specdash.backend.plan import Circumstances

_LISTEN = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.create_server((sys.argv[1], 0), family=family); print(s.getsockname()[1], flush=True); input()
"""


class Listening:
    """Another process that listens."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LISTEN, host], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().strip()
        self.pid = self.process.pid

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def listening() -> Iterator[Listening]:
    found = Listening()
    yield found
    found.stop()


def test_a_port_of_somebody_else_names_them(backend: Check, proxy: Check, listening: Listening) -> None:
    name = psutil.Process(listening.pid).name()
    for check, key in ((backend, "LLAMA_PORT"), (proxy, "PROXY_PORT")):
        row = check({key: listening.port}).one("port-owner")
        assert (row.severity, row.key) == ("error", key)
        assert f"in use by {name} (pid {listening.pid})" in row.message


def test_a_port_of_the_own_service_is_fine(backend: Check, context: Circumstances, listening: Listening) -> None:
    wanted = {"LLAMA_PORT": listening.port}
    assert not backend(wanted, own_pids=frozenset({listening.pid})).errors
    # The listener is a child of the process that the manager started.
    assert not backend(wanted, own_pids=frozenset({os.getpid()})).errors


@pytest.mark.parametrize(
    ("listens", "wanted", "taken"),
    [
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("127.0.0.1", "::1", False),
        ("::1", "127.0.0.1", False),
        ("127.0.0.1", "localhost", True),
    ],
)
def test_only_addresses_that_collide_count(listens: str, wanted: str, taken: bool, backend: Check) -> None:
    other = Listening(listens)
    try:
        found = backend({"LLAMA_PORT": other.port, "LLAMA_HOST": wanted, "LLAMA_API_KEY": "key"})
    finally:
        other.stop()
    assert bool(found.of("port-owner")) == taken


@pytest.mark.parametrize("key", ["PROXY_PORT", "PROXY_HOST"])
def test_no_apply_moves_the_socket_of_a_proxy_that_runs(key: str, proxy: Check, listening: Listening) -> None:
    wanted = {"PROXY_PORT": listening.port}
    assert not proxy(wanted, keeps_socket=True).errors
    found = proxy(wanted, keeps_socket=True, changed=frozenset({key}))
    row = found.one("socket-unit")
    assert (row.severity, row.key) == ("error", key)
    assert f"write {key}=" in row.fix
    assert "`specdash services install proxy`" in row.fix
    assert found.one("port-owner").severity == "error"


def test_an_env_file_that_cannot_be_read_and_a_binary_that_is_no_engine_are_errors(
    backend: Check, context: Circumstances, machine: Machine
) -> None:
    assert context.env_file is not None
    context.env_file.mkdir()
    assert backend().of("env-file")[0].severity == "error"
    machine.asks_engine()
    for path in ("/absent/llama-server", "/bin/false"):
        row = backend({"LLAMA_BIN": path}).one("engine")
        assert (row.severity, row.key) == ("error", "LLAMA_BIN")
        assert path in row.message
