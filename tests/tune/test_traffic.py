"""The shape of live traffic from records of requests, and prompts that match it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.load.workloads import bundled
from specdash.core.errors import InputError
from specdash.core.proxy_events import ProxyEvents, RequestEvent, RequestOutcome, to_json
from specdash.core.readings import Reading, Source
from specdash.insight.request import RequestPurpose, ServedRequest
from specdash.tune.run.planning import LONGEST, SHORTEST, events_samples, filled, matched, recorded_samples, shape_of
from support.recording import TARGET, file_of, hurry, recording

if TYPE_CHECKING:
    from pathlib import Path


def request(prompt: int = 1000, answer: int = 100, work: RequestPurpose | None = None) -> ServedRequest:
    return ServedRequest(prompt_total_tokens=prompt, decode_tokens=answer, purpose=work)


def test_tokens_and_not_requests_make_the_shares() -> None:
    agentic = [request(answer=300, work=RequestPurpose.TOOL_CALL)] * 15
    chat = [request(answer=100, work=RequestPurpose.CHAT)] * 15
    shape = shape_of([*agentic, *chat], "the test")
    assert shape.requests == 30
    assert shape.shares["agentic"] == pytest.approx(0.75)
    assert [shape.shares[kind] for kind in ("coding", "pattern", "prose")] == pytest.approx([0.25 / 3] * 3)
    assert "30 requests of the test: " in shape.words


def test_what_nobody_told_is_spread_over_all_classes() -> None:
    shape = shape_of([request()] * 20, "the test")
    assert set(shape.shares.values()) == {0.25}


@pytest.mark.parametrize("samples", [[], [request()] * 19, [ServedRequest()] * 50])
def test_too_few_requests_tell_no_shape(samples: list[ServedRequest]) -> None:
    with pytest.raises(InputError, match="too few to tell the shape"):
        shape_of(samples, "the test")


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(1, 5000)), min_size=20, max_size=60), st.integers(2, 5))
def test_matched_prompts_keep_within_the_lengths_seen_and_the_room_there_is(
    lengths: list[tuple[int, int]], each: int
) -> None:
    shape = shape_of([request(*length, work=RequestPurpose.TOOL_CALL) for length in lengths], "the test")
    prompts = matched(shape, each, room=4096)
    assert len(prompts) == each
    assert {prompt.kind for prompt in prompts} == {"agentic"}
    for prompt in prompts:
        assert SHORTEST <= (prompt.max_tokens or 0) <= LONGEST
        assert sum(len(str(message.get("content"))) for message in prompt.messages) < 4.5 * 4096
    assert [prompt.max_tokens for prompt in prompts] == sorted(prompt.max_tokens or 0 for prompt in prompts)


def test_filling_brings_a_prompt_to_its_length_the_same_way_every_time() -> None:
    prompt = bundled(("prose",), 1)[0]
    long = filled(prompt, 3000)
    length = sum(len(str(message.get("content"))) for message in long.messages)
    assert length == pytest.approx(3000 * 4.2, rel=0.05)
    assert filled(prompt, 3000) == long
    assert filled(prompt, 5) is prompt
    question = str(prompt.messages[-1]["content"])
    assert str(long.messages[-1]["content"]).endswith(question)


def test_the_proxys_events_are_read_as_far_as_they_are_recent(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [
        to_json(
            RequestEvent(
                at,
                "s",
                f"r{at}",
                outcome=RequestOutcome.OK,
                duration_s=2.0,
                prompt_tokens=500,
                completion_tokens=80,
                tools=3,
            )
        )
        for at in (10.0, *(1000.0 + number for number in range(25)))
    ]
    path.write_text("\n".join([*lines, "no event", '{"event":"request"']) + "\n", encoding="utf-8")
    found = events_samples(path, since=900.0)
    assert len(found) == 25
    assert {request_sample.purpose for request_sample in found} == {RequestPurpose.AGENT_TEXT}
    assert shape_of(found, "the proxy").shares == {"agentic": 1.0}
    assert events_samples(tmp_path / "missing", since=0.0) == ()


def test_the_record_tells_what_work_was_where_the_proxy_told_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    now = time.time()
    events = tuple(
        RequestEvent(now, "s", f"r{number}", duration_s=0.5, prompt_tokens=900, completion_tokens=70, tools=2)
        for number in range(30)
    )
    with recording(tmp_path) as recorder:
        recorder.on_reading(Reading.known(Source.PROXY_EVENTS, time.monotonic(), ProxyEvents(events)))
    found = recorded_samples(file_of(tmp_path), TARGET, now - 60, now + 60)
    assert len(found) == 30
    assert shape_of(found, "the record").shares == {"agentic": 1.0}
    assert recorded_samples(file_of(tmp_path), TARGET, now + 1000, now + 2000) == ()
    assert recorded_samples(tmp_path / "missing.db", TARGET, 0, now) == ()
