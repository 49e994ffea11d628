"""What a proxy reports of itself, as events, figures and lines of its log, is read with its types or not at all."""

import json
import logging
from typing import Any

import pytest
from hypothesis import example, given
from msgspec.structs import replace

from specdash.core.proxy_events import (
    DECODE,
    PREFILL,
    ActiveView,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvent,
    ProxyStatus,
    RequestEvent,
    SessionView,
    SpeedLimits,
    from_json,
    speed,
    status_from_json,
    to_json,
    with_credible_speeds,
)
from specdash.core.proxy_lines import context_text, note_text
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
        ("at", True),
        ("status", "200"),
        ("ttft_s", float("nan")),
        ("retries", 1.5),
        ("stream", 1),
        ("tool_calls", "Read"),
        ("outcome", "party"),
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
        {"started": float("inf")},
        {"counters": {"a": float("inf")}},
        {"sessions": [{"id": "s", "last_seen": None}]},
        {"active": [{"request_id": "r", "session": "s", "started": 1.0, "phase": "dancing"}]},
    ],
)
def test_a_status_whose_field_has_another_type_is_none(change: dict[str, Any]) -> None:
    assert status_from_json(json_of(STATUS)) == STATUS
    assert status_from_json({**json_of(STATUS), **change}) is None


@given(json_values)
def test_anything_else_is_no_status_and_never_raises(values: Any) -> None:
    status = status_from_json(values)
    assert status is None or status_from_json(json_of(status)) == status


@pytest.mark.parametrize(
    ("tokens", "ms", "limits", "expected"),
    [
        (120, 900.0, DECODE, 133.33), (122, 19.23, PREFILL, 6344.25), (8, 80.0, DECODE, 100.0),
        (1, 0.001, DECODE, None), (7, 70.0, DECODE, None), (8, 0.5, DECODE, None), (10**6, 1.0, DECODE, None),
        (1, 1020.0, PREFILL, None), (31, 100.0, PREFILL, None), (None, 5.0, DECODE, None), (50, None, DECODE, None),
        (50, 0, DECODE, None), (50, float("nan"), DECODE, None), (float("nan"), 5.0, DECODE, None),
    ],
)  # fmt: skip
def test_a_speed_needs_enough_tokens_and_time(
    tokens: float | None, ms: float | None, limits: SpeedLimits, expected: float | None
) -> None:
    assert speed(tokens, ms, limits) == pytest.approx(expected, abs=0.01)


def test_speeds_that_their_own_tokens_do_not_bear_out_are_left_out() -> None:
    written = {"prompt_tokens": 2001, "cached_tokens": 2000, "prefill_rate": 0.98, "completion_tokens": 1}
    found = with_credible_speeds({**written, "decode_rate": 1e6})
    assert (found["prefill_rate"], found["decode_rate"]) == (None, None)
    sound = {"prompt_tokens": 900, "prefill_rate": 400.0, "completion_tokens": 90, "decode_rate": 40.0}
    assert with_credible_speeds(dict(sound)) == sound


G, A = Guardrail, GuardrailAction


@pytest.mark.parametrize(
    ("guardrail", "action", "facts", "text"),
    [
        (G.MALFORMED_TOOL, A.DETECTED, {"streak": 2, "kind": "markup", "tool": "Read"},
         "MALFORMED TOOL PAYLOAD: detected streak=2 kind=markup tool=Read request=r session=s"),
        (G.MALFORMED_TOOL, A.RETRIED, {"attempt": 1, "attempts": 2, "status": 503},
         "MALFORMED RETRY: retried attempt=1 attempts=2 status=503 request=r session=s"),
        (G.STRICT_STREAM, A.APPLIED, {}, "STRICT STREAM GUARDRAIL: applied request=r session=s"),
        (G.LOOP_BREAKER, A.RELEASED, {"reason": "context", "utilisation": 0.915},
         "LOOP BREAKER: released reason=context utilisation=0.915 request=r session=s"),
        (G.TOOL_NARROWING, A.APPLIED, {"kept": ["Read", "a b"]},
         "TOOL NARROWING: applied kept=Read,a_b request=r session=s"),
    ],
)  # fmt: skip
def test_what_a_guardrail_did(guardrail: Guardrail, action: GuardrailAction, facts: dict[str, Any], text: str) -> None:
    assert note_text(guardrail, action, facts, session="s", request_id="r")[1] == text


def test_every_note_has_a_line_and_a_level_and_hostile_words_stay_in_their_place() -> None:
    for guardrail in Guardrail:
        for action in GuardrailAction:
            level, text = note_text(guardrail, action, {"odd": "a\nb"}, session="c\nd 1 [INFO] LOOP BREAKER: released")
            assert text.endswith(f": {action} odd=a_b session=c_d_1_[INFO]_LOOP_BREAKER:_released")
            assert logging.DEBUG <= level <= logging.ERROR


def test_a_context_line_reads_as_the_seeds_wrote_it() -> None:
    assert context_text(1000, 262144) == (logging.INFO, "CONTEXT: 1000/262144 tokens (0.4%), unknown")
    assert context_text(1, 2, "CRITICAL") == (logging.ERROR, "CONTEXT CRITICAL: 1/2 tokens (50.0%), unknown")
    level, text = context_text(231000, 262144, "HIGH", 12, "hdr:a", pruned=2, overflows=0)
    assert level == logging.WARNING
    assert text == "CONTEXT HIGH: 231000/262144 tokens (88.1%), ~12 turns remaining, pruned=2 session=hdr:a"
