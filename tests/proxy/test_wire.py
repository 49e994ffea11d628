"""The wire of 0.1: what clients got for a corpus of requests, recorded once, and what they get now.

`FREEZE=1` records again; `tests/data/proxy_wire.json` is the record.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from support.fault_upstream import FaultUpstream
from support.proxy_app import running_proxy, settings_for
from support.proxy_ways import OPENAI_TOOLS, TOOLS, chat, turn
from support.upstream_script import (
    Drop,
    Pause,
    Script,
    answers,
    calls,
    error,
    error_event,
    loading,
    overflow,
    says,
    stops,
    thinks,
    tool_turn,
    unauthorised,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.scripted_server import Behaviour

RECORD = Path(__file__).parents[1] / "data" / "proxy_wire.json"
HEADERS = (
    "content-type", "cache-control", "x-accel-buffering", "retry-after", "x-should-retry", "allow", "content-length",
)  # fmt: skip
SETTINGS = {
    "PROXY_API_KEY": "right",
    "PROXY_ADMIN_TOKEN": "admin",
    "PROXY_MAX_BODY_MIB": "1",
    "PROXY_CONTEXT_WINDOW": "65536",
}
CHANGES = (
    (re.compile(r"req_[0-9a-f]{24}"), "req_ID"),
    (re.compile(r"(msg|toolu|call)_[0-9A-Za-z]+"), r"\1_ID"),
    (re.compile(r'"(created|created_at|started|since)":("[^"]*"|[\d.]+)'), r'"\1":0'),
)
BOTH: dict[str, Behaviour] = {
    "text": answers("Hello ", "naïve 日本語 🙂", "!"),
    "nothing told": answers("a", "b", usage=False, timings=False, progress=()),
    "thinking": Script((*thinks("Let me ", "see."), *says("Done."), *stops())),
    "call": tool_turn("read_file", {"path": "a", "limit": 3}),
    "text and calls": Script(
        (*says("Look."), *calls("read_file", {"path": "a"}), *calls("get_weather", {"city": "B"}, index=1),
         *stops("tool_calls"))),
    "cut off": Script((*says("Hello "), *stops("length"))),
    "crlf": answers("Hello ", "there", crlf=True),
    "byte by byte": answers("Hello 🙂 ", "there", split=1),
    "error before": error(400, "bad grammar", "invalid_request_error"),
    "error 500": error(500, "Compute error.", "server_error"),
    "error event": Script((*says("Hello "), Pause(0.05), error_event())),
    "breaks off": Script((*says("Hello "), Pause(0.05), Drop())),
    "drops": Script(drops=True),
    "loading": loading(),
    "too long": overflow(70_000, 65_536),
    "no key": unauthorised(),
    "no JSON": Script(body=b"<html><body>Bad gateway</body></html>", content_type="text/html", status=502),
    "whole, not asked for": Script(body=b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'),
}  # fmt: skip
KEY = {"x-api-key": "right"}
THINK: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
BAD = {
    "empty": b"", "no JSON": b"{", "list": b"[]", "null": b"null", "not text": b"\xff\xfe", "nothing": b"{}",
    "messages": b'{"messages":3,"model":"m","max_tokens":1}', "no model": b'{"messages":[],"max_tokens":1}',
    "no max": b'{"model":"m","messages":[{"role":"user","content":"x"}]}',
    "role": b'{"model":"m","max_tokens":1,"messages":[{"role":"x","content":"x"}]}',
    "block": b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text"}]}]}',
    "image": b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]}',
    "temperature": b'{"model":"m","max_tokens":1,"temperature":"hot","messages":[{"role":"user","content":"x"}]}',
    "choice": b'{"model":"m","max_tokens":1,"tool_choice":{"type":"tool","name":"x"},'
              b'"messages":[{"role":"user","content":"x"}]}',
    "large": b"x" * (2 << 20), "deep": b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}",
}  # fmt: skip
PLAIN: dict[str, tuple[str, str, dict[str, str], bytes]] = {
    **{f"GET {path}": ("GET", path, KEY, b"") for path in (
        "/", "/health", "/v1/models", "/anthropic/v1/models?limit=1", "/v1/models/scripted",
        "/v1/models?limit=x", "/v1/context?session_id=nope", "/nope", "/v1/messages", "/admin/hold")},
    **{f"no key {path}": ("GET", path, {}, b"") for path in ("/", "/health", "/v1/models", "/metrics", "/nope")},
    "HEAD /": ("HEAD", "/", {}, b""),
    "PUT": ("PUT", "/v1/models", KEY, b""),
    "bearer": ("GET", "/v1/models", {"authorization": "Bearer right"}, b""),
    "wrong key": ("GET", "/v1/models", {"x-api-key": "wrong"}, b""),
    "chat without key": ("POST", "/v1/chat/completions", {}, b"{}"),
    "other host": ("GET", "/health", {**KEY, "host": "evil.example"}, b""),
    "bad host": ("GET", "/health", {**KEY, "host": "a b"}, b""),
    "other page": ("POST", "/v1/messages", {**KEY, "origin": "http://evil.example"}, b"{}"),
    "admin": ("GET", "/admin/state", {"x-admin-token": "admin"}, b""),
    "admin without token": ("GET", "/admin/state", KEY, b""),
    "admin forwarded": ("GET", "/admin/state", {"x-admin-token": "admin", "x-forwarded-for": "1.2.3.4"}, b""),
    "admin bad field": ("POST", "/admin/hold", {"x-admin-token": "admin"}, b'{"x":1}'),
    "admin bad limit": ("POST", "/admin/hold", {"x-admin-token": "admin"}, b'{"limit_s":0}'),
    "admin resume": ("POST", "/admin/resume", {"x-admin-token": "admin"}, b""),
    "count": ("POST", "/v1/messages/count_tokens", KEY, json.dumps(turn("one two three")).encode()),
    "packed badly": ("POST", "/v1/messages", {**KEY, "content-encoding": "gzip"}, b"{}"),
    "packed otherwise": ("POST", "/v1/messages", {**KEY, "content-encoding": "br"}, b"{}"),
    **{f"messages {name}": ("POST", "/v1/messages", KEY, body) for name, body in BAD.items()},
    **{f"count {name}": ("POST", "/v1/messages/count_tokens", KEY, body) for name, body in BAD.items()},
    **{f"chat {name}": ("POST", "/v1/chat/completions", KEY, body) for name, body in BAD.items() if name in {
        "empty", "no JSON", "list", "null", "large", "deep"}},
}  # fmt: skip


def asked() -> Iterator[tuple[str, Behaviour, tuple[str, str, dict[str, str], bytes]]]:
    """Each request of the corpus: its name, the upstream's answer, and what is sent."""
    for name, request in PLAIN.items():
        yield name, answers("Hello"), request
    for name, script in BOTH.items():
        for stream in (False, True):
            how = "stream" if stream else "whole"
            body = json.dumps(turn(tools=TOOLS, stream=stream, max_tokens=4096, **THINK)).encode()
            yield f"turn {how}: {name}", script, ("POST", "/v1/messages", KEY, body)
            body = json.dumps(chat(tools=OPENAI_TOOLS, stream=stream)).encode()
            yield f"chat {how}: {name}", script, ("POST", "/v1/chat/completions", KEY, body)


