"""The codec: every reading as JSON and as a column, and back, the same."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.core.log_facts import LogBatch, PromptTiming, TaskLaunched, WarningTally
from specdash.core.observations import Counters, Health, HealthStatus, ProcessTree, Slot, Slots
from specdash.core.readings import Failure, FailureKind, Reading, Source, Status
from specdash.history import block
from specdash.history.codec import VALUE_TYPES, UnreadableError, decode, encode, value_shape
from support.any_value import reading_of, readings
from support.recording import value


@pytest.mark.slow
@pytest.mark.parametrize("source", list(Source))
@settings(max_examples=40)
@given(data=st.data())
def test_decode_gives_back_what_encode_was_given(source: Source, data: st.DataObject) -> None:
    reading = data.draw(reading_of(source))
    assert decode(json.loads(json.dumps(encode(reading), allow_nan=False))) == reading


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(readings, max_size=10))
def test_a_block_gives_back_what_was_packed(found: list[Reading[Any]]) -> None:
    spaced = [Reading(one.source, 1.7e9 + i / 8, one.status, one.value, one.failure) for i, one in enumerate(found)]
    stills: dict[int, str] = {}
    values: dict[str, str] = {}
    for index, reading in enumerate(spaced):
        if reading.source in block.STILL_SOURCES and reading.value is not None:
            still = block.still_of(reading.source, reading.value)
            stills[index], values[still.digest] = still.digest, still.data
    packed = block.pack(spaced, stills, {})
    assert block.unpack(packed, lambda source, digest: block.still_value(source, values[digest])) == spaced


def test_every_source_has_a_value_type() -> None:
    assert set(VALUE_TYPES) == set(Source)


def test_what_is_unknown_stays_unknown_and_never_becomes_zero() -> None:
    reading = Reading.known(Source.METRICS, 1.0, Counters(prompt_tokens=0.0))
    found = decode(json.loads(json.dumps(encode(reading))))
    assert value(found).prompt_tokens == 0.0
    assert value(found).predicted_tokens is None
    assert value(found).accepted_per_position is None


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_survives_json_and_a_block(number: float) -> None:
    reading = Reading.known(Source.METRICS, 1.0, Counters(prompt_tokens=number))
    as_json = decode(json.loads(json.dumps(encode(reading), allow_nan=False)))
    (from_block,) = block.unpack(block.pack([reading], {}, {}), _no_still)
    for found in (as_json, from_block):
        assert repr(value(found).prompt_tokens) == repr(number)


def test_fields_of_a_newer_version_are_left_out() -> None:
    data = encode(Reading.known(Source.SLOTS, 1.0, Slots((Slot(0, is_processing=True),))))
    data["tomorrow"] = 1
    data["value"]["tomorrow"] = {"x": [1]}
    data["value"]["slots"][0]["tomorrow"] = None
    assert decode(data) == Reading.known(Source.SLOTS, 1.0, Slots((Slot(0, is_processing=True),)))


def test_fields_that_an_older_version_did_not_write_have_their_default() -> None:
    data = encode(Reading.known(Source.PROCESS, 1.0, ProcessTree(7, name="llama-server", processes=3)))
    del data["value"]["processes"]
    assert decode(data).value == ProcessTree(7, name="llama-server")
    tally = WarningTally("alloc_failed", 3, None, None, "sample")
    older = encode(Reading.known(Source.LOG, 1.0, LogBatch(warnings=(tally,))))
    for name in ("slots", "tasks"):
        older["value"]["warnings"][0].pop(name, None)
    assert value(decode(older)).warnings == (tally,)


def test_facts_of_a_newer_version_are_left_out() -> None:
    data = encode(Reading.known(Source.LOG, 1.0, LogBatch(facts=(TaskLaunched(0, 1), TaskLaunched(0, 2)))))
    data["value"]["facts"][0][0] = "TaskTeleported"
    assert value(decode(data)).facts == (TaskLaunched(0, 2),)


def test_a_source_or_a_state_of_a_newer_version_is_unreadable() -> None:
    data = encode(Reading.known(Source.HEALTH, 1.0, Health(HealthStatus.OK)))
    damaged: tuple[Any, ...] = (
        {**data, "source": "astrology"},
        {**data, "value": {"status": "sublime"}},
        {},
        [],
        None,
        3,
    )
    for changed in damaged:
        with pytest.raises(UnreadableError):
            decode(changed)


def test_a_failure_of_an_unknown_kind_is_an_error_that_names_it() -> None:
    data = encode(Reading.unknown(Source.HEALTH, 1.0, FailureKind.REFUSED, "no"))
    data["failure"][0] = "abducted"
    assert decode(data) == Reading(Source.HEALTH, 1.0, Status.UNKNOWN, None, Failure(FailureKind.ERROR, "abducted: no"))


def test_a_block_with_facts_and_enum_members_of_a_newer_version_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        Reading.known(Source.LOG, 10.0, LogBatch(facts=(TaskLaunched(0, 1, 2.5), PromptTiming(0, 1, 2.0, 3, 2.5)))),
        Reading.known(Source.HEALTH, 11.0, Health(HealthStatus.LOADING, progress=0.5)),
        Reading.known(Source.HEALTH, 12.0, Health(HealthStatus.OK)),
    ]
    packed = block.pack(found, {}, {})
    log, health = value_shape(Source.LOG), value_shape(Source.HEALTH)
    records = log._fields[2].shape._of._records  # type: ignore[attr-defined]
    monkeypatch.delitem(records, "TaskLaunched")
    monkeypatch.delitem(health._fields[0].shape._by_value, "loading")  # type: ignore[attr-defined]
    told = block.unpack(packed, _no_still)
    assert [one.at for one in told] == [10.0, 12.0]
    assert value(told[0]).facts == (PromptTiming(0, 1, 2.0, 3, 2.5),)


def _no_still(source: Source, digest: str) -> Any:
    raise UnreadableError(f"{source} {digest}")
