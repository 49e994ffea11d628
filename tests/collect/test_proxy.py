"""The proxy's live picture: our own proxy's and a UAP proxy's, and every way in which there is none."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from specdash.collect.backend import PollPace
from specdash.collect.proxy import UAP, ProxyPoller, parse_context
from specdash.core.proxy_events import (
    ActiveView,
    ProxyStatus,
    RequestPhase,
    SessionView,
    UpstreamStatus,
)
from specdash.core.readings import Failure, FailureKind, Reading, Source
from specdash.core.structs import json_of
from specdash.core.target import Target
from specdash.llama.server_answers import ParseError
from support.fault_server import FaultServer, free_port, hangs, resets, says
from support.waiting import until_async

STATUS = ProxyStatus(
    version="0.3.0",
    started=1.0,
    upstream=UpstreamStatus.OK,
    context_window=32768,
    requests=7,
    counters={"malformed_tool:retried": 2},
    sessions=(SessionView("s1", 5.0, context_tokens=1000, context_window=32768),),
    session_count=1,
    active=(ActiveView("r1", "s1", 4.0, RequestPhase.PREFILL, prompt_tokens=900, prompt_done=300),),
)
UAP_ANSWER = {
    "active_session_id": "fp:0123456789abcdef0123",
    "session_count": 2,
    "context_window": 65536,
    "last_input_tokens": 50000,
    "last_output_tokens": 210,
    "peak_input_tokens": 51000,
    "utilization": 0.7629,
    "warning_level": "ELEVATED",
    "estimated_turns_remaining": 6,
    "total_requests": 41,
    "prune_count": 1,
    "overflow_count": 0,
    "recent_history": [],
    "loop_protection": {
        "enabled": True,
        "no_progress_streak": 3,
        "loop_warnings_emitted": 2,
        "unexpected_end_turn_count": 1,
        "malformed_tool_streak": 4,
        "contamination_resets": 1,
        "is_looping": True,
        "loop_repeat_count": 9,
    },
}


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer({"/v1/context": says(200, json.dumps({"status": json_of(STATUS)}))}) as running:
        yield running


async def look(url: str, key: str | None = None, deadline_s: float = 1.0) -> ProxyStatus | Failure:
    target = Target("http://127.0.0.1:1", proxy_url=url, proxy_key=key)
    async with aclosing(ProxyPoller(target, lambda _: None, deadline_s=deadline_s)) as poller:
        found = await poller.look()
        assert isinstance(found, Failure) or await poller.look() is found, "what did not change is not parsed again"
        return found


async def kind(url: str, **options: Any) -> FailureKind:
    result = await look(url, **options)
    assert isinstance(result, Failure)
    return result.kind


async def test_our_own_proxy_tells_its_whole_picture(server: FaultServer) -> None:
    assert await look(server.url) == STATUS
    newer = {**json_of(STATUS), "of_a_newer_version": 1}
    assert parse_context(json.dumps({"status": newer}).encode()) == STATUS


async def test_the_key_is_sent_and_never_told(server: FaultServer) -> None:
    await look(server.url, "sk-secret")
    assert "Authorization: Bearer sk-secret" in server.asked("/v1/context")[-1].head
    server.routes["/v1/context"] = says(500, '{"error":{"message":"bad sk-secret"}}')
    result = await look(server.url, "sk-secret")
    assert isinstance(result, Failure)
    assert "sk-secret" not in str(result)
    assert "sk-secret" not in repr(Target("http://x", proxy_key="sk-secret"))


async def test_a_uap_proxy_is_shown_as_one_session(server: FaultServer) -> None:
    server.routes["/v1/context"] = says(200, json.dumps(UAP_ANSWER))
    status = await look(server.url)
    assert isinstance(status, ProxyStatus)
    assert (status.version, status.session_count, status.context_window) == (UAP, 2, 65536)
    (session,) = status.sessions
    assert session.utilisation == pytest.approx(0.7629, abs=1e-4)
    assert (session.turns_remaining, session.malformed_streak, session.loop_repeats) == (6, 4, 9)
    assert session.is_looping
    assert status.upstream is UpstreamStatus.UNKNOWN
    assert session.last_seen == 0.0, "only a change that was seen dates it"
    assert parse_context(json.dumps(UAP_ANSWER).encode(), 12.0).sessions[0].last_seen == 12.0
    none = {**UAP_ANSWER, "active_session_id": None, "total_requests": 0}
    assert parse_context(json.dumps(none).encode()).sessions == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"<html>",
        b'{"status":"ok"}',
        b'{"status":{"requests":"many"}}',
        b'{"status":{"sessions":[{"id":"a","last_seen":null}]}}',
        b'{"status":{"active":[{"request_id":"r","session":"s","started":1,"phase":"dancing"}]}}',
        b'{"status":{"context_window":NaN}}',
        b'{"status":{"started":Infinity}}',
        b'{"models":[]}',
    ],
)
def test_what_is_no_proxys_answer_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_context(body)


async def test_every_failure_has_its_kind(server: FaultServer) -> None:
    assert await kind(f"http://127.0.0.1:{free_port()}") is FailureKind.REFUSED
    faults = {
        FailureKind.UNAUTHORIZED: says(401, '{"error":{"message":"no"}}'),
        FailureKind.NOT_FOUND: says(404, "{}"),
        FailureKind.GARBAGE: says(200, "hello"),
        FailureKind.RESET: resets(),
        FailureKind.TIMEOUT: hangs(),
        FailureKind.ERROR: says(503, "{}"),
    }
    for expected, behaviour in faults.items():
        server.routes["/v1/context"] = behaviour
        assert await kind(server.url, deadline_s=0.2 if expected is FailureKind.TIMEOUT else 10.0) is expected


async def test_it_keeps_asking_and_tells_of_an_end_and_a_return(server: FaultServer) -> None:
    seen: list[Reading[Any]] = []
    pace = PollPace(first_retry=0.02, last_retry=0.02)
    poller = ProxyPoller(
        Target("http://127.0.0.1:1", proxy_url=server.url), seen.append, interval_s=0.25, pace=pace, deadline_s=5.0
    )
    polling = asyncio.create_task(poller.run())
    good = server.routes["/v1/context"]
    try:
        await until_async(lambda: bool(seen) and seen[-1].value == STATUS)
        server.routes["/v1/context"] = says(502, "{}")
        await until_async(lambda: seen[-1].failure is not None)
        server.routes["/v1/context"] = good
        await until_async(lambda: seen[-1].value == STATUS)
    finally:
        polling.cancel()
        with suppress(asyncio.CancelledError):
            await polling
        await poller.aclose()
    assert {reading.source for reading in seen} == {Source.PROXY}
