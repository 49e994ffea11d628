"""Faults of the upstream, and bad requests: what the client is told, in the envelope of the API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.anthropic_stream import checked
from support.fault_server import free_port
from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import OPENAI_TOOLS, TOOLS, Told, Way, chat, told, turn
from support.upstream_script import (
    Drop,
    Hang,
    Raw,
    Script,
    answers,
    calls,
    error,
    error_event,
    loading,
    overflow,
    says,
    stops,
    unauthorised,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def failed(seen: Told) -> dict[str, Any]:
    """The error; nothing else was told."""
    assert seen.message is None, seen
    assert seen.error is not None
    assert "message_delta" not in seen.names
    assert "message_stop" not in seen.names
    return seen.error


def test_overflow_says_the_words_that_make_clients_compact(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = overflow(70123, 65536)
    seen = way.ask(turn(tools=TOOLS))
    assert failed(seen)["type"] == "invalid_request_error"
    assert "prompt is too long: 70123 tokens > 65536 maximum" in failed(seen)["message"]
    assert way.refused(seen, 400)
    assert len(upstream.chats) == 1


def test_a_model_that_loads_is_an_overloaded_server_to_try_again(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = loading()
    seen = way.ask(turn(tools=TOOLS))
    assert failed(seen)["type"] == "overloaded_error"
    assert way.refused(seen, 529)
    assert seen.status == 200 or int(seen.headers["retry-after"]) >= 1


def test_the_operators_wrong_key_is_not_the_clients_fault(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = unauthorised()
    seen = way.ask(turn(tools=TOOLS))
    assert failed(seen)["type"] == "api_error"
    assert way.refused(seen, 502)
    assert "PROXY_UPSTREAM_API_KEY" in failed(seen)["message"]


def test_a_refused_request_keeps_the_upstreams_words(way: Way, upstream: FaultUpstream) -> None:
    words = "Cannot use custom grammar constraints with tools."
    upstream.otherwise = error(400, words, "invalid_request_error")
    seen = way.ask(turn(tools=TOOLS))
    assert failed(seen)["type"] == "invalid_request_error"
    assert way.refused(seen, 400)
    assert words in failed(seen)["message"]


def test_an_upstream_that_fails_is_an_api_error(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = error(500, "Compute error.", "server_error")
    seen = way.ask(turn(tools=TOOLS))
    assert failed(seen)["type"] == "api_error"
    assert way.refused(seen, 500)
    assert "Compute error." in failed(seen)["message"]


@pytest.mark.parametrize(
    "script",
    [
        Script(body=b"<html><body>Bad gateway</body></html>", content_type="text/html"),
        Script(status=502, body=b"<html>nginx</html>", content_type="text/html"),
        Script(body=b""),
        Script(body=b"[1, 2"),
        Script(body=b'{"unexpected": true}'),
        Script(status=404, body=b"not here", content_type="text/plain"),
        Script(status=418, body=b"\xff\xfe"),
        Script(status=204, body=b""),
    ],
    ids=["html", "gateway", "nothing", "half-json", "other-json", "404", "bytes", "204"],
)
def test_an_answer_that_is_no_answer_is_an_error(way: Way, upstream: FaultUpstream, script: Script) -> None:
    upstream.otherwise = script
    seen = way.ask(turn(tools=TOOLS))
    failed(seen)
    assert seen.status >= 400 or way.refused(seen, 500)


BROKEN = {
    "text": (*says("Hello ", "wor"), Drop()),
    "tool arguments": (*calls("read_file", {"path": "a.py"})[:2], Drop()),
    "after the text": (*says("Hello"), Drop()),
    "before any text": (Drop(),),
    "an event of half a line": (*says("Hello"), Raw(b'data: {"choices":[{"del'), Drop()),
    "error event": (*says("Hello"), error_event()),
    "error event first": (error_event(),),
    "error event in OpenAI's form": (*says("Hello"), Raw(b'data: {"error":{"message":"gone","type":"x"}}\n\n')),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_an_answer_that_breaks_off_is_an_error_and_never_an_end(way: Way, upstream: FaultUpstream, name: str) -> None:
    upstream.otherwise = Script(BROKEN[name], usage=False, done=False)
    failed(way.ask(turn(tools=TOOLS)))


def test_an_end_without_finish_reason_is_an_error(way: Way, upstream: FaultUpstream) -> None:
    """The body ends as HTTP wants it, but the answer was never finished."""
    upstream.otherwise = Script(says("Hello"), usage=False, done=False)
    failed(way.ask(turn(tools=TOOLS)))


def test_a_finished_answer_without_done_is_whole(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = answers("Hello", done=False)
    assert way.ask(turn(tools=TOOLS)).text == "Hello"


def test_what_came_before_a_break_reaches_a_streaming_client(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((*says("Hello ", "wor"), Drop()))
    seen = checked(proxy.messages(turn(stream=True)).body)
    assert seen.error is not None
    assert seen.text == "Hello wor"


def test_a_stale_pooled_connection_is_retried_once(way: Way, upstream: FaultUpstream) -> None:
    upstream.stale_after = 1
    for _ in range(4):
        assert way.ask(turn(tools=TOOLS)).text == "Hello"


def test_a_fresh_connection_that_breaks_is_not_retried_for_ever(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script(drops=True)
    seen = way.ask(turn(tools=TOOLS))
    failed(seen)
    assert seen.status >= 500 or way.refused(seen, 502)
    assert len(upstream.chats) <= 2


def test_a_reset_before_any_byte_is_an_error_too(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script(drops=True, resets=True)
    failed(way.ask(turn(tools=TOOLS)))
    upstream.forget()
    assert way.ask(turn(tools=TOOLS)).text == "Hello"


def test_after_every_fault_the_next_turn_is_well(way: Way, upstream: FaultUpstream) -> None:
    for acts in BROKEN.values():
        upstream.scripts = [Script(acts, usage=False, done=False)]
        way.ask(turn(tools=TOOLS))
        upstream.scripts.clear()
        assert way.ask(turn(tools=TOOLS)).text == "Hello"


@pytest.fixture(scope="module")
def impatient(scripted: FaultUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    values = {"PROXY_READ_TIMEOUT": 0.4, "PROXY_COMMIT_DELAY": 2, "PROXY_PING_INTERVAL": 0.1}
    with running_proxy(scripted.url, tmp_path_factory.mktemp("impatient"), values) as proxy:
        yield proxy


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_never_answers_is_a_timeout(
    impatient: ProxyProcess, upstream: FaultUpstream, *, stream: bool
) -> None:
    upstream.otherwise = Script(hangs=True)
    seen = told(impatient.messages(turn(stream=stream)))
    assert (seen.status, failed(seen)["type"]) == (504, "timeout_error")
    upstream.chats[-1].wait_left()


def test_an_upstream_that_falls_silent_is_a_timeout(impatient: ProxyProcess, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((*says("Hello"), Hang()))
    seen = told(impatient.messages(turn(stream=True)))
    assert failed(seen)["type"] == "timeout_error"
    whole = told(impatient.messages(turn()))
    assert (whole.status, failed(whole)["type"]) == (504, "timeout_error")
    for item in upstream.chats:
        item.wait_left()


def test_a_turn_that_takes_too_long_in_all_is_a_timeout(upstream: FaultUpstream, tmp_path: Path) -> None:
    from support.upstream_script import Endless

    upstream.otherwise = Script((Endless(),))
    values = {"PROXY_GENERATION_TIMEOUT": 0.5, "PROXY_REPETITION_CUT": "off"}
    with running_proxy(upstream.url, tmp_path, values) as proxy:
        assert failed(told(proxy.messages(turn(stream=True))))["type"] == "timeout_error"
        assert failed(told(proxy.messages(turn())))["type"] == "timeout_error"
        for item in upstream.chats:
            item.wait_left()


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_is_down_is_overloaded_until_it_is_back(tmp_path: Path, *, stream: bool) -> None:
    port = free_port()
    with running_proxy(f"http://127.0.0.1:{port}", tmp_path) as proxy:
        down = told(proxy.messages(turn(stream=stream)))
        assert (down.status, failed(down)["type"]) == (529, "overloaded_error")
        assert int(down.headers["retry-after"]) >= 1
        assert proxy.request("GET", "/health").json["status"] != "ok"
        with FaultUpstream(port):
            assert told(proxy.messages(turn(stream=stream))).text == "Hello"
        assert told(proxy.messages(turn(stream=stream))).status == 529
        with FaultUpstream(port, n_ctx=8192):
            assert told(proxy.messages(turn(stream=stream))).text == "Hello"


def test_tokens_cannot_be_counted_by_an_upstream_that_is_down(tmp_path: Path) -> None:
    with running_proxy(f"http://127.0.0.1:{free_port()}", tmp_path) as proxy:
        answer = proxy.request("POST", "/v1/messages/count_tokens", turn())
        assert (answer.status, answer.json["error"]["type"]) == (529, "overloaded_error")
        assert proxy.request("GET", "/v1/models").status in (200, 529)
        passed = proxy.request("POST", "/v1/chat/completions", chat())
        assert passed.status >= 500
        assert passed.json["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script", [overflow(9000, 4096), loading(), unauthorised(), error(500, "boom", "server_error")]
)
def test_passed_through_errors_stay_errors(
    proxy: ProxyProcess, upstream: FaultUpstream, script: Script, *, stream: bool
) -> None:
    upstream.otherwise = script
    answer = proxy.request("POST", "/v1/chat/completions", chat(stream=stream, tools=OPENAI_TOOLS))
    assert answer.status >= 400
    assert answer.json["error"]["message"]


@pytest.mark.parametrize("acts", [(*says("Hello"), Drop()), (Drop(),)], ids=["later", "at once"])
def test_a_passed_through_stream_that_breaks_does_not_look_whole(
    proxy: ProxyProcess, upstream: FaultUpstream, acts: tuple[Any, ...]
) -> None:
    import http.client

    upstream.otherwise = Script(acts)
    try:
        answer = proxy.request("POST", "/v1/chat/completions", chat(stream=True))
    except (http.client.HTTPException, ConnectionError):
        return
    assert b"[DONE]" not in answer.body
    assert answer.status >= 400 or b'"error"' in answer.body


BAD = {
    "no JSON": b"{bad",
    "nothing": b"",
    "no object": b"[]",
    "no UTF-8": b'{"model":"\xff"}',
    "deep": b"[" * 100_000,
    "no messages": {"model": "m", "max_tokens": 5},
    "messages empty": turn(messages=[]),
    "messages null": turn(messages=None),
    "messages a text": turn(messages="hi"),
    "message no object": turn(messages=["hi"]),
    "role unknown": turn(messages=[{"role": "robot", "content": "hi"}]),
    "content a number": turn(messages=[{"role": "user", "content": 5}]),
    "content missing": turn(messages=[{"role": "user"}]),
    "block no object": turn(messages=[{"role": "user", "content": ["x"]}]),
    "block without type": turn(messages=[{"role": "user", "content": [{"text": "x"}]}]),
    "text a number": turn(messages=[{"role": "user", "content": [{"type": "text", "text": 5}]}]),
    "result without id": turn(messages=[{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]),
    "max_tokens a text": turn(max_tokens="abc"),
    "max_tokens zero": turn(max_tokens=0),
    "max_tokens missing": {key: value for key, value in turn().items() if key != "max_tokens"},
    "model a number": turn(model=5),
    "model missing": {key: value for key, value in turn().items() if key != "model"},
    "tools a text": turn(tools="x"),
    "tool without name": turn(tools=[{"input_schema": {"type": "object"}}]),
    "schema a text": turn(tools=[{"name": "x", "input_schema": "y"}]),
    "tool_choice unknown": turn(tools=TOOLS, tool_choice={"type": "perhaps"}),
    "tool_choice of no tool": turn(tools=TOOLS, tool_choice={"type": "tool", "name": "nope"}),
    "stream a text": turn(stream="yes"),
    "temperature a text": turn(temperature="hot"),
    "stop_sequences a text": turn(stop_sequences="END"),
    "system a number": turn(system=5),
}


@pytest.mark.parametrize("name", list(BAD))
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_bad_body_is_named_and_the_upstream_never_called(
    proxy: ProxyProcess, upstream: FaultUpstream, name: str, path: str
) -> None:
    if path.endswith("count_tokens") and name.startswith(("max_tokens", "stream", "stop_seq", "temperature")):
        pytest.skip("not a field of count_tokens")
    proxy.context()
    before = len(upstream.seen)
    answer = proxy.request("POST", path, BAD[name])
    assert answer.status == 400, answer
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert answer.json["error"]["message"]
    assert answer.json["request_id"] == answer.headers["request-id"]
    assert [item.path for item in upstream.seen[before:] if item.path != "/slots"] == []


def test_unusual_but_right_bodies_are_taken(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    unusual: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "thinking": {"type": "adaptive"},
        "service_tier": "auto",
        "tools": [{**TOOLS[0], "cache_control": {"type": "ephemeral"}, "strict": True, "defer_loading": True},
                  {"type": "web_search_20250305", "name": "web_search"}],
        "never_heard_of": {"x": [1]},
    }  # fmt: skip
    assert told(proxy.messages(turn(**unusual), {"anthropic-beta": "unknown-2030-01-01"})).text == "Hello"
    assert len(upstream.chats) == 1


def test_a_body_over_the_limit_is_too_large(upstream: FaultUpstream, tmp_path: Path) -> None:
    with running_proxy(upstream.url, tmp_path, {"PROXY_MAX_BODY_MIB": 1}) as proxy:
        answer = proxy.messages(turn("x" * (1 << 20)))
        assert (answer.status, answer.json["error"]["type"]) == (413, "request_too_large")
        assert told(proxy.messages(turn("x" * 1000))).text == "Hello"
        assert len(upstream.chats) == 1


def test_what_is_not_there_is_not_found_in_the_same_envelope(proxy: ProxyProcess) -> None:
    for method, path, status in [
        ("GET", "/nope", 404),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages", 405),
        ("DELETE", "/v1/models", 405),
    ]:
        answer = proxy.request(method, path, {} if method == "POST" else None)
        assert answer.status == status, (method, path, answer)
        assert answer.json["type"] == "error"
        assert answer.headers["request-id"]


def test_request_ids_differ(proxy: ProxyProcess) -> None:
    ids = {proxy.messages(turn()).headers["request-id"] for _ in range(5)}
    assert len(ids) == 5


def test_a_key_is_asked_for_when_one_is_set(upstream: FaultUpstream, tmp_path: Path) -> None:
    with running_proxy(upstream.url, tmp_path, {"PROXY_API_KEY": "sesame"}) as proxy:
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
            answer = proxy.messages(turn(), headers)
            assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")
        assert upstream.chats == []
        for headers in ({"x-api-key": "sesame"}, {"authorization": "Bearer sesame"}):
            assert told(proxy.messages(turn(), headers)).text == "Hello"
        sent = json.dumps([item.headers for item in upstream.seen])
        assert "sesame" not in sent, "the clients' key is not the upstream's business"


def test_the_upstreams_key_goes_to_the_upstream_only(upstream: FaultUpstream, tmp_path: Path) -> None:
    with running_proxy(upstream.url, tmp_path, {"PROXY_UPSTREAM_API_KEY": "backstage"}) as proxy:
        answer = proxy.messages(turn())
        assert told(answer).text == "Hello"
        assert upstream.chats[-1].headers["authorization"] == "Bearer backstage"
        assert "backstage" not in str(answer)
        assert "backstage" not in proxy.stderr
        assert "backstage" not in str(proxy.context())


def test_finish_reasons_of_other_servers_are_not_lost(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((*says("No."), *stops("content_filter")))
    seen = way.ask(turn(tools=TOOLS))
    assert seen.message is not None
    assert seen.message["stop_reason"] == "refusal"
