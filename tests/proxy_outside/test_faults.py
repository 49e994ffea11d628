"""Faults of the upstream, and bad requests: what the client is told, in the envelope of the API."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def failed(seen: Told) -> dict[str, Any]:
    """The error; nothing else was told."""
    assert seen.message is None, seen
    assert seen.error is not None
    assert "message_delta" not in seen.names
    assert "message_stop" not in seen.names
    return seen.error


REFUSED = {
    "too long": (
        overflow(70123, 65536),
        "invalid_request_error",
        400,
        "prompt is too long: 70123 tokens > 65536 maximum",
    ),
    "loads": (loading(), "overloaded_error", 529, ""),
    "the operator's wrong key": (unauthorised(), "api_error", 502, "PROXY_UPSTREAM_API_KEY"),
    "refused": (error(400, "Cannot use tools.", "invalid_request_error"), "invalid_request_error", 400, "Cannot use"),
    "fails": (error(500, "Compute error.", "server_error"), "api_error", 500, "Compute error."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_of_the_upstream_is_told_as_clients_act_on_it(way: Way, upstream: FaultUpstream, name: str) -> None:
    upstream.otherwise, kind, status, words = REFUSED[name]
    seen = way.ask(turn(tools=TOOLS))
    assert failed(seen)["type"] == kind
    assert way.refused(seen, status)
    assert words in failed(seen)["message"]
    assert len(upstream.chats) == 1
    assert seen.status != 529 or int(seen.headers["retry-after"]) >= 1


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
    "no finish reason, as HTTP ends": says("Hello"),
    "error event in OpenAI's form": (*says("Hello"), Raw(b'data: {"error":{"message":"gone","type":"x"}}\n\n')),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_an_answer_that_breaks_off_is_an_error_and_never_an_end(way: Way, upstream: FaultUpstream, name: str) -> None:
    upstream.otherwise = Script(BROKEN[name], usage=False, done=False)
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
    # Two kept connections, of the questions for window and models, and a fresh one.
    assert len(upstream.chats) <= 3


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
        with FaultUpstream(port=port):
            assert told(proxy.messages(turn(stream=stream))).text == "Hello"
        assert told(proxy.messages(turn(stream=stream))).status == 529
        with FaultUpstream(port=port, n_ctx=8192):
            assert told(proxy.messages(turn(stream=stream))).text == "Hello"


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


def test_the_upstreams_key_goes_to_the_upstream_only(upstream: FaultUpstream, tmp_path: Path) -> None:
    with running_proxy(upstream.url, tmp_path, {"PROXY_UPSTREAM_API_KEY": "backstage"}) as proxy:
        answer = proxy.messages(turn(), {"x-api-key": "the client's"})
        assert told(answer).text == "Hello"
        assert upstream.chats[-1].headers["authorization"] == "Bearer backstage"
        assert "the client's" not in str([item.headers for item in upstream.calls])
        assert "backstage" not in str(answer)
        assert "backstage" not in proxy.stderr
        assert "backstage" not in str(proxy.context())


def test_finish_reasons_of_other_servers_are_not_lost(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((*says("No."), *stops("content_filter")))
    seen = way.ask(turn(tools=TOOLS))
    assert seen.message is not None
    assert seen.message["stop_reason"] == "refusal"
