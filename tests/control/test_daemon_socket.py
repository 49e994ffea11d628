"""What comes over the supervisor's socket is not trusted, by the daemon and by its clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.control.services import supervisor_client
from specdash.control.services.services import ServiceState
from specdash.control.services.supervisor_client import (
    LOG_LINES_LIMIT,
    REQUEST_LIMIT_BYTES,
    SupervisorClient,
    peer_uid,
    send,
    socket_address,
)
from specdash.core.errors import ServiceError
from specdash.core.paths import supervisor_socket
from support.supervised import RunningDaemon, running_daemon
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 20.0
SLEEPS = (sys.executable, "-c", "import time; time.sleep(300)")
CHANGED_DAEMON = """
import os, sys
from specdash.control.services import supervisor_daemon as module
from specdash.core.paths import supervisor_socket
module._REQUEST_S = float(sys.argv[1])
claim = module.Claim.take(supervisor_socket(os.environ))
more = {} if sys.argv[2] == "own" else {"uid_of": lambda connection: int(sys.argv[2])}
sys.exit(module.Daemon(claim, (), os.environ, **more).run())
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon() as item:
        item.add("a", SLEEPS)
        item.client.start("a")
        yield item


@contextlib.contextmanager
def changed_daemon(home: Path, *, request_s: float = 10.0, uid: str = "own") -> Iterator[SupervisorClient]:
    """A daemon whose patience or whose view of its peer is another than the real one's."""
    env = {**os.environ, "HOME": str(home)}
    command = [sys.executable, "-c", CHANGED_DAEMON, str(request_s), uid]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"supervises" in process.stderr.readline()
        try:
            yield SupervisorClient(supervisor_socket(env))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)


def connected(path: Path) -> socket.socket:
    deadline = time.monotonic() + WAIT_S
    while True:
        item = socket.socket(socket.AF_UNIX)
        item.settimeout(WAIT_S)
        try:
            with socket_address(path) as address:
                item.connect(address)
        except BlockingIOError:
            # The daemon's queue is full for a moment: connect(2) does not wait for that.
            item.close()
            assert time.monotonic() < deadline, "the daemon takes no connection"
            time.sleep(0.01)
        except BaseException:
            item.close()
            raise
        else:
            return item


def answers(path: Path, data: bytes) -> list[dict[str, Any]]:
    """All that the daemon says to `data` before it, or we, are done."""
    with connected(path) as item:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            item.sendall(data)
            item.shutdown(socket.SHUT_WR)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := item.recv(65536):
                said += chunk
    return [json.loads(line) for line in said.splitlines()]


def error_of(daemon: RunningDaemon, request: object) -> str:
    (answer,) = answers(daemon.socket, json.dumps(request).encode() + b"\n")
    assert answer["ok"] is False
    return str(answer["error"])


