"""Chunks of a chat completion to pieces of an answer: one form for all that an upstream sends.

Source: llama.cpp tools/server (chat completions), OpenAI API reference, "Chat streaming".
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from specdash.core.proxy_events import DECODE, PREFILL, speed
from specdash.proxy.answer.blocks import Arguments, Text, Thinking, ToolCall, ToolStart, Usage
from specdash.proxy.http.responses import object_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdash.proxy.answer.blocks import Piece


# What an answer has cost so far, from the three places where an upstream counts it.
#
# Source: llama.cpp tools/server README (`timings`, `prompt_progress`), OpenAI API reference (`usage`).


class Cost(Struct, frozen=True):
    """Tokens and milliseconds of an answer, or sums over several; None is unknown.

    `prompt_done` counts tokens of the prompt that are processed or were in the cache. `prefilled` are those of
    `prefill_ms`, without cached ones; `decoded` are those of `decode_ms`, without the first, which is the prompt's.
    """

    usage: Usage = field(default_factory=Usage)
    prompt: int | None = None
    prompt_done: int | None = None
    cached: int | None = None
    predicted: int | None = None
    prefilled: int | None = None
    prefill_ms: float | None = None
    decoded: int | None = None
    decode_ms: float | None = None
    draft: int | None = None
    accepted: int | None = None

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second."""
        return speed(self.prefilled, self.prefill_ms, PREFILL)

    @property
    def decode_rate(self) -> float | None:
        """Generated tokens per second."""
        return speed(self.decoded, self.decode_ms, DECODE)

    @classmethod
    def total(cls, costs: Sequence[Cost]) -> Cost:
        """The sums of what is known."""
        sums: dict[str, Any] = {}
        for name in cls.__struct_fields__[1:]:
            known = [value for cost in costs if (value := getattr(cost, name)) is not None]
            sums[name] = sum(known) if known else None
        return cls(sum((cost.usage for cost in costs), Usage()), **sums)


def _count(values: dict[str, Any], name: str) -> int | None:
    value = _number(values, name)
    return int(value) if value is not None and value >= 0 else None


def _number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    return value if value.__class__ is int or value.__class__ is float else None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


_SHOWN = 200


class ChatDecoder:
    """The JSON objects of a chat completion's stream, in order, from its bytes; how these were read does not matter.

    llama.cpp writes each in one line of `data:`; all other lines are passed over. Data that is not a JSON object
    becomes a chunk `{"error": {"type", "message"}}`, as the upstream's own errors are.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """`[DONE]` was seen; nothing after it counts."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The chunks that the next bytes of the stream, cut anywhere, complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for text in filter(None, (line[5:].strip() for line in lines if line.startswith(b"data:"))):
            self.done = self.done or text == b"[DONE]"
            if self.done:
                return
            if (found := object_of(text)) is None:
                shown = text[:_SHOWN].decode("utf-8", "replace")
                message = f"the upstream sent an event that is not a JSON object: {shown}"
                found = {"error": {"type": "api_error", "message": message}}
            yield found


_COUNTS = ("usage", "timings", "prompt_progress")


