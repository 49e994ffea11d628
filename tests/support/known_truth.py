"""What llama.cpp's counters must say of a tiny model's request, worked out from the successor tables alone.

Source: llama.cpp b11434 (`tools/server/server-context.cpp`, `common/ngram-map.cpp`, `common/ngram-mod.h`), and trials.
A request for n tokens samples the first one from its prompt. Each verification step after that drafts no more tokens
than are left but one, keeps the drafts up to the first wrong one, and adds one token of the target's own. A target that
takes rejected tokens back by a checkpoint decodes the kept ones again, with the corrected one as a draft that is always
accepted and never counted, and so gains one token more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from support.tiny_models import successors

Drafter = Callable[[Sequence[int]], Sequence[int]]
"""Drafts from the tokens so far, of which the last one is sampled and not decoded yet."""

NGRAM_SIZE = 12
"""Default of `--spec-ngram-simple-size-n`."""
NGRAM_LENGTH = 48
"""Default of `--spec-ngram-simple-size-m`."""
_MOD_CHUNK = 32


@dataclass
class Counts:
    """Counters of requests: tokens drafted and accepted, verification steps, and decode calls of generated tokens."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    decodes: int = 0
    at_position: dict[int, int] = field(default_factory=dict)
    text: list[int] = field(default_factory=list)

    def per_position(self, places: int) -> list[int]:
        """Accepted tokens by position, for the first `places`."""
        return [self.at_position.get(place, 0) for place in range(places)]

    def __add__(self, other: Counts) -> Counts:
        places = {*self.at_position, *other.at_position}
        return Counts(
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.steps + other.steps,
            self.decodes + other.decodes,
            {place: self.at_position.get(place, 0) + other.at_position.get(place, 0) for place in places},
        )


def by_model(wrong_every: int, longest: int) -> Drafter:
    """A drafter that knows the sentence, but for every `wrong_every`-th word: a draft model, heads, a block draft."""
    table = successors(wrong_every)

    def drafted(tokens: Sequence[int]) -> list[int]:
        draft, last = [], tokens[-1]
        for _ in range(longest):
            last = int(table[last])
            draft.append(last)
        return draft

    return drafted


def chain(drafters: Sequence[Drafter]) -> Drafter:
    """The first that drafts anything wins the step."""
    return lambda tokens: next(filter(None, (drafted(tokens) for drafted in drafters)), [])


def ngram_simple(tokens: Sequence[int]) -> list[int]:
    """What followed the last time that the last tokens were there; drafts no longer than the n-gram are dropped."""
    draft = _what_followed(tokens) if len(tokens) - 1 > NGRAM_SIZE + NGRAM_LENGTH + 1 else []
    return draft if len(draft) >= NGRAM_SIZE else []


def ngram_map(tokens: Sequence[int]) -> list[int]:
    """The same, once there are two n-grams and a draft; exact as long as nothing is rejected."""
    return _what_followed(tokens) if len(tokens) - 1 >= 2 * NGRAM_SIZE + NGRAM_LENGTH else []


def _what_followed(tokens: Sequence[int]) -> list[int]:
    decoded = len(tokens) - 1
    pattern = list(tokens[-NGRAM_SIZE:])
    for start in range(decoded - NGRAM_SIZE - 1, 0, -1):
        if list(tokens[start : start + NGRAM_SIZE]) == pattern:
            follows = start + NGRAM_SIZE
            return list(tokens[follows : min(follows + NGRAM_LENGTH, decoded)])
    return []


class NgramMod:
    """The hash table of n-grams that all slots share, without its collisions; `start` begins a request."""

    def __init__(self, size: int, shortest: int, longest: int) -> None:
        self._size, self._shortest, self._longest = size, shortest, longest
        self._table: dict[tuple[int, ...], int] = {}
        self._read = 0

    def start(self, prompt: Sequence[int]) -> None:
        """Read a prompt."""
        self._take(prompt, 0, len(prompt))

    def _take(self, tokens: Sequence[int], first: int, decoded: int) -> None:
        for start in range(first, decoded - self._size):
            self._table[tuple(tokens[start : start + self._size])] = tokens[start + self._size]
        self._read = max(0, decoded - self._size)

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        """Follow the table from the last tokens on."""
        decoded = len(tokens) - 1
        if decoded < self._size:
            return []
        if self._read + _MOD_CHUNK < decoded:
            self._take(tokens, self._read, decoded)
        known = list(tokens[-self._size :])
        for place in range(self._longest):
            follows = self._table.get(tuple(known[place : place + self._size]))
            if follows is None:
                if place < self._shortest:
                    return []
                break
            known.append(follows)
        return known[self._size :]


def run(prompt: Sequence[int], tokens: int, drafter: Drafter, cut_back: int | None = None) -> Counts:
    """What one request is counted as. Where more than `cut_back` tokens are rejected, it replays."""
    table = successors()
    text = [*prompt, int(table[prompt[-1]])]
    counts, made = Counts(), 1
    while made < tokens:
        draft = list(drafter(text))[: tokens - made - 1]
        counts.decodes += 1
        kept = 0
        while kept < len(draft) and draft[kept] == int(table[text[-1]]):
            text.append(draft[kept])
            counts.at_position[kept] = counts.at_position.get(kept, 0) + 1
            kept += 1
        if draft:
            counts.steps += 1
            counts.drafted += len(draft)
            counts.accepted += kept
        gained = kept + 1
        text.append(int(table[text[-1]]))
        if cut_back is not None and len(draft) - kept > cut_back:
            counts.decodes += 1
            gained += 1
            text.append(int(table[text[-1]]))
        made += gained
    counts.text = text[len(prompt) :]
    return counts
