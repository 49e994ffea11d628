"""Does speculation work at all? What a few completions show, judged without I/O.

Made of what went wrong in the field with a server that answered 200 all the while (llama.cpp fork PR #53): zero of 291
draft tokens accepted because the drafter's logits were NaN on a cached prompt, on the second request of a slot, or on a
prompt longer than one physical batch; a child that had died and was another one; a drafter that was never asked.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.system.data import dataclass
from specdash.system.text import counted, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEVEL = 0.05
"""Drafts whose first token is right, as a share: a drafter that works at all reaches it."""
DOUBT = 0.001
"""How improbable an outcome must be at that level before it fails."""
LOW = 0.05
"""Share of accepted draft tokens below which a drafter costs more than it gives, whatever it is."""
_LEAST_TOKENS = 8
_REPEATS = 8
_UNREADABLE = 0.2
_LONGEST_UNIT = 24
_ROUNDING = 1e-5
_PADS = re.compile(
    r"(?:\s*(?:<(?:pad|unk|s|/s)\d*>|\[(?:PAD|UNK)\d*\]|<\|(?:endoftext|pad|im_end)\|>))+\s*\Z", re.IGNORECASE
)


class CompletionKind(StrEnum):
    """What a completion is for."""

    IDENTICAL = "identical prompt"
    DIFFERENT = "different prompt"
    REPEATING = "repeating prompt"
    LONG = "long prompt"


class SmokeStatus(StrEnum):
    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    WARN = "WARN"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class SmokeCompletion:
    """One chat completion. `error` says why there is no whole answer; the figures are the server's own."""

    kind: CompletionKind
    streamed: bool
    error: str | None = None
    text: str = field(default="", repr=False)
    reasoning: str = field(default="", repr=False)
    tool_calls: int = 0
    finish: str | None = None
    prompt_tokens: int = 0
    tokens: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    model: str | None = None
    build: str | None = None
    """`system_fingerprint`."""

    @property
    def drafts(self) -> int:
        """How many drafts were verified, at most: each has a token, and each step adds one that was not drafted."""
        return min(self.drafted, max(0, self.tokens - self.accepted))


@dataclass(frozen=True, slots=True)
class Instance:
    """What tells one running server from another. None where it does not tell."""

    build: str | None = None
    model: str | None = None
    started: str | None = None
    """The moment of its start, in its own terms."""
    process: tuple[int, float] | None = None
    """Pid and start time of its process, on this machine."""
    predicted: float | None = None
    """Tokens generated since its start."""
    task: int | None = None
    """The highest number of a request in its slots."""


