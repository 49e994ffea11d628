"""What each speculative implementation says of itself in the log's `statistics` lines, and what a draft token costs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from specdash.core.speculation import SPEC_TYPES
from specdash.insight.speedup_picture import TypeFigures

if TYPE_CHECKING:
    from specdash.core.log_facts import SpeculativeStatistics

KEPT = 512
_PRIORITY = {one.name: index for index, one in enumerate(SPEC_TYPES)}


class DraftStatistics:
    """The latest statistics per implementation, of the server that writes now; they are totals since its start."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int | None, str], SpeculativeStatistics] = {}
        """By origin (the child of a router) and type."""
        self._totals: deque[tuple[float, int, float]] = deque(maxlen=KEPT)
        """When a request ended, and draft tokens and milliseconds of all implementations by then."""

    def note(self, at: float, fact: SpeculativeStatistics) -> None:
        """Take in a line written at monotonic `at`."""
        before = self._latest.get((fact.origin, fact.type))
        if before is not None and fact.tokens_generated < before.tokens_generated:
            self._totals.clear()
        self._latest[(fact.origin, fact.type)] = fact
        tokens = sum(one.tokens_generated for one in self._latest.values())
        spent = sum(sum(one.durations_ms) for one in self._latest.values())
        if self._totals and self._totals[-1][0] == at:
            self._totals.pop()
        self._totals.append((at, tokens, spent))

    def clear(self) -> None:
        """Another server begins."""
        self._latest.clear()
        self._totals.clear()

    def seconds_per_token(self, since: float) -> float | None:
        """What drafting one token took, since monotonic `since` or, where nothing was drafted since, the server's
        start; None where the log has no durations."""
        if not self._totals or not any(one.durations_ms for one in self._latest.values()):
            return None
        _, tokens, spent = self._totals[-1]
        first = next((one for one in reversed(self._totals) if one[0] < since), None)
        if first is not None and tokens > first[1]:
            tokens, spent = tokens - first[1], spent - first[2]
        return spent / tokens / 1000.0 if tokens > 0 else None

    def figures(self) -> tuple[TypeFigures, ...]:
        """Per implementation, in the engine's order of priority."""
        merged: dict[str, list[SpeculativeStatistics]] = {}
        for (_, name), fact in self._latest.items():
            merged.setdefault(name, []).append(fact)
        names = sorted(merged, key=lambda name: (_PRIORITY.get(name, len(_PRIORITY)), name))
        return tuple(_figures(name, merged[name]) for name in names)


def _figures(name: str, facts: list[SpeculativeStatistics]) -> TypeFigures:
    drafted, accepted = (sum(getattr(one, key) for one in facts) for key in ("tokens_generated", "tokens_accepted"))
    drafts = sum(one.drafts_generated for one in facts)
    alone = facts[0] if len(facts) == 1 else None
    return TypeFigures(
        type=name,
        drafts=drafts,
        drafts_accepted=sum(one.drafts_accepted for one in facts),
        tokens_drafted=drafted,
        tokens_accepted=accepted,
        acceptance=accepted / drafted if drafted else None,
        mean_accepted_length=1.0 + accepted / drafts if drafts else None,
        acceptance_per_position=(alone.acceptance_per_position or ()) if alone is not None else (),
        seconds=sum(sum(one.durations_ms) for one in facts) / 1000.0
        if any(one.durations_ms for one in facts)
        else None,
    )
