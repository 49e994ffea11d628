"""A whole chat completion of llama.cpp, made of its stream: the server aborts a stream when its client leaves, and
nothing else.

Source of the form: answers of b11434 and b11549, which differ in nothing but values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.chat_stream import ChatDecoder
from specdash.proxy.llama_stream import ALL, additions_to, is_prefilled, status_of, with_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.proxy.answer import Answer, CallRecord

_NOT_IN_A_STREAM = ("logprobs", "top_logprobs", "n_probs", "verbose", "response_fields", "modalities", "audio")
"""Fields whose effect on a whole answer cannot be told from the stream."""
_CHOICES = ("n", "n_cmpl")


def streaming_body(body: bytes, chat: Mapping[str, Any]) -> bytes | None:
    """The body that asks for the same answer as a stream; None when the whole could not be rebuilt from it."""
    stream, options = chat.get("stream"), chat.get("stream_options")
    if not (stream is None or stream is False) or not (options is None or isinstance(options, dict)):
        return None
    if additions_to(chat) is None or is_prefilled(chat):
        # Whether a stream echoes the prefill, which the whole does, differs between builds.
        return None
    if any(chat.get(name) for name in _NOT_IN_A_STREAM) or any(chat.get(name) not in (None, 1) for name in _CHOICES):
        return None
    if chat.get("reasoning_format") == "deepseek-legacy":
        # Some builds put the thoughts into the content of a stream, and of a stream only.
        return None
    fields = {"stream": True, **ALL.fields, "stream_options": {**(options or {}), "include_usage": True}}
    return with_fields(body, chat, fields)


class WholeCompletion:
    """Reads the stream into `answer` and knows what the server had said at once."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._decoder = ChatDecoder(self._chunk)
        self._seen: dict[str, Any] = {}

    def feed(self, data: bytes) -> None:
        """The next bytes of the stream."""
        self._decoder.feed(data)

    def end(self) -> None:
        """No bytes follow."""
        self._decoder.close()
        self.answer.end()

    @property
    def is_complete(self) -> bool:
        """True when the stream told an end or an error."""
        return self.answer.finish_reason is not None or "error" in self._seen

    @property
    def is_unsaid(self) -> bool:
        """True when the whole answer may hold text that a stream never shows.

        llama.cpp parses the text; where nothing is left of it (a tool call or a thought cut off in its first words)
        a whole answer has the text itself as its content, and a stream nothing.
        """
        answer = self.answer
        if "error" in self._seen or answer.text_chars or answer.thinking_chars or answer.calls:
            return False
        return answer.finish_reason != "stop" or answer.usage.completion > 1

    def response(self) -> tuple[int, bytes]:
        """Status and body."""
        error = self._seen.get("error")
        if error is not None:
            status = status_of(error) if isinstance(error, dict) else 500
            return status, orjson.dumps({"error": error})
        answer, seen = self.answer, self._seen
        message: dict[str, Any] = {"role": "assistant", "content": answer.text()}
        if answer.thinking_chars:
            message["reasoning_content"] = answer.thinking_text()
        if answer.calls:
            message["tool_calls"] = [_call(one) for one in answer.calls]
        choice = {"finish_reason": answer.finish_reason, "index": 0, "message": message}
        whole = {"choices": [choice], "object": "chat.completion"}
        names = ("choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings")
        found = {**seen, **whole}
        return 200, orjson.dumps({name: found[name] for name in names if name in found})

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.answer.chunk(chunk)
        self._seen.update(chunk)


def _call(call: CallRecord) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if call.upstream_id:
        told["id"] = call.upstream_id
    return told