@dataclass(frozen=True, slots=True)
class InstanceLook:
    """An instance as it was seen before a completion, or after the last: `own` tokens of ours were generated since the
    look before."""

    instance: Instance
    own: int = 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """What the server says of its slots, and what is expected of it. None is unknown."""

    slots: int = 0
    drafting: int | None = None
    types: tuple[str, ...] = ()
    expected: bool | None = None
    because: str = ""
    """What says that it is, or is not, expected."""

    @property
    def on(self) -> bool | None:
        """Whether the slots can draft."""
        return None if self.drafting is None else self.drafting > 0

    @property
    def by_repetition(self) -> bool:
        """Whether only text that repeats can be drafted."""
        return bool(self.types) and all(name.startswith("ngram") for name in self.types)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the result."""

    name: str
    status: SmokeStatus
    words: str
    figures: dict[str, int | float | str | None] = field(default_factory=dict)


def enough_drafts(level: float = LEVEL, doubt: float = DOUBT) -> int:
    """After so many drafts, none of which was right even in its first token, a drafter of that level is ruled out."""
    return math.ceil(math.log(doubt) / math.log(1.0 - level))


def output_fault(text: str, tokens: int) -> str | None:
    """What is wrong with a text that a model of sound numbers does not write; None when it looks like an answer."""
    if not text.strip():
        return "empty"
    if _PADS.match(text):
        return "padding only"
    broken = sum(letter == "\ufffd" or (ord(letter) < 32 and letter not in "\t\n\r") for letter in text)
    if broken > _UNREADABLE * len(text):
        return "unreadable"
    if tokens >= _LEAST_TOKENS and _one_token(text):
        return "one token repeated"
    return None


def _one_token(text: str) -> bool:
    """Whether the text is one short piece over and over."""
    body = text.strip()
    for size in range(1, min(_LONGEST_UNIT, len(body) // _REPEATS) + 1):
        unit = body[:size]
        if (unit * (len(body) // size + 1))[: len(body)] == body and len(unit.split()) <= 1:
            return True
    words = body.split()
    return len(words) >= _REPEATS and len(set(words)) == 1


def speculation(told: Speculation) -> Check:
    """Whether the slots draft, against what is expected."""
    figures: dict[str, int | float | str | None] = {"slots": told.slots, "drafting": told.drafting}
    names = f" ({', '.join(told.types)})" if told.types else ""
    because = f"; {told.because}" if told.because else ""
    if told.drafting is None:
        words, status = "the server does not tell whether its slots draft", SmokeStatus.WARN
    elif told.expected is False and told.on:
        words, status = (
            f"{told.drafting} of {told.slots} slots draft{names}, and none should{because}",
            SmokeStatus.FAIL,
        )
    elif told.drafting == told.slots and told.slots:
        words, status = f"{told.drafting} of {told.slots} slots draft{names}{because}", SmokeStatus.PASS
    elif told.on:
        words, status = f"only {told.drafting} of {told.slots} slots draft{names}", SmokeStatus.FAIL
    elif told.expected:
        words, status = f"it runs without speculation, and should draft{because}", SmokeStatus.FAIL
    else:
        words, status = f"it does not speculate{because or '; nothing says that it should'}", SmokeStatus.PASS
    return Check("speculation", status, words, figures)


def answers(completions: Sequence[SmokeCompletion]) -> Check:
    """Whether every completion was answered whole."""
    failed = [completion for completion in completions if completion.error is not None]
    good = [completion.seconds for completion in completions if completion.error is None]
    times = f", {min(good):.2g} to {max(good):.2g} s each" if good else ""
    streamed = sum(completion.streamed for completion in completions)
    words = f"{len(good)} of {len(completions)} completions answered, {streamed} of them streamed{times}"
    if failed:
        kinds = dict.fromkeys(
            f"{completion.kind}{', streamed' if completion.streamed else ''}: {completion.error}"
            for completion in failed
        )
        words = f"{len(failed)} of {len(completions)} completions failed: {'; '.join(list(kinds)[:3])}"
    figures: dict[str, int | float | str | None] = {"completions": len(completions), "failed": len(failed)}
    if not completions:
        return Check("answers", SmokeStatus.SKIP, "no completion ended", figures)
    return Check("answers", SmokeStatus.FAIL if failed else SmokeStatus.PASS, words, figures)


def output(completions: Sequence[SmokeCompletion]) -> Check:
    """Whether the texts look like a model's. Reasoning and tool calls are signs of life as good as text."""
    found: dict[str, int] = {}
    whole = [completion for completion in completions if completion.error is None]
    for completion in whole:
        fault = output_fault(completion.text + completion.reasoning, completion.tokens)
        if fault is not None and not (fault == "empty" and completion.tool_calls):
            found[f"{fault} ({completion.kind})"] = found.get(f"{fault} ({completion.kind})", 0) + 1
    count = sum(found.values())
    figures: dict[str, int | float | str | None] = {"answers": len(whole), "faulty": count}
    if not whole:
        return Check("output", SmokeStatus.SKIP, "no answer to look at", figures)
    if found:
        told = ", ".join(f"{number} {name}" for name, number in found.items())
        return Check("output", SmokeStatus.FAIL, f"{count} of {len(whole)} answers are no text: {told}", figures)
    only = sum(not completion.text.strip() and bool(completion.reasoning.strip()) for completion in whole)
    reasoned = f"; {only} with reasoning alone so far" if only else ""
    return Check("output", SmokeStatus.PASS, f"{len(whole)} answers with text in them{reasoned}", figures)


