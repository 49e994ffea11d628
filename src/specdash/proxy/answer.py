"""Chunks of a chat completion to pieces of an answer: what the upstream said, said again in one way.

Source: llama.cpp tools/server (chat completions), OpenAI API reference, "Chat streaming".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.blocks import ToolCall
from specdash.proxy.json_text import object_of
from specdash.proxy.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.proxy.blocks import BlockSink

UNNAMED_TOOL = "unnamed_tool"
"""The name of a call whose upstream never gave one: no client has it, so the model is told."""

_NOT_ID = re.compile(r"[^a-zA-Z0-9_-]")
_ID_PREFIX = "chatcmpl-"
_NOTHING: dict[str, Any] = {}


class CallRecord:
    """One tool call as it arrives. `index` counts calls as they appear; `id` is the client's once it is announced."""

    __slots__ = ("id", "index", "is_announced", "name", "pieces", "upstream_id")

    def __init__(self, index: int, upstream_id: str) -> None:
        self.index = index
        self.upstream_id = upstream_id
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.is_announced = False

    @property
    def arguments(self) -> str:
        """JSON text so far."""
        return "".join(self.pieces)


class Answer(Meter):
    """Takes chunks, calls the sink once for each piece of content, and knows what the answer has cost so far.

    `on_progress` is called for each chunk that tells how far the prompt is. `fallback_id` names an answer whose
    upstream gives no id. The sink may be replaced between two chunks.
    """

    __slots__ = (
        "_by_index", "_by_upstream_id", "_fallback_id", "_on_progress", "_texts", "_thinking", "calls", "error",
        "finish_reason", "id", "sink", "stop_text", "text_chars", "thinking_chars",
    )  # fmt: skip

    def __init__(
        self, sink: BlockSink, *, on_progress: Callable[[Answer], None] | None = None, fallback_id: str = ""
    ) -> None:
        super().__init__()
        self.sink = sink
        self._on_progress = on_progress
        self._fallback_id = fallback_id
        self.id: str | None = None
        self.finish_reason: str | None = None
        self.error: tuple[str, str] | None = None
        """Type and message of the first error inside the stream."""
        self.stop_text: str | None = None
        """The stop word, when the upstream names it."""
        self.text_chars = 0
        self.thinking_chars = 0
        self.calls: list[CallRecord] = []
        self._by_index: dict[int | str, CallRecord] = {}
        self._by_upstream_id: dict[str, CallRecord] = {}
        self._texts: list[str] = []
        self._thinking: list[str] = []

    @property
    def message_id(self) -> str:
        """The id the client sees, made of the upstream's."""
        return f"msg_{self._id_part()}"

    def chunk(self, obj: dict[str, Any]) -> None:
        """The next chunk; one that cannot be understood is passed over."""
        if self.id is None and isinstance(obj.get("id"), str):
            self.id = obj["id"] or None
        if "timings" in obj and isinstance(obj["timings"], dict):
            self._timings = obj["timings"]
        choices = obj.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            choice = choices[0]
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._delta(delta)
            elif isinstance(choice.get("message"), dict):
                self._message(choice["message"])
            if choice.get("finish_reason") is not None:
                self._finish(choice)
        if "usage" in obj or "prompt_progress" in obj or "error" in obj:
            self._extras(obj)

    def whole(self, obj: dict[str, Any]) -> None:
        """A complete `chat.completion` instead of chunks."""
        self.chunk(obj)
        self.end()

    def end(self) -> None:
        """No chunk follows: announce the calls that never got a name, if they hold anything."""
        for call in self.calls:
            if not call.is_announced and (call.upstream_id or any(call.pieces)):
                call.name = UNNAMED_TOOL
                self._announce(call)

    def text(self) -> str:
        """All visible text."""
        return "".join(self._texts)

    def thinking_text(self) -> str:
        """All reasoning."""
        return "".join(self._thinking)

    def tool_calls(self) -> list[ToolCall]:
        """The calls announced so far, as the model wrote them."""
        return [ToolCall(one.id, one.name, one.arguments) for one in self.calls if one.is_announced]

    def _delta(self, delta: dict[str, Any]) -> None:
        content = delta.get("content")
        if content.__class__ is str and content and len(delta) == 1:
            self._text(content)
            return
        thinking = _text_of(delta.get("reasoning_content")) or _text_of(delta.get("reasoning"))
        if thinking:
            self.started = True
            self._deltas += 1
            self._thinking.append(thinking)
            self.thinking_chars += len(thinking)
            self.sink.thinking(thinking)
        text = _text_of(content)
        if text:
            self._text(text)
        entries = delta.get("tool_calls")
        if entries and isinstance(entries, list):
            for entry in entries:
                if isinstance(entry, dict):
                    self._call_delta(entry)

    def _text(self, text: str) -> None:
        self.started = True
        self._deltas += 1
        self._texts.append(text)
        self.text_chars += len(text)
        self.sink.text(text)

    def _message(self, message: dict[str, Any]) -> None:
        """A whole message: a delta in which every entry is a call of its own."""
        entries = message.get("tool_calls")
        if isinstance(entries, list):
            first = len(self.calls)
            numbered = [{**one, "index": f"{first + at}"} for at, one in enumerate(entries) if isinstance(one, dict)]
            message = {**message, "tool_calls": numbered}
        self._delta(message)

    def _finish(self, choice: dict[str, Any]) -> None:
        if isinstance(choice["finish_reason"], str):
            self.finish_reason = choice["finish_reason"]
        for name in ("stop_reason", "stopping_word"):
            if isinstance(choice.get(name), str) and choice[name]:
                self.stop_text = choice[name]

    def _extras(self, obj: dict[str, Any]) -> None:
        if isinstance(obj.get("usage"), dict):
            self._usage = obj["usage"]
        error = obj.get("error")
        if error and self.error is None:
            self.error = _error(error, obj)
        if isinstance(obj.get("prompt_progress"), dict):
            self._progress = obj["prompt_progress"]
            if self._on_progress is not None:
                self._on_progress(self)

    def _call_delta(self, entry: dict[str, Any]) -> None:
        function = entry.get("function")
        if not isinstance(function, dict):
            function = _NOTHING
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        upstream_id = entry.get("id")
        upstream_id = upstream_id if isinstance(upstream_id, str) else ""
        arguments = function.get("arguments")
        if isinstance(arguments, (dict, list)):
            arguments = orjson.dumps(arguments).decode()
        elif not isinstance(arguments, str):
            arguments = ""
        self.started = True
        self._deltas += 1
        call = self._record(entry.get("index"), upstream_id, name, arguments)
        if upstream_id and not call.upstream_id:
            call.upstream_id = upstream_id
            self._by_upstream_id[upstream_id] = call
        if name and not call.name:
            call.name = name
            self._announce(call)
        if arguments:
            call.pieces.append(arguments)
            if call.is_announced:
                self.sink.arguments(call.index, arguments)

    def _record(self, index: Any, upstream_id: str, name: str, arguments: str) -> CallRecord:
        """The call an entry is about; upstreams leave out or repeat each of its marks."""
        if isinstance(index, (int, str)):
            call = self._by_index.get(index)
            if call is None or self._is_next(call, upstream_id, name, arguments):
                call = self._by_index[index] = self._new_call(upstream_id)
            return call
        if upstream_id:
            return self._by_upstream_id.get(upstream_id) or self._new_call(upstream_id)
        last = self.calls[-1] if self.calls else None
        if last is None or (name and last.name and name != last.name) or self._is_next(last, "", name, arguments):
            return self._new_call("")
        return last

    @staticmethod
    def _is_next(call: CallRecord, upstream_id: str, name: str, arguments: str) -> bool:
        """True when an entry with the marks of `call` can only be another call."""
        if not name or not call.name:
            return False
        if upstream_id and call.upstream_id:
            return upstream_id != call.upstream_id
        return bool(arguments) and object_of(call.arguments) is not None

    def _new_call(self, upstream_id: str) -> CallRecord:
        call = CallRecord(len(self.calls), upstream_id)
        self.calls.append(call)
        if upstream_id:
            self._by_upstream_id.setdefault(upstream_id, call)
        return call

    def _announce(self, call: CallRecord) -> None:
        call.is_announced = True
        known = _NOT_ID.sub("_", call.upstream_id) or f"{self._id_part()}_{call.index}"
        wanted = known if known.startswith("toolu_") else f"toolu_{known}"
        if any(one.id == wanted for one in self.calls):
            wanted = f"{wanted}_{call.index}"
        call.id = wanted
        self.sink.tool(call.index, call.id, call.name)
        for piece in call.pieces:
            if piece:
                self.sink.arguments(call.index, piece)

    def _id_part(self) -> str:
        return _NOT_ID.sub("_", (self.id or "").removeprefix(_ID_PREFIX) or self._fallback_id) or "unknown"


def _text_of(value: Any) -> str:
    """Text of a content field: a string, or a list of parts that have some."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = (one.get("text") for one in value if isinstance(one, dict))
        return "".join(one for one in texts if isinstance(one, str))
    return ""


def _error(error: Any, obj: dict[str, Any]) -> tuple[str, str]:
    """Type and message of an error in llama.cpp's or OpenAI's form, or a bare message."""
    if isinstance(error, dict):
        kind = error.get("type")
        message = error.get("message")
    else:
        kind = obj.get("error_type")
        message = obj.get("message") or error
    told = message if isinstance(message, str) and message else orjson.dumps(error).decode()
    return (kind if isinstance(kind, str) and kind else "api_error", told)
