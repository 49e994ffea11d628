"""What is asked when: the order of prompts, the times they are due, and the body of each request.

All of it follows from the seed: with the same seed, two engines are asked the same, in the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.samples import Place, Prompt


@dataclass(frozen=True, slots=True)
class Options:
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


@dataclass(frozen=True, slots=True)
class Job:
    """One request to come. `due_s` counts from the start; None: as soon as one before it has ended."""

    number: int
    prompt: Prompt
    run: int
    due_s: float | None = None


def jobs(prompts: Sequence[Prompt], options: Options) -> list[Job]:
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


def length(prompt: Prompt, options: Options) -> int:
    """Tokens that are asked for."""
    return options.max_tokens if prompt.max_tokens is None else min(prompt.max_tokens, options.max_tokens)


def body_of(job: Job, options: Options, place: Place) -> dict[str, Any]:
    """The request, as JSON."""
    prompt = job.prompt
    messages = [dict(one) for one in prompt.messages]
    if not options.cache:
        messages = marked(messages, f"{options.seed}/{prompt.id}/{job.run}")
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": length(prompt, options),
        "temperature": options.temperature,
        "seed": _number(f"{options.seed}/{prompt.id}/{job.run}"),
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": options.cache,
    }
    if place.model is not None:
        body["model"] = place.model
    if prompt.tools:
        body["tools"] = [dict(one) for one in prompt.tools]
    if options.force_length:
        body["ignore_eos"] = True
    return body


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
