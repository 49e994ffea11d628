"""Clients as HTTP allows them, and as it does not: raw bytes on real sockets, before any key is looked at."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import chat
from support.raw_client import (
    CHAT,
    DEADLINE_S,
    MESSAGES,
    connected,
    post,
    raw,
    read_answer,
    refused,
)

BOUNDS = {
    "PROXY_API_KEY": "right",
    "PROXY_MAX_BODY_MIB": 1,
}


@pytest.fixture(scope="module")
def bounded(scripted: FaultUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy with a key and little patience."""
    with running_proxy(scripted.url, tmp_path_factory.mktemp("bounded"), BOUNDS) as proxy:
        yield proxy


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

    @pytest.mark.parametrize("path", [MESSAGES, CHAT])
    @pytest.mark.parametrize("coding", [b"gzip", b"br"])
    def test_a_packed_body_is_refused(self, bounded: ProxyProcess, path: str, coding: bytes) -> None:
        request = post(b"{}", path, b"connection: close", b"content-encoding: " + coding)
        refused(raw(bounded, request), 415, path)

    def test_deep_nesting_is_the_clients_fault_on_the_openai_endpoint_too(self, bounded: ProxyProcess) -> None:
        body = json.dumps(chat("hello", stream=False))[:-1]
        deep = body.encode() + b',"deep":' + b"[" * 5000 + b"]" * 5000 + b"}"
        refused(raw(bounded, post(deep, CHAT, b"connection: close")), 400, CHAT)


def _send(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(data)


def test_where_other_machines_can_connect_the_head_of_a_request_is_bounded(
    scripted: FaultUpstream, tmp_path: Path
) -> None:
    values = {"PROXY_HOST": "0.0.0.0", "PROXY_API_KEY": "right"}
    with running_proxy(scripted.url, tmp_path, values) as proxy:
        before = proxy.rss()
        lines = b"x-filler: " + b"a" * 1000 + b"\r\n"
        answer = raw(proxy, b"GET /health HTTP/1.1\r\nhost: localhost\r\n", *[lines * 1000] * 30)
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")) or not answer
        assert proxy.rss() - before < 8 << 20
        assert proxy.request("GET", "/health").status == 200
