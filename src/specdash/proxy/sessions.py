"""What the proxy remembers of each conversation, and for how long.

All state belongs to the one event loop: no locks. Nothing here holds prompt text.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.core.proxy_events import SessionView
from specdash.core.structs import json_of
from specdash.proxy.guardrails.loops import LoopState
from specdash.proxy.translate.translate import without_reminders
from specdash.system.stats import share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.proxy.answer.blocks import Usage
    from specdash.proxy.guardrails.history import HistoryCut


TTL_S = 7200.0
MOST_SESSIONS = 512
HISTORY = 50
"""Context sizes remembered per session."""
SCALE_BOUNDS = (0.5, 3.0)
SCALE_STEP = 0.1
"""A new ratio of real to estimated tokens counts when it moved by more than this: a steady scale keeps cuts steady."""
CALIBRATION_TOKENS = 1000
"""Smaller prompts say more about the chat template than about the text."""


class ProxySession(Struct, eq=False):
    """One conversation. Guardrails read and replace its fields; `last_seen` is Unix time.

    `scale` is real prompt tokens per estimated one. `last_prompt_tokens` and `last_output_tokens` are those of its last
    turn, None before the first.
    """

    id: str
    last_seen: float
    requests: int = 0
    model: str = ""
    forced_streak: int = 0
    forced_messages: int = 0
    """Length of the conversation that was counted last in `forced_streak`."""
    malformed_streak: int = 0
    malformed_total: int = 0
    contamination_resets: int = 0
    cut: HistoryCut | None = None
    chosen_tools: frozenset[str] | None = None
    scale: float = 1.0
    last_prompt_tokens: int | None = None
    last_output_tokens: int | None = None
    peak_prompt_tokens: int | None = None
    peak_tokens: int | None = None
    loop: LoopState = LoopState()
    loop_warnings: int = 0
    prunes: int = 0
    """Cuts made by pruning."""
    pruned: int | None = None
    """Messages that the latest cut removed."""
    overflows: int = 0
    unexpected_ends: int = 0
    window: int | None = None
    """The context window of its last turn."""
    history: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    prompts: list[tuple[int, ...]] = []
    """The newest ones: agents and small requests for titles alternate in a session."""

    def note_forced(self, forced: bool, messages: int) -> None:
        """Count a request whose tool_choice forces a call; sent again by the client, at the same length, it is one."""
        if not forced:
            self.forced_streak = self.forced_messages = 0
        elif messages != self.forced_messages:
            self.forced_streak += 1
            self.forced_messages = messages

    @property
    def context_tokens(self) -> int | None:
        """What the last turn used of the window, prompt and answer."""
        if self.last_prompt_tokens is None:
            return None
        return self.last_prompt_tokens + (self.last_output_tokens or 0)

    def turn_done(self, usage: Usage, estimate: int | None, window: int | None) -> None:
        """Take over the tokens of the turn's last upstream call (not a sum over retries).

        `estimate` is the unscaled estimate of the request as it was sent upstream. A usage without prompt tokens is
        unknown: only the window is noted.
        """
        self.window = window
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
            ratio = min(max(usage.prompt / estimate, SCALE_BOUNDS[0]), SCALE_BOUNDS[1])
            if abs(ratio - self.scale) > SCALE_STEP * self.scale:
                self.scale = ratio

    def utilisation(self, window: int | None) -> float | None:
        """Share of `window` the last turn used, None when either is unknown."""
        return share(self.context_tokens, window)

    def turns_remaining(self, window: int | None) -> int | None:
        """Turns until the window is full if the context grows on as it did; None while that is unknown."""
        growth = [after - before for before, after in pairwise(self.history) if after > before]
        if not window or not growth:
            return None
        return max(0, int((window - self.history[-1]) * len(growth) // sum(growth)))

    def view(self, window: int | None, active: int) -> SessionView:
        """As the dashboard sees it; `active` is the number of its requests under way."""
        loop = self.loop
        return SessionView(
            **json_of(
                self,
                "id last_seen requests model context_tokens peak_tokens prunes overflows loop_warnings "
                "malformed_streak malformed_total contamination_resets unexpected_ends",
            ),
            **json_of(loop, "is_looping no_progress"),
            active=active,
            output_tokens=self.last_output_tokens,
            loop_repeats=loop.repeats,
            loop_period=loop.period,
            context_window=window,
            turns_remaining=self.turns_remaining(window),
        )


class SessionStore:
    """Sessions by id: those idle for longer than `ttl` seconds are forgotten, and the longest idle beyond `cap`."""

    def __init__(self, ttl: float = TTL_S, cap: int = MOST_SESSIONS, clock: Callable[[], float] = time.time) -> None:
        self.ttl = ttl
        self.cap = cap
        self._clock = clock
        self._sessions: dict[str, ProxySession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> ProxySession:
        """The session of that id, created when unknown or forgotten; counts as a sign of life."""
        session = self.find(session_id)
        if session is None:
            for idle in self.all()[self.cap - 1 :]:
                del self._sessions[idle.id]
            session = self._sessions[session_id] = ProxySession(session_id, 0.0)
        session.last_seen = self._clock()
        return session

    def find(self, session_id: str) -> ProxySession | None:
        """The session of that id if it is remembered; no sign of life."""
        return next((session for session in self.all() if session.id == session_id), None)

    def all(self) -> list[ProxySession]:
        """Every remembered session, latest first."""
        since = self._clock() - self.ttl
        kept = sorted(self._sessions.values(), key=lambda session: session.last_seen, reverse=True)
        self._sessions = {session.id: session for session in kept if session.last_seen >= since}
        return list(self._sessions.values())


# Which session a request belongs to: the client's own word, else a fingerprint of the client's address and the user's
# first message without its reminders, which change between the turns of one conversation.

SESSION_HEADER = "x-claude-code-session-id"
AGENT_HEADER = "x-claude-code-agent-id"
OTHER_HEADERS = ("x-uap-session-id", "x-claude-session-id", "anthropic-session-id", "x-session-id")
LONGEST = 128
"""Characters of a client's id that are kept; a longer one is replaced by its digest."""

