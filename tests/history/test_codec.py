"""What is stored comes back the same: readings as JSON, JSON as bytes, readings as blocks; and damage is told."""

import contextlib
import json
import lzma
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.core.log_facts import LogBatch, TaskLaunched, WarningTally
from specdash.core.readings import (
    Counters,
    Failure,
    FailureKind,
    ProcessTree,
    Reading,
    ReadingStatus,
    Slot,
    Slots,
    Source,
)
from specdash.core.sources import SOURCES, UnreadableError, decode, encode, read_value
from specdash.history import block
from support.any_value import json_values, reading_of, readings
from support.recording import value

LAUNCHED = TaskLaunched(0, 2)
SLOTS = Reading.known(Source.SLOTS, 1.0, Slots((Slot(0, is_processing=True),)))


def through_a_block(found: list[Reading[Any]]) -> list[Reading[Any]]:
    content = block.unpack(block.pack({"carried": [], "readings": list(map(encode, found))}))
    return block.readings_of(content)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_decode_gives_back_what_encode_was_given(data: st.DataObject) -> None:
    for source in Source:
        reading = data.draw(reading_of(source))
        assert decode(json.loads(json.dumps(encode(reading)))) == reading


@pytest.mark.slow
@given(st.lists(readings, max_size=10))
def test_a_block_gives_back_what_was_packed(found: list[Reading[Any]]) -> None:
    assert through_a_block(found) == found


def test_every_source_has_a_value_type() -> None:
    assert set(SOURCES) == set(Source)


def test_what_is_unknown_stays_unknown_and_never_becomes_zero() -> None:
    (found,) = through_a_block([Reading.known(Source.METRICS, 1.0, Counters(prompt_tokens=0.0))])
    assert value(found).prompt_tokens == 0.0
    assert value(found).predicted_tokens is None
    assert value(found).accepted_per_position is None


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, -0.0, 0.1 + 0.2, 5e-324, 1.7976931348623157e308])
def test_a_number_comes_back_to_the_bit(number: float) -> None:
    (found,) = through_a_block([Reading.known(Source.METRICS, 1.0, Counters(prompt_tokens=number))])
    assert repr(value(found).prompt_tokens) == repr(number)


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: entry for key, entry in data.items() if key != name}


def of_log(batch: LogBatch) -> dict[str, Any]:
    return encode(Reading.known(Source.LOG, 1.0, batch))


def test_fields_and_facts_of_a_newer_version_are_left_out() -> None:
    data = encode(SLOTS)
    data["tomorrow"] = 1
    data["value"]["tomorrow"] = {"x": [1]}
    data["value"]["slots"][0]["tomorrow"] = None
    assert decode(data) == SLOTS
    log = of_log(LogBatch(facts=(TaskLaunched(0, 1), LAUNCHED)))
    log["value"]["facts"][0]["is"] = "TaskTeleported"
    assert value(decode(log)).facts == (LAUNCHED,)


def test_fields_that_an_older_version_did_not_write_have_their_default() -> None:
    data = encode(Reading.known(Source.PROCESS, 1.0, ProcessTree(7, name="llama-server", processes=3)))
    assert decode({**data, "value": without(data["value"], "processes")}).value == ProcessTree(7, name="llama-server")
    tally = WarningTally("alloc_failed", 3, None, None, "sample")
    older = of_log(LogBatch(warnings=(tally,)))
    for name in ("slots", "tasks"):
        older["value"]["warnings"][0].pop(name, None)
    assert value(decode(older)).warnings == (tally,)


@pytest.mark.parametrize(
    "data",
    [
        {"source": "astrology", "at": 1.0, "value": {"status": "ok"}},
        {"source": "health", "at": 1.0, "value": {"status": "sublime"}},
        {"source": "health", "at": 1.0, "value": {}},
        {"source": "health", "at": 1.0, "value": [3]},
        {"source": "health", "at": "noon"},
        {},
        [],
        None,
        3,
    ],
)
def test_what_this_version_does_not_know_is_unreadable_and_costs_itself(data: Any) -> None:
    with pytest.raises(UnreadableError):
        decode(data)
    assert block.readings_of({"readings": [encode(SLOTS), data]}) == [SLOTS]


def test_a_failure_of_an_unknown_kind_is_an_error_that_names_it() -> None:
    data = encode(Reading.unknown(Source.HEALTH, 1.0, FailureKind.REFUSED, "no"))
    data["failure"][0] = "abducted"
    assert decode(data) == Reading(
        Source.HEALTH, 1.0, ReadingStatus.UNKNOWN, None, Failure(FailureKind.ERROR, "abducted: no")
    )


def test_a_value_that_is_kept_elsewhere_is_looked_up_by_its_digest() -> None:
    props = read_value(Source.PROPS, {"model_alias": "tiny"})
    data = encode(Reading.known(Source.PROPS, 1.0, props), "digest")
    assert "value" not in data
    assert decode(data, lambda source, digest: props if (source, digest) == (Source.PROPS, "digest") else None).value


anything = st.recursive(
    json_values,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.sampled_from(["t", "a", "b", ""]), inner, max_size=3)
        | st.lists(st.fixed_dictionaries({"slot": inner, "at": st.floats(allow_nan=False)}), max_size=6)
    ),
    max_leaves=30,
)


@given(anything)
def test_any_json_comes_back_from_columns_and_from_rows(data: Any) -> None:
    for packed in (block.pack(data), block.pack_rows(data)):
        assert json.dumps(block.unpack(packed)) == json.dumps(data)


def test_what_differs_little_from_row_to_row_takes_little_room() -> None:
    rows = [{"counter": 10**9 + i // 3, "name": "llama-server", "slot": i % 2} for i in range(3000)]
    assert len(block.pack(rows)) < 2500


def test_what_a_block_holds_lies_in_columns_by_the_keys_of_its_objects() -> None:
    content = {
        "a": 1,
        "rows": [{"t": 1.5, "in": {"t": None, "in": []}}, {"t": "x", "in": [1, {}, [{"a": 2}]]}],
        "e": [{}],
    }
    assert lzma.decompress(block.pack(content)).decode() == (
        '[{"t":0},[[["a","rows","e"],1,[1],[{"t":[1,1]}],[{"t":[2]}]],'
        '[["t","in"],3,[1.5,null,"x"],[{"t":1},[],[1,{"t":2},{"t":[3]}]]],[[],2],[["a"],1,[2]]]]'
    )


@given(st.binary(max_size=200))
def test_bytes_that_nobody_packed_are_damage_and_nothing_else(data: bytes) -> None:
    with pytest.raises(block.DamagedError):
        block.unpack(data)


@given(anything, st.data())
def test_bytes_that_were_changed_are_damage_or_the_same(data: Any, chance: st.DataObject) -> None:
    for packed in (block.pack({"readings": data}), block.pack_rows({"readings": data})):
        changed = bytearray(packed)
        for _ in range(chance.draw(st.integers(1, 3))):
            changed[chance.draw(st.integers(0, len(changed) - 1))] ^= chance.draw(st.integers(1, 255))
        with contextlib.suppress(block.DamagedError):
            assert json.dumps(block.unpack(bytes(changed))) == json.dumps({"readings": data})
