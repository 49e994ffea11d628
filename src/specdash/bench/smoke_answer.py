"""Reading chat completions, whole and streamed, as a smoke test needs them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.llama.bodies import error_message, mapping, natural, text

if TYPE_CHECKING:
    from specdash.bench.smoke import Completion


class Gathered:
    """A streamed answer, line by line."""

    def __init__(self, blank: Completion) -> None:
        self._blank = blank
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tools: set[int] = set()
        self._last: dict[str, Any] = {}
        self._finish: str | None = None
        self._error: str | None = None
        self._done = False

    def feed(self, line: str) -> None:
        """Take one line of the stream."""
        if not line.startswith(("data:", "error:")):
            return
        data = line.partition(":")[2].strip()
        if data == "[DONE]":
            self._done = True
            return
        chunk = mapping(json.loads(data))
        if "error" in chunk or line.startswith("error:"):
            self._error = error_message(data) or "the server broke off with an error"
            return
        # The figures may come on a chunk of their own, or with the last text.
        for name in ("usage", "timings", "model", "system_fingerprint"):
            if chunk.get(name) is not None:
                self._last[name] = chunk[name]
        choices = chunk.get("choices")
        choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
        delta = mapping(choice.get("delta"))
        self._text.append(text(delta.get("content")) or "")
        self._reasoning.append(text(delta.get("reasoning_content")) or "")
        calls = delta.get("tool_calls")
        self._tools.update(
            natural(mapping(one).get("index")) or 0 for one in (calls if isinstance(calls, list) else ())
        )
        self._finish = text(choice.get("finish_reason")) or self._finish

    def completion(self) -> Completion:
        """The answer, once the stream has ended."""
        if self._error is not None:
            return replace(self._blank, error=self._error)
        if self._finish is None:
            return replace(self._blank, error="the stream ended in the middle of the answer")
        one = replace(
            self._blank, text="".join(self._text), reasoning="".join(self._reasoning), tool_calls=len(self._tools),
            finish=self._finish,
        )  # fmt: skip
        return _with_figures(one, self._last)


def complaint(status: int, body: bytes) -> str:
    """An answer that is an error, in words."""
    said = error_message(body)
    return f"HTTP {status}{': ' if said else ''}{said}"


def with_answer(blank: Completion, told: dict[str, Any]) -> Completion:
    """The completion with what the body of a whole answer says."""
    choices = told.get("choices")
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else None
    if choice is None:
        return replace(blank, error=error_message(json.dumps(told)) or "the answer has no choices")
    message = mapping(choice.get("message"))
    calls = message.get("tool_calls")
    one = replace(
        blank,
        text=text(message.get("content")) or "",
        reasoning=text(message.get("reasoning_content")) or "",
        tool_calls=len(calls) if isinstance(calls, list) else 0,
        finish=text(choice.get("finish_reason")),
    )
    return _with_figures(one, told)


def _with_figures(one: Completion, told: dict[str, Any]) -> Completion:
    timings, usage = mapping(told.get("timings")), mapping(told.get("usage"))
    cached = natural(timings.get("cache_n"))
    if cached is None:
        cached = natural(mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
    fresh = natural(timings.get("prompt_n"))
    sized = natural(usage.get("prompt_tokens"))
    return replace(
        one,
        prompt_tokens=sized if sized is not None else (fresh or 0) + (cached or 0),
        tokens=natural(usage.get("completion_tokens")) or natural(timings.get("predicted_n")) or 0,
        cached=cached or 0,
        drafted=natural(timings.get("draft_n")) or 0,
        accepted=natural(timings.get("draft_n_accepted")) or 0,
        model=text(told.get("model")),
        build=text(told.get("system_fingerprint")),
    )
