"""What llama.cpp is asked to tell besides a client's answer, and how that is taken out of the answer again.

`timings_per_token` and `return_progress` make a running request visible. Measured on b11434 and b11549: the first adds
a `timings` member to each chunk; unasked it stands in the last one only, which has a `finish_reason` or (the usage
chunk) no choices. The second adds chunks with a `prompt_progress` member before the first chunk of the answer.

Two kinds of request are asked for less, because their additions cannot be told from the answer: the chunk in which a
stop word was found carries `timings` unasked, and b11434 echoes a prefill inside a chunk of progress.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.chat_stream import ChatDecoder
from specdash.proxy.fields import dumped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.proxy.answer import Answer

PING_S = 30.0
"""After this much silence llama.cpp sends a comment (`--sse-ping-interval`); progress chunks take its place."""
_PING = b":"
_LARGEST_EVENT = 16 << 20
_TIMINGS = b',"timings":{'


@dataclass(frozen=True, slots=True)
class Additions:
    """The fields that the proxy added to a request."""

    timings: bool
    progress: bool

    @property
    def fields(self) -> dict[str, Any]:
        """The members of the body."""
        return {
            name: True
            for name, added in (("timings_per_token", self.timings), ("return_progress", self.progress))
            if added
        }


ALL = Additions(timings=True, progress=True)


def additions_to(chat: Mapping[str, Any]) -> Additions | None:
    """What the client of a request did not ask for; None where its own values are ones the server refuses."""
    timings, progress = chat.get("timings_per_token"), chat.get("return_progress")
    if not all(one is None or isinstance(one, bool) for one in (timings, progress)):
        return None
    return Additions(timings=not timings and not chat.get("stop"), progress=not progress and not is_prefilled(chat))


def is_prefilled(chat: Mapping[str, Any]) -> bool:
    """True when the answer is to continue a message of the request."""
    messages = chat.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def with_fields(body: bytes, chat: Mapping[str, Any], fields: Mapping[str, Any]) -> bytes:
    """The body `chat` was read from, with `fields` set; its own bytes stay unless it has one of them.

    Raises `InvalidRequestError` when it is nested too deeply to be written.
    """
    if not fields:
        return body
    if fields.keys() & chat.keys():
        return dumped({**chat, **fields})
    return body.rstrip()[:-1].rstrip() + (b"," if chat else b"") + orjson.dumps(dict(fields))[1:]


class Restorer:
    """The stream as it would have been without the additions. Reads it into `answer` on the way."""

    def __init__(
        self,
        answer: Answer,
        added: Additions,
        *,
        ping_s: float = PING_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer = answer
        self.first_error: dict[str, Any] | None = None
        """The error that came before anything else: without `return_progress` it had been the status."""
        self._added = added
        self._ping_s = ping_s
        self._clock = clock
        self._told_at = clock()
        self._decoder = ChatDecoder(answer.chunk)
        self._rest = b""
        self._is_foreign = False
        self._has_begun = False
        self._role: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """The next bytes of the stream, cut anywhere; the bytes for the client, whole events."""
        if self._is_foreign:
            self._decoder.feed(data)
            return data
        data = self._rest + data
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data
            # llama.cpp writes no CR, and no event of this size.
            return self._give_up() if b"\r" in data or len(data) > _LARGEST_EVENT else b""
        self._rest = data[end + 2 :]
        kept: list[bytes] = []
        for event in data[:end].split(b"\n\n"):
            self._event(event, kept)
        if not kept:
            return b""
        self._told_at = self._clock()
        kept.append(b"")
        return b"\n\n".join(kept)

    def close(self) -> bytes:
        """The stream has ended; what is left of it."""
        rest = self._rest
        self._rest = b""
        self._decoder.feed(rest)
        self._decoder.close()
        self.answer.end()
        return rest

    def _give_up(self) -> bytes:
        self._is_foreign = True
        rest = self._rest
        self._rest = b""
        self._decoder.feed(rest)
        return rest

    def _event(self, event: bytes, kept: list[bytes]) -> None:
        chunk = _chunk(event)
        if chunk is None:
            self._decoder.feed(event + b"\n\n")
            kept.append(event)
            return
        self.answer.chunk(chunk)
        if self._added.progress and "prompt_progress" in chunk:
            self._progress(chunk, kept)
            return
        if not self._has_begun:
            self._begin(chunk, kept)
        if self._added.timings and "timings" in chunk and not _is_last(chunk):
            event = _without_timings(event, chunk)
        kept.append(event)

    def _progress(self, chunk: dict[str, Any], kept: list[bytes]) -> None:
        if self._role is None and "role" in _delta(chunk):
            left = {key: value for key, value in chunk.items() if key not in ("timings", "prompt_progress")}
            self._role = b"data: " + orjson.dumps(left)
        if self._clock() - self._told_at >= self._ping_s:
            kept.append(_PING)

    def _begin(self, chunk: dict[str, Any], kept: list[bytes]) -> None:
        self._has_begun = True
        if isinstance(chunk.get("error"), dict):
            self.first_error = chunk["error"]
        elif self._role is not None and _delta(chunk) and "role" not in _delta(chunk):
            # A build that says the role only once has said it in a chunk that was dropped.
            kept.append(self._role)


def status_of(error: Mapping[str, Any]) -> int:
    """The HTTP status that llama.cpp would have answered an error with."""
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def _chunk(event: bytes) -> dict[str, Any] | None:
    if event[:7] != b"data: {" or b"\n" in event:
        return None
    try:
        chunk: dict[str, Any] = orjson.loads(event[6:])
    except orjson.JSONDecodeError:
        return None
    return chunk


def _choice(chunk: dict[str, Any]) -> dict[str, Any]:
    choices = chunk.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _delta(chunk: dict[str, Any]) -> dict[str, Any]:
    delta = _choice(chunk).get("delta")
    return delta if isinstance(delta, dict) else {}


def _is_last(chunk: dict[str, Any]) -> bool:
    """True for the chunks that carry `timings` unasked."""
    choice = _choice(chunk)
    return not choice or choice.get("finish_reason") is not None


def _without_timings(event: bytes, chunk: dict[str, Any]) -> bytes:
    """The event less its `timings`, cut out of the bytes and checked; written anew where that fails."""
    left = {key: value for key, value in chunk.items() if key != "timings"}
    at = event.rfind(_TIMINGS)
    if at > 0:
        cut = event[:at] + event[event.find(b"}", at) + 1 :]
        try:
            if orjson.loads(cut[6:]) == left:
                return cut
        except orjson.JSONDecodeError:
            pass
    return b"data: " + orjson.dumps(left)
