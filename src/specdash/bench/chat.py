"""One streamed chat request to a llama-server, timed; it ends in time in a `Heard`, never in an exception.

Only the first event that brings something and those at the end are parsed: on a machine that runs the server too,
parsing every token would take time that decode might have had.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specdash.bench.line import connected, headers_of, path_of
from specdash.llama.bodies import error_message, mapping, natural, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.bench.samples import Place

PATH = "/v1/chat/completions"
SILENCE_S = 600.0
"""A long prompt is silent until its first token."""
LIMIT_S = 1800.0
_BLOCK = 65536
_MOST_BYTES = 256 * 1024 * 1024
_LONGEST_LINE = 16 * 1024 * 1024
_TELLING = re.compile(rb'"finish_reason"\s*:\s*"|"timings"|"usage"\s*:\s*\{|"error"')


class Fault(StrEnum):
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


@dataclass(slots=True)
class Heard:
    """What came. Times are of the monotonic clock."""

    sent_s: float
    first_s: float | None = None
    done_s: float | None = None
    chunks: int = 0
    anything: bool = False
    """Whether text, reasoning or a tool call came."""
    timings: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish: str | None = None
    model: str | None = None
    fault: Fault | None = None
    error: str = ""
    status: int | None = None
    text: str = ""
    """Of the answer, where it is kept."""
    other: str = ""
    """Reasoning and tool calls, where text is kept."""
    tool_calls: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing came, although the request did not fail."""
        return not self.anything and self.fault is None

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
        told = natural(self.timings.get("cache_n"))
        return (
            told if told is not None else natural(mapping(self.usage.get("prompt_tokens_details")).get("cached_tokens"))
        )

    @property
    def predicted_tokens(self) -> int | None:
        """Generated tokens; by `timings`, else by `usage`."""
        told = natural(self.timings.get("predicted_n"))
        return told if told is not None else natural(self.usage.get("completion_tokens"))


