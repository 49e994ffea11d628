"""What a whole log says: requests, warnings, speculation, checkpoints, prompt cache, and the server that wrote it."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core import log_facts
from specdash.insight.request import NO_DRAFTS, DraftTally, RequestAssembler
from specdash.llama.log.server_lines import SERVER_STARTING

if TYPE_CHECKING:
    from specdash.insight.request import ServedRequest

_SPAMMING_EVENTS = frozenset(
    {"prompt_cache_saved", "prompt_cache_hit", "prompt_cache_updated", "sleeping", "awake", "image_processing"}
)
"""Events that come with the traffic: counted, not listed."""
_MAX_SAMPLES = 10
_MAX_EVENTS = 200
_MAX_STATISTICS = 256


class CheckpointTotals(Struct):
    """Checkpoint events of one kind and action: how many, and the sizes in MiB of those whose line gives one."""

    count: int = 0
    sized: int = 0
    total_mib: float = 0.0
    largest_mib: float | None = None

    def add(self, size_mib: float | None) -> None:
        """Count one more event."""
        self.count += 1
        if size_mib is None:
            return
        self.sized += 1
        self.total_mib += size_mib
        self.largest_mib = size_mib if self.largest_mib is None else max(self.largest_mib, size_mib)


class LogSummary:
    """Adds up the batches of one log. `requests` grows with the log; all else is bounded."""

    def __init__(self) -> None:
        self.lines = 0
        self.unrecognised = 0
        self.unrecognised_samples: list[str] = []
        self.restarts = 0
        self.starts = 0
        self.last_s: float | None = None
        self.requests: list[ServedRequest] = []
        self.warnings: dict[str, log_facts.WarningTally] = {}
        self.steps = NO_DRAFTS
        self.statistics: dict[tuple[str, int | None], log_facts.SpeculativeStatistics] = {}
        self.checkpoints: dict[tuple[str, str], CheckpointTotals] = {}
        self.cache_state: log_facts.PromptCacheState | None = None
        self.cache_update_ms = 0.0
        self.selections: Counter[str] = Counter()
        self.events: list[tuple[int | None, log_facts.ServerEvent]] = []
        self.event_counts: Counter[str] = Counter()
        self.last_lines: deque[str] = deque(maxlen=400)
        self._assemblers: dict[int | None, RequestAssembler] = {}
        """By port of a router's child, None for the server itself."""

    def add(self, batch: log_facts.LogBatch) -> None:
        """Add the next batch."""
        self.lines += batch.lines
        self.unrecognised += batch.unrecognised
        room = _MAX_SAMPLES - len(self.unrecognised_samples)
        self.unrecognised_samples += batch.unrecognised_samples[:room]
        self.last_lines += batch.tail
        for port, facts in batch.by_server:
            for fact in facts:
                self._fact(port, fact)
            assembler = self._assemblers.setdefault(port, RequestAssembler(port=port))
            self.requests += assembler.feed(facts)
        if batch.facts and batch.facts[-1].at_s is not None:
            self.last_s = batch.facts[-1].at_s
        for tally in batch.warnings:
            known = self.warnings.get(tally.warning)
            self.warnings[tally.warning] = tally if known is None else known.and_then(tally)

    def close(self) -> None:
        """The log is at its end: requests that are still open are listed as unfinished."""
        for assembler in self._assemblers.values():
            self.requests += assembler.close()

    def _fact(self, port: int | None, fact: log_facts.LogFact) -> None:
        match fact:
            case log_facts.VerificationSteps():
                self.steps += DraftTally.of_steps(fact)
            case log_facts.SpeculativeStatistics():
                key = (fact.type, port)
                if key in self.statistics or len(self.statistics) < _MAX_STATISTICS:
                    self.statistics[key] = fact
            case log_facts.CheckpointEvent():
                self.checkpoints.setdefault((fact.kind, fact.action), CheckpointTotals()).add(fact.size_mib)
            case log_facts.PromptCacheState():
                self.cache_state = fact
            case log_facts.SlotSelected():
                self.selections[fact.how] += 1
            case log_facts.ServerEvent():
                self._event(port, fact)

    def _event(self, port: int | None, fact: log_facts.ServerEvent) -> None:
        if fact.name == "restarted":
            self.restarts += 1
        elif fact.name == SERVER_STARTING:
            self.starts += 1
        self.event_counts[fact.name] += 1
        if fact.name == "prompt_cache_updated":
            self.cache_update_ms += float(fact.get("ms") or 0)
        if fact.name in _SPAMMING_EVENTS:
            return
        if fact.name in (SERVER_STARTING, "restarted") and port is None:
            self.events.clear()
        if len(self.events) < _MAX_EVENTS:
            self.events.append((port, fact))
