"""The history of the scraped counters: windows between scrapes, and the detection of a restart."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

from msgspec import Struct

from specdash.core.readings import Counters

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
