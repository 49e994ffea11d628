"""Does speculation work at all? What a few completions show, and how they are sent to a running server.

Made of what went wrong in the field with a server that answered 200 all the while (llama.cpp fork PR #53): zero of 291
draft tokens accepted because the drafter's logits were NaN on a cached prompt, on the second request of a slot, or on a
prompt longer than one physical batch; a child that had died and was another one; a drafter that was never asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections import Counter
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from specdash.bench.load.contact import slots_told
from specdash.bench.load.samples import request_body
from specdash.core.errors import InputError, SpecdashError, UnreachableError
from specdash.core.readings import Slots, most_recent_resident
from specdash.core.structs import Masked
from specdash.llama import chat
from specdash.llama.client import BlockingClient
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    mapping,
    natural,
    one_line,
    parse_metrics,
    parse_models,
    text,
)
from specdash.system.text import counted, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

LEVEL = 0.05
"""Drafts whose first token is right, as a share: a drafter that works at all reaches it."""
DOUBT = 0.001
"""How improbable an outcome must be at that level before it fails."""
LOW = 0.05
"""Share of accepted draft tokens below which a drafter costs more than it gives, of any kind."""
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


PASS, FAIL, WARN, SKIP = SmokeStatus


class SmokeCompletion(Masked, Struct, frozen=True):
    """One chat completion. `error` says why there is no whole answer; the figures are the server's own."""

    hidden = ("text", "reasoning")

    kind: CompletionKind
    streamed: bool
    error: str | None = None
    text: str = ""
    reasoning: str = ""
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


class Instance(Struct, frozen=True):
    """What distinguishes one running server from another. None where it does not show it."""

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


class InstanceLook(Struct, frozen=True):
    """An instance as it was seen before a completion, or after the last: `own` tokens were generated for this run since
    the look before."""

    instance: Instance
    own: int = 0


class Speculation(Struct, frozen=True):
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


class Check(Struct, frozen=True):
    """One line of the result."""

    name: str
    status: SmokeStatus
    words: str
    figures: dict[str, int | None] = field(default_factory=dict)


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


def speculation(seen: Speculation) -> Check:
    """Whether the slots draft, against what is expected."""
    names = f" ({', '.join(seen.types)})" if seen.types else ""
    because = f"; {seen.because}" if seen.because else ""
    some = f"{seen.drafting} of {seen.slots} slots draft{names}"
    if seen.drafting is None:
        status, words = WARN, "the server does not tell whether its slots draft"
    elif seen.expected is False and seen.on:
        status, words = FAIL, f"{some}, and none should{because}"
    elif seen.drafting == seen.slots and seen.slots:
        status, words = PASS, f"{some}{because}"
    elif seen.on:
        status, words = FAIL, f"only {some}"
    elif seen.expected:
        status, words = FAIL, f"it runs without speculation, and should draft{because}"
    else:
        status, words = PASS, f"it does not speculate{because or '; nothing says that it should'}"
    return Check("speculation", status, words, {"slots": seen.slots, "drafting": seen.drafting})


def answers(completions: Sequence[SmokeCompletion]) -> Check:
    """Whether every completion was answered whole."""
    good = [completion.seconds for completion in _whole(completions)]
    failed = len(completions) - len(good)
    times = f", {min(good):.2g} to {max(good):.2g} s each" if good else ""
    streamed = sum(completion.streamed for completion in completions)
    words = f"{len(good)} of {len(completions)} completions answered, {streamed} of them streamed{times}"
    if failed:
        kinds = dict.fromkeys(
            f"{completion.kind}{', streamed' if completion.streamed else ''}: {completion.error}"
            for completion in completions
            if completion.error is not None
        )
        words = f"{failed} of {len(completions)} completions failed: {'; '.join(list(kinds)[:3])}"
    status = FAIL if failed else PASS
    if not completions:
        status, words = SKIP, "no completion ended"
    return Check("answers", status, words, {"completions": len(completions), "failed": failed})


