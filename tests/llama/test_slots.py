"""GET /slots becomes typed slots, whatever the build leaves out or writes differently."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.readings import Slot, Slots
from specdash.llama.server_answers import ParseError, parse_slots

DATA = Path(__file__).parents[1] / "data" / "http"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


def slot(**fields: Any) -> Slot:
    return parse_slots(json.dumps([fields])).slots[0]


def test_a_busy_server_of_a_real_run() -> None:
    idle, busy = parse_slots((DATA / "slots_busy_1.json").read_bytes()).slots
    assert idle == Slot(id=0, is_processing=False, n_ctx=4096, speculative=True)
    assert busy == Slot(
        id=1,
        is_processing=True,
        n_ctx=4096,
        speculative=True,
        task=2,
        n_decoded=732,
        n_remain=768,
        n_prompt_tokens=1278,
        n_prompt_tokens_processed=482,
        n_prompt_tokens_cache=0,
        speculative_types=("draft-simple", "ngram-mod"),
    )


def test_slots_that_never_served_are_stubs_with_unknown_fields() -> None:
    slots = parse_slots((DATA / "slots_fresh.json").read_bytes()).slots
    assert [entry.id for entry in slots] == [0, 1]
    assert all(entry.task is None and entry.n_decoded is None for entry in slots)


def test_next_token_is_read_as_a_list_and_as_an_object() -> None:
    token = {"n_decoded": 5, "n_remain": 7}
    assert slot(next_token=[token]) == slot(next_token=token)
    assert slot(next_token=token).n_decoded == 5


@pytest.mark.parametrize("token", [None, [], {}, [None], "x", 3])
def test_a_next_token_without_numbers_is_unknown_and_not_zero(token: Any) -> None:
    assert slot(next_token=token).n_decoded is None


def test_no_limit_and_no_task_are_unknown() -> None:
    assert slot(id_task=-1).task is None
    assert slot(next_token=[{"n_remain": -1}]).n_remain is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("none,draft-simple,ngram-mod", ("draft-simple", "ngram-mod")),
        ("draft-mtp", ("draft-mtp",)),
        ("none", ()),
        ("", ()),
        (None, None),
        (7, None),
    ],
)
def test_the_none_that_the_server_always_writes_is_left_out(written: Any, meant: Any) -> None:
    assert slot(params={"speculative.types": written}).speculative_types == meant


def test_a_slot_without_an_id_has_its_place_as_one() -> None:
    assert [entry.id for entry in parse_slots("[{},{}]").slots] == [0, 1]


def test_a_server_without_slots_has_none() -> None:
    assert parse_slots("[]") == Slots(())


@pytest.mark.parametrize("body", ["", "{}", "[1]", "null", "[{}", b"\xff", "[" * 100_000, '{"error":{}}'])
def test_anything_else_is_an_error(body: bytes | str) -> None:
    with pytest.raises(ParseError):
        parse_slots(body)


@given(st.binary())
def test_nothing_but_the_documented_error_is_raised_for_bytes(body: bytes) -> None:
    with contextlib.suppress(ParseError):
        parse_slots(body)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                ["id", "is_processing", "n_ctx", "speculative", "id_task", "next_token", "params", "state"]
            ),
            JSON,
        )
    )
)
def test_every_list_of_objects_is_read(entries: list[dict[str, Any]]) -> None:
    assert len(parse_slots(json.dumps(entries)).slots) == len(entries)
