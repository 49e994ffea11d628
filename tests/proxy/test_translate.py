"""A Messages request as a chat completions body."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.translate.parse import parse_messages
from specdash.proxy.translate.translate import chat_body, chat_messages, prefill_of, steady
from support.messages_bodies import PIXEL, READ, assistant_turns, body_of, turns, user_turns

if TYPE_CHECKING:
    from specdash.proxy.translate.parse import MessagesRequest

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}}
OTHER_CALL = {**CALL, "id": "toolu_2"}


def request_of(*messages: Any, **fields: Any) -> MessagesRequest:
    return parse_messages(msgspec.json.encode(body_of(list(messages) or [user("hi")], **fields)), counts=True)


def rendered(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    return chat_messages(request_of(*messages, **fields))


def body(**fields: Any) -> dict[str, Any]:
    return chat_body(request_of(**fields), "local")


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content[0] if isinstance(content[0], str) else list(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(call: str, content: Any = "ok", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **fields}


SYSTEM = {"role": "system", "content": "Be brief."}
REMINDER = "<system-reminder>\nBe brief.\n</system-reminder>"
HM = {"type": "thinking", "thinking": "hm", "signature": "s"}
ADDRESS = "https://example.org/a.png"
BY_URL = {"type": "image", "source": {"type": "url", "url": ADDRESS}}
Q = {"role": "user", "content": "q"}


def made(*names: str) -> list[dict[str, Any]]:
    """Calls of Read as an upstream is sent them."""
    function = {"name": "Read", "arguments": '{"path":"a"}'}
    return [{"id": name, "type": "function", "function": function} for name in names]


def tool(call: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


RENDERED: dict[str, tuple[list[Any], list[dict[str, Any]]]] = {
    "an instruction in mid-conversation stays in its place": (
        [Q, assistant("yes"), SYSTEM, user("more")],
        [Q, {"role": "assistant", "content": "yes"}, user(f"{REMINDER}\n\nmore")],
    ),
    "an instruction between a call and its result comes after the result": (
        [Q, assistant(CALL), SYSTEM, user(result("toolu_1"), text("go"))],
        [
            Q,
            {"role": "assistant", "content": None, "tool_calls": made("toolu_1")},
            tool("toolu_1", "ok"),
            user(f"{REMINDER}\n\ngo"),
        ],
    ),
    "assistant turns in a row are one message, parallel calls too; results keep the client's order, words follow": (
        [
            Q,
            assistant("Reading."),
            assistant(CALL, OTHER_CALL),
            user(text("a"), result("toolu_2", "two"), text("b"), result("toolu_1", "one")),
        ],
        [
            Q,
            {"role": "assistant", "content": "Reading.", "tool_calls": made("toolu_1", "toolu_2")},
            tool("toolu_2", "two"),
            tool("toolu_1", "one"),
            user("a\n\nb"),
        ],
    ),
    "thinking becomes reasoning and redacted thinking nothing": (
        [Q, assistant(HM, {"type": "redacted_thinking", "data": "x"}, text("a")), user("b")],
        [Q, {"role": "assistant", "content": "a", "reasoning_content": "hm"}, user("b")],
    ),
    "a result whose call is gone becomes text": (
        [user(result("toolu_9", "out"), text("go on"))],
        [user("Result of an earlier tool call:\n\nout\n\ngo on")],
    ),
    "an unanswered last call gets an empty result": (
        [Q, assistant(CALL)],
        [Q, {"role": "assistant", "content": None, "tool_calls": made("toolu_1")}, tool("toolu_1", "")],
    ),
    "a turn of unknown blocks keeps the sides alternating": (
        [Q, assistant({"type": "of_the_future"}), user("b")],
        [Q, {"role": "assistant", "content": ""}, user("b")],
    ),
    "images stay between the texts around them": (
        [user(text("a"), text("b"), IMAGE, text("c"), BY_URL)],
        [user(text("a\n\nb"), IMAGE_PART, text("c"), {"type": "image_url", "image_url": {"url": ADDRESS}})],
    ),
    "images inside tool results stay there": (
        [Q, assistant(CALL), user(result("toolu_1", [text("shot"), IMAGE]))],
        [
            Q,
            {"role": "assistant", "content": None, "tool_calls": made("toolu_1")},
            tool("toolu_1", [text("shot"), IMAGE_PART]),
        ],
    ),
}


@pytest.mark.parametrize(("messages", "wanted"), RENDERED.values(), ids=RENDERED)
def test_a_conversation_becomes_chat_messages(messages: list[Any], wanted: list[Any]) -> None:
    assert rendered(*messages) == wanted


@pytest.mark.parametrize("system", [None, "", [], [text("")], [text("one"), text(""), text("two")]])
def test_system_texts_become_the_first_message(system: Any) -> None:
    first = [{"role": "system", "content": "one\n\ntwo"}] if system and len(system) > 1 else []
    assert rendered(Q, system=system) == [*first, Q]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("no such file", "Error: no such file"),
        ("<tool_use_error>bad</tool_use_error>", "<tool_use_error>bad</tool_use_error>"),
        ("", "Error"),
        (None, "Error"),
        ([text("a"), text("b")], "Error: a\n\nb"),
    ],
)
def test_a_failed_tool_says_so_once(content: Any, wanted: str) -> None:
    found = rendered(Q, assistant(CALL), user(result("toolu_1", content, is_error=True)))
    assert found[2]["content"] == wanted


@pytest.mark.parametrize(
    ("block", "wanted"),
    [
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}}, "plain"),
        (
            {"type": "document", "title": "T", "context": "C", "source": {"type": "content", "content": [text("a")]}},
            "T\n\nC\n\na",
        ),
        ({"type": "document", "source": {"type": "content", "content": "a"}}, "a"),
        ({"type": "search_result", "source": "s", "title": "T", "content": [text("a"), text("b")]}, "T\n\na\n\nb"),
        ({"type": "document", "source": {"type": "base64"}}, "[document: it cannot be read here]"),
        ({"type": "search_result", "source": "s"}, "[search_result: it cannot be read here]"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "[image: it cannot be read here]"),
    ],
)
def test_a_document_is_its_plain_text_or_shown_as_unreadable(block: Any, wanted: str) -> None:
    assert rendered(user(block))[0]["content"] == wanted


class TestTools:
    def test_tools_become_functions_with_the_clients_schema(self) -> None:
        function = body(tools=[READ])["tools"][0]["function"]
        schema = {key: value for key, value in READ["input_schema"].items() if key != "$schema"}  # type: ignore[attr-defined]
        assert function == {"name": "Read", "description": "Reads a file.", "parameters": schema}

    @pytest.mark.parametrize(
        ("choice", "wanted", "offered"),
        [
            ({"type": "auto"}, "auto", ["Read", "B"]),
            ({"type": "any"}, "required", ["Read", "B"]),
            ({"type": "none"}, "none", ["Read", "B"]),
            ({"type": "tool", "name": "B"}, "required", ["B"]),
        ],
    )
    def test_a_choice_keeps_all_tools_for_the_prefix_cache_but_for_a_named_one(
        self, choice: dict[str, str], wanted: str, offered: list[str]
    ) -> None:
        found = body(tools=[READ, {"name": "B"}], tool_choice=choice)
        assert found["tool_choice"] == wanted
        assert [tool["function"]["name"] for tool in found["tools"]] == offered

    @pytest.mark.parametrize("disabled", [True, False])
    def test_parallel_calls_are_allowed_unless_disabled(self, disabled: bool) -> None:
        found = body(tools=[READ], tool_choice={"type": "auto", "disable_parallel_tool_use": disabled})
        assert found["parallel_tool_calls"] is not disabled


class TestFields:
    def test_every_generation_is_streamed_and_sampling_is_passed_when_given_and_stops_never(self) -> None:
        found = body(stream=False, temperature=0, top_p=0.5, top_k=3, stop_sequences=["END"])
        assert (found["stream"], found["stream_options"]) == (True, {"include_usage": True})
        assert (found["timings_per_token"], found["return_progress"]) == (True, True)
        assert (found["temperature"], found["top_p"], found["top_k"]) == (0, 0.5, 3)
        assert {"temperature", "top_p", "top_k", "stop"}.isdisjoint(body())
        assert "stop" not in found

    @pytest.mark.parametrize(
        ("thinking", "wanted"),
        [
            (None, {}),
            ({"type": "disabled"}, {"chat_template_kwargs": {"enable_thinking": False}}),
            ({"type": "adaptive"}, {"chat_template_kwargs": {"enable_thinking": True}}),
            ({"type": "enabled"}, {"chat_template_kwargs": {"enable_thinking": True}}),
            (
                {"type": "enabled", "budget_tokens": 2000},
                {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget_tokens": 2000},
            ),
        ],
    )
    def test_thinking_goes_where_llama_cpp_listens(self, thinking: Any, wanted: Any) -> None:
        def fields(found: dict[str, Any]) -> dict[str, Any]:
            return {key: found[key] for key in ("chat_template_kwargs", "thinking_budget_tokens") if key in found}

        request = request_of(thinking=thinking)
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        assert fields(chat_body(request, "m")) == wanted
        assert fields(chat_body(request, "m", thinking_off=True)) == off
        prefilled = request_of(user("q"), assistant("{"), thinking=thinking)
        assert fields(chat_body(prefilled, "m")) == off

    def test_the_prefill_is_what_the_last_assistant_turns_say(self) -> None:
        thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
        conversation = [
            user("q"),
            assistant("a"),
            user("b"),
            assistant("c"),
            assistant(thinking, text("d"), text(" e")),
        ]
        assert prefill_of(request_of(*conversation)) == "c\n\nd\n\n e"
        assert rendered(*conversation)[-1]["content"] == "c\n\nd\n\n e"
        assert chat_body(request_of(*conversation), "m")["echo"] is True
        assert prefill_of(request_of(*conversation[:3])) == ""
        assert "echo" not in chat_body(request_of(*conversation[:3]), "m")


class TestInvariants:
    @given(st.lists(turns, min_size=1, max_size=6), assistant_turns, st.lists(turns, max_size=4))
    def test_new_turns_leave_the_rendering_of_earlier_ones_alone(
        self, history: list[Any], answer: Any, more: list[Any]
    ) -> None:
        history = [*history, user("go on")]
        before = rendered(*history)
        assert rendered(*history, answer, *more)[: len(before)] == before

    @given(st.lists(turns, min_size=1, max_size=8))
    def test_sides_alternate_and_results_follow_their_calls(self, history: list[Any]) -> None:
        found = rendered(*history)
        talking = [entry["role"] for entry in found if entry["role"] != "tool"]
        for before, after in itertools.pairwise(found):
            assert after["role"] != "user" or before["role"] != "user"
            assert after["role"] != "assistant" or before["role"] != "assistant"
        assert set(talking) <= {"user", "assistant"}
        calls: list[str] = []
        for entry in found:
            if entry["role"] == "tool":
                assert entry["tool_call_id"] in calls
            elif entry["role"] == "assistant":
                calls = [call["id"] for call in entry.get("tool_calls", ())]
                assert calls or entry["content"] is not None

    @given(st.lists(user_turns | assistant_turns, min_size=1, max_size=6))
    def test_no_text_and_no_picture_is_lost(self, history: list[Any]) -> None:
        shown = json.dumps(rendered(*history), ensure_ascii=False)
        for message in history:
            for block in message["content"] if isinstance(message["content"], list) else [text(message["content"])]:
                for entry in (block, *(block["content"] if isinstance(block.get("content"), list) else ())):
                    if entry["type"] == "text":
                        assert json.dumps(entry["text"], ensure_ascii=False)[1:-1] in shown


HEADER = "x-anthropic-billing-header: cc_version=2.1.50.{suffix}; cc_entrypoint=cli; cch={nonce};"

nonces = st.from_regex(r"[0-9a-f]{3,12}", fullmatch=True)


def header(suffix: str = "d2a", nonce: str = "81ac4") -> str:
    return HEADER.format(suffix=suffix, nonce=nonce)


@given(nonces, nonces, nonces, nonces)
def test_bodies_that_differ_in_nonces_only_are_rendered_alike(name: str, two: str, three: str, four: str) -> None:
    def rendered(suffix: str, nonce: str) -> bytes:
        system = [{"type": "text", "text": header(suffix, nonce)}, {"type": "text", "text": "You are helpful."}]
        body = body_of([{"role": "user", "content": "hi"}], system=system)
        return msgspec.json.encode(chat_body(parse_messages(msgspec.json.encode(body)), "m"))

    assert rendered(name, two) == rendered(three, four)


@pytest.mark.parametrize("joint", ["\n", "\n\n", " "])
def test_text_around_the_header_and_a_user_who_quotes_it_are_left_alone(joint: str) -> None:
    rest = "Explain cch=81ac4; and cc_version=2.1.50.d2a, please."
    assert steady(header() + joint + rest).endswith(joint + rest)
    quoted = f"Note cch=81ac4;{joint}{header()}"
    assert steady(quoted) == quoted
    body = body_of([{"role": "user", "content": header()}])
    assert chat_body(parse_messages(msgspec.json.encode(body)), "m")["messages"][0]["content"] == header()


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_the_schema_of_an_answer_becomes_the_response_format(field: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    found = body(**{field: {"format": wanted} if field == "output_config" else wanted})
    assert found["response_format"] == {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    assert "response_format" not in body(output_config={"effort": "low"})
