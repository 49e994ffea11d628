"""What a proxy tells of itself is read with its types, or not at all."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.proxy_events import (
    ActiveView,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvent,
    ProxyStatus,
    RequestEvent,
    RequestOutcome,
    SessionView,
    from_json,
    status_from_json,
    to_json,
)
from specdash.core.structs import json_of

REQUEST = RequestEvent(1.5, "s", "r", tool_calls=("Read",), guardrails=("malformed_tool:retried",))
GUARDRAIL = GuardrailEvent(2.5, "s", Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, "r", {"repeats": 9})
STATUS = ProxyStatus(
    started=1.0, sessions=(SessionView("s", 5.0, context_tokens=10),), active=(ActiveView("r", "s", 4.0),)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NUMBERS = st.none() | st.floats(0, 1e9)
COUNTS = st.none() | st.integers(0, 10**9)
NAMES = st.none() | st.lists(st.text(max_size=9), max_size=3).map(tuple)
EVENTS = st.builds(
    RequestEvent,
    at=st.floats(0, 2e9),
    session=st.text(max_size=9),
    request_id=st.text(max_size=9),
    stream=st.none() | st.booleans(),
    outcome=st.sampled_from(RequestOutcome),
    status=COUNTS,
    stop_reason=st.none() | st.text(max_size=9),
    ttft_s=NUMBERS,
    completion_tokens=COUNTS,
    retries=COUNTS,
    tool_calls=NAMES,
    guardrails=NAMES,
)


@given(EVENTS)
def test_an_event_is_read_back_as_written_complete_or_not(event: RequestEvent) -> None:
    assert from_json(to_json(event)) == event


def test_what_is_not_known_costs_no_room_in_a_line() -> None:
    assert "prompt_tokens" not in to_json(REQUEST)


@given(event=st.sampled_from([REQUEST, GUARDRAIL]), value=JSON, data=st.data())
def test_an_event_whose_field_has_another_type_is_none(event: ProxyEvent, value: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(event.__struct_fields__))
    read = from_json(json.dumps({**json.loads(to_json(event)), name: value}))
    assert read is None or (from_json(to_json(read)) == read and replace(read, **{name: getattr(event, name)}) == event)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", "noon"),
        ("at", True),
        ("at", None),
        ("session", 1),
        ("status", "200"),
        ("ttft_s", float("nan")),
        ("retries", 1.5),
        ("stream", 1),
        ("tool_calls", "Read"),
        ("outcome", "party"),
    ],
)
def test_a_request_with_such_a_field_is_no_event(name: str, value: object) -> None:
    assert from_json(json.dumps({**json.loads(to_json(REQUEST)), name: value})) is None


def test_facts_that_are_no_mapping_are_no_event() -> None:
    assert from_json(json.dumps({**json.loads(to_json(GUARDRAIL)), "facts": [1]})) is None


@pytest.mark.parametrize(
    "line", ["", "[]", "1", '{"event":1}', '{"event":[]}', '{"event":"request","at":' + "[" * 99999]
)
def test_what_is_no_event_never_raises(line: str) -> None:
    assert from_json(line) is None


def test_a_status_is_read_back_as_written() -> None:
    assert status_from_json(json_of(STATUS)) == STATUS


@pytest.mark.parametrize(
    "change",
    [
        {"requests": "many"},
        {"requests": True},
        {"started": float("inf")},
        {"version": None},
        {"held": 1},
        {"counters": {"a": float("inf")}},
        {"counters": []},
        {"sessions": [{"id": "s", "last_seen": None}]},
        {"sessions": [{"id": "s", "last_seen": 1.0, "is_looping": "yes"}]},
        {"active": [{"request_id": "r", "session": "s", "started": 1.0, "phase": "dancing"}]},
        {"active": [{"request_id": "r", "session": "s", "started": 1.0, "decode_rate": "fast"}]},
    ],
)
def test_a_status_whose_field_has_another_type_is_none(change: dict[str, Any]) -> None:
    assert status_from_json({**json_of(STATUS), **change}) is None


@given(JSON)
def test_anything_else_is_no_status_and_never_raises(values: Any) -> None:
    status = status_from_json(values)
    assert status is None or status_from_json(json_of(status)) == status