KINDS = ("hdr:", "meta:", "fp:")
"""How our ids begin: named by a header, by the user id, or known by a fingerprint."""
_PROMPT_CHARS = 1024
_USER_SESSION = re.compile(r'(?:_session_|"session_id"\s*:\s*")([0-9A-Za-z-]+)')
"""Claude Code's user id is `user_<hash>_account_<uuid>_session_<uuid>`, or the like as JSON text."""


def session_id(headers: Mapping[str, str], user: Any, messages: Any, host: str) -> str:
    """The session of a request; `headers` have lower-case names, `user` and `messages` may be any JSON.

    `hdr:<session>` or `hdr:<session>/<agent>` from headers, `meta:<session>` from the user id, else `fp:<20 hex>`.
    Always printable ASCII of bounded length.
    """
    named, agent = (headers.get(name, "").strip() for name in (SESSION_HEADER, AGENT_HEADER))
    if named:
        return f"hdr:{_bounded(named)}/{_bounded(agent)}" if agent else f"hdr:{_bounded(named)}"
    for name in OTHER_HEADERS:
        if other := headers.get(name, "").strip():
            return f"hdr:{_bounded(other)}"
    turns = [turn for turn in messages if isinstance(turn, dict)] if isinstance(messages, list) else []
    content = next((turn.get("content") for turn in turns if turn.get("role") == "user"), None)
    user = user if isinstance(user, str) else ""
    if found := _USER_SESSION.search(user):
        return f"meta:{_bounded(found[1])}"
    blocks = content if isinstance(content, list | tuple) else [{"text": content}]
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    text = "\n".join(text for text in texts if isinstance(text, str))
    own = " ".join(without_reminders(text)[: 8 * _PROMPT_CHARS].split()) or text
    return f"fp:{_digest((host, user, own[:_PROMPT_CHARS]))}"


def _bounded(value: str) -> str:
    """An id as it is when it is short, printable and no path; else its digest. A slash would also forge an agent."""
    if len(value) <= LONGEST and value.isascii() and value.isprintable() and not set(value) & set("/\\"):
        return value
    return f"sha256-{_digest(value)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(ascii(value).encode()).hexdigest()[:20]