def output(completions: Sequence[SmokeCompletion]) -> Check:
    """Whether the texts look like a model's. Reasoning and tool calls are signs of life as good as text."""
    found: Counter[str] = Counter()
    whole = _whole(completions)
    for completion in whole:
        fault = output_fault(completion.text + completion.reasoning, completion.tokens)
        if fault is not None and not (fault == "empty" and completion.tool_calls):
            found[f"{fault} ({completion.kind})"] += 1
    only = sum(not completion.text.strip() and bool(completion.reasoning.strip()) for completion in whole)
    status, words = PASS, f"{len(whole)} answers with text in them"
    if only:
        words += f"; {only} with reasoning alone so far"
    if not whole:
        status, words = SKIP, "no answer to look at"
    elif found:
        kinds = ", ".join(f"{number} {name}" for name, number in found.items())
        status, words = FAIL, f"{found.total()} of {len(whole)} answers are no text: {kinds}"
    return Check("output", status, words, {"answers": len(whole), "faulty": found.total()})


def drafter(completions: Sequence[SmokeCompletion], seen: Speculation) -> Check:
    """Whether the drafter was asked at all."""
    whole = _whole(completions)
    drafted, asked = sum(each.drafted for each in whole), sum(each.drafted > 0 for each in whole)
    repeated = any(each.kind in (CompletionKind.REPEATING, CompletionKind.IDENTICAL) for each in whole)
    if seen.on is False and not drafted:
        status, words = SKIP, "it does not speculate"
    elif not whole:
        status, words = SKIP, "no answer to look at"
    elif drafted:
        status, words = PASS, f"{drafted:,} draft tokens in {asked} of {len(whole)} answers"
    elif seen.on is None:
        status, words = WARN, "nothing was drafted, and it does not tell whether it should be"
    elif seen.by_repetition and not repeated:
        status, words = WARN, "nothing was drafted, but nothing repeated either"
    else:
        why = ", not even where the text repeats" if seen.by_repetition else ""
        status, words = FAIL, f"its slots draft, but no answer has a draft token{why}"
    return Check("drafter", status, words, {"drafted": drafted, "completions": asked})


def acceptance(completions: Sequence[SmokeCompletion]) -> Check:
    """Whether any draft token was accepted, over enough drafts to tell."""
    return _accepted("acceptance", _whole(completions), LEVEL)


def cache_path(completions: Sequence[SmokeCompletion]) -> Check:
    """The identical prompts after the first: whether they came from the cache, and drafts are as good there."""
    whole = _whole(completions)
    same = [completion for completion in whole if completion.kind is CompletionKind.IDENTICAL]
    cached = [completion for completion in same[1:] if completion.cached]
    if len(same) < 2:
        return Check("cache path", SKIP, "no two identical prompts were answered")
    if not cached:
        return Check("cache path", SKIP, f"none of {len(same)} identical prompts came from the cache")
    texts = len({(completion.text, completion.reasoning) for completion in same})
    check = _accepted("cache path", cached, _level_of([each for each in whole if each not in cached]))
    words = f"{len(same)} identical prompts, {len(cached)} of them cached, {counted(texts, 'text')}; {check.words}"
    return replace(check, words=words, figures={**check.figures, "texts": texts})


def long_prompt(completions: Sequence[SmokeCompletion], batch: int, *, skipped: str = "") -> Check:
    """The prompt that is longer than one physical batch."""
    sent = [completion for completion in completions if completion.kind is CompletionKind.LONG]
    whole = _whole(sent)
    if not sent:
        return Check("long prompt", SKIP, skipped or "none was sent")
    if not whole:
        return Check("long prompt", FAIL, f"longer than a batch of {batch}: {sent[0].error}")
    shorter = [each for each in _whole(completions) if each.kind is not CompletionKind.LONG]
    check = _accepted("long prompt", whole, _level_of(shorter))
    size = max(completion.prompt_tokens for completion in whole)
    if size and size <= batch:
        words = f"{size:,} tokens, which one batch of {batch:,} holds; {check.words}"
        return replace(check, status=WARN, words=words)
    return replace(check, words=f"{size:,} tokens, more than a batch of {batch:,}; {check.words}")


