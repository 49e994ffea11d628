"""The shape of the live traffic, and bundled prompts that match it. Counts and lengths only; no text of any request.

The proxy tells whether tools were offered, which makes a request agentic. Between code and prose nobody can tell from
outside, so chat counts as coding, pattern and prose alike, and where no proxy tells anything, all four count alike.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdash.bench.workloads import CLASSES, bundled
from specdash.core.errors import InputError
from specdash.core.proxy_events import RequestEvent, from_json
from specdash.core.readings import Source
from specdash.insight.samples import Samples, Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from specdash.bench.samples import Prompt
    from specdash.core.target import Target
    from specdash.insight.samples import RequestSample

LEAST_REQUESTS = 20
SHORTEST, LONGEST = 32, 512
"""Tokens of an answer: shorter ones tell little, longer ones tell nothing new."""
LONGEST_CONTEXT = 8192
"""Tokens that prompts are filled up to at most: nothing is cached, so each is read anew in every boot."""
_AGENTIC, _CHAT = ("agentic",), ("coding", "pattern", "prose")
_CHARACTERS = 4.2
"""Of filling text, to a token."""
_MOST_EVENTS = 32 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """What requests were like. `shares` are of generated tokens; lengths are sorted, by class."""

    requests: int
    shares: Mapping[str, float]
    prompts: Mapping[str, tuple[int, ...]]
    answers: Mapping[str, tuple[int, ...]]
    source: str

    @property
    def words(self) -> str:
        """For people."""
        parts = ", ".join(f"{kind} {share:.0%}" for kind, share in self.shares.items() if share)
        lengths = sorted(one for lengths in self.prompts.values() for one in lengths)
        context = f", prompts of {_quantile(lengths, 0.5)} tokens at the median" if lengths else ""
        return f"{self.requests} requests of {self.source}: {parts}{context}"


def shape_of(samples: Iterable[RequestSample], source: str) -> Shape:
    """The shape of requests. Raises `InputError` for too few to tell anything."""
    tokens: dict[str, float] = defaultdict(float)
    prompts: dict[str, list[int]] = defaultdict(list)
    answers: dict[str, list[int]] = defaultdict(list)
    count = 0
    for one in samples:
        if one.decode_tokens is None or one.prompt_tokens is None:
            continue
        count += 1
        kinds = _kinds(one.work)
        for kind in kinds:
            tokens[kind] += one.decode_tokens / len(kinds)
            prompts[kind].append(one.prompt_tokens)
            answers[kind].append(one.decode_tokens)
    total = sum(tokens.values())
    if count < LEAST_REQUESTS or total <= 0:
        raise InputError(
            f"{source}: {count} finished requests are too few to tell the shape of the traffic ({LEAST_REQUESTS} are "
            "the least); leave --workload live out, or name prompts with --prompts or --transcript"
        )
    return Shape(
        count,
        {kind: tokens[kind] / total for kind in CLASSES if tokens[kind]},
        {kind: tuple(sorted(found)) for kind, found in prompts.items()},
        {kind: tuple(sorted(found)) for kind, found in answers.items()},
        source,
    )


def recorded_samples(path: Path, target: Target, since: float, until: float) -> tuple[RequestSample, ...]:
    """Requests of the record (history.db); of the proxy's events where it has any, as they tell what work was."""
    from specdash.history.store import Store, target_name
    from specdash.insight.state import TargetState

    if not path.is_file():
        return ()
    state = TargetState(target, rules=(), wall_offset=lambda: 0.0)
    with Store(path) as store:
        name = target_name(target)
        if name not in store.targets():
            return ()
        for wall, reading in store.readings(name, since, until):
            if reading.source in (Source.LOG, Source.PROXY_EVENTS):
                state.take_unjudged(reading)
                state.experiments.samples.date(wall, wall)
    return _best(state.experiments.samples)


def events_samples(path: Path, since: float) -> tuple[RequestSample, ...]:
    """Requests of a proxy's events file, its last part where it is large."""
    samples = Samples()
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _MOST_EVENTS))
            lines = file.read(_MOST_EVENTS).splitlines()
    except OSError:
        return ()
    for line in lines:
        event = from_json(line)
        if isinstance(event, RequestEvent) and event.at >= since:
            samples.add_event(event)
    return _best(samples)


def matched(shape: Shape, each: int, room: int | None, longest: int = LONGEST) -> tuple[Prompt, ...]:
    """Bundled prompts of the shape's classes with its lengths: `each` of a class, answers and contexts spread over the
    quantiles of what was seen. `room`: tokens of a slot's context."""
    found = []
    for kind in shape.shares:
        for number, prompt in enumerate(bundled((kind,), each)):
            part = (number + 0.5) / each
            answer = min(max(_quantile(shape.answers[kind], part), SHORTEST), longest)
            context = min(_quantile(shape.prompts[kind], part), LONGEST_CONTEXT)
            if room is not None:
                context = min(context, room - answer - 256)
            found.append(replace(filled(prompt, context), max_tokens=answer))
    return tuple(found)


def filled(prompt: Prompt, tokens: int) -> Prompt:
    """The prompt with notes before its first question, until it has about so many tokens."""
    held = sum(len(str(one.get("content") or "")) for one in prompt.messages)
    missing = round(tokens * _CHARACTERS) - held
    if missing < 400:
        return prompt
    notes = _notes(missing, prompt.id)
    messages = list(prompt.messages)
    for place, one in enumerate(messages):
        content = one.get("content")
        if one.get("role") == "user" and isinstance(content, str):
            messages[place] = {**one, "content": f"Notes from before, for later:\n{notes}\n\n{content}"}
            return replace(prompt, messages=tuple(messages))
    return prompt


_WHO = (
    "The harbour office",
    "A visitor",
    "The night shift",
    "Our supplier",
    "The archive",
    "A neighbour",
    "The council",
)
_DID = ("moved", "counted", "repaired", "returned", "ordered", "photographed", "described", "sold", "found", "painted")
_WHAT = (
    "crates",
    "windows",
    "old maps",
    "bicycles",
    "lamps",
    "tickets",
    "stones",
    "letters",
    "pumps",
    "carpets",
    "keys",
)


def _notes(characters: int, name: str) -> str:
    """Text that nothing repeats, the same for the same name."""
    chance = random.Random(f"notes/{name}")  # noqa: S311 - filling, no secret
    lines: list[str] = []
    length = 0
    while length < characters:
        line = (
            f"{chance.choice(_WHO)} {chance.choice(_DID)} {chance.randrange(2, 900)} {chance.choice(_WHAT)} on day "
            f"{chance.randrange(1, 366)}, {chance.choice(('late', 'early', 'alone', 'twice', 'again'))}."
        )
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)


def _kinds(work: Work | None) -> tuple[str, ...]:
    if work is None:
        return CLASSES
    return _CHAT if work is Work.CHAT else _AGENTIC


def _best(samples: Samples) -> tuple[RequestSample, ...]:
    return tuple(samples.told.values()) if len(samples.told) >= LEAST_REQUESTS else tuple(samples.logged)


def _quantile(values: Sequence[int], part: float) -> int:
    return values[min(len(values) - 1, int(part * len(values)))]
