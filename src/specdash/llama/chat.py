"""One chat request to a llama-server, streamed and timed; it ends in time in a `ChatAnswer`, never in an exception.

Only the first event that brings something and those at the end are parsed: on a machine that runs the server too,
parsing every token would take time that decode might have had.
"""

from __future__ import annotations

import json
import re
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.llama.client import bearer
from specdash.llama.server_answers import error_message, mapping, natural, one_line
from specdash.llama.server_answers import text as as_text
from specdash.system import http
from specdash.system.http import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.llama.client import BlockingClient
    from specdash.system.http import HttpReply

PATH = "/v1/chat/completions"
SILENCE_S = 600.0
"""A long prompt is silent until its first token."""
LIMIT_S = 1800.0
_NEEDED = re.compile(rb'"finish_reason"\s*:\s*"|"timings"|"usage"\s*:\s*\{|"error"')


class ChatFault(StrEnum):
    """Why a request brought no whole answer."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    BROKEN = "broken off"
    BUSY = "busy"
    """429 or 503: it would not take the request now."""
    REFUSED = "refused"
    """Another 4xx: the request itself is not to its liking."""
    SERVER = "server error"
    GARBAGE = "not understood"
    CANCELLED = "cancelled"


class ChatAnswer(Struct):
    """What came. Times are of the monotonic clock."""

    sent_s: float
    first_s: float | None = None
    done_s: float | None = None
    chunks: int = 0
    """Events with text, reasoning or a tool call."""
    timings: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish: str | None = None
    model: str | None = None
    build: str | None = None
    """`system_fingerprint`."""
    fault: ChatFault | None = None
    error: str = ""
    status: int | None = None
    text: str = ""
    """Of the answer, where it is kept."""
    reasoning: str = ""
    """Likewise."""
    called: str = ""
    """What the tool calls consist of, likewise."""
    calls: set[int] = field(default_factory=set)
    """Places of the tool calls."""

    @property
    def empty(self) -> bool:
        """Whether nothing came, although the request did not fail."""
        return not self.chunks and self.fault is None

    @property
    def prompt_tokens(self) -> int | None:
        """Of the whole prompt; by `timings`, else by `usage`."""
        processed, cached = natural(self.timings.get("prompt_n")), natural(self.timings.get("cache_n"))
        if processed is not None:
            return processed + (cached or 0)
        return natural(self.usage.get("prompt_tokens"))

    @property
    def cached_tokens(self) -> int | None:
        """Those of the prompt that needed no work."""
        cached = natural(self.timings.get("cache_n"))
        details = mapping(self.usage.get("prompt_tokens_details"))
        return cached if cached is not None else natural(details.get("cached_tokens"))

    @property
    def predicted_tokens(self) -> int | None:
        """Generated tokens; by `timings`, else by `usage`."""
        predicted = natural(self.timings.get("predicted_n"))
        return predicted if predicted is not None else natural(self.usage.get("completion_tokens"))


def ask(
    server: BlockingClient,
    body: Mapping[str, Any],
    *,
    silence_s: float = SILENCE_S,
    limit_s: float = LIMIT_S,
    keep_text: bool = False,
) -> ChatAnswer:
    """Send the request, which should ask for a stream, and hear the answer out.

    `silence_s` bounds each wait for data, `limit_s` the whole answer; the server's own limit does not count. Raises
    `UsageError` for a key that cannot be sent."""
    heard, key = ChatAnswer(time.monotonic()), server.key
    how: dict[str, Any] = {"silence_s": silence_s, "timeout": limit_s, "verified": server.verified}
    how |= {"headers": bearer(key), "cancel": server.cancel, "body": body}
    try:
        http.ask(server.url, PATH, hear=lambda answer: _hear(answer, heard, keep_text), **how)
    except http.NoConnectionError as error:
        heard.fault, heard.error = ChatFault.UNREACHABLE, f"no connection: {error}"
    except HttpError as error:
        fault = {http.TIMEOUT: ChatFault.TIMEOUT, http.TOO_LARGE: ChatFault.GARBAGE}.get(error.kind, ChatFault.BROKEN)
        heard.fault, heard.error = ChatFault(error.kind) if error.kind in list(ChatFault) else fault, str(error)
    if heard.fault is not None and server.cancel is not None and server.cancel.is_set():
        heard.fault, heard.error = ChatFault.CANCELLED, "stopped"
    heard.error = one_line(heard.error.replace(key, "***") if key else heard.error)
    heard.done_s = heard.done_s if heard.done_s is not None else time.monotonic()
    return heard


async def _hear(answer: HttpReply, heard: ChatAnswer, keep_text: bool) -> None:
    """Raises `HttpError`, its kind a `ChatFault` where the answer is whole but none that was asked for."""
    heard.status = answer.status
    if heard.status != 200:
        fault = ChatFault.SERVER if heard.status >= 500 else ChatFault.REFUSED
        message = error_message((await answer.whole()).body)
        why = f"HTTP {heard.status}{': ' if message else ''}{message}"
        raise HttpError(ChatFault.BUSY if heard.status in (429, 503) else fault, why)
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        # An answer in one piece, of a server that does not stream.
        given = mapping((await answer.whole()).json)
        heard.done_s = time.monotonic()
        if not given.keys() & {"choices", "error"}:
            raise HttpError(ChatFault.GARBAGE, "the answer is not a chat completion; is this llama-server?")
        _take(heard, given, keep_text)
        return
    has_end = False
    async for event in answer.events():
        if has_end := event == b"[DONE]":
            break
        if heard.first_s is not None and not keep_text and _NEEDED.search(event) is None:
            heard.chunks += 1
            continue
        try:
            _take(heard, mapping(json.loads(event)), keep_text)
        except ValueError:
            raise HttpError(ChatFault.GARBAGE, f"an event that is not JSON: {one_line(repr(event[:60]))}") from None
    heard.done_s = time.monotonic()
    if not has_end and heard.finish is None:
        raise HttpError(ChatFault.BROKEN, "the answer stopped before its end")


def _take(heard: ChatAnswer, given: Mapping[str, Any], keep_text: bool) -> None:
    if "error" in given:
        raise HttpError(ChatFault.SERVER, error_message(json.dumps(given)) or "an error event")
    heard.timings = mapping(given.get("timings")) or heard.timings
    heard.usage = mapping(given.get("usage")) or heard.usage
    heard.model = as_text(given.get("model")) or heard.model
    heard.build = as_text(given.get("system_fingerprint")) or heard.build
    choices = given.get("choices")
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    heard.finish = as_text(choice.get("finish_reason")) or heard.finish
    delta = mapping(choice.get("delta")) or mapping(choice.get("message"))
    text, calls = delta.get("content"), delta.get("tool_calls")
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if text or reasoning or calls:
        heard.chunks += 1
        # An answer in one piece does not tell when its first token was there.
        if heard.first_s is None and heard.done_s is None:
            heard.first_s = time.monotonic()
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        index = natural(mapping(call).get("index"))
        heard.calls.add(place if index is None else index)
        if keep_text:
            made = mapping(mapping(call).get("function"))
            heard.called += (as_text(made.get("name")) or "") + (as_text(made.get("arguments")) or "")
    if keep_text:
        heard.text += as_text(text) or ""
        heard.reasoning += as_text(reasoning) or ""
