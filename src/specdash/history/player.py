"""Moves a replay in a thread of its own, so that anyone who presses keys never waits for the disk."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from specdash.core.errors import SpecdashError

if TYPE_CHECKING:
    from specdash.core.records import TimelineEvent
    from specdash.history.replay import ReplaySession

SPEEDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Recorded seconds a second. What cannot be kept up with plays slower; nothing is left out."""
TICK_S = 0.1
BUSY_S = 0.05
"""So long does one move take of a tick, so that screens get their turn."""
NEAR_S = 1.5
"""While it plays, an event that was just passed is not the one before."""
REST_S = 0.4
"""Stopped for so long, the replay goes deeper (see `ReplaySession.deepen`)."""


class Player:
    """Seeks, steps and plays one session. Every method returns at once; `version` grows with all that can be seen."""

    def __init__(self, session: ReplaySession, *, until: float | None = None) -> None:
        """Playing stops at `until`, and at the record's end."""
        self.session = session
        self.until = until
        self.playing = False
        self.speed = SPEEDS[0]
        self.problem = ""
        """Why the record could not be read on, "" when all is well."""
        self.version = 0
        self._wanted: float | None = None
        self._closed = False
        self._moved_at = time.monotonic()
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="specdash-replay", daemon=True)
        self._thread.start()

    @property
    def position(self) -> float:
        """The moment that is shown, or that is being sought."""
        wanted = self._wanted
        return self.session.position if wanted is None else wanted

    @property
    def seeking(self) -> bool:
        """Whether the moment that is shown is not yet the one that is wanted."""
        return self._wanted is not None

    @property
    def at_end(self) -> bool:
        """Whether nothing comes after the moment that is shown."""
        return self.session.position >= min(self.session.last, self.until or self.session.last)

    def seek(self, wall: float) -> None:
        """Show the moment `wall`."""
        with self._change:
            self._wanted = max(wall, self.session.first)
            self._tell()

    def step(self, seconds: float) -> None:
        """Go on or back, from where the last step leads."""
        self.seek(self.position + seconds)

    def to_event(self, step: int) -> TimelineEvent | None:
        """Go to the next event (1) or the one before (-1); None where there is none."""
        near = NEAR_S * self.speed if self.playing and step < 0 else 0.0
        event = self.session.next_event(step, self.position - near)
        if event is not None:
            self.seek(event.at)
        return event

    def toggle(self) -> None:
        """Play or stop."""
        with self._change:
            self.playing = not self.playing
            self._moved_at = time.monotonic()
            self._tell()

    def faster(self, step: int) -> None:
        """The next higher speed (1) or lower one (-1)."""
        with self._change:
            others = [speed for speed in SPEEDS if (speed > self.speed if step > 0 else speed < self.speed)]
            self.speed = (min(others) if step > 0 else max(others)) if others else self.speed
            self._tell()

    def close(self) -> None:
        """End, and let go of the record; without waiting."""
        with self._change:
            self._closed = True
            self._tell()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_s)

    def _tell(self) -> None:
        self.version += 1
        self._change.notify_all()

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._round()
                except (SpecdashError, sqlite3.Error) as error:
                    self._fail(str(error))
        finally:
            with suppress(sqlite3.Error):
                self.session.close()

    def _fail(self, why: str) -> None:
        with self._change:
            self.problem, self.playing, self._wanted = why, False, None
            self._tell()
            if not self._closed:
                self._change.wait()

    def _round(self) -> None:
        """One move, or the wait for something to do."""
        seen, wanted = self.version, self._wanted
        if wanted is not None:
            self.session.go(wanted)
            self._moved(wanted)
        elif self.playing:
            self._play(seen)
        elif self.session.is_deep or time.monotonic() - self._moved_at < REST_S:
            self._wait(seen, None if self.session.is_deep else REST_S)
        elif self.session.deepen(BUSY_S):
            with self._change:
                self.version += 1
        else:
            self._wait(seen, TICK_S - BUSY_S)

    def _play(self, seen: int) -> None:
        begun, here = time.monotonic(), self.session.position
        self._wait(seen, TICK_S)
        if not self.playing or self._wanted is not None:
            return
        there = here + (time.monotonic() - begun) * self.speed
        self.session.advance(there if self.until is None else min(there, self.until), BUSY_S)
        if not self.session.is_deep:
            self.session.deepen(BUSY_S / 2)
        with self._change:
            self.problem = ""
            self._moved_at = time.monotonic()
            if self.at_end and self.session.position <= here:
                self.playing = False
            self.version += 1

    def _moved(self, wanted: float) -> None:
        with self._change:
            self.problem = ""
            self._moved_at = time.monotonic()
            if self._wanted == wanted:
                self._wanted = None
            self.version += 1

    def _wait(self, seen: int, seconds: float | None) -> None:
        """Until there is something new, or for so long."""
        with self._change:
            self._change.wait_for(lambda: self.version != seen, seconds)
