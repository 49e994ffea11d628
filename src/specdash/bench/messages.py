"""One streamed turn of the Anthropic Messages API, as a client of a running proxy sees it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import httpx


@dataclass(frozen=True, slots=True)
class TurnSeen:
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


def ask(client: httpx.Client, body: dict[str, Any], headers: dict[str, str]) -> TurnSeen:
    """Stream one turn to its end; whatever goes wrong is told in `error`."""
    import httpx

    started = time.perf_counter()
    try:
        with client.stream("POST", "/v1/messages", json={**body, "stream": True}, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                return TurnSeen(time.perf_counter() - started, error=_refusal(answer))
            return _read(answer.iter_lines(), started)
    except httpx.HTTPError as problem:
        return TurnSeen(time.perf_counter() - started, error=f"{type(problem).__name__}: {problem}")


def _refusal(answer: httpx.Response) -> str:
    try:
        said = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = answer.text[:200]
    return f"HTTP {answer.status_code}: {said}"


def _read(lines: Iterable[str], started: float) -> TurnSeen:
    text: list[str] = []
    calls: list[list[str]] = []
    ttft: float | None = None
    stop_reason: str | None = None
    output_tokens: int | None = None
    error: str | None = "the stream ended without message_stop"
    for event in _events(lines):
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


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line[6:])


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
