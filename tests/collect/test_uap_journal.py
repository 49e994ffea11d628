"""The journal of a UAP proxy: its wordings are read, whatever stands before them, and nothing is made up."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.collect.uap_journal import parse_line
from specdash.core.proxy_events import (
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    RequestEvent,
    RequestOutcome,
    SessionView,
    from_json,
    to_json,
)

NOW = 1_790_000_000.0
PREFIXES = [
    "",
    "2026-11-21 10:59:05,123 [INFO] uap.anthropic_proxy: ",
    "Nov 21 10:59:05 box uap-anthropic-proxy[4711]: 2026-11-21 10:59:05,123 [ERROR] uap.anthropic_proxy: ",
    "Nov  1 10:59:05 box python[1]: ",
    "2026-11-21T10:59:05+0100 box uap[12]: ",
    "[INFO] uap.anthropic_proxy: ",
    "<6>",
]
G, A = Guardrail, GuardrailAction
UAP: list[tuple[Guardrail, GuardrailAction, str, dict[str, object]]] = [
    (G.LOOP_BREAKER, A.RELEASED,
     "LOOP BREAKER: Same tool pattern repeated 9 times with no progress streak=4. Releasing tool_choice to 'auto'.",
     {"repeats": 9, "no_progress": 4, "reason": "loop"}),
    (G.LOOP_BREAKER, A.RELEASED,
     "LOOP BREAKER: 16 consecutive forced tool_choice requests with no progress streak=5. Releasing to 'auto'.",
     {"forced": 16, "no_progress": 5, "reason": "forced"}),
    (G.LOOP_BREAKER, A.RELEASED, "LOOP BREAKER: Context utilization 91.5% -- releasing tool_choice to let it wrap up.",
     {"utilisation": 0.915, "reason": "context"}),
    (G.MALFORMED_TOOL, A.DETECTED,
     "MALFORMED TOOL PAYLOAD: session=fp:0123abcd streak=2 excerpt=<tool_call>{\"name\": \"Read\" session=forged",
     {"streak": 2}),
    (G.MALFORMED_TOOL, A.RECOVERED, "MALFORMED RETRY success: produced tool_use (attempt 1/2)",
     {"attempt": 1, "attempts": 2}),
    (G.MALFORMED_TOOL, A.RECOVERED, "MALFORMED RETRY produced clean text response, streak reset", {}),
    (G.MALFORMED_TOOL, A.RETRIED, "MALFORMED RETRY failed (attempt 1/1): HTTP 503",
     {"attempt": 1, "attempts": 1, "status": 503}),
    (G.MALFORMED_TOOL, A.RETRIED, "MALFORMED RETRY invalid tool_call payload (attempt 1/1): missing field 'path'",
     {"attempt": 1, "attempts": 1}),
    (G.MALFORMED_TOOL, A.EXHAUSTED,
     "MALFORMED TOOL PAYLOAD persisted after retries (session=fp:01); returning clean guardrail response", {}),
    (G.STRICT_STREAM, A.APPLIED, "STRICT STREAM GUARDRAIL: served stream response via guarded non-stream path", {}),
    (G.STRICT_STREAM, A.APPLIED, "FORCED NON-STREAM: served stream response via guarded path", {"forced": True}),
    (G.UNEXPECTED_END, A.RETRIED,
     "GUARDRAIL: unexpected end_turn without tool_use in active loop (session=fp:01), retrying once with required", {}),
    (G.UNEXPECTED_END, A.RECOVERED, "GUARDRAIL: retry produced tool_use; using retried response", {}),
    (G.CONTAMINATION, A.APPLIED, "SESSION CONTAMINATION BREAKER: session=fp:01 reset applied, kept=10 messages",
     {"kept": 10}),
    (G.TOOL_NARROWING, A.APPLIED, "TOOL NARROWING: 30 -> 8 tools (no query tokens)", {"before": 30, "after": 8}),
    (G.MAX_TOKENS, A.APPLIED, "MAX_TOKENS capped: 32000 -> 12000 (ctx=65536, input~43000, margin=9830)",
     {"requested": 32000, "sent": 12000, "window": 65536, "prompt": 43000, "margin": 9830}),
    (G.CONTEXT_PRUNE, A.APPLIED,
     "PRUNED: removed 29 messages (~51234 tokens), kept 52 messages, target=65% of 131072 ctx",
     {"removed": 29, "removed_tokens": 51234, "kept": 52, "target": 0.65, "window": 131072}),
    (G.CONTEXT_PRUNE, A.DETECTED, "CONTEXT OVERFLOW detected (count=3): anything at all", {"overflows": 3}),
    (G.REASONING_FALLBACK, A.DETECTED, "Empty response with 14 reasoning chunks – fallback suppressed (mode=off)",
     {"chunks": 14, "mode": "off"}),
    (G.REASONING_FALLBACK, A.APPLIED,
     "Empty response with 14 reasoning chunks – emitting fallback text (mode=sanitized)",
     {"chunks": 14, "mode": "sanitized"}),
]  # fmt: skip


@pytest.mark.parametrize(("guardrail", "action", "text", "facts"), UAP)
def test_what_its_guardrails_did_is_read(
    guardrail: Guardrail, action: GuardrailAction, text: str, facts: dict[str, object]
) -> None:
    for prefix in PREFIXES:
        event = parse_line(prefix + text + "\n", NOW)
        assert isinstance(event, GuardrailEvent)
        assert (event.guardrail, event.action) == (guardrail, action)
        assert event.facts == pytest.approx(facts)
        assert "forged" not in repr(event), "free text is thrown away"
        assert event.session == ("fp:0123abcd" if "abcd" in text else "fp:01" if "fp:01" in text else "")
    assert parse_line(f"user said {text}", NOW) is None, "inside other text it is no line"


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("CONTEXT CRITICAL: 126000/131072 tokens (96.1%), unknown turns remaining, pruned=1", {"prunes": 1}),
        (
            "CONTEXT: 126000/131072 tokens (0.8%), ~12 turns remaining, pruned=2, overflows=3",
            {"turns_remaining": 12, "prunes": 2, "overflows": 3},
        ),
    ],
)
def test_what_a_turn_used_is_read(text: str, more: dict[str, Any]) -> None:
    assert parse_line(text, NOW) == SessionView("", NOW, context_tokens=126000, context_window=131072, **more)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("tool_calls", "tool_use"), ("length", "max_tokens"), ("None", None), ("other", "other")],
)
def test_the_end_of_a_request_is_read_as_far_as_its_line_goes(finish: str, reason: str | None) -> None:
    text = f"RESP: finish={finish} output_tokens=12 text_len=40 text=SECRET status=500 tool_calls=[] args=[]"
    unknown: dict[str, Any] = dict.fromkeys(("stream", "strict", "status", "retries", "tool_calls", "guardrails"))
    event = RequestEvent(NOW, "", "", "", stop_reason=reason, completion_tokens=12, **unknown)
    assert parse_line(text, NOW) == event
    assert event.outcome is RequestOutcome.OK
    assert from_json(to_json(event)) == event
    assert parse_line(text.replace("=12", "=0"), NOW) == replace(event, completion_tokens=None)


@pytest.mark.parametrize(
    "text",
    [
        "Context window: 262144 tokens, prune threshold: 75%, prune target: 65%",
        "REQ: stream=True msgs=3 tools=12 max_tokens=32000 last_role=user last_content=LOOP BREAKER: x",
        "tool_choice set to 'auto' by LOOP BREAKER",
        "RESP: finish=stop output_tokens=" + "9" * 400 + " text_len=1 text=",
        "CONTEXT: " + "9" * 400 + "/1 tokens (1.0%), unknown turns remaining",
    ],
)
def test_other_lines_make_no_event(text: str) -> None:
    assert parse_line(PREFIXES[1] + text) is None


@given(text=st.text(), prefix=st.sampled_from(PREFIXES))
def test_arbitrary_text_is_no_line(text: str, prefix: str) -> None:
    assert parse_line(prefix + text, NOW) is None


def test_the_time_is_the_lines_own_where_it_has_one() -> None:
    def at(prefix: str) -> float:
        event = parse_line(prefix + "GUARDRAIL: retry produced tool_use; using retried response", NOW)
        assert isinstance(event, GuardrailEvent)
        return event.at

    own = "2026-11-21 10:59:05,250 [INFO] uap.anthropic_proxy: "
    when = time.mktime((2026, 11, 21, 10, 59, 5, 0, 0, -1)) + 0.25
    assert at(own) == at("Nov 21 10:59:07 box p[1]: " + own) == pytest.approx(when)
    assert at("") == at("[INFO] uap.proxy: ") == at("Nov 21 10:59:07 box p[1]: ") == NOW
    assert at("2026-13-41 10:59:05,250 [INFO] uap.proxy: ") == NOW
