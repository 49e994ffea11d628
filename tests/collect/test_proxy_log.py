"""The proxy's events, from its file, or a UAP proxy's journal: complete, bounded, and nothing is made up."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from collect.seen import Seen
from specdash.collect import proxy_log
from specdash.collect.proxy_log import ProxyEventsCollector
from specdash.collect.tail import TailChunk
from specdash.collect.uap_journal import parse_line
from specdash.core.proxy_events import (
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvents,
    RequestEvent,
    RequestOutcome,
    from_json,
    to_json,
)
from specdash.core.readings import FailureKind, Source

REQUEST = RequestEvent(1_700_000_000.0, "s1", "r1", duration_s=2.0, draft_tokens=10, accepted_tokens=7)
LOOP = GuardrailEvent(1_700_000_001.0, "s1", Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, "r2", {"repeats": 9})
RELEASED = b"LOOP BREAKER: Context utilization 91.0% -- releasing tool_choice to let model wrap up.\n"
HUMAN = (
    b"2026-09-21 14:13:19,123 [INFO] REQ: stream=True msgs=12 tools=3\n2026-09-21 14:13:21,123 [WARNING] " + RELEASED
)
RESPONSE = (
    b"2026-09-21 14:13:22,500 [INFO] uap.anthropic_proxy: RESP: finish=tool_calls output_tokens=41 text_len=0 text= "
    b"tool_calls=['Read'] args=[]\n"
)


def lines(*events: Any) -> bytes:
    return b"".join(to_json(event).encode() + b"\n" for event in events)


class Given:
    """Lines that come as the test says."""

    written_at: float | None = None

    def __init__(self, *chunks: TailChunk) -> None:
        self.chunks = list(chunks)

    def read(self, limit: int = 0) -> TailChunk:
        return self.chunks.pop(0) if self.chunks else TailChunk()

    def close(self) -> None:
        self.chunks.clear()


class Events(Seen):
    """A collector of what a file holds, or of what comes in these pieces, and what it published."""

    def __init__(self, *pieces: bytes | TailChunk, file: Path | None = None) -> None:
        super().__init__()
        self.file, self.now = file, 100.0
        chunks = [TailChunk(piece) if isinstance(piece, bytes) else piece for piece in pieces]
        lines: Any = None if file is not None else Given(*chunks)
        self.collector = ProxyEventsCollector(
            str(file), self.take, lines=lines, clock=lambda: self.now, wall=lambda: 5000.0
        )
        for _ in chunks:
            self.collector.step()

    def add(self, data: bytes) -> "Events":
        """More in the file, and a look."""
        assert self.file is not None
        with self.file.open("ab") as stream:
            stream.write(data)
        self.collector.step()
        return self

    @property
    def batches(self) -> list[ProxyEvents]:
        return self.values(Source.PROXY_EVENTS)

    @property
    def events(self) -> list[Any]:
        return [event for batch in self.batches for event in batch.events]


@pytest.fixture
def read(tmp_path: Path) -> Events:
    return Events(file=tmp_path / "events.jsonl")


def test_a_missing_file_is_a_reason_once_and_its_events_come_in_their_order(read: Events) -> None:
    for _ in range(2):
        read.collector.step()
    assert [read.kind(reading.source) for reading in read.readings] == [FailureKind.UNAVAILABLE]
    read.add(b"").add(lines(REQUEST, LOOP)).add(lines(REQUEST)).add(b"")
    assert [batch.events for batch in read.batches] == [(), (REQUEST, LOOP), (REQUEST,)]
    assert {reading.source for reading in read.readings} == {Source.PROXY_EVENTS}


def test_of_a_large_file_only_the_last_mebibyte_is_read(read: Events) -> None:
    chunk = lines(REQUEST)
    read.add(chunk * (3 * proxy_log.BACKFILL_BYTES // len(chunk)))
    count = sum(len(batch.events) + batch.dropped for batch in read.batches)
    assert 0 < count * len(chunk) <= proxy_log.BACKFILL_BYTES
    assert len(read.events) <= proxy_log.MAX_EVENTS


def test_json_that_is_no_event_is_counted_and_a_line_without_an_end_is_dropped(read: Events) -> None:
    text = b'{"event":"party"}\n{"event":"request","at":"noon","session":"s","request_id":"r"}\n{"a\n\n'
    assert Events(text + lines(LOOP)).batches == [ProxyEvents((LOOP,), 0, 3)]
    piece = TailChunk(b"{" + b"x" * proxy_log.MAX_LINE_BYTES, more=True)
    endless = Events(piece, piece, piece, TailChunk(b"}\n" + lines(LOOP)))
    assert len(endless.collector._rest) == 0
    assert endless.batches[0] == ProxyEvents((LOOP,), 1, 0)


def test_a_human_log_gives_guardrails_and_requests() -> None:
    event, ended = Events(HUMAN + RESPONSE).events
    assert (event.guardrail, event.action) == (Guardrail.LOOP_BREAKER, GuardrailAction.RELEASED)
    assert (ended.outcome, ended.stop_reason, ended.completion_tokens) == (RequestOutcome.OK, "tool_use", 41)
    assert (ended.prompt_tokens, ended.duration_s) == (None, None)


def test_an_old_line_without_a_time_stamp_is_not_one_of_now(read: Events) -> None:
    read.add(RELEASED)
    read.now = 110.0
    read.add(RELEASED)
    assert [event.at for event in read.events] == [0.0, 5000.0]


BOTH = (lines(LOOP) + HUMAN + lines(REQUEST) + RESPONSE) * 2


@given(st.integers(0, len(BOTH)), st.booleans())
def test_what_came_as_json_is_not_counted_again_from_the_words_beside_it_however_it_is_cut(
    cut: int, more: bool
) -> None:
    both = Events(TailChunk(BOTH[:cut], more=more), BOTH[cut:])
    assert both.events == [LOOP, REQUEST] * 2


@pytest.mark.parametrize(
    "number", ["9" * 400, "-" + "9" * 400, "1e400", "NaN", "1e300", "9" * 5000, "[1, 1e400]"], ids=lambda text: text[:9]
)
@pytest.mark.parametrize("name", ["decode_rate", "at", "retries", "of_a_newer_version"])
def test_a_number_that_cannot_be_meant_costs_its_line_and_is_counted(name: str, number: str) -> None:
    absurd = f'{{"event": "request", "at": 5.0, "session": "s", "request_id": "x", "{name}": {number}}}\n'.encode()
    good = lines(*[REQUEST] * 5)
    assert Events(good + absurd + good).batches == [ProxyEvents((REQUEST,) * 10, 0, 1)]


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


@given(text=st.text(), prefix=st.sampled_from(PREFIXES))
@example("CONTEXT: 1000/131072 tokens (0.8%), ~12 turns remaining, pruned=2, overflows=3", PREFIXES[1])
@example("REQ: stream=True msgs=3 tools=12 last_role=user last_content=LOOP BREAKER: x", PREFIXES[1])
@example("tool_choice set to 'auto' by LOOP BREAKER", PREFIXES[1])
@example("RESP: finish=stop output_tokens=" + "9" * 400 + " text_len=1 text=", PREFIXES[1])
def test_any_other_line_makes_no_event(text: str, prefix: str) -> None:
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