def instance(looks: Sequence[InstanceLook], completions: Sequence[SmokeCompletion]) -> Check:
    """Whether one and the same server with one and the same model answered throughout."""
    changes = _all_changes(looks)
    for name in ("model", "build"):
        if len({getattr(completion, name) for completion in completions} - {None, ""}) > 1:
            changes.append(f"the answers name more than one {name}")
    last = looks[-1].instance if looks else Instance()
    seen = {
        "build": last.build, "model": last.model, "start": last.started, "process": last.process,
        "counters": last.predicted, "requests' numbers": last.task,
    }  # fmt: skip
    known = [name for name, value in seen.items() if value is not None]
    if changes:
        status, words = FAIL, f"the server changed meanwhile: {'; '.join(changes)}"
    elif len(looks) < 2 and not completions:
        status, words = SKIP, "it was not looked at twice"
    elif known:
        status, words = PASS, f"the same throughout, by {', '.join(known)}"
    else:
        status, words = WARN, "the server shows nothing to know it again by"
    return Check("instance", status, words, {"looks": len(looks), "changes": len(changes)})


def _whole(completions: Iterable[SmokeCompletion]) -> list[SmokeCompletion]:
    return [completion for completion in completions if completion.error is None]


def _all_changes(looks: Sequence[InstanceLook]) -> list[str]:
    """Every change, each look against the last one with the same field."""
    known, own, found = Instance(), 0, dict[str, None]()
    for look in looks:
        own += look.own
        found.update(dict.fromkeys(_changes(known, look.instance, own)))
        known_now = {name: value for name, value in asdict(look.instance).items() if value is not None}
        own = own if look.instance.predicted is None else 0
        known = replace(known, **known_now)
    return list(found)


def _changes(before: Instance, after: Instance, own: int) -> Iterable[str]:
    if None not in (before.build, after.build) and before.build != after.build:
        yield f"build {before.build} became {after.build}"
    if None not in (before.model, after.model) and before.model != after.model:
        yield "it serves another model"
    if None not in (before.started, after.started) and before.started != after.started:
        yield "it was restarted"
    if before.process is not None and after.process is not None and before.process != after.process:
        yield f"process {before.process[0]} became {after.process[0]}"
    if before.predicted is not None and after.predicted is not None:
        slack = max(1.0, before.predicted * _ROUNDING)
        if after.predicted < before.predicted - slack:
            yield "its counters went back"
        elif after.predicted - before.predicted < own - slack:
            yield "its counters miss answers of this run"
    if before.task is not None and after.task is not None and after.task < before.task:
        yield "its numbering of requests started over"


def _level_of(others: Sequence[SmokeCompletion]) -> float:
    """A level to hold a group of answers to, from what the others reach: half of it, and at least `LEVEL`."""
    drafted = sum(completion.drafted for completion in others)
    return max(LEVEL, 0.5 * sum(completion.accepted for completion in others) / drafted) if drafted else LEVEL


def _accepted(name: str, completions: Sequence[SmokeCompletion], level: float) -> Check:
    figures = {key: sum(getattr(each, key) for each in completions) for key in ("drafted", "accepted", "drafts")}
    drafted, accepted, drafts = figures.values()
    share, least = f"{accepted:,} of {drafted:,} draft tokens accepted", enough_drafts(level)
    if not drafted:
        status, words = SKIP, "nothing was drafted"
    elif accepted:
        low = accepted < LOW * drafted
        status = WARN if low else PASS
        words = f"{share} ({percent(accepted / drafted, 1)}{', too few to gain anything' if low else ''})"
    elif drafts < least:
        status, words = WARN, f"{share}, but only {drafts:,} drafts, and {least:,} would tell"
    else:
        odds = f"{(1.0 - level) ** drafts:.0e}" if drafts * -math.log10(1.0 - level) < 99 else "nothing"
        words = f"{share} in {drafts:,} drafts; if {percent(level)} of drafts began well, the odds of that were {odds}"
        status = FAIL
    return Check(name, status, words, {**figures})


