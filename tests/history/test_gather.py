"""Batches of one second become one, and say the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.core.log_facts import LogBatch, ServerEvent, VerificationSteps
from specdash.core.readings import FailureKind, Reading, Source
from specdash.history.gather import gathered
from specdash.llama.log_parser import LogParser
from support.any_value import reading_of
from support.recording import value

if TYPE_CHECKING:
    from specdash.core.proxy_status import ProxyEvents

LOGS = sorted((Path(__file__).parents[1] / "data" / "logs").glob("*.log"))
LINES = [line for path in LOGS for line in path.read_bytes().splitlines(keepends=True)[:400]]


def has_new_server(batch: LogBatch) -> bool:
    return any(isinstance(fact, ServerEvent) and fact.name == "restarted" for fact in batch.facts)


def sums(batches: list[LogBatch]) -> tuple[Any, ...]:
    steps: Counter[tuple[Any, ...]] = Counter()
    for batch in batches:
        for fact in batch.facts:
            if isinstance(fact, VerificationSteps):
                for name in ("steps", "accepted", "generated", "replays", "restored"):
                    steps[name, fact.slot, fact.task, fact.origin] += getattr(fact, name)
    others = [fact for batch in batches for fact in batch.facts if not isinstance(fact, VerificationSteps)]
    tallies: Counter[str] = Counter()
    for batch in batches:
        for tally in batch.warnings:
            tallies[tally.warning] += tally.count
    return sum(one.lines for one in batches), sum(one.unrecognised for one in batches), +steps, others, tallies


@settings(max_examples=60)
@given(st.data())
def test_batches_put_together_have_the_facts_counts_and_sums_of_all(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(LINES) - 1))
    parser = LogParser()
    batches = []
    for _ in range(data.draw(st.integers(1, 6))):
        end = start + data.draw(st.integers(1, 60))
        batches.append(parser.feed(b"".join(LINES[start:end])))
        start = end
    parts = [replace(one, restarted=False) for one in batches]
    found = gathered([Reading.known(Source.LOG, 10 + i / 5, batch) for i, batch in enumerate(parts)])
    assert sums([value(one) for one in found]) == sums(parts)
    assert found[-1].at == pytest.approx(10 + (len(parts) - 1) / 5)
    assert len(found) == 1 + sum(has_new_server(one) for one in parts[1:])


def test_steps_of_a_slot_are_added_up_around_facts_of_other_slots_and_not_around_its_own() -> None:
    def steps(slot: int, at: float) -> VerificationSteps:
        return VerificationSteps(slot, 7, 1, 2, 3, first_s=at, at_s=at)

    batches = [
        LogBatch(facts=(steps(0, 1.0), steps(1, 1.1), steps(0, 1.2))),
        LogBatch(facts=(steps(1, 1.3), steps(0, 3.5))),
    ]
    (found,) = gathered([Reading.known(Source.LOG, 5.0 + i, one) for i, one in enumerate(batches)])
    assert value(found).facts == (
        VerificationSteps(0, 7, 2, 4, 6, first_s=1.0, at_s=1.2),
        VerificationSteps(1, 7, 2, 4, 6, first_s=1.1, at_s=1.3),
        steps(0, 3.5),
    )


def test_a_new_server_and_a_failure_are_never_put_together_with_what_was_before() -> None:
    failure: Reading[Any] = Reading.unknown(Source.LOG, 2.0, FailureKind.UNAVAILABLE, "gone")
    found = gathered(
        [
            Reading.known(Source.LOG, 1.0, LogBatch(lines=1)),
            failure,
            Reading.known(Source.LOG, 3.0, LogBatch(lines=2)),
            Reading.known(Source.LOG, 4.0, LogBatch(lines=3, restarted=True)),
            Reading.known(Source.LOG, 5.0, LogBatch(lines=4)),
        ]
    )
    assert [
        (one.at, value(one).lines if one.value else None, bool(one.value and value(one).restarted)) for one in found
    ] == [
        (1.0, 1, False),
        (2.0, None, False),
        (3.0, 2, False),
        (5.0, 7, True),
    ]


@given(st.lists(reading_of(Source.PROXY_EVENTS, st.just(0.0)).filter(lambda one: one.value is not None), min_size=1))
def test_no_event_is_lost_or_moved(found: list[Reading[ProxyEvents]]) -> None:
    spaced = [replace(one, at=float(i)) for i, one in enumerate(found)]
    (told,) = gathered(spaced)
    assert value(told).events == tuple(event for one in found if one.value for event in value(one).events)
