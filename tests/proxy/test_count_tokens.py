"""Counting tokens with the upstream's own template and tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.proxy_app import proxied
from support.scripted_server import tells
from support.upstream_script import error

if TYPE_CHECKING:
    from support.scripted_server import Behaviour

PATH = "/v1/messages/count_tokens"
COUNT = "/v1/chat/completions/input_tokens"
NOT_FOUND = error(404, "File Not Found", "not_found_error")
BODY = {"model": "claude-x", "messages": [{"role": "user", "content": "hello"}]}


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
