"""A record played again: the recorded readings go through the same `TargetState` as live ones did, so that pictures,
alerts and charts are those of then. Times are Unix times.

A seek feeds in the last minute or so before the moment, which shows at once what ran; charts' columns, alerts and the
timeline of the time before come from the store. `deepen` then feeds in the whole last hour, without anybody waiting.
"""

from __future__ import annotations

import math
import sqlite3
import time
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core.errors import InputError
from specdash.core.records import EventKind, TimelineEvent
from specdash.core.target import Target
from specdash.history.recorder import BEGAN
from specdash.history.store import Store, target_name
from specdash.insight.charts import Memory, Metric
from specdash.insight.derive import of_alert
from specdash.insight.picture import ProxyWindow, SpeculationViews
from specdash.insight.state import TargetState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from specdash.core.log_facts import LogLine
    from specdash.core.readings import Reading
    from specdash.core.records import Alert
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

QUICK_S = 75.0
"""A seek feeds in so much: the window that rules judge, and the time in which a server settles."""
DEEP_S = 3700.0
"""What `deepen` feeds in: the longest window, and as far as rules look back."""
CHART_STEP_S = 10.0
"""Width of the points that a seek takes from the store for the charts of the time before."""
TICK_S = 1e-3
"""Moments are recorded to less than this."""
AHEAD_S = 30.0
"""So much is read at a time; bounds what is held in memory."""
ONWARD_S = 120.0
"""Up to so much is played on without a seek."""


class RecordSource(Protocol):
    """The part of `history.store.Store` that replay reads."""

    def readings(self, target: str, since: float, until: float) -> Iterator[tuple[float, Reading[Any]]]:
        """Readings with since <= Unix time <= until in time order, `at` being that time."""

    def stills(self, target: str, at: float) -> tuple[tuple[float, Reading[Any]], ...]:
        """The last readings before `at` of the sources that speak seldom."""

    def points(self, target: str, metric: Metric, since: float, until: float, count: int) -> list[float | None]:
        """A charted series in `count` columns."""

    def events(self, target: str, since: float, until: float) -> tuple[TimelineEvent, ...]:
        """Events that began in this time."""

    def alerts(self, target: str, since: float, until: float) -> tuple[Alert, ...]:
        """Alerts that lasted at some time of this, as they ended."""

    def span(self, target: str) -> tuple[float, float] | None:
        """The first and the last moment of the record."""

    def close(self) -> None:
        """Let go of it."""


class _Reel(Struct):
    """A state that is being fed: `position` is the moment up to which it was."""

    state: TargetState
    position: float
    is_deep: bool = False
    ahead: deque[tuple[float, Reading[Any]]] = field(default_factory=deque)
    read_to: float = -math.inf


