"""What a proxy tells of itself is read with its types, or not at all."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from msgspec.structs import replace

from specdash.core.proxy_events import (
    ActiveView,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvent,
    ProxyStatus,
    RequestEvent,
    SessionView,
    from_json,
    status_from_json,
    to_json,
)
from specdash.core.records import can_be_meant
from specdash.core.structs import json_of
from support.any_value import json_values, of_hint

REQUEST = RequestEvent(1.5, "s", "r", tool_calls=("Read",), guardrails=("malformed_tool:retried",))
GUARDRAIL = GuardrailEvent(2.5, "s", Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, "r", {"repeats": 9})
STATUS = ProxyStatus(
    started=1.0, sessions=(SessionView("s", 5.0, context_tokens=10),), active=(ActiveView("r", "s", 4.0),)
)


@given(of_hint(RequestEvent) | of_hint(GuardrailEvent))
@example(REQUEST)
@example(GUARDRAIL)
def test_an_event_is_read_back_as_written_or_not_at_all(event: ProxyEvent) -> None:
    if isinstance(event, RequestEvent):
        event = replace(event, prefill_rate=None, decode_rate=None)
    sound = can_be_meant(json.loads(to_json(event))) and 0 <= event.at < 1e11
    assert from_json(to_json(event)) == (event if sound else None)
    assert "prompt_tokens" not in to_json(REQUEST), "what is not known costs no room"


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
        ("event", "party"),
        ("event", []),
    ],
)
def test_a_request_with_such_a_field_is_no_event(name: str, value: object) -> None:
    assert from_json(json.dumps({**json.loads(to_json(REQUEST)), name: value})) is None


@pytest.mark.parametrize(
    "line",
    ["", "[]", "1", '{"event":"request","at":' + "[" * 99999, to_json(GUARDRAIL).replace('{"repeats":9}', "[1]")],
)
def test_what_is_no_event_never_raises(line: str) -> None:
    assert from_json(line) is None


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
    assert status_from_json(json_of(STATUS)) == STATUS
    assert status_from_json({**json_of(STATUS), **change}) is None


@given(json_values)
def test_anything_else_is_no_status_and_never_raises(values: Any) -> None:
    status = status_from_json(values)
    assert status is None or status_from_json(json_of(status)) == status
