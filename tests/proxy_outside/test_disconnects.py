"""A client that leaves, at any moment and on any path, aborts the upstream's generation within a second."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import OPENAI_TOOLS, TOOLS, RawClient, chat, told, turn
from support.upstream_script import Endless, Hang, Script, answers, calls, says, stops, thinks
from support.waiting import until

ABORT_S = 1.0
MESSAGES, CHAT, COUNT = "/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"


@dataclass(frozen=True, slots=True)
class Path_:  # noqa: N801
    """A way to ask: the proxy, the endpoint and its body."""

    proxy: str
    path: str
    body: dict[str, Any]


PATHS = {
    "stream": Path_("plain", MESSAGES, turn(stream=True, tools=TOOLS)),
    "whole": Path_("plain", MESSAGES, turn(tools=TOOLS)),
    "strict": Path_("strict", MESSAGES, turn(stream=True, tools=TOOLS)),
    "passed through, stream": Path_("plain", CHAT, chat(stream=True, tools=OPENAI_TOOLS)),
    "passed through, whole": Path_("plain", CHAT, chat(tools=OPENAI_TOOLS)),
}
MOMENTS = {
    "before the head": Script(hangs=True),
    "before the first token": Script((Hang(),)),
    "during prefill": Script((Hang(),), progress=(10, 20, 30, 40), prefill_pause_s=0.2),
    "in the text": Script((*says("Hello ", "world"), Hang())),
    "in the thinking": Script((*thinks("Let me ", "see"), Hang())),
    "in a tool call": Script((*calls("read_file", {"path": "a.py"})[:3], Hang())),
    "while it talks without end": Script((Endless(),)),
}


@pytest.mark.parametrize("moment", list(MOMENTS))
@pytest.mark.parametrize("path", list(PATHS))
def test_leaving_aborts_the_upstream(
    request: pytest.FixtureRequest, upstream: FaultUpstream, path: str, moment: str
) -> None:
    way, reset = PATHS[path], (list(PATHS).index(path) + list(MOMENTS).index(moment)) % 2 == 0
    proxy: ProxyProcess = request.getfixturevalue(way.proxy)
    upstream.otherwise = MOMENTS[moment]
    with RawClient(proxy.port, way.path, way.body) as client:
        item = upstream.wait_chats(1)[0]
        if item.body.get("stream") and not MOMENTS[moment].hangs:
            assert item.started.wait(5)
        time.sleep(0.02)
        left = time.monotonic()
        client.leave(reset=reset)
        assert item.wait_left(ABORT_S) - left < ABORT_S
    proxy.wait_idle()


def test_leaving_a_stream_that_only_gets_pings_aborts_the_upstream(
    plain: ProxyProcess, upstream: FaultUpstream
) -> None:
    upstream.otherwise = Script(hangs=True)
    with RawClient(plain.port, MESSAGES, turn(stream=True)) as client:
        client.read_until(b"event: ping")
        client.leave()
        upstream.chats[0].wait_left(ABORT_S)


def test_leaving_while_tokens_are_counted_aborts_the_count(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    hanging = Script(hangs=True)
    upstream.routes = {CHAT + "/input_tokens": hanging, "/apply-template": hanging, "/tokenize": hanging}
    before = len(upstream.calls)
    with RawClient(plain.port, COUNT, turn()) as client:
        until(lambda: any(item.path in upstream.routes for item in upstream.calls[before:]))
        asked = next(item for item in upstream.calls[before:] if item.path in upstream.routes)
        client.leave()
        asked.wait_left(ABORT_S)
    plain.wait_idle()


@pytest.mark.parametrize("path", list(PATHS))
def test_leaving_while_the_proxy_is_held_never_reaches_the_upstream(
    request: pytest.FixtureRequest, upstream: FaultUpstream, path: str
) -> None:
    way = PATHS[path]
    proxy: ProxyProcess = request.getfixturevalue(way.proxy)
    proxy.hold()
    try:
        with RawClient(proxy.port, way.path, way.body) as client:
            proxy.wait_waiting(1)
            client.leave()
            proxy.wait_waiting(0)
    finally:
        proxy.resume()
    proxy.wait_idle()
    assert upstream.chats == []


def test_held_requests_are_kept_alive_and_answered_after_it(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    plain.hold()
    try:
        with RawClient(plain.port, MESSAGES, turn(stream=True)) as client:
            client.read_until(b"event: ping")
            assert upstream.chats == []
            plain.resume()
            client.read_until(b"message_stop")
            assert b"Hello" in client.received
    finally:
        plain.resume()


def test_leaving_during_a_retry_aborts_the_retry(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    bad = (*calls("read_file", {"limit": "many"}), *stops("tool_calls"))
    upstream.scripts = [Script(bad), Script((*says("a"), Hang()))]
    with RawClient(plain.port, MESSAGES, turn(tools=TOOLS)) as client:
        retry = upstream.wait_chats(2)[1]
        client.leave()
        retry.wait_left(ABORT_S)
    plain.wait_idle()


def test_leaving_the_queue_never_reaches_the_upstream(upstream: FaultUpstream, tmp_path: Path) -> None:
    with running_proxy(upstream.url, tmp_path, {"PROXY_MAX_CONNECTIONS": 1}) as proxy:
        upstream.otherwise = Script((*says("Hello "), Hang()))
        with (
            RawClient(proxy.port, MESSAGES, turn("first", stream=True)) as first,
            RawClient(proxy.port, MESSAGES, turn("second")) as second,
        ):
            first.read_until(b"Hello")
            second.leave()
            upstream.otherwise = answers("Hello")
            first.leave()
            upstream.chats[0].wait_left(ABORT_S)
        proxy.wait_idle()
        assert told(proxy.messages(turn("third"))).text == "Hello"
        assert len(upstream.chats) == 2


def test_the_event_says_that_the_client_left(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    plain.wait_idle()
    before = len(plain.events("request"))
    upstream.otherwise = Script((*says("Hello "), Endless()))
    with RawClient(plain.port, MESSAGES, turn(stream=True), {"x-claude-code-session-id": "leaver"}) as client:
        client.read_until(b"Hello")
    event = plain.wait_events(before + 1)[-1]
    assert event["outcome"] == "client_left"
    assert "leaver" in event["session"]
    assert event["completion_tokens"] >= 1


def test_a_client_that_reads_slowly_loses_nothing(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    pieces = [f"piece {number} " * 40 for number in range(1000)]
    upstream.otherwise = answers(*pieces)
    with RawClient(plain.port, MESSAGES, turn(stream=True)) as client:
        time.sleep(0.5)
        body = client.read_until(b"event: message_stop")
    assert b"piece 999" in body


def test_a_client_that_stops_reading_does_not_fill_the_memory(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    before = plain.rss()
    upstream.otherwise = Script((Endless("x" * 10_000 + "\n", 0.0),))
    with RawClient(plain.port, MESSAGES, turn(stream=True)) as client:
        client.read_until(b"xxx")
        time.sleep(1.5)
        assert plain.rss() - before < 40e6
    upstream.chats[0].wait_left()
