"""Columns of scalars: the same bits come back, few bytes go in, and damage is told."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.history.columns import Columns, DamagedError, Packed

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.floats(0, 1e4).map(lambda one: round(one, 2))
)
columns = st.one_of(
    st.lists(scalars, min_size=1, max_size=30),
    st.lists(st.integers(-(2**65), 2**65), min_size=1, max_size=200),
    st.lists(st.integers(1000, 1003), min_size=1, max_size=300),
    st.lists(st.sampled_from([5, 10**12, 10**12 + 1]), min_size=1, max_size=300),
    st.lists(st.floats(), min_size=1, max_size=50),
    st.lists(st.none() | st.floats(0, 1).map(lambda one: round(one, 4)), min_size=1, max_size=50),
    st.lists(st.text(max_size=3), min_size=1, max_size=400),
)


@st.composite
def columns_of_sources(draw: st.DrawFn) -> list[Any]:
    """What sources tell of several sessions, slots or tasks that come in turns, for up to hours."""
    cycle, rounds = draw(st.integers(1, 200)), draw(st.integers(1, 60))
    step, rest = draw(st.sampled_from([0, 1, 7919, 10**12])), draw(st.integers(1, 9))
    base = [(i * 7919 % 10**6) * (1 if i % 2 else -1) for i in range(cycle)]
    kind = draw(st.sampled_from(["stands", "grows", "rate", "name", "gaps"]))
    found: list[Any] = []
    for turn in range(rounds):
        for i, start in enumerate(base):
            value = start + (turn // rest) * step
            found.append(
                {
                    "stands": start,
                    "grows": value,
                    "rate": value / 1000,
                    "name": f"hdr:session-{start}",
                    "gaps": value if (i + turn) % 3 else None,
                }[kind]
            )
    return found


@given(columns_of_sources())
def test_a_column_of_sessions_that_come_in_turns_comes_back(values: list[Any]) -> None:
    assert there_and_back(values) == values


@pytest.mark.parametrize("cycle", [63, 64, 65, 66, 200, 1000])
def test_a_cycle_of_any_length_is_packed(cycle: int) -> None:
    values = [(i % cycle) * 7919 * (1 if i % cycle % 2 else -1) for i in range(6 * cycle)]
    assert there_and_back(values) == values


def there_and_back(values: list[Any]) -> list[Any] | None:
    written = Columns()
    written.put("column", values)
    return Packed(written.pack()).get("column")


def bits(value: Any) -> object:
    return struct.pack("d", value) if isinstance(value, float) and not math.isnan(value) else (type(value), repr(value))


@given(columns)
def test_a_column_comes_back_to_the_bit(values: list[Any]) -> None:
    found = there_and_back(values)
    assert found is not None
    assert list(map(bits, found)) == list(map(bits, values))


def test_a_column_that_was_never_written_is_none_and_not_empty() -> None:
    assert Packed(Columns().pack()).get("nothing") is None


def test_what_differs_little_from_row_to_row_takes_little_room() -> None:
    written = Columns()
    written.put("counter", [10**9 + i // 3 for i in range(3000)])
    written.put("constant", ["llama-server"] * 3000)
    written.put("two slots", [value for i in range(1500) for value in (i, 10**6 - i)])
    assert len(written.pack()) < 2500


@given(st.binary(max_size=200))
def test_bytes_that_are_no_columns_are_damage_and_nothing_else(data: bytes) -> None:
    with pytest.raises(DamagedError):
        Packed(data).get("x")


@given(st.data())
def test_damaged_bytes_raise_nothing_but_damage(data: st.DataObject) -> None:
    written = Columns()
    for number in range(4):
        written.put(str(number), data.draw(columns))
    packed = bytearray(written.pack())
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = Packed(bytes(packed))
        for number in range(4):
            found.get(str(number))
    except DamagedError:
        pass
