"""What the tuner says of its steps and its verdict, in sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdash.core.change_words import between_words, change_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.model import Surface
    from specdash.tune.problem import BootResult, Point
    from specdash.tune.race import Verdict
    from specdash.tune.surrogate import Posterior

PARTS = ("step", "verified token", "beyond the cliff", "the cliff", "drafted token", "draft", "rejection")
"""`costs`' parts, as people read them."""
START = "the configuration in force, which everything is compared with"
DEEP = "a deep draft without a gate tells how many tokens are right at every position, and what each costs"
GATED = "a gated draft beside n-grams tells what the gate keeps and how much of the text is copied"
UNCONFIRMED = "no fresh boot of the start confirmed it"
OFF = "without drafts, to know what a plain step costs"


def explore(posterior: Posterior, surface: Surface, chosen: int, value: float, ruled_out: int) -> str:
    """Why this point is booted next."""
    best = int(surface.booted[np.argmin(posterior.mean[surface.booted])])
    ahead = float(np.expm1(posterior.mean[best] - posterior.mean[chosen]))
    again = chosen in surface.booted
    reason = (
        "booted again, because boots differ by more than the best points do"
        if again
        else (f"predicted {change_words(ahead)} against the best one measured, give or take {posterior.sd[chosen]:.1%}")
    )
    pruned = f"; {ruled_out} points are ruled out" if ruled_out else ""
    return f"{reason}; one boot of it is expected to better the final choice by {max(value, 0.0):.2%}{pruned}"


def race(best: Point, verdict: Verdict) -> str:
    """Why a point that was booted already is booted again."""
    return (
        f"{best.name} is {change_words(verdict.gain)} against the start, and the lower bound "
        f"{change_words(verdict.low)} is not above 0: "
        "both are booted in turn"
    )


def confirm(best: Point, verdict: Verdict, *, fresh: bool) -> str:
    """Why the boots of the end are what they are."""
    what = "a fresh boot of the start" if fresh else "a boot that did not choose it"
    return f"{best.name} is {change_words(verdict.gain)} against the start: {what} confirms it, or does not"


def unmeasured(results: Sequence[BootResult]) -> str:
    """Why nothing can be said."""
    failures = [one.failure for one in results if one.failure]
    return f"the start was not measured: {failures[0]}" if failures else "nothing was measured yet"


def none_better(points: int, noise: str) -> str:
    """Why the start stays, where no point looked better."""
    return (
        f"no improvement found: by what all boots together say, none of the {points} points that were booted and "
        f"keep the limits is better than the start (boots of one configuration differ by {noise})"
    )


def judged(best: Point, verdict: Verdict, least: float, noise: str, *, confirmed: bool) -> str:
    """The verdict, with its evidence."""
    evidence = (
        f"{best.name} is {change_words(verdict.gain)} against the start, {between_words(verdict.low, verdict.high)}, "
        f"from {_boots(verdict.boots)} of it and {verdict.against} of the start; "
        f"boots of one configuration differ by {noise}"
    )
    if verdict.promoted(least):
        return evidence if confirmed else f"{evidence}; {UNCONFIRMED}"
    if verdict.low > 0:
        return f"no improvement found: {evidence}; that is less than the {least:.0%} that are worth a restart"
    return f"no improvement found: {evidence}; the interval holds no gain too"


def _boots(count: int) -> str:
    return "one boot" if count == 1 else f"{count} boots"