def drafter(completions: Sequence[SmokeCompletion], told: Speculation) -> Check:
    """Whether the drafter was asked at all."""
    whole = [completion for completion in completions if completion.error is None]
    drafted, asked = (
        sum(completion.drafted for completion in whole),
        sum(completion.drafted > 0 for completion in whole),
    )
    figures: dict[str, int | float | str | None] = {"drafted": drafted, "completions": asked}
    if told.on is False and not drafted:
        return Check("drafter", SmokeStatus.SKIP, "it does not speculate", figures)
    if not whole:
        return Check("drafter", SmokeStatus.SKIP, "no answer to look at", figures)
    if drafted:
        return Check(
            "drafter", SmokeStatus.PASS, f"{drafted:,} draft tokens in {asked} of {len(whole)} answers", figures
        )
    if told.on is None:
        return Check(
            "drafter", SmokeStatus.WARN, "nothing was drafted, and it does not tell whether it should be", figures
        )
    if told.by_repetition and not any(
        completion.kind in (CompletionKind.REPEATING, CompletionKind.IDENTICAL) for completion in whole
    ):
        return Check("drafter", SmokeStatus.WARN, "nothing was drafted, but nothing repeated either", figures)
    why = ", not even where the text repeats" if told.by_repetition else ""
    return Check("drafter", SmokeStatus.FAIL, f"its slots draft, but no answer has a draft token{why}", figures)


def acceptance(completions: Sequence[SmokeCompletion]) -> Check:
    """Whether any draft token was accepted, over enough drafts to tell."""
    return _accepted("acceptance", [completion for completion in completions if completion.error is None], LEVEL)


def cache_path(completions: Sequence[SmokeCompletion]) -> Check:
    """The identical prompts after the first: whether they came from the cache, and drafts are as good there."""
    same = [
        completion
        for completion in completions
        if completion.kind is CompletionKind.IDENTICAL and completion.error is None
    ]
    cached = [completion for completion in same[1:] if completion.cached]
    texts = len({(completion.text, completion.reasoning) for completion in same})
    if len(same) < 2:
        return Check("cache path", SmokeStatus.SKIP, "no two identical prompts were answered")
    if not cached:
        return Check("cache path", SmokeStatus.SKIP, f"none of {len(same)} identical prompts came from the cache")
    others = [completion for completion in completions if completion.error is None and completion not in cached]
    check = _accepted("cache path", cached, _level_of(others))
    said = f"{len(same)} identical prompts, {len(cached)} of them cached, {counted(texts, 'text')}"
    return Check(check.name, check.status, f"{said}; {check.words}", {**check.figures, "texts": texts})


def long_prompt(completions: Sequence[SmokeCompletion], batch: int, *, skipped: str = "") -> Check:
    """The prompt that is longer than one physical batch."""
    found = [completion for completion in completions if completion.kind is CompletionKind.LONG]
    if not found:
        return Check("long prompt", SmokeStatus.SKIP, skipped or "none was sent")
    whole = [completion for completion in found if completion.error is None]
    if not whole:
        return Check("long prompt", SmokeStatus.FAIL, f"longer than a batch of {batch}: {found[0].error}")
    others = [
        completion
        for completion in completions
        if completion.error is None and completion.kind is not CompletionKind.LONG
    ]
    check = _accepted("long prompt", whole, _level_of(others))
    size = max(completion.prompt_tokens for completion in whole)
    if size and size <= batch:
        words = f"{size:,} tokens, which one batch of {batch:,} holds; {check.words}"
        return Check(check.name, SmokeStatus.WARN, words, check.figures)
    return Check(
        check.name, check.status, f"{size:,} tokens, more than a batch of {batch:,}; {check.words}", check.figures
    )


