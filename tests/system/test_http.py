"""Questions to real sockets: whatever comes, or does not, ends in time in an answer or an `OSError`."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.system import http
from support.certificates import make_certificate
from support.fault_server import FaultServer, floods, free_port, full_backlog, hangs, resets, says, writes
from support.scripted_server import Behaviour

STREAM = b'data: {"a":1}\r\n\r\nevent: x\ndata:{"b":2}\n\n: a comment\nerror: {"c":3}\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a":1}', b'{"b":2}', b'{"error":{"c":3}}', b"[DONE]"]


class _Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        told = {"method": self.command, "path": self.path, "body": sent.decode(), "key": self.headers.get("x-key")}
        data = json.dumps(told).encode()
        self.send_response(201)
        self.send_header("X-Told", "yes")
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return ""

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _UnixServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


@contextlib.contextmanager
def running(server: HTTPServer) -> Iterator[HTTPServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_question_is_put_below_the_prefix_and_answered_whole() -> None:
    with running(HTTPServer(("127.0.0.1", 0), _Echo)) as server:
        url = f"http://127.0.0.1:{server.server_port}/prefix/"
        got = http.ask(url, "/x?y=1", headers={"x-key": "K"})
        assert (got.status, got.headers["x-told"]) == (201, "yes")
        assert got.json == {"method": "GET", "path": "/prefix/x?y=1", "body": "", "key": "K"}
        posted = http.ask(url, "/x", body={"a": [1]})
        assert (posted.json["method"], json.loads(posted.json["body"])) == ("POST", {"a": [1]})
        assert http.status_of(url, "/", 5.0) == 201
    assert http.status_of(url, "/", 5.0) is None


def test_a_certificate_is_checked_unless_the_service_is_known_by_its_pid(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = HTTPServer(("127.0.0.1", 0), _Echo)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server):
        url = f"https://127.0.0.1:{server.server_port}"
        with pytest.raises(http.NoConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            http.ask(url, "/")
        assert http.ask(url, "/", verified=False).status == 201


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://127.0.0.1:99999", "http://[::"])
def test_nobody_there_is_told_from_a_broken_answer(url: str) -> None:
    with pytest.raises(http.NoConnectionError):
        http.ask(url.format(port=free_port()), "/")


def test_a_connection_that_is_never_accepted_is_given_up() -> None:
    with full_backlog() as url, pytest.raises(http.NoConnectionError, match="timed out"):
        http.ask(url, "/", timeout=0.2)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (hangs(), TimeoutError),
        (hangs(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"), TimeoutError),
        (resets(), OSError),
        (writes(b""), OSError),
        (writes(b"220 mail.example ESMTP\r\n"), OSError),
        (writes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"), OSError),
        (writes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), OSError),
    ],
)
def test_a_broken_answer_is_an_error_in_time(behaviour: Behaviour, error: type[OSError]) -> None:
    with FaultServer({"/x": behaviour}) as server, pytest.raises(error) as raised:
        http.ask(server.url, "/x", timeout=0.3)
    assert not isinstance(raised.value, http.NoConnectionError)
    assert http.words(raised.value)


def test_what_cannot_be_a_header_is_an_error_too() -> None:
    with FaultServer() as server, pytest.raises(OSError, match="no HTTP answer"):
        http.ask(server.url, "/x", headers={"x-key": "a\nb"})


def test_of_a_large_answer_only_the_bound_is_read() -> None:
    with FaultServer({"/x": says(200, "x" * 1000)}) as server:
        assert http.ask(server.url, "/x", most_bytes=10).body == b"x" * 10


def test_whoever_waits_is_let_go_from_another_thread_and_nobody_asks_after_that() -> None:
    cancel = http.Cancel()
    with FaultServer({"/x": hangs()}) as server:

        def stop() -> None:
            while not server.count("/x"):
                time.sleep(0.001)
            cancel()

        thread = threading.Thread(target=stop)
        thread.start()
        with pytest.raises(OSError, match=r"closed|reset"):
            http.ask(server.url, "/x", timeout=60, cancel=cancel)
        thread.join()
        with pytest.raises(OSError, match="canceled"):
            http.ask(server.url, "/x", timeout=60, cancel=cancel)
        assert server.count("/x") == 1


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_wherever_they_are_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[begin:end] for begin, end in pairwise(ends)]
    assert list(http.events(pieces)) == EVENTS


def test_a_line_without_end_is_cut_off() -> None:
    with pytest.raises(OSError, match="cut off"):
        list(http.events((b"data: " + b"x" * 100 for _ in range(100)), longest=1000))


def test_a_stream_without_end_is_late() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    with (
        FaultServer({"/x": floods(head, b"data: x\n", 10**9)}) as server,
        pytest.raises(http.LateError),
        http.opened(server.url, "/x") as answer,
    ):
        for _ in http.blocks(answer, time.monotonic() + 0.2):
            pass
