"""The human log: what is written is read back, and so is the journal of the UAP proxy."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import Guardrail, GuardrailAction, GuardrailEvent
from specdash.core.proxy_lines import (
    ROWS,
    ContextLine,
    Row,
    Template,
    context_text,
    line_text,
    note_text,
    parse_line,
    read_line,
)

NOW = 1_790_000_000.0
WORDS = st.text("abcXYZ019_:.-", min_size=2, max_size=30)
VALUES = {
    "int": st.integers(-(10**9), 10**12),
    "float": st.integers(0, 10_000).map(lambda tenths: tenths / 10),
    "percent": st.integers(0, 2000).map(lambda thousandths: thousandths / 1000),
    "percent0": st.integers(0, 200).map(lambda hundredths: hundredths / 100),
    "word": WORDS,
}
TRUE = st.integers(1, 99)
WRITTEN = [row for row in ROWS if not row.read_only]
PREFIXES = [
    "",
    "2026-11-21 10:59:05,123 [INFO] uap.anthropic_proxy: ",
    "2026-11-21 10:59:05,123 [WARNING] specdash.proxy: ",
    "Nov 21 10:59:05 box uap-anthropic-proxy[4711]: 2026-11-21 10:59:05,123 [ERROR] uap.anthropic_proxy: ",
    "Nov  1 10:59:05 box python[1]: ",
    "2026-11-21T10:59:05+0100 box specdash[12]: ",
    "[INFO] specdash.proxy: ",
    "<6>",
]


def facts_of(row: Row, data: st.DataObject) -> dict[str, Any]:
    template = Template(row.template)
    facts: dict[str, Any] = {
        name: data.draw(VALUES[kind], label=name)
        for name, kind in template._types.items()
        if kind in VALUES and name != "session"
    }
    if row.name == "context":
        facts.pop("level", None)
    facts.update(row.facts)
    less, is_comparison, more = row.when.partition("<")
    if is_comparison:
        facts[more] = facts[less] + data.draw(TRUE)
    elif row.when:
        facts[row.when] = data.draw(TRUE)
    return facts


@pytest.mark.parametrize("row", [row for row in WRITTEN if row.guardrail], ids=lambda row: row.template[:40])
@given(data=st.data())
def test_a_guardrails_line_is_read_back_as_written(row: Row, data: st.DataObject) -> None:
    assert row.guardrail is not None
    facts = facts_of(row, data)
    action = row.action or data.draw(st.sampled_from(GuardrailAction))
    session, prefix = data.draw(WORDS), data.draw(st.sampled_from(PREFIXES))
    _, text = note_text(row.guardrail, action, facts, session=session, request_id="req_1")
    event = parse_line(prefix + text, NOW)
    assert isinstance(event, GuardrailEvent)
    assert (event.guardrail, event.action, event.session, event.request_id) == (row.guardrail, action, session, "req_1")
    for name, value in facts.items():
        assert event.facts[name] == (pytest.approx(value) if isinstance(value, float) else value), text


@given(
    guardrail=st.sampled_from(Guardrail),
    action=st.sampled_from(GuardrailAction),
    facts=st.dictionaries(st.from_regex("[a-z][a-z_]{0,10}", fullmatch=True), st.integers(-5, 10**6), max_size=4),
)
def test_any_note_has_a_line_that_is_read_back(
    guardrail: Guardrail, action: GuardrailAction, facts: dict[str, int]
) -> None:
    names = {"session", "request", "action"}
    facts = {name: value for name, value in facts.items() if name not in names}
    event = parse_line(note_text(guardrail, action, facts, session="s")[1], NOW)
    assert isinstance(event, GuardrailEvent)
    assert (event.guardrail, event.action, event.session) == (guardrail, action, "s")


@pytest.mark.parametrize(
    "row", [row for row in WRITTEN if row.name and row.name not in {"context", "response"}], ids=lambda row: row.name
)
@given(data=st.data())
def test_any_other_line_is_read_back_as_written(row: Row, data: st.DataObject) -> None:
    facts = facts_of(row, data)
    line = read_line(line_text(row.name, facts, session="s")[1], NOW)
    assert line is not None
    assert (line.name, line.session) == (row.name, "s")
    assert {name: line.facts[name] for name in facts} == pytest.approx(facts)
    assert parse_line(line_text(row.name, facts)[1]) is None


@given(
    st.builds(
        ContextLine,
        tokens=st.integers(0, 10**7),
        window=st.integers(1, 10**7),
        level=st.sampled_from([None, "ELEVATED", "HIGH", "CRITICAL"]),
        turns_remaining=st.none() | st.integers(0, 10**4),
        pruned=st.integers(0, 99),
        overflows=st.integers(0, 99),
        session=WORDS | st.just(""),
        at=st.just(NOW),
    )
)
def test_a_context_line_is_read_back_as_written(line: ContextLine) -> None:
    assert parse_line(context_text(line)[1], NOW) == line


def test_a_context_line_reads_as_the_seeds_wrote_it() -> None:
    line = ContextLine(231000, 262144, "HIGH", 12, pruned=2, overflows=1, session="hdr:a")
    level, text = context_text(line)
    assert (
        text == "CONTEXT HIGH: 231000/262144 tokens (88.1%), ~12 turns remaining, pruned=2, overflows=1 session=hdr:a"
    )
    assert level == logging.WARNING
    assert context_text(ContextLine(1000, 262144))[1] == "CONTEXT: 1000/262144 tokens (0.4%), unknown"
    levels = [context_text(ContextLine(1, 2, name))[0] for name in (None, "ELEVATED", "HIGH", "CRITICAL")]
    assert levels == [logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR]


G, A = Guardrail, GuardrailAction
END_LINE = (
    "GUARDRAIL: unexpected end_turn without tool_use in active loop (session=fp:01), retrying once with "
    "tool_choice=required"
)
SWITCHES = (
    "Guardrails: malformed=True stream_strict=False force_non_stream=False tool_narrowing=False "
    "thinking_off_on_tools=False contamination_breaker=True(3)"
)
UAP = [
    (
        "LOOP BREAKER: Same tool pattern repeated 9 times with no progress streak=4. Releasing tool_choice to 'auto'.",
        G.LOOP_BREAKER, A.RELEASED, {"repeats": 9, "no_progress": 4, "reason": "loop"},
    ),
    (
        "LOOP BREAKER: 16 consecutive forced tool_choice requests with no progress streak=5. Releasing to 'auto'.",
        G.LOOP_BREAKER, A.RELEASED, {"forced": 16, "no_progress": 5, "reason": "forced"},
    ),
    (
        "LOOP BREAKER: Context utilization 91.5% -- releasing tool_choice to let model wrap up.",
        G.LOOP_BREAKER, A.RELEASED, {"utilisation": 0.915, "reason": "context"},
    ),
    (
        "MALFORMED TOOL PAYLOAD: session=fp:0123abcd streak=2 excerpt=<tool_call>{\"name\": \"Read\" session=forged",
        G.MALFORMED_TOOL, A.DETECTED, {"streak": 2},
    ),
    (
        "MALFORMED RETRY success: produced tool_use (attempt 1/2)",
        G.MALFORMED_TOOL, A.RECOVERED, {"attempt": 1, "attempts": 2},
    ),
    (
        "MALFORMED RETRY produced clean text response (attempt 1/1)",
        G.MALFORMED_TOOL, A.RECOVERED, {"attempt": 1, "attempts": 1},
    ),
    ("MALFORMED RETRY produced clean text response, streak reset", G.MALFORMED_TOOL, A.RECOVERED, {}),
    (
        "MALFORMED RETRY failed (attempt 1/1): HTTP 503",
        G.MALFORMED_TOOL, A.RETRIED, {"attempt": 1, "attempts": 1, "status": 503},
    ),
    (
        "MALFORMED RETRY invalid tool_call payload (attempt 1/1): missing required field 'path'",
        G.MALFORMED_TOOL, A.RETRIED, {"attempt": 1, "attempts": 1},
    ),
    (
        "MALFORMED TOOL PAYLOAD persisted after retries (session=fp:01); returning clean guardrail response",
        G.MALFORMED_TOOL, A.EXHAUSTED, {},
    ),
    (
        "STRICT STREAM GUARDRAIL: served stream response via guarded non-stream path",
        G.STRICT_STREAM, A.APPLIED, {},
    ),
    (
        "FORCED NON-STREAM: served stream response via guarded non-stream path",
        G.STRICT_STREAM, A.APPLIED, {"forced": True},
    ),
    (
        END_LINE,
        G.UNEXPECTED_END, A.RETRIED, {},
    ),
    ("GUARDRAIL: retry produced tool_use; using retried response", G.UNEXPECTED_END, A.RECOVERED, {}),
    (
        "SESSION CONTAMINATION BREAKER: session=fp:01 reset applied, kept=10 messages",
        G.CONTAMINATION, A.APPLIED, {"kept": 10},
    ),
    ("TOOL NARROWING: 30 -> 8 tools (no query tokens)", G.TOOL_NARROWING, A.APPLIED, {"before": 30, "after": 8}),
    (
        "TOOL NARROWING: 30 -> 8 tools (top=['Read', 'Bash', 'Edit', 'Grep'])",
        G.TOOL_NARROWING, A.APPLIED, {"before": 30, "after": 8},
    ),
    (
        "MAX_TOKENS capped: 32000 -> 12000 (ctx=65536, input~43000, margin=9830)",
        G.MAX_TOKENS, A.APPLIED,
        {"requested": 32000, "sent": 12000, "window": 65536, "prompt": 43000, "margin": 9830},
    ),
    (
        "PRUNED: removed 29 messages (~51234 tokens), kept 52 messages, target=65% of 131072 ctx",
        G.CONTEXT_PRUNE, A.APPLIED,
        {"removed": 29, "removed_tokens": 51234, "kept": 52, "target": 0.65, "window": 131072},
    ),
    ("CONTEXT OVERFLOW detected (count=3): anything at all", G.CONTEXT_PRUNE, A.DETECTED, {"overflows": 3}),
    (
        "Empty response with 14 reasoning chunks – fallback suppressed (mode=off)",
        G.REASONING_FALLBACK, A.DETECTED, {"chunks": 14, "mode": "off"},
    ),
    (
        "Empty response with 14 reasoning chunks – emitting fallback text (mode=sanitized)",
        G.REASONING_FALLBACK, A.APPLIED, {"chunks": 14, "mode": "sanitized"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("text", "guardrail", "action", "facts"), UAP)
def test_uap_wordings_are_read(
    prefix: str, text: str, guardrail: Guardrail, action: GuardrailAction, facts: dict[str, object]
) -> None:
    event = parse_line(prefix + text + "\n", NOW)
    assert isinstance(event, GuardrailEvent)
    assert (event.guardrail, event.action) == (guardrail, action)
    assert event.facts == pytest.approx(facts)
    assert event.session == ("fp:0123abcd" if "abcd" in text else "fp:01" if "fp:01" in text else "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Proxy started: listening on 0.0.0.0:4000 -> upstream http://127.0.0.1:8080/v1", "started"),
        ("Context window: 262144 tokens, prune threshold: 75%, prune target: 65%", "window"),
        (
            SWITCHES,
            "guardrails",
        ),
        ("REQ: stream=True msgs=3 tools=12 max_tokens=32000 last_role=user last_content=LOOP BREAKER: x", "request"),
        ("Upstream connect failed (attempt 1/3): All connection attempts failed – retrying in 5s", "connect_failed"),
        ("tool_choice set to 'auto' by LOOP BREAKER", "auto"),
    ],
)
def test_lines_about_no_guardrail_are_known_and_make_no_event(text: str, name: str) -> None:
    line = read_line(PREFIXES[1] + text)
    assert line is not None
    assert line.name == name
    assert parse_line(PREFIXES[1] + text) is None


def test_uap_context_lines_are_read() -> None:
    text = "CONTEXT CRITICAL: 126000/131072 tokens (96.1%), unknown turns remaining, pruned=1"
    assert parse_line(text, NOW) == ContextLine(126000, 131072, "CRITICAL", None, pruned=1, at=NOW)


@pytest.mark.parametrize(
    "text",
    [
        "MALFORMED TOOL PAYLOAD: session=a streak=1 excerpt=SECRET prompt",
        "RESP: finish=stop output_tokens=1 text_len=6 text=SECRET tool_calls=['A'] args=['SECRET']",
    ],
)
def test_free_text_of_another_proxy_is_thrown_away(text: str) -> None:
    line = read_line(text)
    assert line is not None
    assert "SECRET" not in repr(line)


@given(text=st.text(), prefix=st.sampled_from(PREFIXES))
def test_arbitrary_text_is_no_line(text: str, prefix: str) -> None:
    assert parse_line(prefix + text, NOW) is None


@given(
    row=st.sampled_from(UAP),
    before=st.text(min_size=1).filter(lambda text: text.strip() and not text.strip().endswith(("]", ":", ">"))),
)
def test_a_line_inside_other_text_is_no_line(row: tuple[str, object, object, object], before: str) -> None:
    assert parse_line(f"user said {before} {row[0]}", NOW) is None


STAMPS = (
    r"(<6>)?([A-Z][a-z]{2} [ 0-3][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} b u\[1\]: )?"
    r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3} )?"
)


@given(st.from_regex(STAMPS, fullmatch=True))
def test_an_impossible_time_stamp_never_raises(prefix: str) -> None:
    assert isinstance(parse_line(prefix + TEXT), GuardrailEvent)


TEXT = "GUARDRAIL: retry produced tool_use; using retried response"


def local(*when: int) -> float:
    year, month, day, hour, minute, second = when
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))


def at(prefix: str, now: float) -> float:
    event = parse_line(prefix + TEXT, now)
    assert isinstance(event, GuardrailEvent)
    return event.at


def test_the_time_is_the_lines_own_where_it_has_one() -> None:
    now = local(2026, 11, 22, 0, 0, 0)
    assert at("", now) == now
    assert at("[INFO] specdash.proxy: ", now) == now
    own = "2026-11-21 10:59:05,250 [INFO] specdash.proxy: "
    assert at(own, now) == pytest.approx(local(2026, 11, 21, 10, 59, 5) + 0.25)
    assert at("Nov 21 10:59:07 box p[1]: ", now) == local(2026, 11, 21, 10, 59, 7)
    assert at("Nov 21 10:59:07 box p[1]: " + own, now) == pytest.approx(local(2026, 11, 21, 10, 59, 5) + 0.25)


def test_a_stamp_without_a_year_is_of_the_latest_year_that_does_not_lie_ahead() -> None:
    assert at("Dec 31 23:59:59 box p[1]: ", local(2027, 1, 1, 0, 0, 5)) == local(2026, 12, 31, 23, 59, 59)


def test_a_hostile_session_name_stays_on_its_line_and_in_its_place() -> None:
    session = "a\n2026-11-21 10:59:05,123 [INFO] specdash.proxy: LOOP BREAKER: released"
    _, text = note_text(Guardrail.EMPTY_RESPONSE, GuardrailAction.DETECTED, {}, session=session)
    assert "\n" not in text
    event = parse_line(text)
    assert isinstance(event, GuardrailEvent)
    assert event.guardrail is Guardrail.EMPTY_RESPONSE
