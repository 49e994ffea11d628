"""When the server was seen to start: told from its state and its process, each start once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.insight.picture import BackendState

if TYPE_CHECKING:
    from specdash.insight.rules.scene import Sample

KEPT = 100
ONE_START_S = 30.0
"""Within so long, a new process, totals that went back and a port that opened again are signs of one start."""
CONFIRMED_S = 4.0
"""A process at the port is the server's when it stays up for so long with it."""
TRIAL_SEEN_S = CONFIRMED_S + 3.0
"""So long after a trial its last restart, which put the settings from before back, may be told; longer where it is seen
that its process began before the trial's end."""
_UP = frozenset({BackendState.LIVE, BackendState.BUSY, BackendState.LOADING, BackendState.RESTARTED})
_SERVING = frozenset({BackendState.LIVE, BackendState.BUSY})


@dataclass(frozen=True, slots=True)
class Start:
    """One start, at monotonic time `at` and Unix time `wall`. `again` is False for one before which nothing ran while
    it was watched."""

    at: float
    wall: float
    why: str
    again: bool
    on_trial: bool = False
    """Settings were tried then: it is one of their restarts."""


class Starts:
    """Watches the samples for starts. Bounded."""

    def __init__(self) -> None:
        self.seen: deque[Start] = deque(maxlen=KEPT)
        """Oldest first."""
        self.owner: int | None = None
        """The process that was seen last while the server was up."""
        self.served: int | None = None
        """The process that was seen last while the server answered all there is to ask."""
        self._candidate: tuple[int, float] | None = None
        self._state: BackendState | None = None
        self._was_up = False
        self._was_down = False
        self._tried_at = self._tried_wall = float("-inf")
        self._signs: set[str] = set()
        """Signs that the last start has given."""

    def add(self, sample: Sample) -> None:
        """Take in the sample of this moment."""
        before, self._state = self._state, sample.state
        if sample.on_trial:
            self._tried_at, self._tried_wall = sample.at, sample.wall
        if sample.state not in _UP:
            self._was_down = self._was_down or sample.state is BackendState.DOWN
            self._candidate = None
            return
        if self._was_down:
            self._was_down = False
            self._signs.clear()
            self._count(sample, "the port opened again", "port")
        before_it, confirmed = self.owner, self._confirmed(sample)
        if before_it is not None and confirmed and sample.pid != before_it:
            self._sign(sample, f"process {sample.pid} took the place of {before_it}", "process")
        elif before is not None and sample.state is not before and self._began(sample, before):
            self._sign(sample, "totals went back" if sample.state is BackendState.RESTARTED else "it loads", "totals")
        if confirmed:
            self.owner = sample.pid
            if sample.state in _SERVING:
                self.served = sample.pid
        self._was_up = True

    def within(self, now: float, seconds: float) -> tuple[Start, ...]:
        """Starts of the last `seconds`, oldest first."""
        return tuple(one for one in self.seen if one.at >= now - seconds)

    def _confirmed(self, sample: Sample) -> bool:
        """Whether the process is the server's: the one it was, the first, or one with which the server stays up. One
        that has taken the port from it is seen before its answers are."""
        if sample.pid is None:
            return False
        if self.owner is None or sample.pid == self.owner:
            self._candidate = None
            return True
        if self._candidate is None or self._candidate[0] != sample.pid:
            self._candidate = sample.pid, sample.at
        return sample.at - self._candidate[1] >= CONFIRMED_S

    def _began(self, sample: Sample, before: BackendState) -> bool:
        """Whether the state alone says that another process serves: with a process in sight, that one says it."""
        if sample.pid is not None and sample.pid == self.owner and sample.processes == 1:
            return False
        return sample.state is BackendState.RESTARTED or (sample.state is BackendState.LOADING and before in _UP)

    def _sign(self, sample: Sample, why: str, sign: str) -> None:
        """A sign of a start: of the last one, when that was a moment ago and has not given this sign yet."""
        last = self.seen[-1] if self.seen else None
        if last is not None and sample.at - last.at <= ONE_START_S and sign not in self._signs:
            self._signs.add(sign)
            return
        self._signs.clear()
        self._count(sample, why, sign)

    def _count(self, sample: Sample, why: str, sign: str) -> None:
        self._signs.add(sign)
        of_trial = sample.at - self._tried_at <= TRIAL_SEEN_S or self._began_on_trial(sample)
        self.seen.append(Start(sample.at, sample.wall, why, self._was_up, of_trial))

    def _began_on_trial(self, sample: Sample) -> bool:
        """Whether a process that is new here is from the time of the last trial, however late it was seen."""
        return sample.pid != self.owner and sample.pid_began is not None and sample.pid_began <= self._tried_wall