def instance(looks: Sequence[InstanceLook], completions: Sequence[SmokeCompletion]) -> Check:
    """Whether one and the same server with one and the same model answered throughout."""
    changes = _all_changes(looks)
    models = {completion.model for completion in completions if completion.model}
    builds = {completion.build for completion in completions if completion.build}
    if len(models) > 1:
        changes.append("the answers name more than one model")
    if len(builds) > 1:
        changes.append("the answers name more than one build")
    figures: dict[str, int | float | str | None] = {"looks": len(looks), "changes": len(changes)}
    if changes:
        return Check("instance", SmokeStatus.FAIL, f"the server changed meanwhile: {'; '.join(changes)}", figures)
    if len(looks) < 2 and not completions:
        return Check("instance", SmokeStatus.SKIP, "it was not looked at twice", figures)
    last = looks[-1].instance if looks else Instance()
    seen = {
        "build": last.build, "model": last.model, "start": last.started, "process": last.process,
        "counters": last.predicted, "requests' numbers": last.task,
    }  # fmt: skip
    known = [name for name, value in seen.items() if value is not None]
    if not known:
        return Check("instance", SmokeStatus.WARN, "the server tells nothing to know it again by", figures)
    return Check("instance", SmokeStatus.PASS, f"the same throughout, by {', '.join(known)}", figures)


def _all_changes(looks: Sequence[InstanceLook]) -> list[str]:
    """Every change, each look against the last one that told the same thing."""
    known, own, found = Instance(), 0, dict[str, None]()
    for look in looks:
        own += look.own
        found.update(dict.fromkeys(_changes(known, look.instance, own)))
        told = {name: value for name, value in asdict(look.instance).items() if value is not None}
        own = own if look.instance.predicted is None else 0
        known = replace(known, **told)
    return list(found)


def _changes(before: Instance, after: Instance, own: int) -> Iterable[str]:
    if None not in (before.build, after.build) and before.build != after.build:
        yield f"build {before.build} became {after.build}"
    if None not in (before.model, after.model) and before.model != after.model:
        yield "it serves another model"
    if None not in (before.started, after.started) and before.started != after.started:
        yield "it was started anew"
    if before.process is not None and after.process is not None and before.process != after.process:
        yield f"process {before.process[0]} became {after.process[0]}"
    if before.predicted is not None and after.predicted is not None:
        slack = max(1.0, before.predicted * _ROUNDING)
        if after.predicted < before.predicted - slack:
            yield "its counters went back"
        elif after.predicted - before.predicted < own - slack:
            yield "its counters miss answers of ours"
    if before.task is not None and after.task is not None and after.task < before.task:
        yield "its numbering of requests began anew"


def _level_of(others: Sequence[SmokeCompletion]) -> float:
    """A level to hold a group of answers to, from what the others reach: half of it, and at least `LEVEL`."""
    drafted = sum(completion.drafted for completion in others)
    return max(LEVEL, 0.5 * sum(completion.accepted for completion in others) / drafted) if drafted else LEVEL


def _accepted(name: str, completions: Sequence[SmokeCompletion], level: float) -> Check:
    drafted, accepted = (sum(getattr(completion, key) for completion in completions) for key in ("drafted", "accepted"))
    drafts = sum(completion.drafts for completion in completions)
    figures: dict[str, int | float | str | None] = {"drafted": drafted, "accepted": accepted, "drafts": drafts}
    if not drafted:
        return Check(name, SmokeStatus.SKIP, "nothing was drafted", figures)
    share = f"{accepted:,} of {drafted:,} draft tokens accepted"
    if accepted:
        low = accepted < LOW * drafted
        words = f"{share} ({percent(accepted / drafted, 1)}{', too few to gain anything' if low else ''})"
        return Check(name, SmokeStatus.WARN if low else SmokeStatus.PASS, words, figures)
    least = enough_drafts(level)
    if drafts < least:
        return Check(name, SmokeStatus.WARN, f"{share}, but only {drafts:,} drafts, and {least:,} would tell", figures)
    odds = f"{(1.0 - level) ** drafts:.0e}" if drafts * -math.log10(1.0 - level) < 99 else "nothing"
    words = f"{share} in {drafts:,} drafts; if {percent(level)} of drafts began well, the odds of that were {odds}"
    return Check(name, SmokeStatus.FAIL, words, figures)
