"""What a person needs to know of the drafter, in one sentence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_GAIN = 0.02
"""Two starts of one configuration differ by as much."""
HEAVY = 0.5
"""Share of draft tokens rejected from which n-gram drafts are called too long."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures behind the sentence; see `DrafterPicture`."""

    type: str
    drafts_with_model: bool
    steps: float = 0.0
    drafted: float = 0.0
    """Draft tokens a step."""
    longest: int | None = None
    acceptance: float | None = None
    length: float | None = None
    shares: tuple[float, ...] = ()
    of_chain: bool = False
    is_limited: bool = False
    """No longer draft can be asked for."""
    break_even_length: float | None = None
    break_even_acceptance: float | None = None
    basis: str = ""
    best_length: int | None = None
    best_gain: float | None = None
    best_speed: float | None = None
    """Against no speculation, at the best length."""
    longer_gain: float | None = None
    """What one token more would gain, were it accepted like the last one."""


def verdict_of(told: Judged) -> str:
    """One sentence, "" where there is nothing to say."""
    if told.acceptance is None:
        return "No draft was verified yet."
    if told.acceptance == 0.0:
        return f"Not one of its draft tokens was accepted in {told.steps:,.0f} steps: the draft does not fit the model."
    paying = _paying(told)
    length = _length(told)
    # Even with a measured baseline the cost of other lengths is a straight line through two points.
    guessed = bool(length) and (told.best_length is not None or told.basis != "measured")
    return f"{paying}{'; ' if length else ''}{length}{' (estimate)' if guessed else ''}."


def _paying(told: Judged) -> str:
    said = f"{_percent(told.acceptance or 0.0)} accepted"
    if told.break_even_length is None:
        return said
    if told.break_even_acceptance is None:
        return f"{said}, and at this draft length not even all would pay"
    return f"{said}, {'' if told.basis == 'measured' else 'about '}{_percent(told.break_even_acceptance)} needed to pay"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or share == 0.0 else f"{share:.1%}"


def _length(told: Judged) -> str:
    """What another draft length would do."""
    best, gain = told.best_length, told.best_gain
    if best is None or gain is None or told.longest is None:
        return _wasted(told)
    if told.best_speed is not None and told.best_speed < 1.0 - LEAST_GAIN:
        return f"no draft length up to {told.longest} would pay, {best} would lose least"
    if best < told.longest and gain >= LEAST_GAIN:
        share = told.shares[best]
        return (
            f"the {ordinal(best + 1)} draft token is accepted in {_percent(share)} of steps: "
            f"a draft length of {best} would be {gain:.0%} faster"
        )
    if told.longer_gain is not None and told.longer_gain >= LEAST_GAIN and not told.is_limited:
        last = _percent(told.shares[-1])
        return f"the {ordinal(told.longest)} draft token is still accepted in {last} of steps: try longer"
    return f"no shorter draft would be faster than {told.longest}"


def _wasted(told: Judged) -> str:
    if told.drafts_with_model or told.of_chain or told.drafted <= 0 or told.length is None:
        return ""
    accepted = told.length - 1.0
    if accepted / told.drafted > 1.0 - HEAVY:
        return ""
    return f"of {told.drafted:.0f} tokens a draft {accepted:.1f} are used: shorter ones would waste less"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
