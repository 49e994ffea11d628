"""Questions to real sockets: prefixes, certificates, cancelling; faults are in test_http_faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.system import http
from support.fault_server import FaultServer, hangs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


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


def test_whoever_waits_is_let_go_from_another_thread_and_nobody_asks_after_that() -> None:
    cancel = threading.Event()
    with FaultServer({"/x": hangs()}) as server:

        def stop() -> None:
            while not server.count("/x"):
                time.sleep(0.001)
            cancel.set()

        thread = threading.Thread(target=stop)
        thread.start()
        with pytest.raises(OSError, match="cancelled"):
            http.ask(server.url, "/x", timeout=60, cancel=cancel)
        thread.join()
        with pytest.raises(OSError, match="cancelled"):
            http.ask(server.url, "/x", timeout=60, cancel=cancel)
        assert server.count("/x") == 1


async def events_of(*pieces: bytes, **limit: int) -> list[bytes]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [event async for event in http.HttpReply(200, {}, body(), 0.0).events(**limit)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_wherever_they_are_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    assert asyncio.run(events_of(*(STREAM[begin:end] for begin, end in pairwise(ends)))) == EVENTS


async def test_a_line_without_end_is_cut_off() -> None:
    with pytest.raises(http.HttpError, match="cut off"):
        await events_of(b"data: ", *([b"x" * 100] * 100), longest=1000)
