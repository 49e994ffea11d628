"""The proxy's events, from its file, or a UAP proxy's journal: complete, bounded, of one format or the other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collect.seen import Seen
from specdash.collect import proxy_log
from specdash.collect.proxy_log import ProxyEventsCollector
from specdash.collect.tail import TailChunk
from specdash.core.proxy_events import (
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvents,
    RequestEvent,
    RequestOutcome,
    to_json,
)
from specdash.core.readings import FailureKind, Source

REQUEST = RequestEvent(1_700_000_000.0, "s1", "r1", duration_s=2.0, draft_tokens=10, accepted_tokens=7)
LOOP = GuardrailEvent(1_700_000_001.0, "s1", Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, "r2", {"repeats": 9})
CONTEXT = b"2026-09-21 14:13:20,123 [WARNING] CONTEXT HIGH: 28000/32768 tokens (85.4%), ~4 turns remaining\n"
RELEASED = b"LOOP BREAKER: Context utilization 91.0% -- releasing tool_choice to let model wrap up.\n"
HUMAN = (
    b"2026-09-21 14:13:19,123 [INFO] REQ: stream=True msgs=12 tools=3\n"
    + CONTEXT
    + b"2026-09-21 14:13:21,123 [WARNING] "
    + RELEASED
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

    def __init__(
        self, *pieces: bytes | TailChunk, file: Path | None = None, tells_context: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__()
        self.file, self.now = file, 100.0
        chunks = [TailChunk(piece) if isinstance(piece, bytes) else piece for piece in pieces]
        self.collector = ProxyEventsCollector(
            str(file),
            self.take,
            lines=None if file is not None else Given(*chunks),
            tells_context=tells_context,
            clock=lambda: self.now,
            wall=lambda: 5000.0,
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


def test_a_rotated_file_is_followed_into_the_new_one(read: Events) -> None:
    assert read.file is not None
    read.add(lines(REQUEST))
    with read.file.open("ab") as stream:
        stream.write(lines(LOOP)[:-1])
    read.file.rename(read.file.with_suffix(".1"))
    read.add(lines(REQUEST)).add(b"").add(b"").add(b"")
    assert read.events == [REQUEST, LOOP, REQUEST]


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


def test_a_human_log_gives_guardrails_requests_and_without_an_address_the_context() -> None:
    tells = iter([True, False])
    log = Events(HUMAN + RESPONSE, HUMAN, tells_context=lambda: next(tells))
    event, ended, _ = log.events
    assert (event.guardrail, event.action) == (Guardrail.LOOP_BREAKER, GuardrailAction.RELEASED)
    assert isinstance(ended, RequestEvent)
    assert (ended.outcome, ended.stop_reason, ended.completion_tokens) == (RequestOutcome.OK, "tool_use", 41)
    assert (ended.prompt_tokens, ended.duration_s) == (None, None)
    (status,) = log.values(Source.PROXY)
    (session,) = status.sessions
    assert (session.context_tokens, session.context_window, session.turns_remaining) == (28000, 32768, 4)
    assert status.requests == 1


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
    both = Events(TailChunk(BOTH[:cut], more=more), BOTH[cut:], tells_context=lambda: True)
    assert both.events == [LOOP, REQUEST] * 2
    assert both.last(Source.PROXY).requests == 2


@pytest.mark.parametrize(
    "number", ["9" * 400, "-" + "9" * 400, "1e400", "NaN", "1e300", "9" * 5000, "[1, 1e400]"], ids=lambda text: text[:9]
)
@pytest.mark.parametrize("name", ["decode_rate", "at", "retries", "of_a_newer_version"])
def test_a_number_that_cannot_be_meant_costs_its_line_and_is_counted(name: str, number: str) -> None:
    absurd = f'{{"event": "request", "at": 5.0, "session": "s", "request_id": "x", "{name}": {number}}}\n'.encode()
    good = lines(*[REQUEST] * 5)
    assert Events(good + absurd + good).batches == [ProxyEvents((REQUEST,) * 10, 0, 1)]
