"""The proxy's live picture: our own proxy's and a UAP proxy's, and every way in which there is none.

Which fault of an answer is which failure: tests/llama/test_client.py.
"""

import asyncio
import json
from contextlib import aclosing, suppress

import pytest

from collect.seen import Seen
from specdash.collect.backend import PollPace
from specdash.collect.proxy import UAP, ProxyPoller, parse_context
from specdash.core.proxy_events import ActiveView, ProxyStatus, RequestPhase, SessionView, UpstreamStatus
from specdash.core.readings import Failure, FailureKind, Source
from specdash.core.structs import json_of
from specdash.core.target import Target
from specdash.llama.server_answers import ParseError
from support.fault_server import FaultServer, says
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
    "estimated_turns_remaining": 6,
    "total_requests": 41,
    "loop_protection": {
        "malformed_tool_streak": 4,
        "is_looping": True,
        "loop_repeat_count": 9,
    },
}
OURS = says(200, json.dumps({"status": json_of(STATUS)}))


@pytest.fixture(autouse=True)
def _proxy(server: FaultServer) -> None:
    server.routes["/v1/context"] = OURS


async def look(url: str, key: str | None = None) -> ProxyStatus | Failure:
    target = Target("http://127.0.0.1:1", proxy_url=url, proxy_key=key)
    async with aclosing(ProxyPoller(target, lambda _: None)) as poller:
        found = await poller.look()
        assert isinstance(found, Failure) or await poller.look() is found, "what did not change is not parsed again"
        return found


async def test_our_own_proxy_shows_its_whole_picture(server: FaultServer) -> None:
    assert await look(server.url) == STATUS
    newer = {**json_of(STATUS), "of_a_newer_version": 1}
    assert parse_context(json.dumps({"status": newer}).encode()) == STATUS


async def test_the_key_is_sent_and_never_shown(server: FaultServer) -> None:
    await look(server.url, "sk-secret")
    assert "Authorization: Bearer sk-secret" in server.asked("/v1/context")[-1].head
    server.routes["/v1/context"] = says(500, '{"error":{"message":"bad sk-secret"}}')
    result = await look(server.url, "sk-secret")
    assert isinstance(result, Failure)
    assert "sk-secret" not in f"{result} {Target('http://x', proxy_key='sk-secret')!r}"


async def test_a_uap_proxy_is_shown_as_one_session(server: FaultServer) -> None:
    server.routes["/v1/context"] = says(200, json.dumps(UAP_ANSWER))
    status = await look(server.url)
    assert isinstance(status, ProxyStatus)
    assert (status.version, status.session_count, status.context_window) == (UAP, 2, 65536)
    assert status.upstream is UpstreamStatus.UNKNOWN
    (session,) = status.sessions
    assert session.utilisation == pytest.approx(0.7629, abs=1e-4)
    assert (session.turns_remaining, session.malformed_streak, session.loop_repeats) == (6, 4, 9)
    assert session.is_looping
    assert session.last_seen == 0.0, "only a change that was seen dates it"
    assert parse_context(json.dumps(UAP_ANSWER).encode(), 12.0).sessions[0].last_seen == 12.0
    none = {**UAP_ANSWER, "active_session_id": None, "total_requests": 0}
    assert parse_context(json.dumps(none).encode()).sessions == ()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"<html>", b'{"status":"ok"}', b'{"models":[]}', b'{"status":{"context_window":NaN}}',
     b'{"status":{"requests":"many"}}', b'{"status":{"sessions":[{"id":"a","last_seen":null}]}}'],
)  # fmt: skip
async def test_what_is_no_proxys_answer_is_refused(server: FaultServer, body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_context(body)
    server.routes["/v1/context"] = says(200, body)
    refused = await look(server.url)
    assert isinstance(refused, Failure)
    assert refused.kind is FailureKind.GARBAGE


async def test_it_keeps_asking_and_shows_an_end_and_a_return(server: FaultServer) -> None:
    seen, pace = Seen(), PollPace(first_retry=0.02, last_retry=0.02)
    target = Target("http://127.0.0.1:1", proxy_url=server.url)
    poller = ProxyPoller(target, seen.take, interval_s=0.25, pace=pace, deadline_s=5.0)
    polling = asyncio.create_task(poller.run())
    try:
        await until_async(lambda: seen.last(Source.PROXY) == STATUS)
        server.routes["/v1/context"] = says(502, "{}")
        await until_async(lambda: seen.kind(Source.PROXY))
        server.routes["/v1/context"] = OURS
        await until_async(lambda: seen.last(Source.PROXY) == STATUS)
    finally:
        polling.cancel()
        with suppress(asyncio.CancelledError):
            await polling
        await poller.aclose()
