"""What a replayed session shows: each call with the prompt cache off (cold) and on (warm), and their sums.

Only calls that were answered on both sides are compared, and only where the cold side was really cold. Times are
seconds, rates tokens per second; None is unknown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.bench.load.samples import CACHED
from specdash.bench.report import BenchReport
from specdash.core.proxy_events import DECODE, plausible_rate
from specdash.core.structs import json_of
from specdash.system.stats import mean
from specdash.system.text import UNKNOWN, markdown_table, percent, seconds, times, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.bench.load.samples import BenchSample


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


class CallResult(Struct, frozen=True):
    """What came of one call on one side."""

    sample: BenchSample
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
        sample = self.sample
        if self.tokens is None or self.tokens < 2 or sample.failed:
            return None
        if sample.predicted_ms:
            seconds = sample.predicted_ms / 1000.0
        elif sample.first_s is None or sample.done_s is None:
            return None
        else:
            seconds = sample.done_s - sample.first_s
        tokens = self.tokens - 1.0
        return (tokens, seconds) if seconds > 0 and plausible_rate(tokens / seconds, None, DECODE) is not None else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first."""
        found = self.decode
        return found[0] / found[1] if found else None

    @property
    def is_empty(self) -> bool:
        """It ended well and brought nothing."""
        return self.sample.empty and not self.sample.failed


class ReplayRow(Struct, frozen=True):
    """One call of the session."""

    number: int
    line: int
    """Of the transcript."""
    chars: int
    """Of the prefix's texts, without tools."""
    messages: int
    cold: CallResult | None = None
    warm: CallResult | None = None

    def side(self, name: str) -> CallResult | None:
        return self.cold if name == COLD else self.warm

    @property
    def tokens(self) -> int | None:
        """Of the prompt, tools and template included, as the server counts them."""
        known = [call_result.sample.prompt_tokens for call_result in (self.warm, self.cold) if call_result is not None]
        return next((number for number in known if number is not None), None)

    @property
    def is_pair(self) -> bool:
        """Whether both sides can be compared."""
        if self.cold is None or self.warm is None or CACHED in self.cold.sample.flags:
            return False
        return all(
            not call_result.sample.failed and call_result.ttft_s is not None and call_result.wall_s is not None
            for call_result in (self.cold, self.warm)
        )

    @property
    def is_suspect(self) -> bool:
        """Whether it was empty with the cache, and not without: then it is hardly the model that has nothing to say."""
        return self.warm is not None and self.warm.is_empty and (self.cold is None or not self.cold.is_empty)

    @property
    def ttft_ratio(self) -> float | None:
        """How many times sooner the first token came with the cache."""
        return _ratio([self], "ttft_s")


class ReplaySide(Struct, frozen=True):
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


class Group(Struct, frozen=True):
    """Calls of similar size: the means of their prefixes and times, and the ratio of the sums."""

    calls: int
    chars: float
    tokens: float | None
    cold_ttft_s: float
    warm_ttft_s: float
    ttft_ratio: float | None


