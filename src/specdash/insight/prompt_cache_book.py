"""What the log told of the prompt cache in host memory, and of prompts that had to be read again; bounded."""

from __future__ import annotations

from collections import deque

from specdash.core.log_facts import CheckpointEvent, LogFact, PromptCacheState, ServerEvent
from specdash.insight.counter_log import KEEP_S

HIT = "prompt_cache_hit"
SAVED = "prompt_cache_saved"
_KEPT_TIMES = 1000


class PromptCacheBook:
    """Of the server that writes the log now."""

    def __init__(self) -> None:
        self.state: PromptCacheState | None = None
        """What it held when it was last told (verbosity 4)."""
        self.hits = 0
        self.saves = 0
        self._read_again: deque[float] = deque(maxlen=_KEPT_TIMES)

    def note(self, at: float, fact: LogFact) -> None:
        """Take in one fact of monotonic time `at`."""
        if isinstance(fact, PromptCacheState):
            self.state = fact
        elif isinstance(fact, ServerEvent):
            self.hits += fact.name == HIT
            self.saves += fact.name == SAVED
        elif isinstance(fact, CheckpointEvent) and fact.action == "full_reprocess":
            self._read_again.append(at)

    def read_again(self, now: float, window_s: float) -> int:
        """How many prompts were read from their start for want of a checkpoint, of late."""
        window_s = min(window_s, KEEP_S)
        return sum(at > now - window_s for at in self._read_again)

    def clear(self) -> None:
        """Forget everything: a new server process."""
        self.state = None
        self.hits = self.saves = 0
        self._read_again.clear()