def is_well(daemon: RunningDaemon) -> bool:
    return daemon.client.status("a").state is ServiceState.RUNNING


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x00\xff\x13 what\n", "a line is not JSON"),
        (b"\n", "a line is not JSON"),
        (b"GET / HTTP/1.1\r\n\r\n", "a line is not JSON"),
        (b"[" * 10_000 + b"\n", "a line is not JSON"),
        (b'{"lines": ' + b"9" * 10_000 + b"}\n", "a line is not JSON"),
        (b"[]\n", "a line is not a JSON object"),
        (b"null\n", "a line is not a JSON object"),
        (b" " * REQUEST_LIMIT_BYTES + b"{}\n", f"a line is longer than {REQUEST_LIMIT_BYTES} bytes"),
        (b"x" * 1_000_000, f"a line is longer than {REQUEST_LIMIT_BYTES} bytes"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_no_request_ends_that_connection_alone(daemon: RunningDaemon, data: bytes, complaint: str) -> None:
    assert answers(daemon.socket, data) in ([{"ok": False, "error": complaint}], [])
    assert is_well(daemon)


def test_the_complaint_about_garbage_is_heard(daemon: RunningDaemon) -> None:
    assert answers(daemon.socket, b"what\n") == [{"ok": False, "error": "a line is not JSON"}]


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({}, "no command 'None'; known: status, start, stop, restart, reload, log_tail, rescan, shutdown"),
        ({"command": "format"}, "no command 'format'"),
        ({"command": ["status"]}, "no command"),
        ({"command": "x" * 9000}, "no command 'xxxx"),
        ({"command": "start"}, "start needs the name of a service"),
        ({"command": "start", "name": 7}, "start needs the name of a service"),
        ({"command": "status", "name": {"a": 1}}, "status needs the name of a service"),
        ({"command": "log_tail", "name": "a", "lines": "all"}, "log_tail: lines must be a whole number"),
        ({"command": "log_tail", "name": "a", "lines": 1e300}, "log_tail: lines must be a whole number"),
        ({"command": "log_tail", "name": "../../etc/passwd"}, "no service '../../etc/passwd'"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_request_that_cannot_be_meant_is_answered_with_the_reason(
    daemon: RunningDaemon, request_: object, complaint: str
) -> None:
    assert complaint in error_of(daemon, request_)
    assert is_well(daemon)


def test_more_lines_than_there_may_be_are_the_most_there_may_be(tmp_path: Path) -> None:
    with running_daemon() as daemon:
        code = "import time\nfor n in range(2000): print('\\x01' * 3000, n)\nprint('end', flush=True); time.sleep(300)"
        daemon.add("a", (sys.executable, "-c", code))
        daemon.client.start("a")
        until(lambda: daemon.client.log_tail("a", 1) == ("end",))
        lines = daemon.client.log_tail("a", 10**12)
        assert 100 < len(lines) <= LOG_LINES_LIMIT
        assert max(len(line) for line in lines) <= 2048
        assert daemon.client.log_tail("a", -5) == ()


def test_several_requests_on_one_connection_are_answered_in_turn(daemon: RunningDaemon) -> None:
    found = answers(daemon.socket, b'{"command": "status", "name": "a"}\n{"command": "status", "name": "x"}\n')
    assert [entry["result"]["state"] for entry in found] == ["running", "missing"]


def test_a_client_that_leaves_in_the_middle_is_no_trouble(daemon: RunningDaemon) -> None:
    for data in (b"", b'{"command": "sta', b'{"command": "restart", "name": "a"}\n'):
        with connected(daemon.socket) as item:
            item.sendall(data)
    until(lambda: is_well(daemon))


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_no_bytes_harm_it(daemon: RunningDaemon, pieces: list[bytes]) -> None:
    for answer in answers(daemon.socket, b"\n".join(pieces)):
        assert answer["ok"] is False
    assert is_well(daemon)


@pytest.mark.slow
def test_silent_clients_are_sent_away_and_keep_nobody_out_for_ever(tmp_path: Path) -> None:
    with changed_daemon(tmp_path, request_s=3.0) as client, contextlib.ExitStack() as stack:
        path = client._path
        silent = [stack.enter_context(connected(path)) for _ in range(70)]
        refused = [item for item in silent if b"more than 64 clients at once" in item.recv(4096)]
        assert len(refused) >= 6
        until(client.available)


def test_a_client_of_another_user_is_refused(tmp_path: Path) -> None:
    with changed_daemon(tmp_path, uid="12345") as client:
        with pytest.raises(ServiceError, match="this supervisor belongs to another user than 12345"):
            client.statuses()
        with pytest.raises(ServiceError, match="belongs to another user"):
            client.shutdown()
        assert not client.available()


def test_the_kernel_says_who_the_peer_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "the built-in supervisor ended before it answered to 'status a'"),
        (b"what\n", r"cannot be asked for 'status a' \(a line is not JSON\)"),
        (b'{"bound_s": "long"}\n', "cannot be asked for 'status a'"),
        (b'{"bound_s": 1}\n', "ended before it answered"),
        (b'{"ok": false, "error": "no"}\n', "^no$"),
    ],
)
def test_a_client_gives_up_on_an_answer_that_cannot_be_meant(tmp_path: Path, said: bytes, complaint: str) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            connection = listening.accept()[0]
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ServiceError, match=complaint):
            SupervisorClient(path).status("a")
        thread.join(WAIT_S)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b'{"ok": false, "error": "more than 64 clients at once"}\n', "^more than 64 clients at once$"),
        (b"", "the built-in supervisor ended before it answered to 'status a'"),
    ],
)
def test_why_a_client_is_refused_is_heard_also_when_the_daemon_has_hung_up_before_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, complaint: str
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(said)

        def send_late(*given: Any) -> None:
            thread.join(WAIT_S)
            send(*given)

        monkeypatch.setattr(supervisor_client, "send", send_late)
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ServiceError, match=complaint):
            SupervisorClient(path).status("a")


def test_a_socket_whose_daemon_is_gone_is_no_daemon(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    assert not SupervisorClient(path).available()
