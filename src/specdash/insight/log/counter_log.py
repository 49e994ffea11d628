"""The history of the scraped counters: windows between scrapes, what was drafted in them, and a restart."""

from __future__ import annotations

from bisect import bisect_right
from math import floor, inf, log10

from msgspec import Struct

from specdash.core.readings import Counters
from specdash.insight.request import DraftTally

KEEP_S = 3700.0
"""A little more than the longest window that can be chosen."""

_ZERO = Counters()
"""A server before its first request; `delta` reads an absent total as zero."""
_MONOTONE = ("prompt_tokens", "predicted_tokens", "decode_calls", "draft_tokens", "verification_steps")


class Scrape(Struct, frozen=True):
    """Counters at one moment (monotonic seconds)."""

    at: float
    counters: Counters


def went_back(before: Counters, after: Counters) -> bool:
    """True when a total is lower than before, which only a new process can do."""
    for name in _MONOTONE:
        old, new = getattr(before, name), getattr(after, name)
        if old is not None and new is not None and new < old:
            return True
    return False


def went_on(before: Counters, after: Counters) -> bool:
    """True when a total is higher than before, an absent one being zero."""
    return any((getattr(after, name) or 0.0) > (getattr(before, name) or 0.0) for name in _MONOTONE)


class CounterLog:
    """Scrapes of one server process, thinned: a scrape equal to its neighbours only moves the time of the last one."""

    def __init__(self, kept_s: float = KEEP_S) -> None:
        self._kept_s = kept_s
        self._scrapes: list[Scrape] = []
        self.origin = _ZERO
        """What the server had counted before any client came: requests of specdash's own after its start."""
        self.restarted_at: float | None = None
        self.drafted_at: float | None = None
        """When drafts were counted last."""

    def add(self, at: float, counters: Counters, *, absent_since: float | None = None) -> bool:
        """Take in a scrape; True when it shows that the server was restarted, which forgets the ones before.

        `absent_since` is when the port was last seen closed or loading since the scrape before: what serves it now
        began after that, so its totals count from zero then. A total that went back proves the same.
        """
        scrapes = self._scrapes
        before = scrapes[-1] if scrapes else None
        restarted = before is not None and (absent_since is not None or went_back(before.counters, counters))
        began = absent_since if absent_since is not None else before.at if before and restarted else None
        if restarted:
            scrapes.clear()
            self.restarted_at, self.drafted_at = at, None
        if before is not None and (counters.draft_tokens or 0) > (
            0 if restarted else before.counters.draft_tokens or 0
        ):
            self.drafted_at = at
        if began is not None:
            scrapes.append(Scrape(began, _ZERO))
        if len(scrapes) >= 2 and scrapes[-1].counters == counters and scrapes[-2].counters == counters:
            scrapes[-1] = Scrape(at, counters)
        else:
            scrapes.append(Scrape(at, counters))
        while len(scrapes) > 2 and scrapes[1].at < at - self._kept_s:
            scrapes.pop(0)
        return restarted

    @property
    def last(self) -> Scrape | None:
        """The newest scrape."""
        return self._scrapes[-1] if self._scrapes else None

    def window(self, now: float, window_s: float) -> tuple[Scrape, Scrape] | None:
        """The scrapes that bound the `window_s` seconds before `now`, up to the newest; None before there are two.

        The first is the newest one that is not younger than the window, or the oldest there is.
        """
        if len(self._scrapes) < 2:
            return None
        index = bisect_right(self._scrapes, now - window_s, key=lambda scrape: scrape.at) - 1
        first, last = self._scrapes[max(index, 0)], self._scrapes[-1]
        return (self._from_origin(first, last), last) if last.at > first.at else None

    @property
    def life(self) -> tuple[Scrape, Scrape] | None:
        """From the server's start, without what was counted before any client came, to the newest scrape."""
        last = self.last
        return (self._from_origin(Scrape(-inf, _ZERO), last), last) if last is not None else None

    @property
    def is_unused(self) -> bool:
        """Whether the server has generated nothing but what specdash's own requests asked for."""
        last = self.last
        return last is not None and (last.counters.predicted_tokens or 0) <= (self.origin.predicted_tokens or 0)

    def _from_origin(self, first: Scrape, last: Scrape) -> Scrape:
        """`first`, or the origin where that is later; it holds for a server that has counted as much."""
        origin = self.origin
        if went_on(last.counters, origin) or not went_on(first.counters, origin):
            return first
        return Scrape(first.at, origin)


def delta(first: float | None, last: float | None) -> float | None:
    """Difference of two totals; a series that appeared in between began at zero."""
    if last is None:
        return None
    return last - (first or 0.0)


# What was drafted between two scrapes.
#
# Counters move only when a request ends, and print six significant digits: above a million a window's few tokens drown
# in rounding. Then the log's exact per-request figures take over, where there is a log.


def exact_accepted(counters: Counters) -> float | None:
    """Accepted draft tokens: the exact sum over positions when it agrees with the rounded total, else the total."""
    total, positions = counters.accepted_tokens, counters.accepted_per_position
    if not positions or total is None:
        return total
    exact = float(sum(positions))
    return exact if abs(exact - total) <= max(0.5, total * 1e-5) else total


def between(first: Scrape, last: Scrape) -> DraftTally | None:
    """What was drafted between two scrapes; None when the server has no such counters."""
    before, counters, accepted = first.counters, last.counters, exact_accepted(last.counters)
    if counters.draft_tokens is None or accepted is None:
        return None
    # A series that appeared in between began at zero.
    positions = counters.accepted_per_position or ()
    return DraftTally(counters.draft_tokens, accepted, counters.verification_steps, positions) - DraftTally(
        before.draft_tokens or 0.0,
        exact_accepted(before) or 0.0,
        before.verification_steps or 0.0,
        before.accepted_per_position or () if positions else (),
    )


def decoded(first: Scrape, last: Scrape) -> tuple[float, float, DraftTally] | None:
    """Tokens, their decode seconds, and what was drafted between two scrapes; None where nothing was generated, or more
    was accepted than that."""
    drafts = between(first, last)
    tokens = delta(first.counters.predicted_tokens, last.counters.predicted_tokens)
    seconds = delta(first.counters.predicted_seconds, last.counters.predicted_seconds)
    if drafts is None or not tokens or drafts.accepted >= tokens:
        return None
    return tokens, seconds or 0.0, drafts


def resolution(total: float | None) -> float:
    """The smallest step that a counter printed with six significant digits can show."""
    return max(1.0, rounding(total))


def rounding(total: float | None) -> float:
    """By how much a number that was printed with six significant digits may be off; 0 where it is exact."""
    if not total or (total < 1e6 and float(total).is_integer()):
        return 0.0
    return float(10.0 ** (floor(log10(total)) - 5))
