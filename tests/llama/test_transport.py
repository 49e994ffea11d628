"""The transport speaks as much HTTP/1.1 as servers and reverse proxies use for a GET, and believes nothing else."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.readings import Failure, FailureKind
from specdash.llama.client import MAX_BODY_BYTES, HttpAnswer, Transport
from support.fault_server import FaultServer, floods, hangs, says, writes


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


async def got(
    server: FaultServer | str, data: bytes = b"", path: str = "/x", deadline_s: float = 20.0, connect_s: float = 10.0
) -> HttpAnswer | Failure:
    url = server if isinstance(server, str) else server.url
    if isinstance(server, FaultServer) and data:
        server.routes[path] = writes(data)
    asking = Transport(url, None, connect_s)
    try:
        return await asking.get(path, deadline_s)
    finally:
        await asking.aclose()


class TestFraming:
    @pytest.mark.parametrize(
        "data",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.0 200 OK\r\ncontent-length:5\r\n\r\nhello",
            b"HTTP/1.1 200\r\nConnection: close\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;note=1\r\nllo\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nTrailer: 1\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        ],
    )
    async def test_a_body_however_it_is_framed(self, server: FaultServer, data: bytes) -> None:
        answer = await got(server, data)
        assert isinstance(answer, HttpAnswer)
        assert (answer.status, answer.body) == (200, b"hello")

    async def test_an_answer_without_a_body(self, server: FaultServer) -> None:
        answer = await got(server, b"HTTP/1.1 204 No Content\r\n\r\n")
        assert isinstance(answer, HttpAnswer)
        assert answer.body == b""

    @pytest.mark.parametrize(
        "data",
        [
            b"hello\r\n\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: " + b"x" * 200_000,
        ],
    )
    async def test_what_is_not_http_is_garbage(self, server: FaultServer, data: bytes) -> None:
        failure = await got(server, data)
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.GARBAGE

    async def test_a_size_beyond_the_bound_is_refused_by_its_announcement(self, server: FaultServer) -> None:
        failure = await got(server, b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.TOO_LARGE

    async def test_a_chunk_beyond_the_bound_is_cut_when_the_bound_has_come(self, server: FaultServer) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n"
        server.routes["/x"] = floods(head, b"x" * 65536, 4096)
        failure = await got(server)
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.TOO_LARGE
        assert server.calls[-1].sent < 4 * MAX_BODY_BYTES

    async def test_a_chunk_cut_short_is_a_broken_connection(self, server: FaultServer) -> None:
        failure = await got(server, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe")
        assert failure == Failure(FailureKind.RESET, "connection closed within the answer")

    async def test_a_greeting_of_another_protocol_is_garbage_without_waiting_for_more(
        self, server: FaultServer
    ) -> None:
        server.routes["/x"] = hangs(b"-ERR unknown command\r\n")
        assert await got(server) == Failure(FailureKind.GARBAGE, "the answer is not HTTP")

    async def test_silence_within_the_head_is_an_answer_that_is_not_complete(self, server: FaultServer) -> None:
        server.routes["/x"] = hangs(b"HTTP/1.1 200 OK\r\n")
        failure = await got(server, deadline_s=1.5)
        assert failure == Failure(FailureKind.TIMEOUT, "the answer was not complete within 1.5 s")

    @given(
        st.binary(max_size=60),
        st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"]),
    )
    def test_any_bytes_end_in_an_answer_or_a_failure(self, server: FaultServer, data: bytes, head: bytes) -> None:
        assert isinstance(asyncio.run(got(server, head + data + b" ")), HttpAnswer | Failure)


class TestConnections:
    async def test_a_connection_is_used_again_unless_the_server_says_otherwise(self, server: FaultServer) -> None:
        asking = Transport(server.url, None, 10.0)
        server.routes = {"/keep": says(200, "x"), "/close": says(200, "x", "Connection: close")}
        for path in ("/keep", "/keep", "/close", "/keep"):
            assert isinstance(await asking.get(path, 20.0), HttpAnswer)
        await asking.aclose()
        assert server.connections == 2

    async def test_questions_at_the_same_time_have_a_connection_each(self, server: FaultServer) -> None:
        server.routes["/x"] = says(200, "x")
        asking = Transport(server.url, None, 10.0)
        for _ in range(3):
            answers = await asyncio.gather(*(asking.get("/x", 20.0) for _ in range(4)))
            assert all(isinstance(answer, HttpAnswer) for answer in answers)
        await asking.aclose()
        assert server.connections == 4

    async def test_connections_that_the_server_closed_meanwhile_are_replaced(self, server: FaultServer) -> None:
        server.routes["/x"] = says(200, "x")
        asking = Transport(server.url, None, 10.0)
        for _ in range(3):
            assert isinstance(await asking.get("/x", 20.0), HttpAnswer)
            server.drop_connections()
        await asking.aclose()
        assert server.connections == 3

    async def test_a_kept_connection_that_the_server_closes_is_told_of_at_once(self, server: FaultServer) -> None:
        server.routes = {"/x": says(200, "x"), "/close": says(200, "x", "Connection: close"), "/cut": writes(b"")}
        asking, closed = Transport(server.url, None, 10.0), asyncio.Event()
        asking.on_closed = closed.set
        for path in ("/close", "/cut", "/x"):
            await asking.get(path, 20.0)
        assert not closed.is_set()
        server.drop_connections()
        async with asyncio.timeout(10.0):
            await closed.wait()
        await asking.aclose()

    async def test_a_used_connection_that_breaks_within_an_answer_is_no_reason_to_ask_again(
        self, server: FaultServer
    ) -> None:
        server.routes = {"/x": says(200, "x"), "/cut": writes(b"HTTP/1.1 2")}
        asking = Transport(server.url, None, 10.0)
        await asking.get("/x", 20.0)
        failure = await asking.get("/cut", 20.0)
        await asking.aclose()
        assert failure == Failure(FailureKind.RESET, "connection closed within the answer")
        assert server.count("/cut") == 1

    async def test_a_prefix_of_the_address_goes_before_the_path(self, server: FaultServer) -> None:
        await got(f"{server.url}/llama", path="/health")
        assert server.count("/llama/health") == 1

    async def test_localhost_is_tried_on_both_of_its_addresses(self) -> None:
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::1", 0))
            except OSError:
                pytest.skip("no IPv6 here")
            probe.listen()
            threading.Thread(target=_answer_once, args=(probe,), daemon=True).start()
            answer = await got(f"http://localhost:{probe.getsockname()[1]}")
        assert isinstance(answer, HttpAnswer)

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

    async def test_a_question_with_a_body_is_posted_once_with_its_headers(self, server: FaultServer) -> None:
        server.routes["/x"] = says(200, "{}")
        asking = Transport(server.url, "K")
        try:
            answer = await asking.post("/x", {"a": "é"}, 20.0, {"x-session": "s1"})
            assert isinstance(answer, HttpAnswer)
            server.drop_connections()
            server.routes["/x"] = writes(b"")
            assert isinstance(await asking.post("/x", {}, 20.0), Failure)
        finally:
            await asking.aclose()
        head = server.asked("/x")[0].head
        assert head.startswith("POST /x HTTP/1.1")
        for line in ("Content-Type: application/json", "x-session: s1", "Authorization: Bearer K"):
            assert line in head


def _answer_once(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