class AnswerAssembler:
    """Makes pieces of chunks, one for each piece of content, and knows what the answer has cost so far.

    The latest counts are kept as they came and interpreted only when asked: chunks are many, questions few.
    """

    def __init__(self) -> None:
        self.has_begun = False
        """A chunk of an answer has come."""
        self.finish_reason: str | None = None
        self.error: dict[str, Any] | None = None
        """The first error inside the stream, as llama.cpp has it."""
        self.text_chars = 0
        self.thinking_chars = 0
        self._deltas = 0
        """Pieces of content: thinking, text or a call."""
        self._counts: dict[str, dict[str, Any]] = {name: {} for name in _COUNTS}
        self._starts: list[ToolStart] = []
        self._arguments: list[list[str]] = []
        self.upstream_ids: list[str] = []
        """Of each call the upstream's own id, "" for none."""
        self._texts: list[str] = []

    @property
    def started(self) -> bool:
        """Some content has come."""
        return self._deltas > 0

    def cost(self) -> Cost:
        """The best known now: of the upstream's usage chunk, its timings, or the deltas counted here."""
        usage, timings, progress = self._counts.values()
        fresh, cache = _count(timings, "prompt_n"), _count(timings, "cache_n")
        prompt_tokens = _count(usage, "prompt_tokens")
        evaluated = None if fresh is None else fresh + (cache or 0)
        prompt = _first(prompt_tokens, _count(progress, "total"), evaluated)
        done = prompt if self.started else _first(_count(progress, "processed"), evaluated)
        details = usage.get("prompt_tokens_details")
        of_usage = _count(details, "cached_tokens") if isinstance(details, dict) else None
        cached = _first(of_usage, cache, _count(progress, "cache"))
        completion = _count(usage, "completion_tokens")
        predicted = _first(_count(timings, "predicted_n"), completion, self._deltas or None)
        spent = _number(timings, "prompt_ms") if self.started or not progress else None
        prefill_ms = _first(spent, _number(progress, "time_ms")) or None
        decode_ms = _number(timings, "predicted_ms") or None
        shown = prompt or 0
        return Cost(
            Usage(shown, min(shown, cached or 0), (predicted if prompt_tokens is None else completion) or 0),
            prompt,
            done,
            cached,
            predicted,
            max(0, done - (cached or 0)) if done is not None and prefill_ms else None,
            prefill_ms,
            max(0, predicted - 1) if predicted is not None and decode_ms else None,
            decode_ms,
            _count(timings, "draft_n"),
            _count(timings, "draft_n_accepted"),
        )

    def chunk(self, obj: dict[str, Any]) -> list[Piece]:
        """The pieces of the next chunk; one that cannot be understood is passed over."""
        pieces: list[Piece] = []
        self.has_begun = self.has_begun or "id" in obj
        choices = obj.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            choice = choices[0]
            delta = choice.get("delta")
            if isinstance(delta, dict):
                content = delta.get("content")
                if content.__class__ is str and content and len(delta) == 1:
                    # What most chunks are.
                    pieces.append(self._text(content))
                else:
                    self._delta(delta, pieces)
            elif isinstance(choice.get("message"), dict):
                self._delta(choice["message"], pieces)
            if choice.get("finish_reason") is not None:
                self.finish_reason = _text_of(choice["finish_reason"]) or self.finish_reason
        for name in _COUNTS:
            if name in obj and isinstance(obj[name], dict):
                self._counts[name] = obj[name]
        if (error := obj.get("error")) and self.error is None:
            self.error = error if isinstance(error, dict) else {"message": error}
        return pieces

    def text(self) -> str:
        """All visible text."""
        return "".join(self._texts)

    def tool_calls(self) -> list[ToolCall]:
        """The calls so far, as the model wrote them."""
        pairs = zip(self._starts, self._arguments, strict=True)
        return [ToolCall(start.id, start.name, "".join(pieces)) for start, pieces in pairs]

    def _delta(self, delta: dict[str, Any], pieces: list[Piece]) -> None:
        if thinking := _text_of(delta.get("reasoning_content")) or _text_of(delta.get("reasoning")):
            self._deltas += 1
            self.thinking_chars += len(thinking)
            pieces.append(Thinking(thinking))
        if text := _text_of(delta.get("content")):
            pieces.append(self._text(text))
        entries = delta.get("tool_calls")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                self._call_delta(entry, pieces)

    def _text(self, text: str) -> Text:
        self._deltas += 1
        self._texts.append(text)
        self.text_chars += len(text)
        return Text(text)

    def _call_delta(self, entry: dict[str, Any], pieces: list[Piece]) -> None:
        """A part of a call, the first of which has its name; in a whole answer, where none has an index, a call."""
        function, number = entry.get("function"), entry.get("index", len(self._starts))
        if not isinstance(function, dict) or number not in range(len(self._starts) + 1):
            return
        if number == len(self._starts):
            if not (name := _text_of(function.get("name"))):
                return
            start = ToolStart(number, f"toolu_{secrets.token_hex(12)}", name)
            self._starts.append(start)
            self._arguments.append([])
            self.upstream_ids.append(_text_of(entry.get("id")))
            pieces.append(start)
        self._deltas += 1
        arguments = function.get("arguments")
        # Some upstreams send an object instead of its JSON.
        arguments = msgspec.json.encode(arguments).decode() if isinstance(arguments, dict) else _text_of(arguments)
        if arguments:
            self._arguments[number].append(arguments)
            pieces.append(Arguments(number, arguments))


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
