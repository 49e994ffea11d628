"""Counting tokens with the upstream's own template and tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fault_server import free_port
from support.proxy_app import proxied, running_proxy, settings_for
from support.scripted_server import tells
from support.small_server import small_server
from support.upstream_script import error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.scripted_server import Behaviour

PATH = "/v1/messages/count_tokens"
COUNT = "/v1/chat/completions/input_tokens"
NOT_FOUND = error(404, "File Not Found", "not_found_error")
BODY = {"model": "claude-x", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
LONG = {
    "model": "claude-x",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [TOOL],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Read a.py"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "def f(): pass"}]},
    ],
}


@pytest.mark.parametrize("path", [PATH, f"/anthropic{PATH}?beta=true"])
async def test_the_upstream_counts(path: str) -> None:
    counted = tells({"input_tokens": 42, "object": "response.input_tokens"})
    async with proxied(NOT_FOUND, {COUNT: counted}) as (proxy, server):
        answer = await proxy.post(path, BODY)
        assert (answer.status_code, answer.json()) == (200, {"input_tokens": 42})
        asked = next(call for call in server.calls if call.path == COUNT)
        assert asked.body["messages"][-1]["content"] == "hello"


@pytest.mark.parametrize(
    ("routes", "status"),
    [
        ({}, 502),
        ({COUNT: tells({})}, 502),
        ({COUNT: tells({"input_tokens": "many"})}, 502),
        ({COUNT: tells({"error": {"message": "bad template, jinja"}}, 500)}, 400),
        ({COUNT: tells({"error": {"message": "Loading model"}}, 503)}, 529),
    ],
)
async def test_what_the_upstream_cannot_count_is_an_error(routes: dict[str, Behaviour], status: int) -> None:
    async with proxied(NOT_FOUND, routes) as (proxy, _):
        answer = await proxy.post(PATH, BODY)
        assert (answer.status_code, answer.json()["type"]) == (status, "error")


@pytest.fixture(scope="module")
def engine_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with small_server(port, tmp_path_factory.mktemp("engine") / "log"):
        yield port


@pytest.mark.engine
@pytest.mark.parametrize("body", [BODY, LONG], ids=["text", "tools"])
async def test_the_count_is_what_a_real_turn_then_reads(engine_port: int, body: dict[str, Any]) -> None:
    async with running_proxy(settings_for(f"http://127.0.0.1:{engine_port}")) as proxy:
        counted = (await proxy.post(PATH, body)).json()["input_tokens"]
        usage = (await proxy.post("/v1/messages", {**body, "max_tokens": 4})).json()["usage"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
