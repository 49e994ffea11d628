"""Guardrails at work, from outside: what a bad answer becomes, and that a good one stays what it is."""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.anthropic_stream import checked
from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import TOOLS, Told, Way, told, turn
from support.upstream_script import Drop, Endless, Hang, Script, answers, calls, says, stops, thinks, tool_turn

GOOD = tool_turn("read_file", {"path": "a.py"})
HERMES = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "read_file", "arguments": {"path": '
CALLED = [("read_file", {"path": "a.py"})]


def tool_loop(count: int = 1, *, result: str = "x = 1") -> list[dict[str, Any]]:
    """A history of `count` identical tool turns."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix a.py"}]
    for at in range(count):
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": "read_file", "input": {"path": "a.py"}}
        messages.append({"role": "assistant", "content": [call]})
        done = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": result}
        messages.append({"role": "user", "content": [done]})
    return messages


def marks(proxy: ProxyProcess, seen: Told) -> list[str]:
    """The guardrail marks of the turn that was told."""
    for _ in range(100):
        for event in proxy.events("request"):
            if event["request_id"] == seen.headers["request-id"]:
                return list(event["guardrails"])
        time.sleep(0.05)
    raise AssertionError("the turn has no event")


@pytest.fixture(scope="module")
def bare(scripted: FaultUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy with every guardrail off."""
    off = (
        "PROXY_LOOP_BREAKER",
        "PROXY_GUARDRAIL_RETRY",
        "PROXY_MALFORMED_TOOL_GUARDRAIL",
        "PROXY_SESSION_CONTAMINATION_BREAKER",
        "PROXY_REPETITION_CUT",
    )
    values = {**dict.fromkeys(off, "off"), "PROXY_CONTEXT_PRUNE_THRESHOLD": 1}
    with running_proxy(scripted.url, tmp_path_factory.mktemp("bare"), values) as proxy:
        yield proxy


@pytest.mark.parametrize("bad", [says(BROKEN), says("</parameter>\n</function>"), calls("no_tool", {})])
def test_a_malformed_call_is_asked_for_again_and_the_good_one_shown(
    way: Way, upstream: FaultUpstream, bad: tuple[Any, ...]
) -> None:
    upstream.scripts = [Script((*bad, *stops("stop"))), GOOD]
    seen = way.ask(turn(tools=TOOLS))
    assert seen.calls == CALLED
    assert seen.text == ""
    assert [chat.body["tool_choice"] for chat in upstream.chats[1:]] == ["required"]
    assert {"malformed_tool:detected", "malformed_tool:recovered"} <= set(marks(way.proxy, seen))


@pytest.mark.parametrize("arguments", ["{}", '{"path": 7}', "[1]", '{"path": '])
def test_a_call_that_breaks_its_schema_is_asked_for_again_where_nothing_was_shown(
    strict: ProxyProcess, upstream: FaultUpstream, arguments: str
) -> None:
    bad = Script((*calls("read_file", arguments), *stops("tool_calls")))
    for stream in (True, False):
        upstream.scripts = [bad, GOOD]
        seen = told(strict.messages(turn(tools=TOOLS, stream=stream)))
        assert seen.calls == CALLED


def test_usage_is_the_sum_of_all_calls(way: Way, upstream: FaultUpstream) -> None:
    bad = Script((*says(BROKEN), *stops("stop")))
    upstream.scripts = [bad, GOOD]
    seen = way.ask(turn(tools=TOOLS))
    assert seen.message is not None
    usage = seen.message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (40, 200)
    alone = way.ask(turn(tools=TOOLS))
    assert alone.message is not None
    assert usage["output_tokens"] > alone.message["usage"]["output_tokens"]


def test_a_written_call_is_made_a_real_one_at_once(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((*says("I will look.\n", HERMES), *stops("stop")))
    seen = way.ask(turn(tools=TOOLS))
    assert seen.calls == CALLED
    assert seen.text == "I will look.\n"
    assert seen.message is not None
    assert seen.message["stop_reason"] == "tool_use"
    assert len(upstream.chats) == 1
    assert {"malformed_tool:detected", "malformed_tool:recovered"} <= set(marks(way.proxy, seen))


SENTENCE = "(The model ended its turn without an answer.)"
LISTED = f"- Hermes: {HERMES}\n- Qwen: <function=read_file>"
SAMPLE = HERMES.replace("a.py", "...")
BESIDE = {
    "analysis": (Script((*says("<|channel|>analysis<|message|>", "secret"), *stops("stop"))), SENTENCE, [], 2),
    "opening": (Script((*says("Ok.\n<tool_call>\n"), *calls("read_file", {"path": "a.py"}), *stops("tool_calls"))),
                "Ok.\n", CALLED, 1),
    "twice": (Script((*says(HERMES), *calls("read_file", {"path": "a.py"}), *stops("tool_calls"))), "", CALLED, 1),
    "closing": (Script((*calls("read_file", {"path": "a.py"}), *says("\n", "</tool_call>"), *stops("tool_calls"))),
                "", CALLED, 1),
    "list": (answers(LISTED), LISTED, [], 1),
    "sample": (answers(SAMPLE), SAMPLE, [], 1),
    "stop sequence": (answers("I look.\n", HERMES), "I look.\n", CALLED, 1),
}  # fmt: skip


@pytest.mark.parametrize(("script", "text", "called", "asked"), BESIDE.values(), ids=BESIDE)
def test_markup_of_calls_is_shown_where_it_is_quoted_and_nowhere_else(
    way: Way, upstream: FaultUpstream, script: Script, text: str, called: list[Any], asked: int
) -> None:
    upstream.otherwise = script
    more: dict[str, Any] = {"stop_sequences": ["</tool_call>"]} if text == "I look.\n" else {}
    seen = way.ask(turn(tools=TOOLS, **more))
    assert (seen.text, seen.calls, len(upstream.chats)) == (text, called, asked)
    assert len([block for block in seen.content if block["type"] == "text"]) == bool(text)
    assert seen.message is not None
    assert seen.message["stop_reason"] == ("tool_use" if called else "end_turn")
    assert seen.message["stop_sequence"] is None


def test_calls_that_the_client_refuses_are_not_made_of_text(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((*says(HERMES), *stops("stop")))
    seen = way.ask(turn(tools=TOOLS, tool_choice={"type": "none"}))
    assert (seen.text, seen.calls) == (HERMES, [])
    assert len(upstream.chats) == 1


def test_what_was_held_is_released_when_no_retry_helps_and_never_on_the_strict_path(
    way: Way, upstream: FaultUpstream
) -> None:
    upstream.otherwise = Script((*says("I read it.\n", BROKEN), *stops("stop")))
    seen = way.ask(turn(tools=TOOLS))
    assert seen.calls == []
    sentence = "(A tool call is left out here: it could not be read.)"
    assert seen.text == "I read it.\n" + (sentence if way.held_back else BROKEN)
    assert seen.message is not None
    assert seen.message["stop_reason"] == "end_turn"
    assert len(upstream.chats) == 2
    assert "malformed_tool:exhausted" in marks(way.proxy, seen)


def test_an_empty_answer_is_asked_for_again(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [Script(stops("stop")), answers("Here it is.")]
    seen = way.ask(turn())
    assert seen.text == "Here it is."
    assert len(upstream.chats) == 2


def test_reasoning_alone_is_asked_for_again_without_thinking(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [Script((*thinks("hm"), *stops("stop"))), answers("Here it is.")]
    seen = way.ask(turn())
    assert seen.content == [{"type": "text", "text": "Here it is."}]
    assert upstream.chats[1].body["chat_template_kwargs"]["enable_thinking"] is False


def test_an_announced_call_that_did_not_come_is_added(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("Let me read the file:"), GOOD]
    seen = way.ask(turn(tools=TOOLS, messages=tool_loop()))
    assert seen.text == "Let me read the file:"
    assert seen.calls == CALLED
    assert seen.message is not None
    assert seen.message["stop_reason"] == "tool_use"


def test_a_call_is_added_once_for_an_instruction_and_then_the_agent_is_left_alone(
    way: Way, upstream: FaultUpstream
) -> None:
    upstream.scripts = [answers("Let me read the file:"), GOOD, answers("Let me read a.py again:"), GOOD]
    history = tool_loop()
    first = way.ask(turn(tools=TOOLS, messages=history))
    assert first.calls == CALLED
    call_id = next(block["id"] for block in first.content if block["type"] == "tool_use")
    history += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "x = 1"}]},
    ]
    second = way.ask(turn(tools=TOOLS, messages=history))
    assert (second.text, second.calls) == ("Let me read a.py again:", [])
    assert len(upstream.chats) == 3


@pytest.mark.parametrize(
    "text",
    [
        "All 42 tests pass. I'll stop here.",
        "Tests pass, so I'll call it done.",
        "Everything is fixed; I'll add nothing more.",
        "I'll run `make deploy` once you confirm.",
        "I'll use tabs in this project.",
    ],
)
def test_a_finished_agent_is_left_alone(way: Way, upstream: FaultUpstream, text: str) -> None:
    upstream.otherwise = answers(text)
    seen = way.ask(turn(tools=TOOLS, messages=tool_loop()))
    assert (seen.text, seen.calls) == (text, [])
    assert len(upstream.chats) == 1


HEALTHY = {
    "text": answers("Hel", "lo ", "wörld 🙂"),
    "tool": GOOD,
    "text and tool": Script((*says("I read it.\n"), *calls("read_file", {"path": "a.py"}), *stops("tool_calls"))),
    "markup as data": tool_turn("read_file", {"path": "</parameter>\n<tool_call>{"}),
    "fenced": answers("An example:\n```\n", HERMES, "\n```\nThat is all."),
    "quoted": answers("`<tool_call>` begins a call; [1] see {a}.\n< 3 and > 2"),
    "length": Script((*says("It was a dark and"), *stops("length"))),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_turn_is_the_same_with_guardrails_on_and_off_but_for_its_ids(
    plain: ProxyProcess, bare: ProxyProcess, upstream: FaultUpstream, name: str
) -> None:
    upstream.otherwise = HEALTHY[name]
    for stream in (True, False):
        body = turn(tools=TOOLS, stream=stream, messages=tool_loop())
        on, off = plain.messages(body), bare.messages(body)
        bodies = [re.sub(rb'"id":"(?:msg|toolu)_[^"]*"', b"", answer.body) for answer in (on, off)]
        assert (on.status, bodies[0]) == (off.status, bodies[1])
    sent = [chat.body for chat in upstream.chats]
    assert len(sent) == 4
    assert all(entry == sent[0] for entry in sent)


@pytest.mark.parametrize(("count", "note", "choice"), [(3, False, "auto"), (8, True, "auto"), (20, True, "none")])
def test_the_loop_breaker_speaks_up_and_then_ends_the_calls(
    way: Way, upstream: FaultUpstream, count: int, note: bool, choice: str
) -> None:
    way.ask(turn(tools=TOOLS, messages=tool_loop(count)))
    sent = upstream.chats[0].body
    assert ("[LOOP BREAKER" in json.dumps(sent["messages"][-1])) is note
    assert sent["tool_choice"] == choice


def test_a_forced_choice_in_a_loop_is_released(way: Way, upstream: FaultUpstream) -> None:
    way.ask(turn(tools=TOOLS, messages=tool_loop(9), tool_choice={"type": "any"}))
    assert upstream.chats[0].body["tool_choice"] == "auto"


def test_after_malformed_turns_in_a_row_the_session_is_cut_back_for_good(
    proxy: ProxyProcess, upstream: FaultUpstream
) -> None:
    headers = {"x-claude-code-session-id": "contaminated"}
    upstream.otherwise = Script((*says(BROKEN), *stops("stop")))
    history = [{"role": role, "content": f"{role} {at}"} for at in range(15) for role in ("user", "assistant")]
    history.append({"role": "user", "content": "go on"})
    for _ in range(3):
        told(proxy.messages(turn(tools=TOOLS, messages=history), headers))
    upstream.otherwise = answers("fine")
    upstream.calls.clear()
    for _ in range(2):
        told(proxy.messages(turn(tools=TOOLS, messages=history), headers))
        history += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "and now?"}]
    first, second = (chat.body["messages"] for chat in upstream.chats)
    assert "[SESSION RESET" in json.dumps(first[0])
    assert len(first) < 15
    assert second[: len(first)] == first
    assert proxy.context("hdr:contaminated")["loop_protection"]["contamination_resets"] == 1


