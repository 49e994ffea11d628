"""The end of a request in the human log: read as far as the line tells, and nothing is made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import DECODE, RequestEvent, RequestOutcome, from_json, to_json
from specdash.core.proxy_lines import line_text, parse_line

NOW = 1_790_000_000.0
STAMPED = "2026-11-21 10:59:05,123 [INFO] uap.anthropic_proxy: "
WORDS = st.text("abcXYZ019_:.-", min_size=2, max_size=30)


def ended(text: str) -> RequestEvent:
    event = parse_line(text, NOW)
    assert isinstance(event, RequestEvent)
    return event


@given(
    finish=st.sampled_from(["end_turn", "tool_use", "max_tokens", "stop_sequence"]),
    tokens=st.none() | st.integers(0, 10**6),
    calls=st.integers(0, 9),
    retries=st.none() | st.integers(1, 9),
    ttft=st.none() | st.integers(0, 10**6).map(lambda n: n / 10_000),
    rate=st.none() | st.integers(1, 10**6).map(lambda n: n / 100),
    session=WORDS,
    prefix=st.sampled_from(["", STAMPED]),
)
def test_the_end_of_a_request_is_read_back_as_far_as_its_line_tells(
    finish: str,
    tokens: int | None,
    calls: int,
    retries: int | None,
    ttft: float | None,
    rate: float | None,
    session: str,
    prefix: str,
) -> None:
    facts = {
        "finish": finish, "output_tokens": tokens, "text_len": 5, "tool_calls": calls, "status": 200,
        "retries": retries, "ttft_s": ttft, "tok_s": rate,
    }  # fmt: skip
    event = ended(prefix + line_text("response", facts, session=session, request_id="req_1")[1])
    assert (event.session, event.request_id, event.outcome) == (session, "req_1", RequestOutcome.OK)
    assert (event.stop_reason, event.status, event.error_type) == (finish, 200, None)
    assert (event.completion_tokens, event.retries) == (tokens, retries or 0)
    # A few tokens are no speed.
    assert (event.ttft_s, event.decode_rate) == (ttft, None if 0 < (tokens or 0) < DECODE.least_tokens else rate)
    assert event.tool_calls == (None if calls else ())


def test_what_the_end_of_a_request_does_not_tell_is_unknown() -> None:
    event = ended("RESP: finish=end_turn tool_calls=0 status=200 request=r session=s")
    unknown = (event.stream, event.strict, event.duration_s, event.prompt_tokens, event.messages, event.guardrails)
    assert unknown == (None,) * 6
    assert (event.completion_tokens, event.ttft_s, event.decode_rate) == (None,) * 3
    assert event.path == ""


@pytest.mark.parametrize(
    ("text", "outcome", "error", "status"),
    [
        (
            "RESP: finish=error tool_calls=0 status=529 error=overloaded_error request=r",
            "error",
            "overloaded_error",
            529,
        ),
        ("RESP: finish=end_turn tool_calls=0 status=200 error=api_error request=r", "error", "api_error", 200),
        ("RESP: finish=client_left tool_calls=0 status=499 request=r", "client_left", None, 499),
        ("RESP: finish=end_turn tool_calls=0 status=499 request=r", "client_left", None, 499),
        ("RESP: finish=ok tool_calls=0 status=200 request=r", "ok", None, 200),
    ],
)
def test_an_end_is_told_with_its_outcome(text: str, outcome: str, error: str | None, status: int) -> None:
    event = ended(text)
    assert (event.outcome, event.error_type, event.status) == (RequestOutcome(outcome), error, status)
    assert event.stop_reason == ("end_turn" if "end_turn" in text else None)


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "end_turn"), ("tool_calls", "tool_use"), ("length", "max_tokens"), ("None", None)]
)
def test_a_uap_end_tells_its_stop_reason_and_output_tokens(finish: str, reason: str | None) -> None:
    text = f"RESP: finish={finish} output_tokens=12 text_len=40 text=SECRET status=500 tool_calls=[] args=[]"
    event = ended(STAMPED + text)
    assert (event.stop_reason, event.completion_tokens, event.outcome) == (reason, 12, RequestOutcome.OK)
    assert (event.status, event.retries, event.tool_calls, event.session) == (None, None, None, "")
    assert "SECRET" not in repr(event)
    assert ended(text.replace("output_tokens=12", "output_tokens=0")).completion_tokens is None


@given(st.lists(st.tuples(st.sampled_from(["status", "error", "ttft_s", "tok_s", "retries", "request"]), WORDS)))
def test_a_hostile_end_of_a_request_has_fields_of_their_types(pairs: list[tuple[str, str]]) -> None:
    event = ended("RESP: finish=stop tool_calls=1" + "".join(f" {name}={value}" for name, value in pairs))
    assert from_json(to_json(event)) == event
