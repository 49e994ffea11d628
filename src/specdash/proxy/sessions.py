"""What the proxy remembers of each conversation, and for how long.

All state belongs to the one event loop: no locks. Nothing here holds prompt text.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice, pairwise
from statistics import median
from typing import TYPE_CHECKING

from specdash.core.proxy_status import SessionView

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.proxy.blocks import Usage
    from specdash.proxy.guardrails.contamination import Cut
    from specdash.proxy.guardrails.loops import LoopState

HISTORY = 50
"""Context sizes remembered per session."""
SCALE_BOUNDS = (0.5, 3.0)
SCALE_STEP = 0.1
"""A new ratio of real to estimated tokens counts when it moved by more than this: a steady scale keeps cuts steady."""
CALIBRATION_TOKENS = 1000
"""Smaller prompts say more about the chat template than about the text."""


@dataclass(slots=True, eq=False)
class Session:
    """One conversation. Guardrails read and replace its fields; `created` and `last_seen` are Unix time.

    `active` is the number of its requests under way; only the store changes it. `scale` is real prompt tokens per
    estimated one. `last_prompt_tokens` and `last_output_tokens` are those of its last turn, None before the first.
    """

    id: str
    created: float
    last_seen: float
    requests: int = 0
    active: int = 0
    model: str = ""
    forced_streak: int = 0
    forced_messages: int = 0
    """Length of the conversation that was counted last in `forced_streak`."""
    malformed_streak: int = 0
    malformed_total: int = 0
    contamination_resets: int = 0
    cut: Cut | None = None
    chosen_tools: frozenset[str] | None = None
    scale: float = 1.0
    last_prompt_tokens: int | None = None
    last_output_tokens: int | None = None
    peak_prompt_tokens: int | None = None
    peak_tokens: int | None = None
    loop: LoopState | None = None
    loop_warnings: int = 0
    prunes: int = 0
    """Cuts made by pruning."""
    pruned: tuple[int, int] | None = None
    """The latest cut: messages it removed, and messages it shortened."""
    overflows: int = 0
    unexpected_ends: int = 0
    window: int | None = None
    """The context window of its last turn."""
    history: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Seconds from each answer to the request with more messages that followed it: what the client's tools took."""
    answered: float | None = None
    """Monotonic time of the last answer's end."""
    longest: int = 0
    """Messages of the longest request."""
    touched: float = 0.0
    """Monotonic time of the last sign of life."""
    order: int = 0
    """Grows with every sign of life, across sessions."""

    def note_forced(self, forced: bool, messages: int) -> None:
        """Count a request whose tool_choice forces a call; sent again by the client, at the same length, it is one."""
        if not forced:
            self.forced_streak = self.forced_messages = 0
        elif messages != self.forced_messages:
            self.forced_streak += 1
            self.forced_messages = messages

    def note_arrival(self, messages: int, now: float) -> None:
        """Count the time since the last answer; a request sent again counts once."""
        if self.answered is not None and messages > self.longest:
            self.pauses.append(max(0.0, now - self.answered))
            self.answered = None
        self.longest = messages

    def pause_s(self, turns: int) -> float | None:
        """Median of the last `turns` pauses; None while fewer than half of them were seen."""
        seen = list(islice(reversed(self.pauses), turns))
        return median(seen) if seen and len(seen) * 2 >= turns else None

    @property
    def context_tokens(self) -> int | None:
        """What the last turn used of the window, prompt and answer."""
        if self.last_prompt_tokens is None:
            return None
        return self.last_prompt_tokens + (self.last_output_tokens or 0)

    def turn_done(self, usage: Usage, estimate: int | None, window: int | None) -> None:
        """Take over the tokens of the turn's last upstream call (not a sum over retries).

        `estimate` is what `guardrails.estimate` said, unscaled, of the request as it was sent upstream. A usage without
        prompt tokens is one nobody told: only the window is noted.
        """
        self.window = window
        self.answered = time.monotonic()
        if usage.prompt <= 0:
            return
        self.last_prompt_tokens = usage.prompt
        self.last_output_tokens = usage.completion
        size = usage.prompt + usage.completion
        self.peak_prompt_tokens = max(self.peak_prompt_tokens or 0, usage.prompt)
        self.peak_tokens = max(self.peak_tokens or 0, size)
        self.history.append(size)
        least = min(CALIBRATION_TOKENS, window // 8) if window else CALIBRATION_TOKENS
        if estimate is not None and estimate >= max(1, least):
            self._calibrate(usage.prompt / estimate)

    def _calibrate(self, ratio: float) -> None:
        ratio = min(max(ratio, SCALE_BOUNDS[0]), SCALE_BOUNDS[1])
        if abs(ratio - self.scale) > SCALE_STEP * self.scale:
            self.scale = ratio

    def utilisation(self, window: int | None) -> float | None:
        """Share of `window` the last turn used, None when either is unknown."""
        tokens = self.context_tokens
        return tokens / window if window and tokens is not None else None

    def turns_remaining(self, window: int | None) -> int | None:
        """Turns until the window is full if the context grows on as it did; None while that is unknown."""
        if not window or len(self.history) < 2:
            return None
        sizes = self.history
        growth = [after - before for before, after in pairwise(sizes) if after > before]
        if not growth:
            return None
        return max(0, int((window - sizes[-1]) * len(growth) // sum(growth)))

    def view(self, window: int | None) -> SessionView:
        """As the dashboard sees it."""
        loop = self.loop
        return SessionView(
            id=self.id,
            last_seen=self.last_seen,
            requests=self.requests,
            active=self.active,
            model=self.model,
            context_tokens=self.context_tokens,
            context_window=window,
            peak_tokens=self.peak_tokens,
            output_tokens=self.last_output_tokens,
            turns_remaining=self.turns_remaining(window),
            prunes=self.prunes,
            overflows=self.overflows,
            is_looping=loop.is_looping if loop else False,
            loop_repeats=loop.repeats if loop else 0,
            loop_period=loop.period if loop else 0,
            no_progress=loop.no_progress if loop else 0,
            loop_warnings=self.loop_warnings,
            malformed_streak=self.malformed_streak,
            malformed_total=self.malformed_total,
            contamination_resets=self.contamination_resets,
            unexpected_ends=self.unexpected_ends,
        )


class SessionStore:
    """Sessions by id. One idle for longer than `ttl` seconds is forgotten, and the longest idle beyond `cap`.

    A session with requests under way is forgotten only when all have some; whoever holds it can still finish with it.
    `clock` is monotonic and measures idleness, `wall` is Unix time and is shown. Every operation but `all` takes
    constant time, amortised.
    """

    def __init__(
        self,
        ttl: float,
        cap: int,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.ttl = ttl
        self.cap = cap
        self._clock = clock
        self._wall = wall
        self._idle: OrderedDict[str, Session] = OrderedDict()
        self._busy: OrderedDict[str, Session] = OrderedDict()
        self._order = 0

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def get(self, session_id: str) -> Session:
        """The session of that id, created when unknown or forgotten; counts as a sign of life."""
        self.sweep()
        session = self._busy.get(session_id) or self._idle.get(session_id)
        if session is None:
            wall = self._wall()
            session = Session(session_id, wall, wall)
            self._make_room()
        self._place(session)
        return session

    def find(self, session_id: str) -> Session | None:
        """The session of that id if it is remembered; no sign of life."""
        self.sweep()
        return self._busy.get(session_id) or self._idle.get(session_id)

    def latest(self) -> Session | None:
        """The session with the latest sign of life."""
        self.sweep()
        ends = [next(reversed(kept.values())) for kept in (self._idle, self._busy) if kept]
        return max(ends, key=lambda one: one.order, default=None)

    def all(self) -> list[Session]:
        """Every remembered session, latest first."""
        self.sweep()
        return sorted((*self._idle.values(), *self._busy.values()), key=lambda one: one.order, reverse=True)

    def enter(self, session: Session) -> None:
        """A request of the session begins."""
        session.active += 1
        session.requests += 1
        known = self._known(session.id)
        if known is None:
            self._make_room()
        if known is None or known is session:
            self._idle.pop(session.id, None)
            self._place(session)

    def leave(self, session: Session) -> None:
        """A request of the session ended."""
        session.active = max(0, session.active - 1)
        if self._known(session.id) is session:
            if not session.active:
                self._busy.pop(session.id, None)
            self._place(session)

    def sweep(self) -> int:
        """Forget what has been idle for too long; the number forgotten."""
        if not self._idle:
            return 0
        oldest_kept = self._clock() - self.ttl
        count = 0
        while self._idle and next(iter(self._idle.values())).touched < oldest_kept:
            self._idle.popitem(last=False)
            count += 1
        return count

    def reconfigure(self, ttl: float, cap: int) -> None:
        """Take new limits at once."""
        self.ttl, self.cap = ttl, cap
        while len(self) > max(1, cap):
            self._forget_one()
        self.sweep()

    def _known(self, session_id: str) -> Session | None:
        return self._busy.get(session_id) or self._idle.get(session_id)

    def _place(self, session: Session) -> None:
        self._order += 1
        session.order = self._order
        session.touched = self._clock()
        session.last_seen = self._wall()
        kept = self._busy if session.active else self._idle
        kept[session.id] = session
        kept.move_to_end(session.id)

    def _make_room(self) -> None:
        while len(self) >= max(1, self.cap):
            self._forget_one()

    def _forget_one(self) -> None:
        (self._idle or self._busy).popitem(last=False)
