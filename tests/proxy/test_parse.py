"""Reading a Messages body: what is accepted, what is refused, and how a refusal names the place."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.http.responses import InvalidRequestError, load_object
from specdash.proxy.translate.parse import MessagesRequest, ToolChoice, parse_messages
from specdash.proxy.translate.translate import chat_body, prefill_of
from support.messages_bodies import any_json, body_of, places, replaced, rich_body, turns

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "Read", "input_schema": {"type": "object", "properties": {}}}
NOT_THERE = object()


def parsed(*messages: Any, **fields: Any) -> MessagesRequest:
    return parse_messages(msgspec.json.encode(body_of(list(messages) or [USER], **fields)))


def refusal(body: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        parse_messages(body if isinstance(body, bytes) else msgspec.json.encode(body))
    assert caught.value.status == 400
    return caught.value.message


@given(st.lists(st.sampled_from([r"\ud83d", r"\ude00", r"\uD800", "\\\\", r"\n", "a", r"\u00e9", "ud83d"]), max_size=9))
def test_half_a_surrogate_pair_is_replaced_wherever_it_is(pieces: list[str]) -> None:
    text = "".join(pieces)
    expected = "".join("\ufffd" if 0xD800 <= ord(load) < 0xE000 else load for load in json.loads(f'"{text}"'))
    assert load_object(f'{{"a":"{text}"}}'.encode()) == {"a": expected}


def survives(body: bytes) -> None:
    """The body is refused as an invalid request, or can be rendered, written and identified."""
    try:
        request = parse_messages(body)
        msgspec.json.encode(chat_body(request, "m"))
    except InvalidRequestError:
        return
    prefill_of(request)


class TestHostileBodies:
    @given(st.sampled_from(list(places(rich_body()))), any_json)
    def test_any_value_of_a_valid_body_may_be_replaced_by_any_json(
        self, place: tuple[str | int, ...], new: Any
    ) -> None:
        survives(msgspec.json.encode(replaced(rich_body(), place, new)))

    @given(st.lists(turns, min_size=1, max_size=5))
    def test_every_valid_conversation_can_be_counted(self, messages: list[Any]) -> None:
        request = parse_messages(msgspec.json.encode(body_of(messages)), counts=True)
        msgspec.json.encode(chat_body(request, "m"))

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[" * 5000,
            b'{"a":' * 5000,
            b'{"a":"\\ud83d","b":' + b"[" * 5000,
            b"NaN",
            b'{"model": NaN}',
            b'{"model": "\xff"}',
            b"\xef\xbb\xbf{}",
            b"{} {}",
        ],
    )
    def test_what_is_not_json_is_refused(self, body: bytes) -> None:
        assert refusal(body).startswith("The request body is not valid JSON")

    @pytest.mark.parametrize("levels", [240, 900, 5000])
    @pytest.mark.parametrize("place", [("tools", 0, "input_schema", "x"), ("messages", 1, "content", 5, "input", "x")])
    def test_what_can_be_read_can_be_sent_on(self, levels: int, place: tuple[str | int, ...]) -> None:
        body = rich_body()
        target: Any = body
        for step in place[:-1]:
            target = target[step]
        target[place[-1]] = "DEEP"
        text = msgspec.json.encode(body).replace(b'"DEEP"', b"[" * levels + b"]" * levels)
        survives(text)
        if levels > 1000:
            assert refusal(text) == "The request body is not valid JSON: it is nested too deeply"

    def test_numbers_are_sent_on_as_they_came(self) -> None:
        numbers = b'{"big":123456789012345678901234567890,"same":1,"same":2,"half":0.1}'
        body = msgspec.json.encode(body_of([USER], tools=[{**TOOL, "input_schema": "X"}])).replace(b'"X"', numbers)
        assert parse_messages(body).tools[0].schema == {"big": 123456789012345678901234567890, "same": 2, "half": 0.1}


class TestRefusals:
    @pytest.mark.parametrize(
        ("place", "new", "message"),
        [
            (("model",), NOT_THERE, "model: Field required"),
            (("model",), "", "model: String should have at least 1 character"),
            (("max_tokens",), None, "max_tokens: Field required"),
            (("max_tokens",), 0, "max_tokens: Input should be greater than or equal to 1"),
            (("max_tokens",), True, "max_tokens: Input should be a valid integer"),
            (("messages",), NOT_THERE, "messages: Field required"),
            (("messages",), [], "messages: at least one message is required"),
            (("messages", 0), "hi", "messages.0: Input should be a valid dictionary"),
            (("messages", 0, "role"), "tool", "messages.0.role: Input should be 'user', 'assistant' or 'system'"),
            (
                ("messages", 0, "content"),
                7,
                "messages.0.content: Input should be a valid string or a list of content blocks",
            ),
            (("messages", 0, "content", 0, "type"), NOT_THERE, "messages.0.content.0.type: Field required"),
            (("messages", 0, "content", 0, "text"), [], "messages.0.content.0.text: Input should be a valid string"),
            (
                ("messages", 0, "content", 1, "source", "type"),
                "ftp",
                "messages.0.content.1.source.type: Input should be 'base64', 'url' or 'file'",
            ),
            (
                ("messages", 0, "content", 2, "source", "url"),
                "file:///etc/passwd",
                "messages.0.content.2.source.url: Only http, https and data URLs are supported",
            ),
            (("messages", 1, "content", 5, "name"), None, "messages.1.content.5.name: Field required"),
            (
                ("messages", 1, "content", 5, "input"),
                "{}",
                "messages.1.content.5.input: Input should be a valid dictionary",
            ),
            (("messages", 3, "content", 0, "tool_use_id"), None, "messages.3.content.0.tool_use_id: Field required"),
            (
                ("messages", 3, "content", 1, "is_error"),
                "yes",
                "messages.3.content.1.is_error: Input should be a valid boolean",
            ),
            (("system", 0, "text"), None, "system.0.text: Field required"),
            (("tools", 0, "name"), "x" * 257, "tools.0.name: String should have at most 256 characters"),
            (("tools", 1, "name"), "Read", "tools.1.name: Tool names must be unique"),
            (("tools", 0, "input_schema"), "{}", "tools.0.input_schema: Input should be a valid dictionary"),
            (("tool_choice", "type"), "all", "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'"),
            (("tool_choice",), {"type": "tool"}, "tool_choice.name: Field required"),
            (("tool_choice",), {"type": "tool", "name": "X"}, "tool_choice.name: no tool of this name is in `tools`"),
            (
                ("tool_choice",),
                {"type": "tool", "name": "web_search"},
                "tool_choice.name: this tool runs at Anthropic only, no local model can call it",
            ),
            (
                ("output_config",),
                {"format": {"type": "xml"}},
                "output_config.format.type: Input should be 'json_schema'",
            ),
            (("stream",), 1, "stream: Input should be a valid boolean"),
            (("temperature",), 2.1, "temperature: Input should be less than or equal to 2"),
            (("top_p",), -0.1, "top_p: Input should be greater than or equal to 0"),
            (("stop_sequences", 1), 3, "stop_sequences.1: Input should be a valid string"),
            (("thinking", "type"), "maybe", "thinking.type: Input should be 'enabled', 'adaptive' or 'disabled'"),
            (("thinking", "budget_tokens"), "x", "thinking.budget_tokens: Input should be a valid integer"),
        ],
    )
    def test_a_wrong_value_is_named_by_its_path(self, place: tuple[str | int, ...], new: Any, message: str) -> None:
        body = rich_body()
        if new is NOT_THERE:
            target: Any = body
            for step in place[:-1]:
                target = target[step]
            del target[place[-1]]
        else:
            body = replaced(body, place, new)
        assert refusal(body) == message

    def test_calls_belong_to_the_assistant_and_results_to_the_user(self) -> None:
        call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1"}
        assert refusal(body_of([{"role": "user", "content": [call]}])) == (
            "messages.0.content: `tool_use` blocks can only be in `assistant` messages"
        )
        assert refusal(body_of([{"role": "assistant", "content": [result]}])) == (
            "messages.0.content: `tool_result` blocks can only be in `user` messages"
        )

    def test_a_conversation_must_not_end_in_a_call_unless_it_is_only_counted(self) -> None:
        call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
        body = body_of([USER, {"role": "assistant", "content": [call]}])
        assert refusal(body).startswith("messages.1: `tool_use` blocks were found without `tool_result` blocks")
        assert len(parse_messages(msgspec.json.encode(body), counts=True).messages) == 2


class TestAcceptance:
    def test_the_richest_body_is_read_whole(self) -> None:
        request = parse_messages(msgspec.json.encode(rich_body()))
        assert (request.model, request.max_tokens, request.stream) == ("claude-sonnet-4-5", 1024, True)
        assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.9, 40)
        assert (request.thinking, request.thinking_budget) == ("enabled", 2000)
        assert [tool.name for tool in request.tools] == ["Read", "Now"]
        assert request.tools[1].schema == {"type": "object", "properties": {}}
        assert [message.role for message in request.messages] == ["user", "assistant", "system", "user"]

    def test_null_means_absent_for_every_optional_field(self) -> None:
        body = rich_body()
        optional = [key for key in body if key not in {"model", "max_tokens", "messages"}]
        bare = {key: body[key] for key in ("model", "max_tokens", "messages")}
        nulls = {**bare, **dict.fromkeys(optional)}
        assert parse_messages(msgspec.json.encode(nulls)) == parse_messages(msgspec.json.encode(bare))

    def test_an_integral_float_is_a_number_of_tokens_and_a_huge_one_is_lowered(self) -> None:
        assert parsed(max_tokens=1024.0).max_tokens == 1024
        assert parsed(max_tokens=2**63).max_tokens == 2**31 - 1
        body = msgspec.json.encode(body_of([USER])).replace(b"100", b"9" * 40)
        assert parse_messages(body).max_tokens == 2**31 - 1

    def test_cache_control_is_not_kept_since_it_moves_between_turns(self) -> None:
        block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
        assert parsed({"role": "user", "content": [block]}).messages == parsed(USER).messages

    @pytest.mark.parametrize(
        "kind", ["web_search_20250305", "bash_20250124", "text_editor_20250728", "computer_20250124", "mcp_toolset"]
    )
    def test_tools_without_a_schema_of_their_own_are_left_out(self, kind: str) -> None:
        request = parsed(tools=[{"type": kind}, TOOL])
        assert [tool.name for tool in request.tools] == ["Read"]

    @pytest.mark.parametrize(
        ("choice", "wanted"),
        [
            ({"type": "auto"}, ToolChoice("auto")),
            ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("any", None, False)),
            ({"type": "tool", "name": "Read"}, ToolChoice("tool", "Read")),
            ({"type": "none"}, ToolChoice("none")),
        ],
    )
    def test_every_tool_choice_is_understood(self, choice: Any, wanted: ToolChoice) -> None:
        assert parsed(tools=[TOOL], tool_choice=choice).tool_choice == wanted
