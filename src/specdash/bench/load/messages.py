"""One streamed turn of the Anthropic Messages API, as a client of a running proxy sees it."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.llama.server_answers import error_message
from specdash.system import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from specdash.system.http import HttpReply

LIMIT_S = 1800.0
"""Of a whole turn."""


class TurnSeen(Struct, frozen=True):
    """What came of one turn. `error` is one line, or None; `calls` are names with inputs, None where not whole JSON.

    Durations are seconds; `ttft_s` runs to the first content.
    """

    duration_s: float
    ttft_s: float | None = None
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    stop_reason: str | None = None
    output_tokens: int | None = None
    error: str | None = None


def ask(url: str, body: dict[str, Any], headers: Mapping[str, str], silence_s: float) -> TurnSeen:
    """Stream one turn to its end; `silence_s` bounds each wait for data. What goes wrong is reported in `error`."""
    started = time.perf_counter()
    seen = TurnSeen(0.0)

    async def hear(answer: HttpReply) -> None:
        nonlocal seen
        if answer.status == 200:
            seen = await _read(answer.events(), started)
        else:
            refusal = _refusal(answer.status, (await answer.whole()).body)
            seen = TurnSeen(time.perf_counter() - started, error=refusal)

    body = {**body, "stream": True}
    try:
        http.ask(url, "/v1/messages", timeout=LIMIT_S, silence_s=silence_s, headers=headers, body=body, hear=hear)
    except OSError as problem:
        return TurnSeen(time.perf_counter() - started, error=f"{problem}")
    return seen


def _refusal(status: int, body: bytes) -> str:
    return f"HTTP {status}: {error_message(body) or body[:200].decode('utf-8', 'replace')}"


async def _read(events: AsyncIterator[bytes], started: float) -> TurnSeen:
    text: list[str] = []
    calls: list[list[str]] = []
    ttft: float | None = None
    stop_reason: str | None = None
    output_tokens: int | None = None
    error: str | None = "the stream ended without message_stop"
    async for data in events:
        event = json.loads(data)
        kind = event["type"]
        if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append([event["content_block"]["name"], ""])
        elif kind == "content_block_delta":
            ttft = ttft if ttft is not None else time.perf_counter() - started
            text.append(event["delta"].get("text", ""))
            if calls:
                calls[-1][1] += event["delta"].get("partial_json", "")
        elif kind == "message_delta":
            stop_reason = event["delta"]["stop_reason"]
            output_tokens = event["usage"]["output_tokens"]
        elif kind == "message_stop":
            error = None
        elif kind == "error":
            error = f"{event['error']['type']}: {event['error']['message']}"
    made = tuple((name, _json(arguments or "{}")) for name, arguments in calls)
    return TurnSeen(time.perf_counter() - started, ttft, "".join(text), made, stop_reason, output_tokens, error)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


# Judges a tool turn by what the client sees: is the text free of broken tool syntax, and is every call usable?
#
# Independent of the proxy's own detection, so that one can be held against the other. Structure decides, not words:
# text in code spans and fences, and prose that names a tag inside a line, is what a model may well write.

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_OPENING = re.compile(
    r"^[ \t]*(?:<tool_call>|<function_calls?>|<function=\w|<invoke name=|<parameter(?:=\w| name=)|<\|tool_call|"
    r"\[TOOL_CALLS?\])",
    re.MULTILINE,
)
_CLOSING = r"</(?:tool_call|function_calls?|function|invoke|parameter|think|agentic-protocol)>"
_ORPHAN = re.compile(rf"^[ \t]*{_CLOSING}|{_CLOSING}[ \t]*$", re.MULTILINE)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def visible_fault(text: str, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with visible text: the tool syntax that leaked into it, or None."""
    prose = _SPAN.sub("", _FENCE.sub("", text))
    for pattern in (_OPENING, _ORPHAN):
        if (found := pattern.search(prose)) is not None:
            return f"tool syntax in the text: {found.group().strip()}"
    if _is_bare_call(text.strip(), {str(tool["name"]) for tool in tools}):
        return "a tool call written as JSON text"
    return None


def call_fault(name: str, arguments: Any, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """What makes a call unusable: an unknown tool, a missing or mistyped argument; None for a good one."""
    schema = next((tool["input_schema"] for tool in tools if tool["name"] == name), None)
    if schema is None:
        return f"unknown tool {name!r}"
    if not isinstance(arguments, dict):
        return f"{name}: its input is no object"
    for field in schema.get("required", ()):
        if field not in arguments:
            return f"{name}: {field} is missing"
    for field, value in arguments.items():
        kind = _KINDS.get(schema.get("properties", {}).get(field, {}).get("type", ""))
        mistyped = kind is not None and not isinstance(value, kind)
        if mistyped or (isinstance(value, bool) and kind not in (None, bool)):
            return f"{name}: {field} is of the wrong type"
    return None


def _is_bare_call(text: str, names: set[str]) -> bool:
    if not text.startswith("{"):
        return False
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return bool(value.get("name") in names and ("arguments" in value or "parameters" in value))
