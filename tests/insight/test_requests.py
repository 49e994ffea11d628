"""Requests are put together from facts that interleave, come late, or never come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.log_facts import (
    AcceptancePerPosition,
    DecodeProgress,
    DecodeTiming,
    LogFact,
    PrefillProgress,
    PromptReused,
    PromptStarted,
    PromptTiming,
    RequestAcceptance,
    ServerEvent,
    SlotSelected,
    TaskCancelled,
    TaskFailed,
    TaskLaunched,
    TaskReleased,
    TotalTiming,
    VerificationSteps,
)
from specdash.core.proxy_events import RequestEvent
from specdash.insight.request import DraftTally, RequestAssembler, ServedRequest, of_event


def timings(slot: int | None, task: int | None, tokens: int = 10) -> list[LogFact]:
    return [
        PromptTiming(slot, task, 19.0, tokens),
        DecodeTiming(slot, task, 300.0, 120),
        TotalTiming(slot, task, 319.0, 120 + tokens),
        RequestAcceptance(slot, task, 101, 141, 6.61),
    ]


def whole(slot: int, task: int) -> list[LogFact]:
    return [TaskLaunched(slot, task, at_s=1.0), *timings(slot, task), TaskReleased(slot, task, 241, False, at_s=2.0)]


def assembled(*facts: LogFact) -> list[ServedRequest]:
    assembler = RequestAssembler()
    return assembler.feed(facts) + assembler.close()


def test_a_request_has_all_that_its_lines_say() -> None:
    (request,) = assembled(
        SlotSelected(0, "lru"),
        TaskLaunched(0, 7, at_s=1.0),
        PromptStarted(0, 7, 4096, 122),
        PromptReused(0, 7, 100),
        PromptReused(0, 7, 2048),
        DecodeProgress(0, 7, 105, 40.0),
        VerificationSteps(0, 7, 1, 6, 8, restored=1),
        VerificationSteps(0, 7, 0, 0, 0, replays=1),
        *timings(0, 7, 22),
        AcceptancePerPosition(0, 7, (0.9, 0.5)),
        TaskReleased(0, 7, 241, True, at_s=2.5),
    )
    assert request == ServedRequest(
        slot=0,
        task=7,
        started_s=1.0,
        at_s=2.5,
        prompt_total_tokens=122,
        prompt_cached=100,
        processed_tokens=22,
        prompt_ms=19.0,
        decode_tokens=120,
        decode_ms=300.0,
        total_ms=319.0,
        draft_generated=141,
        draft_accepted=101,
        mean_accepted_length=6.61,
        acceptance_per_position=(0.9, 0.5),
        decode_tokens_seen=105,
        steps=DraftTally(8, 6, 1, replays=1),
        truncated=True,
        slot_tokens=241,
        selected="lru",
        finished=True,
    )
    assert request.completed


def test_timings_after_the_release_still_belong_to_the_request() -> None:
    """Builds until 2025 print them in this order."""
    assembler = RequestAssembler()
    assert assembler.feed([TaskLaunched(3, 7), TaskReleased(3, 7, 452, True), *timings(3, 7)]) == []
    (request,) = assembler.feed([SlotSelected(3, "lru")])
    assert (request.task, request.decode_tokens, request.draft_accepted, request.finished) == (7, 120, 101, True)


def test_a_cancelled_request_has_no_timings_and_ends_at_its_release() -> None:
    assembler = RequestAssembler()
    (request,) = assembler.feed(
        [TaskLaunched(0, 7), DecodeProgress(0, 7, 105, 40.0), TaskCancelled(7), TaskReleased(0, 7, 201, False)]
    )
    assert (request.cancelled, request.finished, request.completed) == (True, True, False)
    assert (request.decode_ms, request.decode_tokens, request.decode_tokens_seen) == (None, None, 105)


def test_a_request_cancelled_while_it_waited_for_a_slot_is_listed_too() -> None:
    (request,) = assembled(TaskCancelled(9, at_s=3.0))
    assert (request.slot, request.task, request.cancelled, request.at_s) == (None, 9, True, 3.0)


def test_a_cancellation_that_comes_too_late_changes_nothing() -> None:
    (request,) = assembled(*whole(0, 7), TaskCancelled(7))
    assert not request.cancelled


def test_a_failed_request_says_why() -> None:
    (request,) = assembled(TaskLaunched(0, 7), TaskFailed(7, "too long"), TaskCancelled(7), TaskReleased(0, 7))
    assert (request.error, request.cancelled, request.completed) == ("too long", True, False)


def test_the_next_task_of_a_slot_ends_the_one_before() -> None:
    first, second = assembled(TaskLaunched(0, 7), PrefillProgress(0, 8, 100, 0.5))
    assert (first.task, first.finished, second.task) == (7, False, 8)


def test_timings_without_a_header_make_a_request_of_nobody() -> None:
    first, second, third = assembled(*timings(None, None), *timings(None, None), TaskLaunched(0, 7))
    assert (first.slot, first.task, first.decode_tokens) == (None, None, 120)
    assert (second.decode_tokens, second.finished) == (120, True)
    assert (third.slot, third.decode_tokens) == (0, None)


def test_a_restart_leaves_the_open_requests_unfinished() -> None:
    assembler = RequestAssembler()
    (request,) = assembler.feed([TaskLaunched(0, 7), ServerEvent("restarted"), TaskLaunched(0, 7)])
    assert (request.task, request.finished) == (7, False)
    assert [other.task for other in assembler.close()] == [7]


def test_a_request_of_a_routers_child_has_its_port() -> None:
    (request,) = RequestAssembler(port=4002).feed([TaskLaunched(0, 1), TaskCancelled(1), TaskReleased(0, 1)])
    assert (request.origin, request.cancelled) == (4002, True)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.randoms())
def test_requests_of_several_slots_may_interleave_in_any_way(slots: list[int], random: object) -> None:
    queues: dict[int, list[LogFact]] = {}
    for task, slot in enumerate(slots):
        queues.setdefault(slot, []).extend(whole(slot, task))
    facts = []
    while queues:
        slot = random.choice(sorted(queues))  # type: ignore[attr-defined]
        facts.append(queues[slot].pop(0))
        if not queues[slot]:
            del queues[slot]
    requests = assembled(*facts)
    assert sorted((request.task, request.slot) for request in requests) == list(enumerate(slots))
    assert all(request.completed and request.draft_accepted == 101 for request in requests)


def test_memory_is_bounded_by_the_slots() -> None:
    assembler = RequestAssembler()
    for task in range(5000):
        assembler.feed(whole(task % 4, task))
    assert not assembler._open
    assert len(assembler._ended) <= 256


@pytest.mark.parametrize(
    ("served", "prompt", "cached"),
    [
        (ServedRequest(prompt_total_tokens=122, processed_tokens=22, prompt_cached=110), 122, 100),
        (ServedRequest(processed_tokens=22, prompt_cached=100), 122, 100),
        # Verbosity 3: the slot held prompt and answer, but for the answer's last token.
        (ServedRequest(processed_tokens=22, slot_tokens=241, decode_tokens=120), 122, 100),
        (ServedRequest(processed_tokens=22, slot_tokens=241, decode_tokens=120, truncated=True), None, None),
        (of_event(RequestEvent(1.0, "s", "r", prompt_tokens=122, cached_tokens=100)), 122, 100),
        (of_event(RequestEvent(1.0, "s", "r", prompt_tokens=122)), 122, None),
    ],
)
def test_the_length_of_a_prompt_and_what_was_cached_of_it(
    served: ServedRequest, prompt: int | None, cached: int | None
) -> None:
    assert (served.prompt_tokens, served.cached_tokens) == (prompt, cached)