def test_endless_repetition_is_cut_and_the_upstream_stopped(way: Way, upstream: FaultUpstream) -> None:
    upstream.otherwise = Script((Endless("The same sentence, again and again. "),))
    seen = way.ask(turn())
    assert seen.message is not None
    assert seen.message["stop_reason"] == "max_tokens"
    upstream.chats[0].wait_left()


def test_one_call_a_turn_means_one(way: Way, upstream: FaultUpstream) -> None:
    two = (*calls("read_file", {"path": "a.py"}), *calls("get_weather", {"city": "Oslo"}, index=1))
    upstream.otherwise = Script((*two, *stops("tool_calls")))
    seen = way.ask(turn(tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    assert seen.calls == CALLED
    assert seen.message is not None
    assert seen.message["stop_reason"] == "tool_use"
    assert len(upstream.chats) == 1
    assert upstream.chats[0].body["parallel_tool_calls"] is False


def test_a_demanded_call_that_does_not_come_is_asked_for_again(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("I would rather not."), GOOD]
    seen = way.ask(turn(tools=TOOLS, tool_choice={"type": "any"}))
    assert seen.calls == CALLED


def test_a_dropped_retry_leaves_the_first_answer(way: Way, upstream: FaultUpstream) -> None:
    upstream.scripts = [answers("Let me read the file:"), Script((Drop(),))]
    seen = way.ask(turn(tools=TOOLS, messages=tool_loop()))
    assert seen.text == "Let me read the file:"
    assert seen.calls == []


def test_a_stream_that_outlasts_the_drain_ends_with_an_error_event(upstream: FaultUpstream, tmp_path: Path) -> None:
    upstream.otherwise = Script((*says("slow"), Hang()))
    with running_proxy(upstream.url, tmp_path, {"PROXY_DRAIN_TIMEOUT": 0.3}) as proxy:
        seen: list[bytes] = []
        client = threading.Thread(target=lambda: seen.append(proxy.messages(turn(stream=True)).body))
        client.start()
        upstream.wait_chats(1)[0].started.wait(5)
        time.sleep(0.2)
        assert proxy.stop() == 0
        client.join(10)
    checker = checked(seen[0])
    assert checker.text == "slow"
    assert checker.error is not None
    assert checker.error["type"] == "overloaded_error"
    assert upstream.chats[0].wait_left()
