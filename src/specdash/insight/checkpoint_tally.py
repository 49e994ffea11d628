"""Checkpoints of the server that writes the log: how many were made, restored and erased, and how large they are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from specdash.insight.drafter_picture import CheckpointCounts

if TYPE_CHECKING:
    from specdash.core.log_facts import CheckpointEvent

CONTEXT, SPECULATIVE = "context", "speculative"


class CheckpointTally:
    """Counts the events of checkpoints."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._sizes: dict[str, float] = {}

    def note(self, event: CheckpointEvent) -> None:
        """Take in one."""
        self._counts[event.kind, event.action] += 1
        if event.size_mib is not None and event.action == "created":
            self._sizes[event.kind] = event.size_mib

    def clear(self) -> None:
        """Another server begins."""
        self._counts.clear()
        self._sizes.clear()

    @property
    def full_reprocessed(self) -> int:
        """Prompts that were processed from the start again for want of a checkpoint."""
        return self._counts[CONTEXT, "full_reprocess"]

    def counts(self, kind: str) -> CheckpointCounts:
        """Of `CONTEXT` or `SPECULATIVE` ones. Those superseded by a newer one count as erased."""
        of = self._counts
        return CheckpointCounts(
            created=of[kind, "created"],
            restored=of[kind, "restored"],
            erased=of[kind, "erased"] + of[kind, "superseded"],
            size_mib=self._sizes.get(kind),
        )
