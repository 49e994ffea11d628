"""Judges whether answers become empty once their prompt comes from the cache. Pure: the I/O is in `repro_run`.

Every call is made twice: with the cache off (the control) and with it on. An empty answer has no text, no reasoning and
no tool call. It counts as reproduced only where the control's answer to the same call is not empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specdash.core.errors import ExitCode

INSTANT_S = 0.05
"""An empty answer that came within this time did no prefill either."""


class Outcome(StrEnum):
    """What became of a run."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    CONTROL_EMPTY = "control_empty"
    """Answers are empty without the cache too: another problem."""
    INCONCLUSIVE = "inconclusive"
    """Calls failed, or the cache was never used: nothing is shown either way."""
    UNREACHABLE = "unreachable"
    """The server was gone before the end."""


EXIT_CODES = {
    Outcome.REPRODUCED: ExitCode.OK,
    Outcome.NOT_REPRODUCED: ExitCode.FAILED,
    Outcome.CONTROL_EMPTY: ExitCode.INCONCLUSIVE,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Outcome.UNREACHABLE: ExitCode.UNREACHABLE,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, or why there is none. Counts that the server does not tell are None."""

    content_chars: int = 0
    """Without white space around it."""
    reasoning_chars: int = 0
    tool_calls: int = 0
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    """Until the first text, reasoning or tool call; None for an answer without any."""
    wall_s: float = 0.0
    finish: str | None = None
    error: str | None = None
    """What went wrong instead of an answer."""
    gone: bool = False
    """The error is that nothing answers any more."""

    @property
    def is_empty(self) -> bool:
        """Whether it ended well and says nothing at all."""
        return self.error is None and not (self.content_chars or self.reasoning_chars or self.tool_calls)

    @property
    def how_empty(self) -> str:
        """In words, what kind of nothing it is; empty for an answer that says something."""
        if not self.is_empty:
            return ""
        words = "no tokens" if self.completion_tokens == 0 else "nothing but white space or special tokens"
        if self.completion_tokens is None:
            words = "no text"
        return f"{words}, within {self.wall_s * 1000:.0f} ms" if self.wall_s < INSTANT_S else words


@dataclass(frozen=True, slots=True)
class Pair:
    """One call on both sides; a side that was not asked is None."""

    number: int
    chars: int
    tokens: int | None = None
    """Of its prompt, where the server counts them."""
    off: Reply | None = None
    on: Reply | None = None

    @property
    def reproduces(self) -> bool:
        """Empty with the cache, and not without it."""
        whole = self.off is not None and self.off.error is None and not self.off.is_empty
        return whole and self.on is not None and self.on.is_empty


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run shows. `sentence` begins with the outcome in capitals."""

    outcome: Outcome
    sentence: str

    @property
    def exit_code(self) -> ExitCode:
        """What the command ends with."""
        return EXIT_CODES[self.outcome]


def judge(pairs: tuple[Pair, ...]) -> Judgement:
    """What the calls show together."""
    asked = [pair for pair in pairs if pair.on is not None]
    shown = [pair for pair in asked if pair.reproduces]
    if shown:
        kind = shown[0].on.how_empty if shown[0].on is not None else ""
        return Judgement(
            Outcome.REPRODUCED,
            f"REPRODUCED: {_calls(shown)} empty with the cache on ({kind}), and not with it off",
        )
    for pair in pairs:
        for side, one in (("off", pair.off), ("on", pair.on)):
            if one is not None and one.gone:
                words = f"UNREACHABLE: the server was gone at call {pair.number} with the cache {side}: {one.error}"
                return Judgement(Outcome.UNREACHABLE, words)
    control = [pair for pair in pairs if pair.off is not None and pair.off.is_empty]
    if control:
        return Judgement(
            Outcome.CONTROL_EMPTY,
            f"CONTROL EMPTY: {_calls(control)} empty with the cache off too, so this is another problem than the cache",
        )
    return _without_empties(pairs, asked)


def _without_empties(pairs: tuple[Pair, ...], asked: list[Pair]) -> Judgement:
    failed = [pair for pair in pairs if _error(pair.off) or _error(pair.on)]
    if failed:
        side = "off" if _error(failed[0].off) else "on"
        said = _error(failed[0].off) or _error(failed[0].on)
        words = f"INCONCLUSIVE: call {failed[0].number} failed with the cache {side}: {said}"
        return Judgement(Outcome.INCONCLUSIVE, words)
    if any(pair.reproduces is False and pair.on is not None and pair.on.is_empty for pair in asked):
        return Judgement(Outcome.INCONCLUSIVE, "INCONCLUSIVE: empty answers with the cache on, and no control for them")
    if len(asked) < 2 or any(pair.on is None or pair.off is None for pair in pairs):
        return Judgement(Outcome.INCONCLUSIVE, "INCONCLUSIVE: not all calls were made")
    cached = [pair.on.cached_tokens for pair in asked[1:] if pair.on is not None]
    if all(count == 0 for count in cached):
        words = "INCONCLUSIVE: the cache was never used: no call found any of its prompt cached"
        return Judgement(Outcome.INCONCLUSIVE, words)
    used = ""
    if None not in cached:
        used = f"; up to {max(count or 0 for count in cached)} tokens came from the cache"
    words = f"DID NOT REPRODUCE: none of {len(asked)} answers with the cache on is empty{used}"
    return Judgement(Outcome.NOT_REPRODUCED, words)


def _error(reply: Reply | None) -> str:
    return reply.error or "" if reply is not None else ""


def _calls(pairs: list[Pair]) -> str:
    numbers = [str(pair.number) for pair in pairs]
    if len(numbers) == 1:
        return f"call {numbers[0]} is"
    return f"calls {', '.join(numbers[:-1])} and {numbers[-1]} are"
