"""What benchmarks measure, as data: one sample a request, one boot a start of an engine.

Times are seconds of the monotonic clock where not said otherwise, rates tokens per second. None is unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specdash.core.errors import SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a workload. `messages` are chat messages, `tools` their tools, in OpenAI's form."""

    id: str
    kind: str
    """Its declared class: coding, pattern, prose, agentic, or whatever a prompt file calls it."""
    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Its own `timings` say what the server measured; the rest is what the client saw."""

    prompt: str
    kind: str
    run: int
    """Which repetition, from 0."""
    intended_s: float
    """When it should have been sent: latencies count from here, so that a queue is not hidden."""
    sent_s: float
    first_s: float | None = None
    """When its first token came."""
    done_s: float | None = None
    prompt_tokens: int | None = None
    """Of the whole prompt, cached ones too."""
    cached_tokens: int | None = None
    prompt_ms: float | None = None
    predicted_tokens: int | None = None
    predicted_ms: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    finish: str | None = None
    empty: bool = False
    """Nothing came: no text, no reasoning, no tool call."""
    error: str = ""
    """One line, when it failed."""
    fault: str = ""
    """The kind of `error`, one of `bench.chat.Fault`."""
    flags: tuple[str, ...] = ()
    """What is odd about it; those of `bench.plausible.UNUSABLE` keep it out of speeds."""
    chunks: int = 0
    """Events that brought something; no count of tokens, as one may bring several."""
    steps: int | None = None
    """Steps with a draft to verify, where the request ran alone and /metrics tells. n-gram types draft in few steps."""
    accepted_per_position: tuple[int, ...] = ()
    """Steps whose draft token at position 0, 1, … was accepted; likewise."""

    @property
    def failed(self) -> bool:
        """Whether there is no answer, or only the beginning of one."""
        return bool(self.error)

    @property
    def latency_s(self) -> float | None:
        """From when it should have been sent to its end."""
        return None if self.done_s is None else self.done_s - self.intended_s

    @property
    def wall_decode_rate(self) -> float | None:
        """As the client saw it, also where the server does not tell: tokens after the first over the time since."""
        if self.first_s is None or self.done_s is None or self.done_s <= self.first_s or not self.predicted_tokens:
            return None
        return (self.predicted_tokens - 1) / (self.done_s - self.first_s)

    @property
    def ttft_s(self) -> float | None:
        """From when it should have been sent to its first token."""
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def decode_rate(self) -> float | None:
        """As the server has it; the first token is the prompt's."""
        if not self.predicted_ms or not self.predicted_tokens:
            return None
        return (self.predicted_tokens - 1) * 1000.0 / self.predicted_ms

    @property
    def prefill_rate(self) -> float | None:
        """Processed prompt tokens over the time that took."""
        if not self.prompt_ms or self.prompt_tokens is None:
            return None
        return (self.prompt_tokens - (self.cached_tokens or 0)) * 1000.0 / self.prompt_ms


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine answers. `key` is its API key, the secret itself."""

    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    engine: str | None = None
    """The engine in words, where it is known."""
    log: str | None = None
    """Its log, where that can be read here."""


class BootFailedError(SpecdashError):
    """A configuration does not come up, or not as what it says: that is what was found out about it. Any other error of
    a bed ends the trials."""


class Bed(Protocol):
    """Where configurations are tried: the service itself, through applies, or an engine beside it.

    A configuration is a set of env keys with their values, laid over the settings in force; an empty one unsets a key.
    """

    def boot(self, configuration: Mapping[str, str]) -> AbstractContextManager[Place]:
        """Bring this configuration up, always by a start, and say where it answers.

        Raises `BootFailedError` when it does not come up, another `SpecdashError` when no other will either, and
        KeyboardInterrupt when the trials were cancelled.
        """

    def announce(self, number: int | None, planned: int | None = None) -> None:
        """The boots to come are the one of this number, of so many; None: not counted. For whoever watches."""

    def restore(self) -> None:
        """Everything as it was before the first boot, whatever happened; may be called twice."""
