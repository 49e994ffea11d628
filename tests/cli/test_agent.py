"""`specdash agent`: a real process on a pipe. It ends with its input, listens on nothing, and says no key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from specdash.cli.servers.agent import DESERTED_S, AgentOrders
from support.fault_server import FaultServer, says
from support.outside import ran
from support.over_ssh import AGENT, local_ssh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CANARY = "sk-canary-0123456789"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer({"/health": says(200, '{"status": "ok"}')}) as server:
        yield server


@contextmanager
def agent(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "specdash", "agent", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()


def lines_until(process: subprocess.Popen[str], source: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        found.append(json.loads(line))
        if any(reading["source"] == source for reading in found[-1].get("readings", ())):
            return found
    raise AssertionError(f"ended without {source}: {process.stderr.read() if process.stderr else ''}")


def test_it_says_hello_its_target_and_what_it_sees_and_ends_with_its_input(server: FaultServer) -> None:
    with agent("--url", server.url) as process:
        lines = lines_until(process, "health")
        assert lines[0]["hello"]["protocol"] == 1
        assert lines[1]["target"]["url"] == server.url
        connections = psutil.Process(process.pid).net_connections()
        assert all(connection.status != psutil.CONN_LISTEN for connection in connections)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def test_it_ends_on_a_signal_and_when_nobody_reads(server: FaultServer) -> None:
    with agent("--url", server.url) as process:
        lines_until(process, "health")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    with agent("--url", server.url) as process:
        lines_until(process, "health")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(10) == 0


def test_a_key_of_its_machine_is_used_there_and_never_said(server: FaultServer, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("srv  start: the server\n")
    words = ("--url", server.url, "--api-key-env", "MY_KEY", "--proxy-key-env", "MY_KEY", "--log", str(log))
    with agent(*words, MY_KEY=CANARY) as process:
        lines = lines_until(process, "scheduling")
        lines += lines_until(process, "process")
        process.terminate()
        _, errors = process.communicate(timeout=10)
    assert CANARY not in json.dumps(lines) + errors
    heads = [call.head for call in server.calls]
    assert any(CANARY in head for head in heads), "and the server was asked with it"


def test_it_ends_when_whoever_gave_orders_gives_no_more() -> None:
    now = [0.0]
    orders = AgentOrders(1.0, clock=lambda: now[0])
    now[0] = 1e6
    alone = orders.have_ceased
    orders.take(b'{"interval": 2}')
    now[0] += DESERTED_S
    late = orders.have_ceased
    now[0] += 1.0
    assert (alone, late, orders.have_ceased) == (False, False, True), "standing alone, nobody gives any"
    assert orders.interval_s == 2.0
    for nonsense in (b"", b"[]", b'{"interval": "soon"}', b'{"interval": 0.001}', b"\xff"):
        orders.take(nonsense)
    assert orders.interval_s == 2.0


def test_what_cannot_be_meant_ends_it_before_a_word() -> None:
    done = ran("agent", "--log-after", "noon")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--log-after noon" in done.stderr


def over(ssh: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """A command that finds its machine by this ssh."""
    return ran(*words, SPECDASH_SSH=f"command={ssh[0]} program='{AGENT}'")


@pytest.mark.slow
def test_snapshot_and_check_are_those_of_the_machine_behind_ssh(server: FaultServer, tmp_path: Path) -> None:
    url = f"ssh://far/{server.url.removeprefix('http://')}"
    done = over(local_ssh(tmp_path), "snapshot", "--json", "--url", url)
    picture = json.loads(done.stdout)
    assert picture["backend"]["url"] == url
    assert picture["host"] is not None, done.stderr
    done = over(("/no/such/ssh",), "check", "--url", "ssh://far/127.0.0.1:9")
    assert done.returncode == 3
    assert "/no/such/ssh" in done.stdout


@pytest.mark.parametrize("command", ["doctor", "smoke", "slots"])
def test_what_asks_or_changes_the_server_is_sent_to_its_machine(command: str, tmp_path: Path) -> None:
    words = ("slots", "list") if command == "slots" else (command,)
    done = over(local_ssh(tmp_path), *words, "--url", "ssh://far")
    assert done.returncode == 2
    assert "can only be watched from here" in done.stderr
