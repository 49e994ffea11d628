"""What an answer has cost so far, of the three places where an upstream tells it.

Source: llama.cpp tools/server README (`timings`, `prompt_progress`), OpenAI API reference (`usage`).
"""

from __future__ import annotations

from typing import Any, TypeVar

from specdash.proxy.blocks import Usage

_Number = TypeVar("_Number", int, float)


class Meter:
    """Keeps the latest counts as they came and interprets them only when asked: chunks are many, questions few."""

    __slots__ = ("_deltas", "_progress", "_timings", "_usage", "started")

    def __init__(self) -> None:
        self.started = False
        """Some content has come: thinking, text or a call."""
        self._deltas = 0
        self._timings: dict[str, Any] = {}
        self._progress: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}

    @property
    def usage_source(self) -> str:
        """Where `usage` comes from: the upstream's usage chunk, its timings, or deltas counted here."""
        if _count(self._usage, "prompt_tokens") is not None:
            return "usage"
        return "timings" if _count(self._timings, "predicted_n") is not None else "counted"

    @property
    def usage(self) -> Usage:
        """The best known now."""
        source = self.usage_source
        if source == "usage":
            prompt = _count(self._usage, "prompt_tokens") or 0
            completion = _count(self._usage, "completion_tokens") or 0
        else:
            prompt = self.prompt_total or 0
            completion = self.predicted or 0
        return Usage(prompt, min(prompt, self.cached or 0), completion)

    @property
    def prompt_total(self) -> int | None:
        """Tokens of the whole prompt."""
        return _first(_count(self._usage, "prompt_tokens"), _count(self._progress, "total"), self._evaluated())

    @property
    def prompt_done(self) -> int | None:
        """Tokens of the prompt that are processed or were in the cache."""
        if self.started:
            return self.prompt_total
        return _first(_count(self._progress, "processed"), self._evaluated())

    @property
    def cached(self) -> int | None:
        """Tokens of the prompt that were in the cache."""
        details = self._usage.get("prompt_tokens_details")
        of_usage = _count(details, "cached_tokens") if isinstance(details, dict) else None
        return _first(of_usage, _count(self._timings, "cache_n"), _count(self._progress, "cache"))

    @property
    def predicted(self) -> int | None:
        """Tokens of the answer; deltas of content where the upstream does not count them."""
        counted = self._deltas or None
        return _first(_count(self._timings, "predicted_n"), _count(self._usage, "completion_tokens"), counted)

    @property
    def draft(self) -> int | None:
        """Draft tokens proposed."""
        return _count(self._timings, "draft_n")

    @property
    def accepted(self) -> int | None:
        """Draft tokens accepted."""
        return _count(self._timings, "draft_n_accepted")

    @property
    def prefill_ms(self) -> float | None:
        """Milliseconds the prompt took, or has taken so far."""
        if self.started or not self._progress:
            return _first(_number(self._timings, "prompt_ms"), _number(self._progress, "time_ms"))
        return _number(self._progress, "time_ms")

    @property
    def decode_ms(self) -> float | None:
        """Milliseconds of decoding."""
        return _number(self._timings, "predicted_ms")

    def _evaluated(self) -> int | None:
        """Prompt tokens by the timings: those of the cache and those processed."""
        fresh = _count(self._timings, "prompt_n")
        return None if fresh is None else fresh + (_count(self._timings, "cache_n") or 0)


def _count(values: dict[str, Any], name: str) -> int | None:
    value = _number(values, name)
    return None if value is None or value < 0 else int(value)


def _number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value


def _first(*values: _Number | None) -> _Number | None:
    return next((one for one in values if one is not None), None)
