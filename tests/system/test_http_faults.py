"""Everything that a server or a network does to a question: one table, over real sockets.

Pollers (`llama.client`), commands that wait (`system.http.ask`) and benches (`llama.chat`) ask the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.readings import Failure, FailureKind
from specdash.llama import chat
from specdash.llama.chat import ChatFault
from specdash.llama.client import MAX_BODY_BYTES, BlockingClient, question
from specdash.system import http
from support.fault_server import (
    FaultServer,
    answer,
    drips,
    floods,
    free_port,
    full_backlog,
    hangs,
    resets,
    says,
    writes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.scripted_server import Behaviour

OK = b"HTTP/1.1 200 OK\r\n"
NINE = OK + b"Content-Length: 9\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
K = FailureKind
LIMIT_S = 0.6

FAULTS: dict[str, tuple[Behaviour, FailureKind]] = {
    "closes without an answer": (writes(b""), K.RESET),
    "closes within the head": (writes(b"HTTP/1.1 2"), K.RESET),
    "closes within the body": (writes(NINE + b"1"), K.RESET),
    "resets": (resets(), K.RESET),
    "resets within the body": (resets(NINE + b"1"), K.RESET),
    "says nothing": (hangs(), K.TIMEOUT),
    "stops within the head": (hangs(OK), K.TIMEOUT),
    "stops within the body": (hangs(NINE + b"1"), K.TIMEOUT),
    "a byte now and then": (drips(answer(200, b"x" * 500), 0.02), K.TIMEOUT),
    "greets as another protocol and waits": (hangs(b"-ERR unknown command\r\n"), K.TIMEOUT),
    "informational answers without end": (floods(b"", CONTINUE * 500, 10**6), K.TIMEOUT),
    "chunks without end, one byte each": (floods(CHUNKED, b"1\r\nx\r\n", 10**9), K.TIMEOUT),
    "another protocol": (writes(b"\x00\xff SSH-2.0 hello\r\n\r\n"), K.GARBAGE),
    "HTTP/2": (writes(b"HTTP/2 200\r\n\r\n"), K.GARBAGE),
    "no status": (writes(b"HTTP/1.1 OK\r\n\r\n"), K.GARBAGE),
    "a length below zero": (writes(OK + b"Content-Length: -5\r\n\r\nhello"), K.GARBAGE),
    "a length of 5,000 digits": (writes(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"), K.GARBAGE),
    "a chunk of no size": (writes(CHUNKED + b"xyz\r\n"), K.GARBAGE),
    "a header without end": (floods(OK + b"X: ", b"x" * 65536, 10**6), K.GARBAGE),
    "a header that is none": (writes(OK + b"hello\r\n\r\n"), K.GARBAGE),
    "an answer compressed unasked": (says(200, b"\x1f\x8b", "Content-Encoding: gzip"), K.GARBAGE),
    "a redirect to itself": (says(302, "", "Location: /x"), K.ERROR),
    "a body too large, by its length": (writes(OK + b"Content-Length: 999999999\r\n\r\n"), K.TOO_LARGE),
    "a body too large, without one": (floods(OK + b"\r\n", b"x" * 65536, 10**6), K.TOO_LARGE),
}  # fmt: skip
REDIRECTS = K.ERROR
"""They are answers like any other with such a status, and are not followed."""
UNHURRIED = {K.TOO_LARGE, K.GARBAGE, K.RESET, K.ERROR}
"""A busy machine may take its time over these: what is checked is not how long it takes."""


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


def limit_of(kind: FailureKind) -> float:
    return 20.0 if kind in UNHURRIED else LIMIT_S


async def asked(url: str, limit_s: float, connect_s: float = 10.0) -> http.HttpReply | Failure:
    async with contextlib.aclosing(http.Http(url, connect_s=connect_s)) as client:
        return await question(client, "/x", limit_s)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_poller_has_a_reason_in_time(server: FaultServer, name: str) -> None:
    server.routes["/x"], kind = FAULTS[name]
    started = time.monotonic()
    found = await asked(server.url, limit_of(kind))
    assert time.monotonic() - started < 3 * limit_of(kind) + 1  # three times the limit is a bug, not a busy machine
    if kind is REDIRECTS:
        assert isinstance(found, http.HttpReply)
        assert found.status == 302
        assert server.count("/x") == 1
    else:
        assert isinstance(found, Failure)
        assert found.kind is kind
        assert found.detail.isprintable()
        assert server.calls[-1].sent < 4 * MAX_BODY_BYTES


def test_an_answer_that_is_late_is_a_timeout_to_a_command(server: FaultServer) -> None:
    server.routes["/x"] = hangs()
    with pytest.raises(TimeoutError, match="accepts connections, no answer within"):
        http.ask(server.url, "/x", timeout=LIMIT_S)


CHAT_FAULTS = {
    K.RESET: {ChatFault.BROKEN},
    K.TIMEOUT: {ChatFault.TIMEOUT},
    K.GARBAGE: {ChatFault.GARBAGE},
    K.TOO_LARGE: {ChatFault.GARBAGE, ChatFault.TIMEOUT},
    K.ERROR: {ChatFault.REFUSED},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bench_has_an_answer_with_its_fault(server: FaultServer, name: str) -> None:
    server.routes["/v1/chat/completions"], kind = FAULTS[name]
    limit_s = 20.0 if kind in (K.GARBAGE, K.RESET, K.ERROR) else LIMIT_S
    heard = chat.ask(BlockingClient(server.url), {"stream": True}, limit_s=limit_s)
    assert heard.fault in CHAT_FAULTS[kind]
    assert heard.error
    assert heard.done_s is not None
    assert server.count("/v1/chat/completions") == 1


@given(st.binary(max_size=60), st.sampled_from([b"", OK, NINE, CHUNKED, OK + b"Set-Cookie: ", OK + b"Location: "]))
def test_any_bytes_end_in_an_answer_or_a_reason(server: FaultServer, data: bytes, head: bytes) -> None:
    server.routes["/x"] = writes(head + data + b" ")
    assert isinstance(asyncio.run(asked(server.url, 20.0)), http.HttpReply | Failure)


NOBODY: dict[str, tuple[str, FailureKind]] = {
    "nothing listens": ("http://127.0.0.1:{port}", K.REFUSED),
    "nothing listens on any address of the name": ("http://localhost:{port}", K.REFUSED),
    "a port that cannot be": ("http://127.0.0.1:99999", K.UNREACHABLE),
    "no address": ("http://[::", K.UNREACHABLE),
    "a name that cannot be": ("http://" + "a" * 80 + ".b:1", K.UNREACHABLE),
    "no host": ("http:///no/such.sock", K.UNREACHABLE),
}


@pytest.mark.parametrize("name", NOBODY)
async def test_no_connection_is_told_from_a_broken_answer(name: str) -> None:
    url, kind = NOBODY[name]
    url = url.format(port=free_port())
    found = await asked(url, 20.0)
    assert isinstance(found, Failure)
    assert found.kind is kind
    with pytest.raises(http.NoConnectionError) as raised:
        await asyncio.to_thread(http.ask, url, "/x", timeout=20.0)
    assert raised.value.kind == kind
    heard = await asyncio.to_thread(chat.ask, BlockingClient(url), {})
    assert heard.fault is ChatFault.UNREACHABLE


async def test_a_connection_that_is_never_accepted_is_given_up() -> None:
    with full_backlog() as url:
        found = await asked(url, 20.0, 0.4)
        with pytest.raises(http.NoConnectionError, match="no connection within"):
            await asyncio.to_thread(http.ask, url, "/x", timeout=0.4)
    assert found == Failure(K.UNREACHABLE, "no connection within 0.4 s")


def test_what_cannot_be_a_header_is_a_reason_that_does_not_repeat_it(server: FaultServer) -> None:
    for bad in ("a\nb", "a\0", "ü€"):
        with pytest.raises(http.HttpError, match="cannot be put into HTTP"):
            http.ask(server.url, "/x", headers={"x-key": bad})


BODIES: dict[str, bytes] = {
    "a length": NINE + b"good body",
    "the end of the connection": b"HTTP/1.1 200\r\nConnection: close\r\n\r\ngood body",
    "chunks": CHUNKED + b"4\r\ngood\r\n5;note=1\r\n body\r\n0\r\n\r\n",
    "a trailer": CHUNKED + b"9\r\ngood body\r\n0\r\nTrailer: 1\r\n\r\n",
    "something informational before it": CONTINUE * 3000 + NINE + b"good body",
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_however_it_is_framed(server: FaultServer, name: str) -> None:
    server.routes["/x"] = writes(BODIES[name])
    found: Any = await asked(server.url, 20.0)
    assert (found.status, found.body) == (200, b"good body")