# What is sent: the same thing again and again, other things, text that repeats, and a long text.

SAME_PROMPT = "Write five short haikus about the ocean."
"""As the smoke test asks that found the damage on cached prompts (llama.cpp fork PR #53)."""
OTHER_PROMPTS = (
    "Explain in a few plain sentences how a bicycle stays upright while it is ridden.",
    "Write a function in Python that tells whether a number is prime, with a short docstring.",
    "List the planets of the solar system from the sun outwards, with one fact about each of them.",
    "Tell a short story of a lighthouse keeper who finds a letter in a bottle.",
    "Describe how bread is baked, from flour to loaf, in the order in which things are done.",
    "Write an SQL query that gives the ten customers with the most orders last year, and explain it.",
    "What are the main differences between a violin and a viola? Answer in a short paragraph.",
    "Give three arguments for and three arguments against living in a big city.",
)
_REPEATED = (
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"
    "    return width * height * depth\n\n\ndef surface(width, height, depth):\n"
    "    return 2 * (width * height + width * depth + height * depth)\n\n\n"
)


def repeating(times: int) -> str:
    """A request to copy a text that stands there so many times, which n-gram drafts can guess."""
    return f"Write this code down again, word for word, twice, and nothing else:\n\n{_REPEATED * times}"


def long_text(lines: int) -> str:
    """A text of so many lines, no two of them alike, and a question about it."""
    body = "\n".join(
        f"Line {number}: crate {number * 37 % 1009} weighs {number * number % 97 + 3} pounds and goes to dock "
        f"{number * 11 % 23}."
        for number in range(1, lines + 1)
    )
    return f"{body}\n\nWhich dock do most of these crates go to, and about how much do they weigh? Explain at length."


ANY = "any"
"""Instead of a model's name, behind a router: the resident one that was used last."""
BATCH = 512
"""llama.cpp's default of --ubatch-size."""
MARGIN = 1.3
IDENTICAL = 5
DIFFERENT = 4
TOKENS = 64
LIMIT_S = 120.0
REPEATING_TOKENS = 256
LONG_TOKENS = 96
"""Twice that is enough for the drafts of the long prompt alone to tell."""
SPARE_TOKENS = 64
"""What a chat template adds, and then some."""
_EXTRA = 8
_FEW_LINES = 8


class SmokeEffort(Struct, frozen=True):
    """What to send. `batch` is the server's physical batch in tokens, `limit_s` bounds one answer."""

    identical: int = IDENTICAL
    tokens: int = TOKENS
    limit_s: float = LIMIT_S
    batch: int = BATCH
    different: int = DIFFERENT


