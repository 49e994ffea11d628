"""What benchmarks measure, as data: one sample a request, one boot a start of an engine.

Times are seconds of the monotonic clock unless stated otherwise, rates tokens per second. None is unknown, never zero.
"""

from __future__ import annotations

import hashlib
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from specdash.core.errors import SpecdashError
from specdash.core.structs import Masked
from specdash.llama.client import BlockingClient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager


class WorkloadPrompt(Struct, frozen=True):
    """One prompt of a workload. `messages` are chat messages, `tools` their tools, in OpenAI's form."""

    id: str
    kind: str
    """Its declared class: coding, pattern, prose, agentic, or the name that a prompt file gives."""
    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()
    max_tokens: int | None = None


class BenchSample(Struct, frozen=True):
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
    """The kind of `error`, one of `llama.chat.ChatFault`."""
    flags: tuple[str, ...] = ()
    """What is odd about it; those of `bench.plausible.UNUSABLE` keep it out of speeds."""
    chunks: int = 0
    """Events that brought something; no count of tokens, as one may bring several."""
    steps: int | None = None
    """Steps with a draft to verify, where the request ran alone and /metrics has it. n-gram types draft in few."""
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


class EngineAddress(Masked, Struct, frozen=True):
    """Where an engine answers. `key` is its API key, the secret itself."""

    hidden = ("key",)

    url: str
    key: str | None = None
    model: str | None = None
    log: str | None = None
    """Its log, where that can be read here."""

    def client(self, timeout: float) -> BlockingClient:
        """Short questions to it; `timeout` in seconds."""
        return BlockingClient(self.url, self.key, self.model, timeout)


class BootFailedError(SpecdashError):
    """A configuration does not come up, or not as what it says: that is what was found out about it. Any other error of
    a bed ends the trials."""

    def __init__(self, words: str, *, out_of_memory: bool = False) -> None:
        """`out_of_memory`: what would need as much memory would not come up either."""
        super().__init__(words)
        self.out_of_memory = out_of_memory


class TrialBed(Protocol):
    """Where configurations are tried: the service itself, through applies, or an engine beside it.

    A configuration is a set of env keys with their values, laid over the settings in force; an empty one unsets a key.
    """

    def boot(self, configuration: Mapping[str, str]) -> AbstractContextManager[EngineAddress]:
        """Bring this configuration up, always by a start, and say where it answers.

        Raises `BootFailedError` when it does not come up, another `SpecdashError` when no other will either, and
        KeyboardInterrupt when the trials were cancelled.
        """

    def announce(self, number: int | None, planned: int | None = None) -> None:
        """The boots to come are the one of this number, of so many; None: not counted. For the display."""

    def restore(self) -> None:
        """Everything as it was before the first boot, no matter what happened; may be called twice."""


# What is asked when: the order of prompts, the times they are due, and the body of each request.
#
# All of it follows from the seed: with the same seed, two engines are asked the same, in the same order.


class MeasureOptions(Struct, frozen=True):
    """How to measure. Times are seconds."""

    runs: int = 5
    """How often each prompt is asked."""
    max_tokens: int = 256
    """Longest answer; a prompt may ask for a shorter one."""
    temperature: float = 0.0
    seed: int = 1
    """Of the order, the arrivals, the prefixes and the sampling."""
    concurrency: int = 1
    """Requests under way at any time, each followed by the next (closed loop); not used with a rate."""
    rate: float | None = None
    """Requests a second, sent when they are due whether or not earlier ones have ended (open loop)."""
    constant: bool = False
    """With a rate: evenly spaced, and not as a Poisson process."""
    cache: bool = False
    """Whether the server may use what it has cached of the prompt; else each request also begins differently."""
    force_length: bool = False
    """Go on past the end of the text (`ignore_eos`), so that all answers have the same length."""
    warm_up: bool = True
    """One discarded request first, with a text of its own."""
    positions: bool = False
    """Read /metrics after each request: steps and acceptance per position. Only without concurrency and rate."""
    log: str | None = None
    """The server's log file, where it can be read: what drafting cost (`Run.draft_s`). None: the place's."""
    silence_s: float = 600.0
    limit_s: float = 1800.0
    give_up: int = 5
    """Stop after so many failures in a row, other than requests that the server will not have."""

    @property
    def alone(self) -> bool:
        """Whether no two of our requests are under way at the same time."""
        return self.rate is None and self.concurrency == 1


class Job(Struct, frozen=True):
    """One request to come. `due_s` counts from the start; None: as soon as one before it has ended."""

    number: int
    prompt: WorkloadPrompt
    run: int
    due_s: float | None = None


def jobs(prompts: Sequence[WorkloadPrompt], options: MeasureOptions) -> list[Job]:
    """Each prompt once a run; within each run in an order of its own."""
    random = Random(f"order/{options.seed}")  # noqa: S311 - an order, no secret
    arrivals = Random(f"arrivals/{options.seed}")  # noqa: S311
    found: list[Job] = []
    due = 0.0
    for run in range(options.runs):
        for prompt in random.sample(list(prompts), len(prompts)):
            found.append(Job(len(found), prompt, run, None if options.rate is None else due))
            if options.rate is not None:
                due += 1.0 / options.rate if options.constant else arrivals.expovariate(options.rate)
    return found


