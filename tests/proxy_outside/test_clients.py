"""Clients as HTTP allows them, and as it does not: raw bytes on real sockets, before any key is looked at."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from support.proxy_process import running_proxy
from support.proxy_ways import chat, turn
from support.raw_client import (
    CHAT,
    DEADLINE_S,
    KEY,
    MESSAGES,
    connected,
    post,
    raw,
    read_all,
    read_answer,
    refused,
    split,
)
from support.upstream_script import Pause, Script, answers, says, stops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fault_upstream import FaultUpstream
    from support.proxy_process import ProxyProcess

BOUNDS = {
    "PROXY_API_KEY": "right",
    "PROXY_HEADER_TIMEOUT": 0.5,
    "PROXY_BODY_TIMEOUT": 0.5,
    "PROXY_MAX_CLIENTS": 40,
    "PROXY_MAX_BODY_MIB": 1,
    "PROXY_MAX_BLOCKS": 1000,
}


@pytest.fixture(scope="module")
def bounded(scripted: FaultUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy with a key and little patience."""
    with running_proxy(scripted.url, tmp_path_factory.mktemp("bounded"), BOUNDS) as proxy:
        yield proxy


class TestHead:
    def test_a_head_without_end_is_refused_and_kept_nowhere(self, bounded: ProxyProcess) -> None:
        before = bounded.rss()
        lines = b"x-filler: " + b"a" * 1000 + b"\r\n"
        message = refused(raw(bounded, b"GET /health HTTP/1.1\r\nhost: localhost\r\n", *[lines * 1000] * 30), 431)
        assert "PROXY_MAX_HEADER_KIB" in message
        assert bounded.rss() - before < 8 << 20

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * (70 << 10) + b"\r\n\r\n", 431),
            (b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * (20 << 10) + b"\r\n", 431),
            (b"GET /health?" + b"a" * (70 << 10) + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414),
            (b"GET /health?" + b"a" * (1 << 20), 414),
            (b"GET /health HTTP/2.0\r\nhost: localhost\r\n\r\n", 505),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, 400),
        ],
    )
    def test_a_head_that_is_none_is_refused(self, bounded: ProxyProcess, head: bytes, status: int) -> None:
        refused(raw(bounded, head), status)

    def test_fields_after_the_body_are_bounded_too(self, bounded: ProxyProcess) -> None:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n" + KEY + b"\r\n"
        trailer = [b"x: " + b"a" * 1000 + b"\r\n"] * 500
        refused(raw(bounded, head + b"2\r\n{}\r\n0\r\n", *trailer), 431)

    def test_a_large_head_within_the_bounds_is_read(self, bounded: ProxyProcess) -> None:
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * (60 << 10) + b"\r\nconnection: close\r\n\r\n"
        assert split(raw(bounded, *(head[at : at + 999] for at in range(0, len(head), 999))))[0] == 200

    def test_the_errors_of_the_openai_endpoint_are_openais(self, bounded: ProxyProcess) -> None:
        lines = b"x: " + b"a" * 1000 + b"\r\n"
        refused(raw(bounded, b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n", lines * 100), 431, CHAT)


class TestTime:
    def test_slow_heads_end_and_others_are_served_meanwhile(self, bounded: ProxyProcess) -> None:
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(connected(bounded)) for _ in range(30)]
            for client in slow:
                client.sendall(b"GET /health HTTP/1.1\r\nhost: local")
            assert bounded.request("GET", "/health").status == 200
            assert "PROXY_HEADER_TIMEOUT" in refused(read_all(slow[0]), 408)
            assert all(split(read_all(client))[0] == 408 for client in slow[1:])

    def test_trickling_does_not_prolong_it(self, bounded: ProxyProcess) -> None:
        with connected(bounded) as client, contextlib.suppress(ConnectionError):
            client.settimeout(0.05)
            deadline = time.monotonic() + DEADLINE_S
            head = b"GET /health HTTP/1.1\r\nx: "
            while time.monotonic() < deadline:
                client.sendall(head)
                head = b"a"
                with contextlib.suppress(TimeoutError):
                    assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
                    return
            pytest.fail("still open")

    def test_a_connection_that_says_nothing_is_closed_without_a_word(self, bounded: ProxyProcess) -> None:
        assert raw(bounded) == b""

    def test_so_is_one_that_says_nothing_more(self, bounded: ProxyProcess) -> None:
        with connected(bounded) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert read_answer(client) == 200
            client.sendall(b"GET /health HT")
            refused(read_all(client), 408)

    @pytest.mark.parametrize("path", [MESSAGES, CHAT])
    def test_a_body_that_stops_is_refused(self, bounded: ProxyProcess, path: str) -> None:
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: 100\r\n\r\n{" % (path.encode(), KEY)
        assert "PROXY_BODY_TIMEOUT" in refused(raw(bounded, head), 408, path)

    def test_a_body_that_comes_on_is_waited_for(self, bounded: ProxyProcess) -> None:
        request = post(turn("hello" * 200), MESSAGES, b"connection: close")
        with connected(bounded) as client:
            for at in range(0, len(request), 100):
                client.sendall(request[at : at + 100])
                time.sleep(0.08)
            assert split(read_all(client))[0] == 200

    def test_an_early_answer_does_not_wait_for_the_body_nor_without_end(self, bounded: ProxyProcess) -> None:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500000\r\n\r\n"
        with connected(bounded) as client:
            client.sendall(head)
            assert read_answer(client) == 401
            client.sendall(b"{" * 1000)
            assert read_all(client) == b""

    def test_too_many_connections_cost_the_idle_ones(self, bounded: ProxyProcess) -> None:
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(connected(bounded)) for _ in range(60)]
            assert bounded.request("GET", "/health").status == 200
            assert read_all(idle[0]) == b""


class TestBody:
    def test_the_key_is_asked_for_before_the_body(self, bounded: ProxyProcess) -> None:
        with connected(bounded) as client:
            client.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
            assert read_answer(client) == 401

    @pytest.mark.parametrize("path", [MESSAGES, CHAT])
    @pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
    def test_who_sends_too_much_still_reads_the_answer(
        self, bounded: ProxyProcess, path: str, connection: bytes
    ) -> None:
        request = post(b"{" * (3 << 20), path, b"connection: " + connection)
        with connected(bounded) as client:
            sender = threading.Thread(target=_send, args=(client, request))
            sender.start()
            status = client.recv(65536)[:12]
            sender.join(DEADLINE_S)
        assert status == b"HTTP/1.1 413"

    @pytest.mark.parametrize("coding", [b"gzip", b"x-gzip", b"GZip"])
    @pytest.mark.parametrize("members", [1, 2])
    def test_a_packed_body_is_unpacked(self, bounded: ProxyProcess, coding: bytes, members: int) -> None:
        data = json.dumps(turn("hello")).encode()
        cut = len(data) // members
        packed = b"".join(gzip.compress(data[at : at + cut]) for at in range(0, len(data), cut))
        status, _, body = split(
            raw(bounded, post(packed, MESSAGES, b"connection: close", b"content-encoding: " + coding))
        )
        assert (status, json.loads(body)["content"][0]["text"]) == (200, "Hello")

    @pytest.mark.parametrize("path", [MESSAGES, CHAT])
    @pytest.mark.parametrize(
        ("coding", "body", "status"),
        [
            (b"br", b"{}", 415),
            (b"gzip, gzip", b"{}", 415),
            (b"gzip", b"{}", 400),
            (b"gzip", gzip.compress(b"{}")[:-6], 400),
            (b"gzip", gzip.compress(b"{}") + b"tail", 400),
            (b"gzip", gzip.compress(b"") * 40_000, 400),
            (b"gzip", gzip.compress(b"a" * (40 << 20)), 413),
        ],
        ids=[
            "another coding",
            "two codings",
            "not packed",
            "cut off",
            "something behind",
            "too many members",
            "too large",
        ],
    )
    def test_what_cannot_be_unpacked_is_refused(
        self, bounded: ProxyProcess, path: str, coding: bytes, body: bytes, status: int
    ) -> None:
        request = post(body, path, b"connection: close", b"content-encoding: " + coding)
        refused(raw(bounded, request), status, path)

    @pytest.mark.parametrize("field", ["messages", "blocks", "results", "tools", "stops", "system"])
    def test_more_pieces_than_can_be_looked_at_are_refused(self, bounded: ProxyProcess, field: str) -> None:
        text = {"type": "text", "text": "a"}
        body = turn("hello")
        match field:
            case "messages":
                body["messages"] = [{"role": "user", "content": "a"}] * 1001
            case "blocks":
                body["messages"] = [
                    {"role": "user", "content": [text] * 600},
                    {"role": "assistant", "content": [text] * 500},
                ]
            case "results":
                body["messages"][0]["content"] = [{"type": "tool_result", "tool_use_id": "a", "content": [text] * 1000}]
            case "tools":
                body["tools"] = [{"name": f"t{n}", "input_schema": {}} for n in range(1001)]
            case "stops":
                body["stop_sequences"] = ["a"] * 1001
            case "system":
                body["system"] = [text] * 1001
        for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
            assert "PROXY_MAX_BLOCKS" in refused(raw(bounded, post(body, path, b"connection: close")), 413)

    @pytest.mark.parametrize("depth", [300, 900, 5000])
    def test_deep_nesting_is_the_clients_fault_on_the_openai_endpoint_too(
        self, bounded: ProxyProcess, depth: int
    ) -> None:
        body = json.dumps(chat("hello", stream=False))[:-1]
        deep = body.encode() + b',"deep":' + b"[" * depth + b"]" * depth + b"}"
        refused(raw(bounded, post(deep, CHAT, b"connection: close")), 400, CHAT)


def _send(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(data)


class TestOldAndHalfClosedClients:
    @pytest.mark.parametrize("path", [MESSAGES, CHAT])
    @pytest.mark.parametrize("stream", [False, True])
    def test_http_1_0_gets_no_chunks_and_an_end(self, bounded: ProxyProcess, path: str, stream: bool) -> None:
        body = turn("hello", stream=stream) if path == MESSAGES else chat("hello", stream=stream)
        status, headers, rest = split(raw(bounded, post(body, path, version=b"1.0")))
        assert status == 200
        assert "transfer-encoding" not in headers
        assert headers["connection"] == "close"
        if stream:
            assert rest.lstrip().startswith((b"event: message_start", b"data: {"))
            assert rest.rstrip().endswith((b'{"type":"message_stop"}', b"data: [DONE]"))
        else:
            json.loads(rest)

    def test_http_1_0_needs_no_host_and_gets_no_100(self, bounded: ProxyProcess) -> None:
        assert split(raw(bounded, b"GET /health HTTP/1.0\r\nexpect: 100-continue\r\n\r\n"))[0] == 200

    @pytest.mark.parametrize("version", [b"1.0", b"1.1"])
    @pytest.mark.parametrize("path", [MESSAGES, CHAT])
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_half_closed_client_gets_its_answer(
        self, bounded: ProxyProcess, upstream: FaultUpstream, version: bytes, path: str, stream: bool
    ) -> None:
        upstream.scripts.append(answers("Hello", " there"))
        body = turn("hello", stream=stream) if path == MESSAGES else chat("hello", stream=stream)
        status, _, rest = split(raw(bounded, post(body, path, version=version), half_close=True))
        assert status == 200
        assert b" there" in rest or b"Hello there" in rest

    def test_so_does_one_that_waits_long_for_it(self, bounded: ProxyProcess, upstream: FaultUpstream) -> None:
        script = Script((Pause(0.6), *says("Hello "), Pause(0.6), *says("there"), *stops()))
        for stream in (False, True):
            upstream.scripts.append(script)
            with connected(bounded) as client:
                client.sendall(post(turn("hello", stream=stream)))
                client.shutdown(socket.SHUT_WR)
                answer = http.client.HTTPResponse(client)
                answer.begin()
                text = answer.read()
                assert answer.status == 200
            assert b"there" in text

    def test_several_requests_before_the_end_are_all_answered(self, bounded: ProxyProcess) -> None:
        chunk = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        assert raw(bounded, chunk * 5, half_close=True).count(b"HTTP/1.1 200 OK") == 5

    @pytest.mark.parametrize(
        "part", [b"GET /hea", b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"]
    )
    def test_half_a_request_is_no_request(self, bounded: ProxyProcess, part: bytes) -> None:
        with_key = part.replace(b"host: a\r\n", b"host: localhost\r\n" + KEY)
        refused(raw(bounded, with_key, half_close=True), 400)