async def answered() -> dict[str, Any]:
    """What a client gets for each of them."""
    found: dict[str, Any] = {}
    with FaultUpstream() as upstream:
        async with running_proxy(settings_for(upstream.url, **SETTINGS)) as proxy:
            await proxy.get("/health", headers=KEY)
            for name, script, (method, path, headers, body) in asked():
                upstream.forget()
                upstream.otherwise = script
                try:
                    async with proxy.client.stream(method, path, headers=headers, content=body) as answer:
                        text = b""
                        ending = ""
                        try:
                            async for piece in answer.aiter_raw():
                                text += piece
                        except httpx.HTTPError as error:
                            ending = type(error).__name__
                except httpx.HTTPError as error:
                    found[name] = type(error).__name__
                    continue
                told = {key: answer.headers[key] for key in HEADERS if key in answer.headers}
                assert "request-id" in answer.headers, name
                found[name] = [answer.status_code, told, normal(text.decode("utf-8", "replace")), ending]
    return found


def normal(text: str) -> str:
    """Without what differs between any two answers."""
    for pattern, instead in CHANGES:
        text = pattern.sub(instead, text)
    return text


@pytest.mark.timeout(300)
async def test_the_wire_is_that_of_0_1() -> None:
    found = await answered()
    if os.environ.get("FREEZE") == "1":
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    wanted = json.loads(RECORD.read_text(encoding="utf-8"))
    assert {name: found[name] for name in found if found[name] != wanted.get(name)} == {}
    assert list(found) == list(wanted)
