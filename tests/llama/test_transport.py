"""Connections are kept, replaced and given up as the server does; what it does to an answer is in test_http_faults."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from specdash.core.readings import Failure, FailureKind
from specdash.llama.client import question
from specdash.system.http import Http, HttpReply
from support.fault_server import FaultServer, says, writes


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


async def got(
    server: FaultServer | str, path: str = "/x", deadline_s: float = 20.0, connect_s: float = 10.0
) -> HttpReply | Failure:
    url = server if isinstance(server, str) else server.url
    asking = Http(url, connect_s=connect_s)
    try:
        return await question(asking, path, deadline_s)
    finally:
        await asking.aclose()


class TestConnections:
    async def test_a_connection_is_used_again_unless_the_server_says_otherwise(self, server: FaultServer) -> None:
        asking = Http(server.url)
        server.routes = {"/keep": says(200, "x"), "/close": says(200, "x", "Connection: close")}
        for path in ("/keep", "/keep", "/close", "/keep"):
            assert isinstance(await question(asking, path, 20.0), HttpReply)
        await asking.aclose()
        assert server.connections == 2

    async def test_questions_at_the_same_time_have_a_connection_each(self, server: FaultServer) -> None:
        server.routes["/x"] = says(200, "x")
        asking = Http(server.url)
        for _ in range(3):
            answers = await asyncio.gather(*(question(asking, "/x", 20.0) for _ in range(4)))
            assert all(isinstance(answer, HttpReply) for answer in answers)
        await asking.aclose()
        assert server.connections == 4

    async def test_connections_that_the_server_closed_meanwhile_are_replaced(self, server: FaultServer) -> None:
        server.routes["/x"] = says(200, "x")
        asking = Http(server.url)
        for _ in range(3):
            assert isinstance(await question(asking, "/x", 20.0), HttpReply)
            server.drop_connections()
        await asking.aclose()
        assert server.connections == 3

    async def test_a_used_connection_that_breaks_within_an_answer_is_no_reason_to_ask_again(
        self, server: FaultServer
    ) -> None:
        server.routes = {"/x": says(200, "x"), "/cut": writes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1")}
        asking = Http(server.url)
        await question(asking, "/x", 20.0)
        failure = await question(asking, "/cut", 20.0)
        await asking.aclose()
        assert failure == Failure(FailureKind.RESET, "connection closed within the answer")
        assert server.count("/cut") == 1

    async def test_a_name_that_does_not_resolve_cannot_be_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: object, **__: object) -> list[object]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        failure = await got("http://no.such.host:1")
        assert failure == Failure(FailureKind.UNREACHABLE, "no.such.host: Name or service not known")

    async def test_a_resolver_that_hangs_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        released = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(20) and [])
        failure = await got("http://slow.host:1", connect_s=0.5)
        released.set()
        assert failure == Failure(FailureKind.UNREACHABLE, "no connection within 0.5 s")

    async def test_tls_to_a_server_without_it_is_a_failure(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=_answer_once, args=(listener,), daemon=True).start()
            failure = await got(f"https://127.0.0.1:{listener.getsockname()[1]}")
        assert isinstance(failure, Failure)

    async def test_a_handshake_that_takes_too_long_leaves_no_connection(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            failure = await got(f"https://127.0.0.1:{listener.getsockname()[1]}", deadline_s=0.4)
            await asyncio.to_thread(_hear_until_it_closes, listener)
        assert failure == Failure(FailureKind.UNREACHABLE, "no connection within 0.4 s")

    async def test_a_question_with_a_body_is_posted_once_with_its_headers(self, server: FaultServer) -> None:
        server.routes["/x"] = says(200, "{}")
        asking = Http(server.url, {"Authorization": "Bearer K"})
        try:
            answer = await question(asking, "/x", 20.0, body={"a": "é"}, headers={"x-session": "s1"})
            assert isinstance(answer, HttpReply)
            server.drop_connections()
            server.routes["/x"] = writes(b"")
            assert isinstance(await question(asking, "/x", 20.0, body={}), Failure)
        finally:
            await asking.aclose()
        head = server.asked("/x")[0].head
        assert head.startswith("POST /x HTTP/1.1")
        for line in ("Content-Type: application/json", "x-session: s1", "Authorization: Bearer K"):
            assert line in head


def _hear_until_it_closes(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(10)
        while connection.recv(4096):
            """The greeting of TLS."""


def _answer_once(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
