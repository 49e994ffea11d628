"""What a replayed session shows: each call with the prompt cache off (cold) and on (warm), and their sums.

Only calls that were answered on both sides are compared, and only where the cold side was really cold. Times are
seconds, rates tokens per second; None is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specdash.bench.plausible import CACHED
from specdash.core.token_speed import DECODE, possible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.bench.samples import Sample

COLD, WARM = "cold", "warm"
SIDES = (COLD, WARM)
_MOST_GROUPS = 4
_LEAST_IN_GROUP = 2
_LEAST_S = 1e-9
"""A shorter time is none that a clock can tell."""


class CountedBy(StrEnum):
    """Where the number of an answer's tokens comes from, the best first."""

    TIMINGS = "timings"
    USAGE = "usage"
    TOKENIZE = "tokenize"
    """The text was tokenised again, which may differ by a few."""
    CHUNKS = "chunks"
    """Events were counted; one may bring several tokens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one call on one side."""

    sample: Sample
    tokens: int | None = None
    counted_by: CountedBy | None = None

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first token."""
        return self.sample.ttft_s

    @property
    def wall_s(self) -> float | None:
        """From sending to the end."""
        return self.sample.latency_s

    @property
    def decode(self) -> tuple[float, float] | None:
        """Tokens after the first and the time they took: the server's own, else the client's."""
        one = self.sample
        if self.tokens is None or self.tokens < 2 or one.failed:
            return None
        if one.predicted_ms:
            seconds = one.predicted_ms / 1000.0
        elif one.first_s is None or one.done_s is None:
            return None
        else:
            seconds = one.done_s - one.first_s
        tokens = self.tokens - 1.0
        return (tokens, seconds) if seconds > 0 and possible(tokens / seconds, DECODE) is not None else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first."""
        found = self.decode
        return found[0] / found[1] if found else None

    @property
    def is_empty(self) -> bool:
        """It ended well and brought nothing."""
        return self.sample.empty and not self.sample.failed


@dataclass(frozen=True, slots=True)
class Row:
    """One call of the session."""

    number: int
    line: int
    """Of the transcript."""
    chars: int
    """Of the prefix's texts, without tools."""
    messages: int
    cold: Answer | None = None
    warm: Answer | None = None

    def side(self, name: str) -> Answer | None:
        """`cold` or `warm`."""
        return self.cold if name == COLD else self.warm

    @property
    def tokens(self) -> int | None:
        """Of the prompt, tools and template included, as the server counts them."""
        known = [one.sample.prompt_tokens for one in (self.warm, self.cold) if one is not None]
        return next((one for one in known if one is not None), None)

    @property
    def is_pair(self) -> bool:
        """Whether both sides can be compared."""
        if self.cold is None or self.warm is None or CACHED in self.cold.sample.flags:
            return False
        return all(
            not one.sample.failed and one.ttft_s is not None and one.wall_s is not None
            for one in (self.cold, self.warm)
        )

    @property
    def is_suspect(self) -> bool:
        """Whether it was empty with the cache, and not without: then it is hardly the model that has nothing to say."""
        return self.warm is not None and self.warm.is_empty and (self.cold is None or not self.cold.is_empty)

    @property
    def ttft_ratio(self) -> float | None:
        """How many times sooner the first token came with the cache."""
        return _ratio([self], "ttft_s")


@dataclass(frozen=True, slots=True)
class Side:
    """One side's calls; sums are over the answered ones."""

    calls: int
    failed: int
    empty: int
    ttft_s: float | None
    wall_s: float | None
    decode_rate: float | None
    """All tokens over all time."""
    cached_share: float | None
    """Of all prompt tokens, those that came from the cache."""


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of similar size: the means of their prefixes and times, and the ratio of the sums."""

    calls: int
    chars: float
    tokens: float | None
    cold_ttft_s: float
    warm_ttft_s: float
    ttft_ratio: float | None


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed session. `left_out` are calls that do not fit into the context."""

    rows: tuple[Row, ...]
    sides: tuple[str, ...]
    max_tokens: int
    started_at: float
    """Unix time."""
    duration_s: float
    left_out: tuple[int, ...] = ()
    context: int | None = None
    flat: bool = False
    """Tool calls and results went as text."""
    tools: int = 0
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)
    session: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> tuple[Row, ...]:
        """Rows that can be compared."""
        return tuple(row for row in self.rows if row.is_pair)

    @property
    def ttft_ratio(self) -> float | None:
        """The sum of the times to the first token, cold over warm."""
        return _ratio(self.pairs, "ttft_s")

    @property
    def wall_ratio(self) -> float | None:
        """The sum of the times to the end, cold over warm."""
        return _ratio(self.pairs, "wall_s")

    @property
    def all_failed(self) -> bool:
        """Nothing was measured."""
        return not any(
            answer is not None and not answer.sample.failed for row in self.rows for answer in (row.cold, row.warm)
        )

    @property
    def empties(self) -> int:
        """Answers without anything."""
        return sum(answer is not None and answer.is_empty for row in self.rows for answer in (row.cold, row.warm))

    @property
    def suspects(self) -> tuple[int, ...]:
        """Numbers of the calls that were empty with the cache alone."""
        return tuple(row.number for row in self.rows if row.is_suspect)

    def total(self, name: str) -> Side:
        """The sums of one side."""
        answers = [answer for row in self.rows if (answer := row.side(name)) is not None]
        answered = [one for one in answers if not one.sample.failed]
        parts = [part for one in answered if (part := one.decode) is not None]
        prompt = [(one.sample.cached_tokens, one.sample.prompt_tokens) for one in answered]
        known = [(cached, tokens) for cached, tokens in prompt if cached is not None and tokens]
        return Side(
            len(answers),
            len(answers) - len(answered),
            sum(one.is_empty for one in answers),
            _sum(one.ttft_s for one in answered),
            _sum(one.wall_s for one in answered),
            sum(one for one, _ in parts) / sum(one for _, one in parts) if parts else None,
            sum(one for one, _ in known) / sum(one for _, one in known) if known else None,
        )

    def growth(self) -> tuple[Group, ...]:
        """The comparable calls in groups of like size, the shortest prefixes first."""
        rows = sorted(self.pairs, key=lambda row: row.chars)
        count = min(_MOST_GROUPS, len(rows) // _LEAST_IN_GROUP)
        return tuple(
            _group(rows[len(rows) * index // count : len(rows) * (index + 1) // count]) for index in range(count)
        )

    def counted_by(self) -> tuple[CountedBy, ...]:
        """Where the numbers of tokens come from."""
        found = {one.counted_by for row in self.rows for one in (row.cold, row.warm) if one is not None}
        return tuple(one for one in CountedBy if one in found)


def _group(rows: Sequence[Row]) -> Group:
    tokens = [row.tokens for row in rows if row.tokens is not None]
    return Group(
        len(rows),
        sum(row.chars for row in rows) / len(rows),
        sum(tokens) / len(tokens) if tokens else None,
        _total(rows, COLD, "ttft_s") / len(rows),
        _total(rows, WARM, "ttft_s") / len(rows),
        _ratio(rows, "ttft_s"),
    )


def _total(rows: Iterable[Row], side: str, name: str) -> float:
    return sum(float(getattr(row.side(side), name)) for row in rows)


def _ratio(rows: Sequence[Row], name: str) -> float | None:
    pairs = [row for row in rows if row.is_pair]
    warm = _total(pairs, WARM, name)
    return _total(pairs, COLD, name) / warm if warm > _LEAST_S else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) if known else None
