"""What the translation renders, sent to a real llama.cpp server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from specdash.backend.launch import free_port
from specdash.proxy.translate.parse import parse_messages
from specdash.proxy.translate.translate import chat_body, prefill_of
from support.asking import read
from support.messages_bodies import READ, body_of, rich_body
from support.small_server import small_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdash.proxy.translate.parse import MessagesRequest

pytestmark = pytest.mark.engine

USER = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port("127.0.0.1")
    log: Path = tmp_path_factory.mktemp("server") / "log"
    with small_server(port, log):
        yield port


def chunks(port: int, found: dict[str, Any]) -> list[dict[str, Any]]:
    lines = read(f"http://127.0.0.1:{port}/v1/chat/completions", found).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def counted(answer: dict[str, Any], **fields: Any) -> MessagesRequest:
    return parse_messages(msgspec.json.encode(body_of([USER, answer], **fields)), counts=True)


def without_pictures(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_pictures(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    return [
        without_pictures(inner) for inner in value if not (isinstance(inner, dict) and inner.get("type") == "image")
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "tool", "name": "Now"}},
        {"tool_choice": {"type": "none"}, "thinking": {"type": "disabled"}},
        {"tools": None, "tool_choice": None, "thinking": {"type": "adaptive"}},
    ],
)
def test_a_rich_conversation_is_answered_with_usage_timings_and_progress(port: int, fields: dict[str, Any]) -> None:
    request = parse_messages(msgspec.json.encode({**without_pictures(rich_body()), **fields}))
    found = chunks(port, chat_body(request, "m", max_tokens=8))
    assert any(chunk.get("choices") for chunk in found)
    assert any("prompt_progress" in chunk for chunk in found)
    assert any("timings" in chunk for chunk in found)
    assert found[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("tools", [None, [READ]])
def test_a_prefill_is_repeated_and_continued(port: int, tools: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    request = counted({"role": "assistant", "content": "pre x"}, tools=tools, thinking=thinking)
    found = chunks(port, chat_body(request, "m", max_tokens=4))
    answer = "".join(choice["delta"].get("content") or "" for entry in found for choice in entry.get("choices", ()))
    assert answer.startswith(prefill_of(request))
    assert len(answer) > len(prefill_of(request))


def test_an_unanswered_call_can_be_rendered(port: int) -> None:
    request = counted({"role": "assistant", "content": [CALL]}, tools=[READ])
    assert chunks(port, chat_body(request, "m", max_tokens=1))


def test_pictures_are_refused_by_a_model_without_eyes(port: int) -> None:
    request = parse_messages(msgspec.json.encode(rich_body()))
    with pytest.raises(urllib.error.HTTPError) as caught:
        chunks(port, chat_body(request, "m", max_tokens=1))
    with caught.value:
        assert "image input is not supported" in caught.value.read().decode()


@pytest.mark.parametrize("tools", [None, [READ]])
def test_an_answer_fits_the_schema_it_is_asked_to_fit(port: int, tools: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "b"}}, "required": ["a"], "additionalProperties": False}
    request = parse_messages(
        msgspec.json.encode(
            body_of([USER], tools=tools, output_config={"format": {"type": "json_schema", "schema": schema}})
        )
    )
    found = chunks(port, chat_body(request, "m", max_tokens=200))
    answer = "".join(choice["delta"].get("content") or "" for entry in found for choice in entry.get("choices", ()))
    assert json.loads(answer) == {"a": "b"}
