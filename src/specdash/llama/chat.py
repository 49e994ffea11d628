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

from specdash.llama.blocking import bearer
from specdash.llama.server_answers import error_message, mapping, natural, one_line
from specdash.llama.server_answers import text as as_text
from specdash.system import http

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.system.http import Response

PATH = "/v1/chat/completions"
SILENCE_S = 600.0
"""A long prompt is silent until its first token."""
LIMIT_S = 1800.0
_TELLING = re.compile(rb'"finish_reason"\s*:\s*"|"timings"|"usage"\s*:\s*\{|"error"')


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
        count = natural(self.timings.get("cache_n"))
        return (
            count
            if count is not None
            else natural(mapping(self.usage.get("prompt_tokens_details")).get("cached_tokens"))
        )

    @property
    def predicted_tokens(self) -> int | None:
        """Generated tokens; by `timings`, else by `usage`."""
        count = natural(self.timings.get("predicted_n"))
        return count if count is not None else natural(self.usage.get("completion_tokens"))


class ChatClient:
    """Asks one server; used by several threads at once. `cancel` ends all that is under way, and all that follows."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        silence_s: float = SILENCE_S,
        limit_s: float = LIMIT_S,
        keep_text: bool = False,
    ) -> None:
        """`silence_s` bounds each wait for data, `limit_s` a whole answer. Raises `UsageError` for a key that cannot be
        sent."""
        self._url, self._key, self._headers = url, key, bearer(key)
        self._silence_s, self._limit_s, self._keep_text = silence_s, limit_s, keep_text
        self.cancel = http.Cancel()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.cancel.cancelled

    def ask(self, body: Mapping[str, Any]) -> ChatAnswer:
        """Send the request, which should ask for a stream, and hear the answer out."""
        heard = ChatAnswer(time.monotonic())
        try:
            http.hear(
                self._url,
                PATH,
                lambda answer: self._hear(answer, heard),
                body=body,
                headers=self._headers,
                silence_s=self._silence_s,
                limit_s=self._limit_s,
                cancel=self.cancel,
            )
        except _FaultError as error:
            heard.fault, heard.error = error.fault, str(error)
        except http.NoConnectionError as error:
            heard.fault, heard.error = ChatFault.UNREACHABLE, f"no connection: {error}"
        except http.LateError as error:
            heard.fault, heard.error = ChatFault.TIMEOUT, str(error)
        except OSError as error:
            is_garbage = isinstance(error, http.HttpError) and error.kind in (http.GARBAGE, http.TOO_LARGE)
            heard.fault, heard.error = ChatFault.GARBAGE if is_garbage else ChatFault.BROKEN, http.words(error)
        if heard.fault is not None and self.cancelled:
            heard.fault, heard.error = ChatFault.CANCELLED, "stopped"
        heard.error = one_line(heard.error.replace(self._key, "***") if self._key else heard.error)
        heard.done_s = heard.done_s if heard.done_s is not None else time.monotonic()
        return heard

    async def _hear(self, answer: Response, heard: ChatAnswer) -> None:
        heard.status = answer.status
        if heard.status != 200:
            kind = ChatFault.SERVER if heard.status >= 500 else ChatFault.REFUSED
            message = error_message((await answer.whole()).body)
            raise _FaultError(
                ChatFault.BUSY if heard.status in (429, 503) else kind,
                f"HTTP {heard.status}{': ' if message else ''}{message}",
            )
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            # An answer in one piece, of a server that does not stream.
            event = (await answer.whole()).json
            heard.done_s = time.monotonic()
            if not isinstance(event, dict) or not ("choices" in event or "error" in event):
                raise _FaultError(ChatFault.GARBAGE, "the answer is no chat completion; is this llama-server?")
            self._take(heard, event)
            return
        has_end = False
        async for event in answer.events():
            if has_end := event == b"[DONE]":
                break
            if heard.first_s is not None and not self._keep_text and _TELLING.search(event) is None:
                heard.chunks += 1
                continue
            try:
                self._take(heard, mapping(json.loads(event)))
            except ValueError:
                why = f"an event that is not JSON: {one_line(repr(event[:60]))}"
                raise _FaultError(ChatFault.GARBAGE, why) from None
        heard.done_s = time.monotonic()
        if not has_end and heard.finish is None:
            raise _FaultError(ChatFault.BROKEN, "the answer stopped before its end")

    def _take(self, heard: ChatAnswer, event: Mapping[str, Any]) -> None:
        if "error" in event:
            raise _FaultError(ChatFault.SERVER, error_message(json.dumps(event)) or "an error event")
        heard.timings = mapping(event.get("timings")) or heard.timings
        heard.usage = mapping(event.get("usage")) or heard.usage
        heard.model = as_text(event.get("model")) or heard.model
        heard.build = as_text(event.get("system_fingerprint")) or heard.build
        choices = event.get("choices")
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
            if self._keep_text:
                made = mapping(mapping(call).get("function"))
                heard.called += (as_text(made.get("name")) or "") + (as_text(made.get("arguments")) or "")
        if self._keep_text:
            heard.text += as_text(text) or ""
            heard.reasoning += as_text(reasoning) or ""


class _FaultError(Exception):
    def __init__(self, fault: ChatFault, why: str) -> None:
        super().__init__(why)
        self.fault = fault
