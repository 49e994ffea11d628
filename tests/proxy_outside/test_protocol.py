"""What a client of the Messages API sees on a healthy upstream, whichever way it asks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.anthropic_stream import checked, final_message
from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess
from support.proxy_ways import OPENAI_TOOLS, TOOLS, Way, chat, told, turn
from support.upstream_script import Pause, Script, answers, calls, says, stops, thinks, tool_turn, with_

UNICODE = 'naïve 日本語 🙂 \u2028 \t"quoted" \\ end'


def test_text_is_the_upstreams_text(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("Hello ", UNICODE, "!")]
    seen = way.ask(turn(tools=TOOLS))
    assert seen.content == [{"type": "text", "text": f"Hello {UNICODE}!"}]
    assert seen.message is not None
    assert seen.message["stop_reason"] == "end_turn"
    assert seen.message["stop_sequence"] is None
    assert seen.message["role"] == "assistant"


@pytest.mark.parametrize("untold", [{}, {"usage": False}, {"timings": False}])
def test_usage_splits_cached_from_new_input_wherever_the_upstream_tells_it(
    way: Way, upstream: FaultUpstream, untold: dict[str, Any]
) -> None:
    upstream.scripts = [answers("a", "b", "c", **untold)]
    seen = way.ask(turn(tools=TOOLS))
    assert seen.message is not None
    usage = seen.message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (20, 100, 3)


def test_output_is_counted_when_the_upstream_says_nothing(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("a", "b", "c", usage=False, timings=False, progress=())]
    seen = way.ask(turn(tools=TOOLS))
    assert seen.message is not None
    assert seen.message["usage"]["output_tokens"] == 3


def test_a_tool_call_keeps_its_input_whatever_the_fragments(way: Way, upstream: FaultUpstream) -> None:
    arguments = {"path": UNICODE, "limit": 3}
    for pieces in (1, 2, 7, 60):
        upstream.scripts = [Script((*calls("read_file", arguments, pieces=pieces), *stops("tool_calls")))]
        seen = way.ask(turn(tools=TOOLS))
        assert seen.calls == [("read_file", arguments)]
        assert seen.message is not None
        assert seen.message["stop_reason"] == "tool_use"


def test_thinking_is_a_block_when_it_was_asked_for_and_nothing_otherwise(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((*thinks("Let me ", "see."), *says("Done."), *stops()))
    wanted = way.ask(turn(tools=TOOLS, max_tokens=4096, thinking={"type": "enabled", "budget_tokens": 2048}))
    assert [block["type"] for block in wanted.content] == ["thinking", "text"]
    assert wanted.content[0]["thinking"] == "Let me see."
    assert isinstance(wanted.content[0]["signature"], str)
    assert [block["type"] for block in way.ask(turn(tools=TOOLS)).content] == ["text"]


def test_a_stop_sequence_is_reported_with_its_text(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("one two ST", "OP three")]
    seen = way.ask(turn(tools=TOOLS, stop_sequences=["END", "STOP"]))
    assert seen.text == "one two "
    assert seen.message is not None
    assert (seen.message["stop_reason"], seen.message["stop_sequence"]) == ("stop_sequence", "STOP")


def test_the_echo_of_a_prefill_is_not_repeated(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("The answer", " is 42")]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "The answer"}]
    assert way.ask(turn(messages=messages)).text == " is 42"


def test_an_empty_answer_twice_is_still_a_message(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script(stops())
    seen = way.ask(turn(tools=TOOLS))
    assert seen.message is not None
    assert seen.message["stop_reason"] == "end_turn"


def test_a_server_that_ends_lines_with_crlf_is_understood(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("Hello ", UNICODE, crlf=True)]
    assert way.ask(turn(tools=TOOLS)).text == f"Hello {UNICODE}"


def test_streams_say_what_they_are(proxy: ProxyProcess) -> None:
    headers = proxy.messages(turn(stream=True)).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert "no-cache" in headers["cache-control"]
    assert headers["x-accel-buffering"] == "no"


def test_a_waiting_stream_is_kept_alive_with_pings(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    upstream.scripts = [with_(answers("late"), delay_s=1.2)]
    seen = checked(proxy.messages(turn(stream=True)).body)
    assert seen.names[0] == "message_start"
    assert seen.pings >= 3
    assert seen.text == "late"


def test_a_strict_stream_is_kept_alive_while_it_is_checked(strict: ProxyProcess, upstream: FaultUpstream) -> None:
    acts = (*says("a"), Pause(1.2), *says("b"), *calls("read_file", {"path": "a"}), *stops("tool_calls"))
    upstream.scripts = [Script(acts)]
    seen = checked(strict.messages(turn(stream=True, tools=TOOLS)).body)
    assert seen.names[0] == "message_start"
    first = seen.names.index("content_block_start")
    assert "ping" in seen.names[1:first]


@pytest.mark.parametrize(
    "path", ["/v1/messages?beta=true", "/anthropic/v1/messages", "/anthropic/v1/messages?beta=true"]
)
def test_every_address_of_messages_answers_alike(proxy: ProxyProcess, path: str) -> None:
    assert told(proxy.request("POST", path, turn())).text == "Hello"
    assert final_message(proxy.request("POST", path, turn(stream=True)).body)["content"][0]["text"] == "Hello"


def test_the_models_are_listed(proxy: ProxyProcess) -> None:
    listed = proxy.request("GET", "/v1/models?limit=1000").json["data"]
    assert listed
    for entry in listed:
        assert entry["type"] == "model"
        assert entry["display_name"]


def test_a_session_can_be_asked_for_by_its_id(proxy: ProxyProcess) -> None:
    for name in ("known-one", "latest-one"):
        told(proxy.messages(turn(), {"x-claude-code-session-id": name}))
    assert proxy.context()["active_session_id"] == "hdr:latest-one"
    known = proxy.context("hdr:known-one")
    assert (known["active_session_id"], known["total_requests"]) == ("hdr:known-one", 1)
    assert (known["context_window"], known["last_input_tokens"]) == (65536, 120)
    assert proxy.context("known-one") == {**known, "status": proxy.context("known-one")["status"]}
    unknown = proxy.request("GET", "/v1/context?session_id=never-seen")
    assert (unknown.status, unknown.json["error"]["type"]) == (404, "not_found_error")


def test_nothing_the_telemetry_asks_for_reaches_the_client(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    body = proxy.messages(turn(stream=True)).body
    asked = upstream.chats[-1].body
    assert asked["timings_per_token"] is True
    assert asked["return_progress"] is True
    assert asked["stream_options"] == {"include_usage": True}
    for word in (b"timings", b"prompt_progress", b"draft_n", b"[DONE]"):
        assert word not in body


def test_chat_completions_pass_through(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    upstream.otherwise = tool_turn("read_file", {"path": "a"})
    whole = proxy.request("POST", "/v1/chat/completions", chat(tools=OPENAI_TOOLS)).json
    call = whole["choices"][0]["message"]["tool_calls"][0]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("read_file", '{"path": "a"}')
    streamed = proxy.request("POST", "/v1/chat/completions", chat(tools=OPENAI_TOOLS, stream=True))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.body.rstrip().endswith(b"data: [DONE]")
    assert b"prompt_progress" not in streamed.body
    assert b"timings" not in streamed.body


def test_a_healthy_turn_after_tool_results_is_not_forced(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    messages = [
        {"role": "user", "content": "Read a"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "text of a"}]},
    ]
    seen = told(proxy.messages(turn(messages=messages, tools=TOOLS)))
    assert seen.text == "Hello"
    assert len(upstream.chats) == 1
    assert upstream.chats[0].body.get("tool_choice") in (None, "auto")


@pytest.mark.parametrize("stream", [False, True])
def test_requests_leave_one_event_each(plain: ProxyProcess, upstream: FaultUpstream, *, stream: bool) -> None:
    del upstream
    before = len(plain.events("request"))
    plain.messages(turn(stream=stream), {"x-claude-code-session-id": "told"})
    event = plain.wait_events(before + 1)[-1]
    assert (event["outcome"], event["status"], event["stream"]) == ("ok", 200, stream)
    assert (event["prompt_tokens"], event["cached_tokens"]) == (120, 100)
    assert event["draft_tokens"] == 2 * event["accepted_tokens"]
    assert "told" in event["session"]
    assert "Hello" not in str(event)


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(pieces=st.lists(TEXT, min_size=1, max_size=6), value=st.text(st.characters(codec="utf-8"), max_size=30),
       size=st.integers(1, 40))  # fmt: skip
def test_any_text_arrives_as_it_was_sent(
    plain: ProxyProcess, scripted: FaultUpstream, pieces: list[str], value: str, size: int
) -> None:
    acts = (*says(*pieces), *calls("get_weather", {"city": f"x{value}"}), *stops("tool_calls"))
    scripted.otherwise = Script(acts, split=size)
    content = final_message(plain.messages(turn(stream=True, tools=TOOLS)).body)["content"]
    told_text = [block["text"] for block in content if block["type"] == "text"]
    assert told_text in (["".join(pieces)], []) if not "".join(pieces).strip() else told_text == ["".join(pieces)]
    assert content[-1]["input"] == {"city": f"x{value}"}
