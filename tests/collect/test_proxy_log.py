"""The proxy's events, from its file, or a UAP proxy's journal: complete, bounded, of one format or the other."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from specdash.core.readings import FailureKind, Reading, Source

REQUEST = RequestEvent(1_700_000_000.0, "s1", "r1", duration_s=2.0, draft_tokens=10, accepted_tokens=7)
LOOP = GuardrailEvent(1_700_000_001.0, "s1", Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, "r2", {"repeats": 9})

HUMAN = b"""\
2026-09-21 14:13:19,123 [INFO] REQ: stream=True msgs=12 tools=3
2026-09-21 14:13:20,123 [WARNING] CONTEXT HIGH: 28000/32768 tokens (85.4%), ~4 turns remaining
2026-09-21 14:13:21,123 [WARNING] LOOP BREAKER: Context utilization 91.0% -- releasing tool_choice to let model wrap up.
"""


class Published(list[Reading[Any]]):
    def batches(self) -> list[ProxyEvents]:
        return [reading.value for reading in self if isinstance(reading.value, ProxyEvents)]

    def statuses(self) -> list[Any]:
        return [reading.value for reading in self if reading.source is Source.PROXY]

    def events(self) -> list[Any]:
        return [event for batch in self.batches() for event in batch.events]


class Given:
    """Lines that come as the test says."""

    written_at: float | None = None

    def __init__(self, *chunks: TailChunk) -> None:
        self.chunks = list(chunks)

    def read(self, limit: int = 0) -> TailChunk:
        return self.chunks.pop(0) if self.chunks else TailChunk()

    def close(self) -> None:
        self.chunks.clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def published() -> Published:
    return Published()


def lines(*events: Any) -> bytes:
    return b"".join(to_json(event).encode() + b"\n" for event in events)


def append(file: Path, data: bytes) -> None:
    with file.open("ab") as stream:
        stream.write(data)


def test_events_are_read_in_their_order_and_new_ones_follow(file: Path, published: Published) -> None:
    file.write_bytes(lines(REQUEST, LOOP))
    collector = ProxyEventsCollector(str(file), published.append)
    collector.step()
    append(file, lines(REQUEST))
    collector.step()
    collector.step()
    assert [batch.events for batch in published.batches()] == [(REQUEST, LOOP), (REQUEST,)]
    assert {reading.source for reading in published} == {Source.PROXY_EVENTS}


def test_a_rotated_file_is_followed_into_the_new_one(file: Path, published: Published) -> None:
    file.write_bytes(lines(REQUEST))
    collector = ProxyEventsCollector(str(file), published.append)
    collector.step()
    append(file, lines(LOOP)[:-1])
    file.rename(file.with_suffix(".1"))
    file.write_bytes(lines(REQUEST))
    for _ in range(4):
        collector.step()
    assert published.events() == [REQUEST, LOOP, REQUEST]


def test_of_a_large_file_only_the_last_mebibyte_is_read(file: Path, published: Published) -> None:
    chunk = lines(REQUEST)
    file.write_bytes(chunk * (3 * proxy_log.BACKFILL_BYTES // len(chunk)))
    ProxyEventsCollector(str(file), published.append).step()
    read = sum(len(batch.events) + batch.dropped for batch in published.batches())
    assert 0 < read * len(chunk) <= proxy_log.BACKFILL_BYTES
    assert len(published.events()) <= proxy_log.MAX_EVENTS


def test_json_that_is_no_event_is_counted_and_other_lines_are_the_human_logs(published: Published) -> None:
    text = b'{"event":"party"}\n{"event":"request","at":"noon","session":"s","request_id":"r"}\n{"a\n\n'
    ProxyEventsCollector("x", published.append, lines=Given(TailChunk(text + lines(LOOP)))).step()
    assert published.batches() == [ProxyEvents((LOOP,), 0, 3)]


def test_a_line_without_an_end_is_dropped_and_never_kept(published: Published) -> None:
    piece = TailChunk(b"{" + b"x" * proxy_log.MAX_LINE_BYTES, more=True)
    given = Given(piece, piece, piece, TailChunk(b"}\n" + lines(LOOP)))
    collector = ProxyEventsCollector("x", published.append, lines=given)
    collector.step()
    assert len(collector._rest) == 0
    assert published.batches() == [ProxyEvents((LOOP,), 1, 0)]


@given(st.lists(st.integers(1, 60), max_size=30))
def test_however_the_bytes_are_cut_the_events_are_the_same(cuts: list[int]) -> None:
    data = lines(REQUEST, LOOP, REQUEST)
    chunks, at = [], 0
    for cut in cuts:
        chunks.append(TailChunk(data[at : at + cut], more=True))
        at += cut
    published = Published()
    ProxyEventsCollector("x", published.append, lines=Given(*chunks, TailChunk(data[at:]))).step()
    assert published.events() == [REQUEST, LOOP, REQUEST]


def test_a_missing_file_is_said_once_and_found_when_it_comes(file: Path, published: Published) -> None:
    collector = ProxyEventsCollector(str(file), published.append)
    collector.step()
    collector.step()
    assert [reading.failure.kind for reading in published if reading.failure] == [FailureKind.UNAVAILABLE]
    file.write_bytes(lines(LOOP))
    collector.step()
    assert published.events() == [LOOP]


def test_an_empty_file_is_known_to_be_empty_and_nothing_new_is_not_told(file: Path, published: Published) -> None:
    file.touch()
    collector = ProxyEventsCollector(str(file), published.append)
    for _ in range(3):
        collector.step()
    assert published.batches() == [ProxyEvents()]


def test_a_human_log_gives_guardrails_and_without_an_address_the_context_as_well(
    file: Path, published: Published
) -> None:
    file.write_bytes(HUMAN)
    ProxyEventsCollector(str(file), published.append, tells_context=lambda: True).step()
    (event,) = published.events()
    assert (event.guardrail, event.action) == (Guardrail.LOOP_BREAKER, GuardrailAction.RELEASED)
    (status,) = published.statuses()
    (session,) = status.sessions
    assert (session.context_tokens, session.context_window, session.turns_remaining) == (28000, 32768, 4)
    assert status.requests == 1


def test_an_old_line_without_a_time_stamp_is_not_one_of_now(file: Path, published: Published) -> None:
    line = HUMAN.splitlines()[2].split(b"] ", 1)[1] + b"\n"
    now = [100.0]
    collector = ProxyEventsCollector(str(file), published.append, clock=lambda: now[0], wall=lambda: 5000.0)
    file.write_bytes(line)
    collector.step()
    now[0] = 110.0
    append(file, line)
    collector.step()
    assert [event.at for event in published.events()] == [0.0, 5000.0]


def test_lines_of_one_session_are_one_session(published: Published) -> None:
    text = b"CONTEXT: 10/100 tokens (10.0%), unknown turns remaining\n" * 300
    ProxyEventsCollector("x", published.append, lines=Given(TailChunk(text)), tells_context=lambda: True).step()
    (status,) = published.statuses()
    assert [session.requests for session in status.sessions] == [300]


RESPONSE = (
    b"2026-09-21 14:13:22,500 [INFO] uap.anthropic_proxy: RESP: finish=tool_calls output_tokens=41 text_len=0 text= "
    b"tool_calls=['Read'] args=[]\n"
)


def test_a_human_log_tells_of_finished_requests(file: Path, published: Published) -> None:
    file.write_bytes(HUMAN + RESPONSE)
    ProxyEventsCollector(str(file), published.append).step()
    _, ended = published.events()
    assert isinstance(ended, RequestEvent)
    assert (ended.outcome, ended.stop_reason, ended.completion_tokens) == (RequestOutcome.OK, "tool_use", 41)
    assert (ended.prompt_tokens, ended.duration_s) == (None, None)


@given(st.data())
def test_what_came_as_json_is_not_counted_again_from_the_words_beside_it(data: st.DataObject) -> None:
    text = (lines(LOOP) + HUMAN + lines(REQUEST) + RESPONSE) * 2
    cut = data.draw(st.integers(0, len(text)))
    published = Published()
    collector = ProxyEventsCollector(
        "x", published.append, lines=Given(TailChunk(text[:cut]), TailChunk(text[cut:])), tells_context=lambda: True
    )
    collector.step()
    collector.step()
    assert published.events() == [LOOP, REQUEST] * 2
    assert published.statuses()[-1].requests == 2


def test_once_the_address_is_known_the_log_speaks_for_the_proxy_no_more(published: Published) -> None:
    given = Given(TailChunk(HUMAN), TailChunk(HUMAN))
    tells = iter([True, False])
    collector = ProxyEventsCollector("x", published.append, lines=given, tells_context=lambda: next(tells))
    collector.step()
    collector.step()
    assert len(published.statuses()) == 1
    assert len(published.events()) == 2


@pytest.mark.parametrize(
    "number", ["9" * 400, "-" + "9" * 400, "1e400", "NaN", "1e300", "9" * 5000, "[1, 1e400]"], ids=lambda text: text[:9]
)
@pytest.mark.parametrize("name", ["decode_rate", "completion_tokens", "ttft_s", "at", "retries", "of_a_newer_version"])
def test_a_number_that_cannot_be_meant_costs_its_line_and_is_counted(name: str, number: str) -> None:
    good = to_json(REQUEST).encode()
    absurd = f'{{"event": "request", "at": 5.0, "session": "s", "request_id": "x", "{name}": {number}}}'.encode()
    published = Published()
    lines = b"\n".join([*[good] * 5, absurd, *[good] * 5, b""])
    ProxyEventsCollector("", published.append, lines=Given(TailChunk(lines))).step()
    assert published.events() == [REQUEST] * 10
    assert [batch.unread for batch in published.batches()] == [1]
