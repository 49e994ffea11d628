"""When the lines of a log were written: each server's own clock against the moment at which they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.log_facts import ServerEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.log_facts import LogBatch, LogFact

    Clock = dict[int | None, float]
    """Seconds since its start per server: None is the server itself, a number the router's child of that port."""


def lives(batch: LogBatch) -> list[Sequence[LogFact]]:
    """The facts of a batch by the server that wrote them, in order; there is one at least."""
    starts = [
        index
        for index, fact in enumerate(batch.facts)
        if fact.origin is None and isinstance(fact, ServerEvent) and fact.name == "restarted"
    ]
    ends = [*starts, len(batch.facts)]
    return [batch.facts[start:end] for start, end in zip([0, *starts], ends, strict=True)]


def newest(facts: Iterable[LogFact], others: Iterable[float | None] = ()) -> Clock:
    """The newest time stamps of these facts; `others` are further stamps of the server itself."""
    clock: Clock = {fact.origin: fact.at_s for fact in facts if fact.at_s is not None}
    known = [stamp for stamp in (clock.get(None), *others) if stamp is not None]
    if known:
        clock[None] = max(known)
    return clock


def at_reading(newest_of: Sequence[Clock], age_s: float | None) -> list[Clock]:
    """What each server's clock would have shown when the lines were read, of those it showed in its newest lines.

    The newest line of the last server was `age_s` old then, where that is known. A server that another one followed
    ended when that one began.
    """
    clocks: list[Clock] = []
    after = age_s or 0.0
    for stamps in reversed(newest_of):
        clocks.append({origin: stamp + after for origin, stamp in stamps.items()})
        after += stamps.get(None, 0.0)
    clocks.reverse()
    return clocks