@dataclasses.dataclass(slots=True)
class Smoke:
    """One smoke test of the server at `url`. `key` is its API key, the secret itself.

    `completions`, `looks` and `checks` fill as it goes.
    """

    url: str
    effort: SmokeEffort
    expected: bool | None = None
    because: str = ""
    key: str | None = dataclasses.field(default=None, repr=False)
    model: str | None = None
    process: Callable[[], tuple[int, float] | None] = lambda: None
    """Pid and start of the server's process now."""
    on_step: Callable[[str, int, int], None] = lambda _words, _done, _all: None
    completions: list[SmokeCompletion] = dataclasses.field(default_factory=list)
    looks: list[InstanceLook] = dataclasses.field(default_factory=list)
    drafts: Speculation = dataclasses.field(default_factory=Speculation)
    skipped: str = ""
    """Why there is no long prompt."""
    _room: int | None = dataclasses.field(init=False, default=None)
    _client: BlockingClient = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._client = BlockingClient(self.url, self.key, self.model)

    def run(self) -> None:
        """Send everything. Raises `UnreachableError` when no one answers at the beginning, `InputError` for a model or
        key that the server does not take; the checks judge what happens later."""
        self._first_look()
        effort = self.effort
        same = [(CompletionKind.IDENTICAL, SAME_PROMPT, effort.tokens)] * effort.identical
        planned = len(same) + effort.different + 4
        for index, (kind, prompt, tokens) in enumerate(chain(same, self._others())):
            self.on_step(str(kind), index, planned)
            self._ask(kind, prompt, tokens, streamed=index % 2 == 1)
        for number in range(_EXTRA):
            # Nothing accepted so far, and too few drafts to say that nothing ever will be.
            whole = _whole(self.completions)
            drafts = sum(completion.drafts for completion in whole)
            if any(completion.accepted for completion in whole) or not 0 < drafts < enough_drafts():
                break
            self.on_step("more drafts", planned, planned + 1)
            self._ask(CompletionKind.DIFFERENT, f"{number + 1}. {SAME_PROMPT}", REPEATING_TOKENS, streamed=False)

    @property
    def checks(self) -> list[Check]:
        """The judgement on what was seen so far."""
        done = self.completions
        unseen = Check("speculation", SKIP, "it was not looked at")
        return [
            speculation(self.drafts) if self.looks else unseen,
            answers(done),
            output(done),
            drafter(done, self.drafts),
            acceptance(done),
            cache_path(done),
            long_prompt(done, self.effort.batch, skipped=self.skipped),
            instance(self.looks, done),
        ]

    def _others(self) -> Iterator[tuple[CompletionKind, str, int]]:
        """What follows the identical prompts; made then, because by then a router has loaded the model."""
        effort = self.effort
        yield from ((CompletionKind.DIFFERENT, prompt, effort.tokens) for prompt in OTHER_PROMPTS[: effort.different])
        # Twice each: whole and streamed.
        yield from self._repeating() * 2
        long = self._long_prompt()
        if long is not None:
            yield from [(CompletionKind.LONG, long, max(effort.tokens, LONG_TOKENS))] * 2

    def _repeating(self) -> list[tuple[CompletionKind, str, int]]:
        """As much as a slot holds of a text that repeats, and room for the answer."""
        tokens = max(self.effort.tokens, REPEATING_TOKENS)
        for times in (3, 2, 1):
            prompt = repeating(times)
            if self._room is None or self._size(prompt) + tokens + SPARE_TOKENS <= self._room:
                return [(CompletionKind.REPEATING, prompt, tokens)]
        return []

    def _long_prompt(self) -> str | None:
        """A prompt of more tokens than a physical batch has, None where no slot holds one."""
        wanted = int(self.effort.batch * MARGIN) + SPARE_TOKENS
        lines = _FEW_LINES
        prompt = long_text(lines)
        while (size := self._size(prompt)) <= wanted:
            lines = max(lines + _FEW_LINES, int(1.1 * lines * wanted / size))
            prompt = long_text(lines)
        room = self._room
        if room is not None and size + max(self.effort.tokens, LONG_TOKENS) + SPARE_TOKENS > room:
            self.skipped = (
                f"a slot holds {room:,} tokens: too few for a prompt of more than a batch of {self.effort.batch:,}"
            )
            return None
        return prompt

    def _size(self, prompt: str) -> int:
        """Tokens of the text; where the server does not tell, a cautious guess."""
        try:
            return len(self._client.tokens(prompt))
        except SpecdashError:
            return len(prompt) // 6

    def _first_look(self) -> None:
        server = BlockingClient(self.url, self.key)
        try:
            reply = server.get("/health")
        except OSError as error:
            raise self._client.unreachable(error) from None
        if reply.status == 503:
            raise UnreachableError(f"{self.url} is not ready: {error_message(reply.body) or 'HTTP 503'}")
        props = None
        with contextlib.suppress(OSError):
            props = server.get("/props")
            self._client.check_key(props, "/props")
        if props is not None and mapping(props.json).get("role") == "router":
            self._choose()
        self.looks.append(InstanceLook(self._instance()))
        self.drafts = self._speculation()

    def _choose(self) -> None:
        """The model behind a router, and how it is started. Raises `InputError` when none such is there."""
        try:
            known = parse_models(BlockingClient(self.url, self.key).get("/models").body).models
        except (OSError, ParseError) as error:
            raise InputError(f"{self.url}/models: {one_line(str(error)) or type(error).__name__}") from None
        found = next(
            (router_model for router_model in known if self.model in (router_model.id, *router_model.aliases)), None
        )
        if self.model == ANY:
            found = most_recent_resident(known)
        if found is None:
            names = ", ".join(router_model.id for router_model in known) or "none"
            problem = "no model is resident" if self.model == ANY else f"it has no model {self.model!r}"
            problem = "it is a router" if self.model is None else problem
            raise InputError(f"{self.url}: {problem}; name one with --model: {names}")
        self.model = found.id
        self._client = replace(self._client, model=found.id)
        if self.expected is None and found.spec_types is not None:
            self.expected = bool(found.spec_types)
            self.because = f"the router starts it with spec-type {','.join(found.spec_types) or 'none'}"

    def _speculation(self) -> Speculation:
        seen = slots_told(self._client) or Slots()
        flags, self._room = seen.drafting, seen.least_context
        drafting = sum(flags) if flags is not None else None
        types = {name for slot in seen.slots for name in slot.speculative_types or ()}
        return Speculation(len(seen.slots), drafting, tuple(sorted(types)), self.expected, self.because)

    def _instance(self) -> Instance:
        """What it can be known by now. What does not answer is unknown: a completion says that it is gone."""
        build = model = started = None
        predicted: float | None = None
        with contextlib.suppress(OSError, ParseError):
            props = mapping(self._client.get("/props").json)
            build = text(props.get("build_info"))
            model = text(props.get("model_path")) or text(props.get("model_alias"))
            reply = self._client.get("/metrics")
            if reply.status == 200:
                started = reply.headers.get("process-start-time-unix")
                predicted = parse_metrics(reply.body).predicted_tokens
        slots = slots_told(self._client) or Slots()
        tasks = [slot.task for slot in slots.slots if slot.task is not None]
        return Instance(build, model, started, self.process(), predicted, max(tasks, default=None))

    def _ask(self, kind: CompletionKind, prompt: str, tokens: int, *, streamed: bool) -> None:
        began = time.monotonic()
        completion = self._completion(kind, prompt, tokens, streamed=streamed)
        self.completions.append(replace(completion, seconds=time.monotonic() - began))
        # Counters are of one server; what a request left of itself there is not ours to expect when it failed.
        now = self._instance()
        if completion.error is None or now != Instance():
            self.looks.append(InstanceLook(now, completion.tokens if completion.error is None else 0))
        if not self.drafts.types:
            # Types are reported once a slot has served, and a router's model may be loaded only now.
            seen = self._speculation()
            self.drafts = seen if self.drafts.drafting is None else replace(self.drafts, types=seen.types)

    def _completion(self, kind: CompletionKind, prompt: str, tokens: int, *, streamed: bool) -> SmokeCompletion:
        messages = [{"role": "user", "content": prompt}]
        body = request_body(messages, tokens, model=self.model, streamed=streamed)
        blank = SmokeCompletion(kind, streamed)
        answer = chat.ask(self._client, body, limit_s=self.effort.limit_s, keep_text=True)
        if answer.fault is not None:
            return replace(blank, error=answer.error)
        if answer.finish is None:
            return replace(blank, error="the stream ended in the middle of the answer")
        return replace(
            blank,
            text=answer.text,
            reasoning=answer.reasoning,
            tool_calls=len(answer.calls),
            finish=answer.finish,
            prompt_tokens=answer.prompt_tokens or 0,
            tokens=answer.predicted_tokens or 0,
            cached=answer.cached_tokens or 0,
            drafted=natural(answer.timings.get("draft_n")) or 0,
            accepted=natural(answer.timings.get("draft_n_accepted")) or 0,
            model=answer.model,
            build=answer.build,
        )