class ReplaySession:
    """One target's record at one moment; a `tui.view.State`.

    One thread moves it; any thread may look at it meanwhile, and never waits. A picture of it is of its `position`,
    for any moment.
    """

    def __init__(
        self, store: RecordSource, target: Target, *, rules: Sequence[Rule] | None = None, at: float | None = None
    ) -> None:
        """Opens at the moment `at`, else at the record's end. Raises `InputError` when nothing is recorded of the
        target."""
        self.target = target
        self.name = target_name(target)
        self._store = store
        self._rules = rules
        span = store.span(self.name)
        if span is None:
            raise InputError(f"nothing is recorded of {self.name}")
        self.first, self.last = span
        self.generation = 0
        """Grows when another past is shown than the one that went on: what was taken from it piecemeal is void."""
        self._deeper: _Reel | None = None
        self.events: tuple[TimelineEvent, ...] = ()
        """What happened in all of the record, by when it is to be seen: alerts by when they were raised."""
        self._began: tuple[float, ...] = ()
        self._is_whole = False
        """It begins with what its recorder read first."""
        self.refresh()
        self._reel = _Reel(self._new_state(), self.last)
        self.seek(self.last if at is None else at)

    @property
    def position(self) -> float:
        """The moment that is shown."""
        return self._reel.position

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last moment of the record."""
        return self.first, self.last

    @property
    def is_deep(self) -> bool:
        """Whether all of the last hour was fed in."""
        return self._reel.is_deep

    def refresh(self) -> None:
        """Look again for where the record ends, and for what happened in it: it may be recorded still."""
        span = self._store.span(self.name)
        if span is not None:
            self.first, self.last = span
        found = [
            *(
                event
                for event in self._store.events(self.name, self.first - _BEGINNING_S, _after(self.last))
                if not _is_alert(event)
            ),
            *(
                replace(of_alert(alert), at=alert.raised)
                for alert in self._store.alerts(self.name, self.first, _after(self.last))
            ),
        ]
        self.events = tuple(sorted(found, key=lambda timeline_event: timeline_event.at))
        began = tuple(event.at for event in self.events if event.kind is EventKind.RECORDER and event.ref == BEGAN)
        self._is_whole = bool(began) and began[0] <= self.first + _BEGINNING_S
        # Before the first recorder nothing was read that it could read again.
        self._began = began[1:] if self._is_whole else began

    def seek(self, wall: float) -> None:
        """Show the moment `wall`, or the one nearest to it in the record."""
        if wall > self.last:
            self.refresh()
        wall = min(max(wall, self.first), self.last)
        reel = self._wound(wall - QUICK_S)
        self._forward(reel, wall)
        self._deeper = None
        self._reel = reel
        self.generation += 1

    def step(self, seconds: float) -> None:
        """Go on, or back."""
        self.go(self.position + seconds)

    def go(self, wall: float) -> None:
        """Show the moment `wall`, on the shorter way: a little further on the record plays on, else it is sought."""
        if 0 <= wall - self.position <= ONWARD_S:
            self.advance(wall)
        else:
            self.seek(wall)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def advance(self, wall: float, budget_s: float = math.inf) -> None:
        """Go on to the moment `wall`, but not beyond the record's end, nor for longer than `budget_s` of our time."""
        if wall > self.last:
            self.refresh()
        self._forward(self._reel, min(wall, self.last), time.perf_counter() + budget_s)

    def deepen(self, budget_s: float = math.inf) -> bool:
        """Feed in what rules and windows see beyond the last minute, for `budget_s` of our time at most; True when that
        is done. Until then the picture is what the last minute says."""
        reel = self._reel
        if reel.is_deep:
            return True
        deadline = time.perf_counter() + budget_s
        deeper = self._deeper
        if deeper is None:
            deeper = self._deeper = self._wound(reel.position - DEEP_S)
            deeper.is_deep = True
        if not self._forward(deeper, reel.position, deadline):
            return False
        self._deeper = None
        self._reel = deeper
        self.generation += 1
        return True

    def next_event(self, step: int, wall: float | None = None) -> TimelineEvent | None:
        """The next event (1) or the one before (-1), as seen from `wall` or the position; None where there is none."""
        here = self.position if wall is None else wall
        events = self.events
        if step > 0:
            index = bisect_right(events, here + 1e-3, key=lambda timeline_event: timeline_event.at)
        else:
            index = bisect_left(events, here - 1e-3, key=lambda timeline_event: timeline_event.at) - 1
        return events[index] if 0 <= index < len(events) else None

    def picture(self, now: float = 0.0, wall: float = 0.0, window_s: float = 300.0) -> Picture:
        """Everything that was known at `position`."""
        del now, wall
        reel = self._reel
        moment = reel.position
        found = reel.state.picture(moment, moment, window_s)
        return found if reel.is_deep else _while_loading(found)

    def columns(self, metric: Metric, now: float, window_s: float, count: int) -> list[float | None]:
        """See `TargetState.columns`."""
        return self._reel.state.columns(metric, now, window_s, count)

    def log_lines(self, after: int = 0, limit: int = 1000) -> tuple[int, tuple[LogLine, ...]]:
        """See `TargetState.log_lines`."""
        return self._reel.state.log_lines(after, limit)

    def _new_state(self) -> TargetState:
        return TargetState(self.target, rules=self._rules, wall_offset=lambda: 0.0)

    def _wound(self, wall: float) -> _Reel:
        """A state that knows what the record says of the time before `wall`, and is to be fed from there on."""
        state = self._new_state()
        if wall <= self.first:
            if not self._is_whole:
                state.log.since_wall = self.first
            return _Reel(state, self.first, is_deep=True)
        state.log.since_wall = wall
        for _, reading in self._store.stills(self.name, wall):
            state.take_unjudged(reading)
        state.remember(self._memory(wall))
        return _Reel(state, wall)

    def _memory(self, wall: float) -> Memory:
        known = self._store.alerts(self.name, self.first, wall)
        raised = [alert for alert in known if alert.raised < wall]
        over = [alert for alert in raised if _over(alert) < wall]
        active = [replace(alert, ended=None, last=min(alert.last, wall)) for alert in raised if _over(alert) >= wall]
        since = max(self.first, wall - DEEP_S)
        count = max(1, math.ceil((wall - since) / CHART_STEP_S))
        points = {metric: self._points(metric, since, wall, count) for metric in Metric}
        happened = [event for event in self.events if event.at < wall and event.kind in _REMEMBERED]
        return Memory(wall, points, happened, over, active)

    def _points(self, metric: Metric, since: float, until: float, count: int) -> list[tuple[float, float]]:
        width = (until - since) / count
        columns = self._store.points(self.name, metric, since, until, count)
        return [(since + (i + 0.5) * width, value) for i, value in enumerate(columns) if value is not None]

    def _forward(self, reel: _Reel, until: float, deadline: float = math.inf) -> bool:
        """Feed in what was recorded up to `until`; False when the deadline came first."""
        if reel.read_to == -math.inf:
            reel.read_to = reel.position - 2 * TICK_S
        while True:
            while reel.ahead and reel.ahead[0][0] <= until:
                wall, reading = reel.ahead.popleft()
                self._feed(reel, wall, reading)
                if time.perf_counter() > deadline:
                    return False
            if reel.ahead or reel.read_to >= until:
                break
            after = reel.read_to
            reel.read_to = min(max(until, after + AHEAD_S), self.last)
            for wall, reading in self._store.readings(self.name, after, reel.read_to + TICK_S):
                if wall > after:
                    # The record's end is known to less than a tick.
                    reel.ahead.append((min(wall, reel.read_to), reading))
            if reel.ahead:
                reel.read_to = max(reel.read_to, reel.ahead[-1][1].at)
        reel.position = max(reel.position, until)
        return True

    def _feed(self, reel: _Reel, wall: float, reading: Reading[Any]) -> None:
        another_run = bisect_right(self._began, wall) > bisect_right(self._began, reel.position)
        reel.position = max(reel.position, wall)
        if another_run:
            reel.state.read_anew()
            self.generation += 1
        reel.state.apply(reading)