def length(prompt: WorkloadPrompt, options: MeasureOptions) -> int:
    """Tokens that are asked for."""
    return options.max_tokens if prompt.max_tokens is None else min(prompt.max_tokens, options.max_tokens)


def body_of(job: Job, options: MeasureOptions, place: EngineAddress) -> dict[str, Any]:
    prompt = job.prompt
    messages = [dict(message) for message in prompt.messages]
    if not options.cache:
        messages = marked(messages, f"{options.seed}/{prompt.id}/{job.run}")
    tools, seed = prompt.tools, _number(f"{options.seed}/{prompt.id}/{job.run}")
    body = request_body(messages, length(prompt, options), tools=tools, model=place.model, cached=options.cache)
    body |= {"temperature": options.temperature, "seed": seed}
    return {**body, "ignore_eos": True} if options.force_length else body


def request_body(
    messages: Sequence[Mapping[str, Any]],
    tokens: int,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    model: str | None = None,
    cached: bool | None = None,
    streamed: bool = True,
) -> dict[str, Any]:
    """A greedy chat request of at most so many tokens; `cached` None leaves the cache to the server."""
    return {
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        "seed": 1,
        "stream": streamed,
        **({"stream_options": {"include_usage": True}} if streamed else {}),
        **({"cache_prompt": cached} if cached is not None else {}),
        **({"model": model} if model else {}),
        **({"tools": list(tools)} if tools else {}),
    }


def marked(messages: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The messages with a mark of their own before the first text, so that no cache holds their beginning."""
    mark = f"[{hashlib.sha256(name.encode()).hexdigest()[:8]}] "
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            changed: Mapping[str, Any] = {**message, "content": mark + content}
        elif isinstance(content, list):
            changed = {**message, "content": [{"type": "text", "text": mark}, *content]}
        else:
            continue
        return [*messages[:number], dict(changed), *messages[number + 1 :]]
    return messages


def _number(name: str) -> int:
    """A seed for the server; the same for the same name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") & 0x7FFFFFFF


# What is odd about a measured request: figures that cannot be, and answers that are too short to tell much.

SHORT = "short"
"""It ended long before the length that was asked for."""
CACHED = "cached"
"""Part of the prompt came from a cache although none was to be used."""
NO_TIMINGS = "no timings"
"""The server does not tell its own times."""
TOO_FAST = "decode too fast"
TOO_LONG = "longer than it took"
MISSING = "time missing"
"""The client waited long for something that the server does not account for; another user's request, mostly."""
IMPOSSIBLE = "impossible draft counts"
UNUSABLE = frozenset({TOO_FAST, TOO_LONG, MISSING, IMPOSSIBLE, CACHED})
"""Those that keep a request out of speeds."""

SHORT_SHARE = 0.25
_FASTER = 10.0
_LEAST_PROMPT = 64
"""Prompt tokens below which the speed of the prompt says little."""
_SLACK_S = 0.05
_SLACK_SHARE = 0.02
_MISSING_SHARE = 0.25
_MISSING_S = 0.25


def flags_of(sample: BenchSample, *, wanted: int | None, alone: bool, cache: bool) -> tuple[str, ...]:
    """What is odd about the sample. `wanted` is the length asked for, `alone` whether no other request was open."""
    if sample.failed:
        return ()
    found = []
    tokens = sample.predicted_tokens
    if wanted and tokens is not None and tokens < SHORT_SHARE * wanted:
        found.append(SHORT)
    if not cache and sample.cached_tokens:
        found.append(CACHED)
    if sample.predicted_ms is None or sample.prompt_ms is None:
        return (*found, NO_TIMINGS)
    return (*found, *_impossible(sample, alone=alone))


def _impossible(sample: BenchSample, *, alone: bool) -> list[str]:
    found = []
    processed = (sample.prompt_tokens or 0) - (sample.cached_tokens or 0)
    decode, prefill = sample.decode_rate, sample.prefill_rate
    if decode is not None and prefill is not None and processed >= _LEAST_PROMPT and decode > _FASTER * prefill:
        found.append(TOO_FAST)
    if sample.done_s is not None:
        timed = ((sample.prompt_ms or 0.0) + (sample.predicted_ms or 0.0)) / 1000.0
        wall = sample.done_s - sample.sent_s
        if timed > wall * (1 + _SLACK_SHARE) + _SLACK_S:
            found.append(TOO_LONG)
        if alone and wall - timed > max(_MISSING_S, _MISSING_SHARE * wall):
            found.append(MISSING)
    drafted, accepted, tokens = sample.drafted or 0, sample.accepted or 0, sample.predicted_tokens or 0
    if accepted > drafted or accepted > tokens:
        found.append(IMPOSSIBLE)
    return found