class Replay(Struct, frozen=True):
    """A replayed session. `left_out` are calls that do not fit into the context."""

    rows: tuple[ReplayRow, ...]
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
    def pairs(self) -> tuple[ReplayRow, ...]:
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
        return not any(
            answer is not None and not answer.sample.failed for row in self.rows for answer in (row.cold, row.warm)
        )

    @property
    def empties(self) -> int:
        return sum(answer is not None and answer.is_empty for row in self.rows for answer in (row.cold, row.warm))

    @property
    def suspects(self) -> tuple[int, ...]:
        """Numbers of the calls that were empty with the cache alone."""
        return tuple(row.number for row in self.rows if row.is_suspect)

    def total(self, name: str) -> ReplaySide:
        """The sums of one side."""
        answers = [answer for row in self.rows if (answer := row.side(name)) is not None]
        answered = [answer for answer in answers if not answer.sample.failed]
        parts = [part for call_result in answered if (part := call_result.decode) is not None]
        prompt = [(call_result.sample.cached_tokens, call_result.sample.prompt_tokens) for call_result in answered]
        known = [(cached, tokens) for cached, tokens in prompt if cached is not None and tokens]
        return ReplaySide(
            len(answers),
            len(answers) - len(answered),
            sum(answer.is_empty for answer in answers),
            _sum(call_result.ttft_s for call_result in answered),
            _sum(call_result.wall_s for call_result in answered),
            sum(value for value, _ in parts) / sum(value for _, value in parts) if parts else None,
            sum(number for number, _ in known) / sum(number for _, number in known) if known else None,
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
        found = {
            call_result.counted_by
            for row in self.rows
            for call_result in (row.cold, row.warm)
            if call_result is not None
        }
        return tuple(counted_by for counted_by in CountedBy if counted_by in found)


def _group(rows: Sequence[ReplayRow]) -> Group:
    return Group(
        len(rows),
        sum(row.chars for row in rows) / len(rows),
        mean(row.tokens for row in rows),
        _total(rows, COLD, "ttft_s") / len(rows),
        _total(rows, WARM, "ttft_s") / len(rows),
        _ratio(rows, "ttft_s"),
    )


def _total(rows: Iterable[ReplayRow], side: str, name: str) -> float:
    return sum(float(getattr(row.side(side), name)) for row in rows)


def _ratio(rows: Sequence[ReplayRow], name: str) -> float | None:
    pairs = [row for row in rows if row.is_pair]
    warm = _total(pairs, WARM, name)
    return _total(pairs, COLD, name) / warm if warm > _LEAST_S else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# A replayed session for people and for programs. Neither holds any text of the session.


SCHEMA = "specdash.bench-replay/1"
_time = seconds


def report(made: Replay) -> BenchReport:
    """All files of the report, and what the terminal shows below its head."""
    document = {
        "schema": SCHEMA,
        "at": made.started_at,
        "duration_s": round(made.duration_s, 3),
        "outcome": "interrupted" if made.interrupted else "all failed" if made.all_failed else "measured",
        **json_of(made, "engine session sides max_tokens context flat tools left_out notes"),
        "token_counts_from": list(made.counted_by()),
        "compared": len(made.pairs),
        "ttft_ratio": _rounded(made.ttft_ratio),
        "wall_ratio": _rounded(made.wall_ratio),
        "empties": made.empties,
        "empty_with_cache_only": list(made.suspects),
        **{side: json_of(made.total(side)) for side in made.sides},
        "growth": json_of(made.growth()),
        "calls": [row_json(row) for row in made.rows],
    }
    return BenchReport(document, [*table(made), "", *summary(made)], markdown(made))


def row_json(row: ReplayRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "line": row.line,
        "prefix_chars": row.chars,
        "prefix_turns": row.messages,
        "prompt_tokens": row.tokens,
        "ttft_ratio": _rounded(row.ttft_ratio),
        **{side: answer_json(answer) for side in SIDES if (answer := row.side(side)) is not None},
    }


def answer_json(answer: CallResult) -> dict[str, Any]:
    """One answer, its text left out."""
    return {
        "ttft_s": _rounded(answer.ttft_s, 6),
        "wall_s": _rounded(answer.wall_s, 6),
        "decode_tok_s": _rounded(answer.decode_rate),
        "prefill_tok_s": _rounded(answer.sample.prefill_rate),
        **json_of(answer.sample, "prompt_tokens cached_tokens drafted accepted finish flags"),
        "tokens": answer.tokens,
        "tokens_from": answer.counted_by,
        "empty": answer.is_empty,
        "error": answer.sample.error or None,
    }


def table(made: Replay) -> list[str]:
    """One line a call, within 80 columns, and the calls with something wrong in words."""
    head = f"{'CALL':>4} {'CHARS':>7} {'TOKENS':>6}"
    over = " " * len(head)
    if "cold" in made.sides:
        over, head = over + f" |{'cold':^20}", head + f" |{'TTFT':>7}{'WALL':>7}{'TOK/S':>6}"
    if "warm" in made.sides:
        over, head = over + f" |{'warm':^27}", head + f" |{'CACHED':>7}{'TTFT':>7}{'WALL':>7}{'TOK/S':>6}"
    both = len(made.sides) == len(SIDES)
    lines = [(over + " |").rstrip() if both else over.rstrip(), head + (f" |{'TTFT x':>7}" if both else "")]
    lines += [_row(row, made.sides, both=both).rstrip() for row in made.rows]
    for row in made.rows:
        for side in made.sides:
            answer = row.side(side)
            if answer is not None and (answer.sample.failed or answer.is_empty):
                lines.append(f"call {row.number}, {side}: {answer.sample.error or 'EMPTY: nothing came'}")
    return lines


def summary(made: Replay) -> list[str]:
    totals = {side: made.total(side) for side in made.sides}
    lines = [f"{'':14}" + "".join(f"{side:>12}" for side in totals) + (f"{'ratio':>10}" if len(totals) == 2 else "")]
    lines += [
        _line("sum of TTFT", [_time(total.ttft_s) for total in totals.values()], times(made.ttft_ratio)),
        _line("sum of wall", [_time(total.wall_s) for total in totals.values()], times(made.wall_ratio)),
        _line("decode tok/s", [_plain(total.decode_rate) for total in totals.values()]),
        _line("from cache", [percent(total.cached_share, 1) for total in totals.values()]),
        _line("failed", [f"{total.failed} of {total.calls}" for total in totals.values()]),
        _line("empty", [f"{total.empty} of {total.calls}" for total in totals.values()]),
    ]
    growth = made.growth()
    if growth:
        lines += ["", f"{'prefix, chars':>14}{'tokens':>9}{'calls':>7}{'cold TTFT':>12}{'warm TTFT':>12}{'ratio':>10}"]
        lines += [
            f"{group.chars:>14,.0f}{_plain(group.tokens, 0):>9}{group.calls:>7}{_time(group.cold_ttft_s):>12}"
            f"{_time(group.warm_ttft_s):>12}{times(group.ttft_ratio):>10}"
            for group in growth
        ]
    lines += [f"note: {words}" for words in made.notes]
    return lines


def markdown(made: Replay) -> str:
    """The report as a page."""
    when = timestamp(made.started_at)
    facts = {
        "server": made.engine.get("url"), "model": made.engine.get("model"), "build": made.engine.get("build"),
        "session": made.session.get("name"), "format": made.session.get("format"),
        "calls": f"{len(made.rows)} of {made.session.get('calls', len(made.rows))}",
        "context": made.context, "longest answer": f"{made.max_tokens} tokens",
        "stopped": "before the end" if made.interrupted else None,
    }  # fmt: skip
    rows = markdown_table([("", ""), *((name, str(value)) for name, value in facts.items() if value is not None)])
    return (
        f"# Replay, {when}\n\n{rows}\n\n```text\n" + "\n".join(summary(made)) + f"\n```\n\n"
        "Cold: the cache off, and every call with a beginning of its own. Warm: the cache on, in order. Sums are of\n"
        f"all answered calls, ratios of the {len(made.pairs)} calls that both sides answered.\n\n```text\n"
        + "\n".join(table(made))
        + "\n```\n"
    )


def _row(row: ReplayRow, sides: Iterable[str], *, both: bool) -> str:
    line = f"{row.number:>4} {row.chars:>7} {_plain(row.tokens, 0):>6}"
    for side in sides:
        answer, width = row.side(side), 20 if side == "cold" else 27
        line += " |" + ("" if answer is None else _cells(answer, side)).ljust(width)
    return line + (f" |{times(row.ttft_ratio):>7}" if both else "")


def _cells(answer: CallResult, side: str) -> str:
    if answer.sample.failed:
        return "  FAILED"
    cached = f"{_plain(answer.sample.cached_tokens, 0):>7}" if side == "warm" else ""
    rate = "EMPTY" if answer.is_empty else _plain(answer.decode_rate)
    return f"{cached}{_time(answer.ttft_s):>7}{_time(answer.wall_s):>7}{rate:>6}"


def _line(name: str, values: list[str], ratio: str = "") -> str:
    shown = ratio if len(values) == 2 else ""
    return (f"{name:<14}" + "".join(f"{value:>12}" for value in values) + f"{shown:>10}").rstrip()


def _plain(value: float | None, digits: int = 1) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if digits == 0 or value >= 1000 else f"{value:.{digits}f}"


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
