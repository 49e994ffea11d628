"""Readings of one second, as few as tell the same: several reads of a log within it become one.

A record is of every second, while the log is read five times as often. How a log's bytes are cut into batches makes no
difference to its facts and counts, so batches read one after the other are put together as if they had been one read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.core.log_facts import LogBatch, LogFact, ServerEvent, VerificationSteps, WarningTally
from specdash.core.proxy_status import ProxyEvents
from specdash.core.readings import Reading, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STEPS_SPAN_S = 1.0
"""Verification steps are added up over no longer than this (see `llama.log_steps.RUN_S`)."""


def gathered(readings: Sequence[Reading[Any]]) -> list[Reading[Any]]:
    """The readings in the order of their times, with batches put together where they were read; `readings` are of one
    second or so. What was put together has the time of the last batch."""
    runs: dict[Source, list[Reading[Any]]] = {}
    found: list[Reading[Any]] = []
    for reading in readings:
        value = reading.value
        if reading.source not in (Source.LOG, Source.PROXY_EVENTS):
            found.append(reading)
            continue
        if value is None or (isinstance(value, LogBatch) and _begins_anew(value)):
            found += _one(runs.pop(reading.source, []))
        if value is None:
            found.append(reading)
        else:
            runs.setdefault(reading.source, []).append(reading)
    for run in runs.values():
        found += _one(run)
    return sorted(found, key=lambda one: one.at)


def _begins_anew(batch: LogBatch) -> bool:
    """Whether a new server began in the batch: what was read before is of a former one."""
    return batch.restarted or any(isinstance(fact, ServerEvent) and fact.name == "restarted" for fact in batch.facts)


def _one(run: list[Reading[Any]]) -> list[Reading[Any]]:
    if len(run) < 2:
        return run
    values: list[Any] = [one.value for one in run]
    last = run[-1]
    if isinstance(values[0], LogBatch):
        return [replace(last, value=_log(values))]
    return [
        replace(
            last,
            value=ProxyEvents(
                tuple(event for one in values for event in one.events),
                sum(one.dropped for one in values),
                sum(one.unread for one in values),
            ),
        )
    ]


def _log(batches: Sequence[LogBatch]) -> LogBatch:
    return LogBatch(
        lines=sum(one.lines for one in batches),
        unrecognised=sum(one.unrecognised for one in batches),
        facts=tuple(with_steps_added_up(fact for one in batches for fact in one.facts)),
        warnings=_tallies(batches),
        tail=tuple(line for one in batches for line in one.tail),
        restarted=batches[0].restarted,
        unrecognised_samples=(),
        age_s=batches[-1].age_s,
    )


def _tallies(batches: Iterable[LogBatch]) -> tuple[WarningTally, ...]:
    found: dict[tuple[str, int], WarningTally] = {}
    for batch in batches:
        for tally in batch.warnings:
            key = tally.warning, tally.lives_ago
            before = found.get(key)
            found[key] = tally if before is None else before.and_then(tally)
    return tuple(found.values())


def with_steps_added_up(facts: Iterable[LogFact]) -> list[LogFact]:
    """The facts, with the steps of a slot's task added up that have no fact about that slot between them."""
    found: list[LogFact | None] = []
    places: dict[tuple[int | None, int], int] = {}
    for fact in facts:
        origin, slot = fact.origin, getattr(fact, "slot", None)
        if slot is None:
            places.clear()
        elif isinstance(fact, VerificationSteps):
            place = places.get((origin, slot))
            before = found[place] if place is not None else None
            if place is not None and isinstance(before, VerificationSteps) and _go_on(before, fact):
                found[place] = None
                fact = _sum(before, fact)
            places[origin, slot] = len(found)
        else:
            places.pop((origin, slot), None)
        found.append(fact)
    return [fact for fact in found if fact is not None]


def _go_on(before: VerificationSteps, steps: VerificationSteps) -> bool:
    if before.task != steps.task or (before.first_s is None) != (steps.at_s is None):
        return False
    return before.first_s is None or steps.at_s is None or 0 <= steps.at_s - before.first_s <= STEPS_SPAN_S


def _sum(before: VerificationSteps, steps: VerificationSteps) -> VerificationSteps:
    return VerificationSteps(
        steps.slot,
        steps.task,
        before.steps + steps.steps,
        before.accepted + steps.accepted,
        before.generated + steps.generated,
        before.replays + steps.replays,
        before.restored + steps.restored,
        before.first_s,
        steps.at_s,
        steps.origin,
    )