class Chat:
    """Asks one place; used by several threads at once. `cancel` ends all that is under way, and all that follows."""

    def __init__(
        self, place: Place, *, silence_s: float = SILENCE_S, limit_s: float = LIMIT_S, keep_text: bool = False
    ) -> None:
        """`silence_s` bounds each wait for data, `limit_s` a whole answer. Raises `UsageError` for a key that cannot be
        sent."""
        self._place, self._path = place, path_of(place, PATH)
        self._head = {**headers_of(place), "Content-Type": "application/json"}
        self._silence_s, self._limit_s, self._keep_text = silence_s, limit_s, keep_text
        self._lock = threading.Lock()
        self._lines: set[socket.socket] = set()
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End every request that is under way; a llama-server stops generating for it."""
        with self._lock:
            self._cancelled = True
            for line in self._lines:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def ask(self, body: Mapping[str, Any]) -> Heard:
        """Send the request, which should ask for a stream, and hear the answer out."""
        data = json.dumps(body).encode()
        heard = Heard(time.monotonic())
        try:
            connection = connected(self._place, self._silence_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return self._failed(heard, Fault.UNREACHABLE, f"no connection: {_words(error)}")
        line = connection.sock
        try:
            with self._lock:
                if self._cancelled:
                    return self._failed(heard, Fault.CANCELLED, "stopped")
                self._lines.add(line)
            self._exchange(connection, data, heard)
        except TimeoutError:
            self._failed(heard, Fault.TIMEOUT, f"nothing came for {self._silence_s:.0f} s")
        except (OSError, http.client.HTTPException) as error:
            self._failed(heard, Fault.BROKEN, f"the connection broke: {_words(error)}")
        finally:
            with self._lock:
                self._lines.discard(line)
            connection.close()
        if heard.fault is not None and self._cancelled:
            heard.fault, heard.error = Fault.CANCELLED, "stopped"
        return heard

    def _exchange(self, connection: http.client.HTTPConnection, data: bytes, heard: Heard) -> None:
        connection.request("POST", self._path, data, self._head)
        answer = connection.getresponse()
        heard.status = answer.status
        if answer.status != 200:
            self._refused(heard, answer.status, answer.read(_BLOCK))
            return
        if "text/event-stream" not in answer.headers.get("Content-Type", ""):
            self._whole(heard, answer.read(_LONGEST_LINE))
            return
        ended = self._stream(heard, answer)
        heard.done_s = time.monotonic()
        if heard.fault is None and not ended and heard.finish is None:
            self._failed(heard, Fault.BROKEN, "the answer stopped before its end")

    def _stream(self, heard: Heard, answer: http.client.HTTPResponse) -> bool:
        """Whether the end was said. Raises what reading raises."""
        for event in self._events(heard, answer):
            if event == b"[DONE]":
                return True
            if heard.first_s is not None and not self._keep_text and _TELLING.search(event) is None:
                heard.chunks += 1
                continue
            try:
                told = json.loads(event)
            except ValueError:
                self._failed(heard, Fault.GARBAGE, f"an event that is not JSON: {one_line(repr(event[:60]))}")
                return True
            self._take(heard, mapping(told))
            if heard.fault is not None:
                return True
        return False

    def _events(self, heard: Heard, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        """The data of each event as it comes."""
        deadline = heard.sent_s + self._limit_s
        held, total = b"", 0
        while block := answer.read1(_BLOCK):
            total += len(block)
            *lines, held = (held + block).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
                elif line.startswith(b"error:"):
                    yield b'{"error":' + line[6:].strip() + b"}"
            if total > _MOST_BYTES or len(held) > _LONGEST_LINE:
                self._failed(heard, Fault.GARBAGE, f"more than {total / 1e6:.0f} MB, cut off")
                return
            if time.monotonic() > deadline:
                self._failed(heard, Fault.TIMEOUT, f"not complete within {self._limit_s:.0f} s")
                return

    def _take(self, heard: Heard, told: Mapping[str, Any]) -> None:
        if "error" in told:
            message = error_message(json.dumps(told)) or "an error event"
            self._failed(heard, Fault.SERVER, self._scrubbed(message))
            return
        heard.timings = mapping(told.get("timings")) or heard.timings
        heard.usage = mapping(told.get("usage")) or heard.usage
        heard.model = told.get("model") if isinstance(told.get("model"), str) else heard.model
        choices = told.get("choices")
        choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
        finish = choice.get("finish_reason")
        heard.finish = finish if isinstance(finish, str) else heard.finish
        delta = mapping(choice.get("delta")) or mapping(choice.get("message"))
        text = delta.get("content")
        calls = delta.get("tool_calls")
        if text or delta.get("reasoning_content") or calls:
            heard.anything = True
            heard.chunks += 1
            # An answer in one piece does not tell when its first token was there.
            if heard.first_s is None and heard.done_s is None:
                heard.first_s = time.monotonic()
        if isinstance(calls, list):
            heard.tool_calls += sum(1 for one in calls if mapping(one).get("id"))
        if self._keep_text:
            heard.text += text if isinstance(text, str) else ""
            heard.other += _told_beside(delta)

    def _whole(self, heard: Heard, body: bytes) -> None:
        """An answer in one piece, of a server that does not stream."""
        heard.done_s = time.monotonic()
        try:
            told = json.loads(body)
        except ValueError:
            told = None
        if not isinstance(told, dict) or not ("choices" in told or "error" in told):
            self._failed(heard, Fault.GARBAGE, "the answer is no chat completion; is this llama-server?")
            return
        self._take(heard, told)

    def _refused(self, heard: Heard, status: int, body: bytes) -> None:
        kind = Fault.SERVER if status >= 500 else Fault.REFUSED
        if status in (429, 503):
            kind = Fault.BUSY
        message = self._scrubbed(error_message(body))
        self._failed(heard, kind, f"HTTP {status}{': ' if message else ''}{message}")

    def _failed(self, heard: Heard, fault: Fault, error: str) -> Heard:
        heard.fault, heard.error = fault, self._scrubbed(error)
        heard.done_s = heard.done_s if heard.done_s is not None else time.monotonic()
        return heard

    def _scrubbed(self, words: str) -> str:
        return one_line(words.replace(self._place.key, "***") if self._place.key else words)


def _told_beside(delta: Mapping[str, Any]) -> str:
    """Reasoning, and what a tool call consists of."""
    told = [delta.get("reasoning_content")]
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        made = mapping(mapping(call).get("function"))
        told += [made.get("name"), made.get("arguments")]
    return "".join(one for one in told if isinstance(one, str))


def _words(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return one_line(str(words))
