"""The grammar of an Anthropic Messages stream, checked strictly while the final message is put together.

Source: docs.anthropic.com, "Streaming Messages"; what the official SDKs refuse or misread is refused here too.
"""

import json
from dataclasses import dataclass, field
from typing import Any

STOP_REASONS = frozenset({
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded"
})  # fmt: skip
DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""Type of delta: the type of block it belongs to, and its field."""


class GrammarError(AssertionError):
    """The stream breaks a rule; the message says which, and shows the frame."""


@dataclass(slots=True)
class StreamChecker:
    """Feed it the bytes of the body; `close` at the end of them.

    `message` is the message as far as it came, `error` the object of an `event: error`, `names` the events in order.
    """

    message: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    names: list[str] = field(default_factory=list)
    pings: int = 0
    _pending: bytes = b""
    _open: dict[str, Any] | None = None
    _json: str = ""
    _signed: bool = False
    _ended: bool = False
    _stopping: bool = False

    def feed(self, data: bytes) -> None:
        """The next bytes; they may end anywhere."""
        self._pending += data
        while b"\n\n" in self._pending:
            frame, _, self._pending = self._pending.partition(b"\n\n")
            self._frame(frame.decode("utf-8"))

    def close(self) -> None:
        """The stream has ended: it must be whole, or have ended with an error."""
        _want(not self._pending, "the stream ends in the middle of a frame", self._pending)
        _want(self._ended, "the stream ends without message_stop or error", self.names[-3:])

    @property
    def content(self) -> list[dict[str, Any]]:
        """The content blocks of the final message."""
        assert self.message is not None
        found: list[dict[str, Any]] = self.message["content"]
        return found

    @property
    def text(self) -> str:
        """All visible text."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    def _frame(self, frame: str) -> None:
        if frame.startswith(":"):
            return
        lines = frame.split("\n")
        _want(len(lines) == 2, "a frame is one event line and one data line", frame)
        _want(lines[0].startswith("event: "), "the event line comes first", frame)
        _want(lines[1].startswith("data: "), "then the data line", frame)
        _want(not self._ended, "nothing comes after message_stop or error", frame)
        name, event = lines[0][7:], json.loads(lines[1][6:])
        _want(event.get("type") == name, "the event's name equals its type", frame)
        handler = getattr(self, f"_on_{name}", None)
        _want(handler is not None, "the event is one of the Messages API", frame)
        _want(name in {"message_start", "error"} or self.message is not None, "message_start comes first", frame)
        self.names.append(name)
        assert handler is not None
        handler(event)

    def _on_message_start(self, event: dict[str, Any]) -> None:
        _want(self.message is None, "message_start comes once", event)
        _want(set(event) == {"type", "message"}, "message_start holds a message", event)
        message = event["message"]
        fixed: dict[str, Any] = {
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        _want({key: message.get(key, "missing") for key in fixed} == fixed, "the message starts empty", event)
        _want(str(message.get("id", "")).startswith("msg_"), "its id starts with msg_", event)
        _want(bool(message.get("model")), "it names its model", event)
        for key in ("input_tokens", "output_tokens"):
            _want(_is_count(message.get("usage", {}).get(key)), f"usage counts {key}", event)
        self.message = message

    def _on_ping(self, event: dict[str, Any]) -> None:
        _want(event == {"type": "ping"}, "a ping says nothing else", event)
        self.pings += 1

    def _on_content_block_start(self, event: dict[str, Any]) -> None:
        _want(self._open is None, "a block starts after the one before it stopped", event)
        _want(not self._stopping, "no block comes after message_delta", event)
        _want(event["index"] == len(self.content), "indexes count from 0 without a gap", event)
        block = event["content_block"]
        kind = block.get("type")
        if kind == "tool_use":
            _want(block.get("input") == {}, "a tool call starts with an empty input", event)
            _want(bool(block.get("id")) and bool(block.get("name")), "a tool call has an id and a name", event)
            others = [entry["id"] for entry in self.content if entry["type"] == "tool_use"]
            _want(block["id"] not in others, "tool ids differ", event)
        else:
            _want(kind in {"text", "thinking"}, "the block is of a known type", event)
            _want(block.get(kind) == "", "a block starts empty", event)
        self.content.append(block)
        self._open, self._json, self._signed = block, "", False

    def _on_content_block_delta(self, event: dict[str, Any]) -> None:
        _want(self._open is not None, "a delta belongs to an open block", event)
        assert self._open is not None
        _want(event["index"] == len(self.content) - 1, "a delta belongs to the latest block", event)
        delta = event["delta"]
        _want(delta.get("type") in DELTAS, "the delta is of a known type", event)
        kind, key = DELTAS[delta["type"]]
        _want(self._open["type"] == kind, "the delta fits its block", event)
        _want(isinstance(delta.get(key), str), f"the delta holds {key}", event)
        _want(not self._signed, "nothing follows a signature", event)
        if key == "partial_json":
            self._json += delta[key]
        elif key == "signature":
            self._signed = True
            self._open[key] = delta[key]
        else:
            self._open[key] += delta[key]

    def _on_content_block_stop(self, event: dict[str, Any]) -> None:
        _want(self._open is not None, "a stop belongs to an open block", event)
        assert self._open is not None
        _want(event["index"] == len(self.content) - 1, "a stop belongs to the latest block", event)
        if self._open["type"] == "tool_use" and self._json:
            try:
                self._open["input"] = json.loads(self._json)
            except ValueError:
                self._open["input"] = Unparsed(self._json)
        self._open = None

    def _on_message_delta(self, event: dict[str, Any]) -> None:
        _want(self._open is None, "every block is stopped before message_delta", event)
        _want(not self._stopping, "message_delta comes once", event)
        assert self.message is not None
        self._stopping = True
        delta = event["delta"]
        _want(set(delta) == {"stop_reason", "stop_sequence"}, "message_delta says why it stopped", event)
        _want(delta["stop_reason"] in STOP_REASONS, "the stop reason is one of the API", event)
        named = delta["stop_reason"] == "stop_sequence"
        _want(isinstance(delta["stop_sequence"], str) == named, "stop_sequence is named exactly when it stopped", event)
        calls = [entry for entry in self.content if entry["type"] == "tool_use"]
        whole = all(isinstance(call["input"], dict) for call in calls)
        if delta["stop_reason"] == "tool_use":
            _want(bool(calls) and whole, "tool_use stands for whole calls with an object as input", event)
        elif calls and whole:
            cut = delta["stop_reason"] in {"max_tokens", "stop_sequence"}
            _want(cut, "whole calls end a message with tool_use", event)
        usage = event.get("usage", {})
        _want(_is_count(usage.get("output_tokens")), "usage counts output_tokens", event)
        for key, before in self.message["usage"].items():
            if key in usage and _is_count(before):
                _want(_is_count(usage[key]), f"{key} stays a count", event)
        _want(usage["output_tokens"] >= self.message["usage"]["output_tokens"], "usage is cumulative", event)
        self.message["usage"].update(usage)
        self.message.update(delta)

    def _on_message_stop(self, event: dict[str, Any]) -> None:
        _want(event == {"type": "message_stop"}, "message_stop says nothing else", event)
        _want(self._stopping, "message_delta comes before message_stop", event)
        self._ended = True

    def _on_error(self, event: dict[str, Any]) -> None:
        error = event.get("error", {})
        _want({"type", "error"} <= set(event), "an error is wrapped", event)
        _want(isinstance(error.get("type"), str) and isinstance(error.get("message"), str), "it says what", event)
        _want(not self._stopping, "no error after the stop reason was told", event)
        self.error, self._ended = error, True


class Unparsed(str):
    """The input of a tool call that is not whole JSON."""

    __slots__ = ()


def checked(body: bytes) -> StreamChecker:
    """A whole body, checked to its end."""
    checker = StreamChecker()
    checker.feed(body)
    checker.close()
    return checker


def final_message(body: bytes) -> dict[str, Any]:
    """The message of a stream that must be whole and without an error."""
    checker = checked(body)
    _want(checker.error is None, "the stream ends without an error", checker.error)
    assert checker.message is not None
    return checker.message


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _want(holds: bool, rule: str, shown: Any) -> None:
    if not holds:
        raise GrammarError(f"{rule}: {shown!r}")