def _while_loading(picture: Picture) -> Picture:
    """Without what counts over longer than what was fed in."""
    return replace(
        picture,
        proxy=replace(picture.proxy, window=ProxyWindow(), guardrails=(), is_loading=True),
        experiment=None,
        views=SpeculationViews(drafting=picture.views.drafting),
    )


_REMEMBERED = (EventKind.STATE, EventKind.RESTART)
_BEGINNING_S = 5.0
"""A record that begins so soon after its recorder begins with what was read first."""
_SILENT_S = 600.0
"""An alert whose end no one recorded was over so long after it was last seen."""


def open_session(
    path: Path, target: Target | None, *, rules: Sequence[Rule] | None = None, at: float | None = None
) -> ReplaySession:
    """The record at `path` of a target (None: the one that was recorded last), at the moment `at` or at its end.

    Raises `InputError` when there is none, or it cannot be read.
    """
    try:
        store = Store(path)
        try:
            return ReplaySession(store, target or _last_recorded(store), rules=rules, at=at)
        except BaseException:
            store.close()
            raise
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read as a record: {error}") from error


def recorded_target(name: str) -> Target:
    """The target that a record calls so (see `store.target_name`)."""
    url, _, model = name.partition(" ")
    return Target(url, model=model or None, origin="record")


def _last_recorded(store: Store) -> Target:
    names = store.targets()
    if not names:
        raise InputError(f"{store.path}: nothing is recorded in it")
    return recorded_target(names[0])


def _after(wall: float) -> float:
    return math.nextafter(wall, math.inf)


def _is_alert(event: TimelineEvent) -> bool:
    return event.kind is EventKind.ALERT


def _over(alert: Alert) -> float:
    """When it was over."""
    return alert.ended if alert.ended is not None else alert.last + _SILENT_S
