"""When the lines of a log were written: each server's own clock against the moment at which they were read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.log_facts import ServerEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.log_facts import LogBatch, LogFact
    from specdash.insight.requests import LoggedRequest

    Clock = dict[int | None, float]
    """Seconds since its start per server: None is the server itself, a number the router's child of that port."""

SLACK_S = 2.0
"""A restart and what the log says of it are the same within so long."""


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


@dataclass(slots=True)
class FormerServer:
    """A server that ended before anybody looked, by its own clock: seconds since its start."""

    newest_s: float = 0.0
    """Its newest line."""
    stopped_s: float | None = None
    """When it said that it was told to stop; None when it did not."""
    requests: list[LoggedRequest] = field(default_factory=list)


def begins(
    former: Sequence[FormerServer], began: float, restarts: Iterable[tuple[float, float]]
) -> list[tuple[float, FormerServer]]:
    """When former servers began, the newest first, as far back as that is known.

    A server's clock says nothing of how long nobody served after it. Known are when the one after the last of them
    `began`, and when something restarted the server: from, to. So a server is dated that one of these ended, and that
    said so; or that lived and died within one, because what was tried did not last.
    """
    found: list[tuple[float, FormerServer]] = []
    known = list(restarts)
    for one in reversed(former):
        start = next((start for start, end in known if start - SLACK_S <= began <= end + SLACK_S), None)
        if start is None:
            break
        if began - one.newest_s >= start - SLACK_S:
            began -= one.newest_s
        elif one.stopped_s is not None:
            began = start - one.stopped_s
        else:
            break
        found.append((began, one))
    return found
