"""Requests are put together from facts that interleave, come late, or never come; specdash's own are in no count."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import NOW, WALL, tell
from specdash.core.log_facts import (
    DecodeProgress,
    DecodeTiming,
    LogBatch,
    LogFact,
    PrefillProgress,
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
from specdash.core.readings import Counters, Slot, Slots
from specdash.core.records import Drafting, StartCheck
from specdash.core.target import Target
from specdash.insight.request import RequestAssembler, ServedRequest, of_event
from specdash.insight.state import TargetState


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


RELEASED = TaskReleased(0, 7, 201, False)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # A cancelled one has no timings and ends at its release, or never had a slot; too late it changes nothing.
        ([TaskLaunched(0, 7), DecodeProgress(0, 7, 105, 40.0), TaskCancelled(7), RELEASED],
         [{"task": 7, "cancelled": True, "finished": True, "completed": False, "decode_tokens_seen": 105}]),
        ([TaskCancelled(9, at_s=3.0)], [{"slot": None, "task": 9, "cancelled": True, "at_s": 3.0}]),
        ([*whole(0, 7), TaskCancelled(7)], [{"cancelled": False, "completed": True}]),
        ([TaskLaunched(0, 7), TaskFailed(7, "too long"), TaskCancelled(7), TaskReleased(0, 7)],
         [{"error": "too long", "cancelled": False, "completed": False}]),
        # The next task of a slot ends the one before, and so does a restart.
        ([TaskLaunched(0, 7), PrefillProgress(0, 8, 100, 0.5)], [{"task": 7, "finished": False}, {"task": 8}]),
        ([TaskLaunched(0, 7), ServerEvent("restarted"), TaskLaunched(0, 8)], [{"finished": False}, {"task": 8}]),
        # Timings after the release, as builds until 2025 print them; and without a header.
        ([TaskLaunched(3, 7), TaskReleased(3, 7, 452, True), *timings(3, 7), SlotSelected(3, "lru")],
         [{"task": 7, "decode_tokens": 120, "draft_accepted": 101, "finished": True}]),
        ([*timings(None, None), *timings(None, None), TaskLaunched(0, 7)],
         [{"slot": None, "task": None, "decode_tokens": 120}, {"finished": True}, {"slot": 0, "decode_tokens": None}]),
    ],
)  # fmt: skip
def test_how_requests_end(facts: list[LogFact], expected: list[dict[str, object]]) -> None:
    found = zip(assembled(*facts), expected, strict=True)
    assert [{name: getattr(request, name) for name in wanted} for request, wanted in found] == expected


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


# The requests with which specdash checks a start and measures a baseline are in none of the counts


TARGET = Target("http://127.0.0.1:8080", engine="x", pid=10)
PROBE, BASELINE = 1, range(2, 302)
OWN = {
    "prompt_tokens": 20_000, "prompt_seconds": 4, "predicted_tokens": 616, "predicted_seconds": 3, "decode_calls": 320,
    "draft_tokens": 12, "accepted_tokens": 6, "verification_steps": 4,
}  # fmt: skip
CHECK = StartCheck(
    Drafting.YES,
    WALL - 50,
    "draft-simple, 6 of 12 drafted tokens accepted",
    probe_tokens=16,
    probe_tasks=(PROBE, *BASELINE),
    probe_totals=tuple((name, float(total)) for name, total in OWN.items()),
    probe_positions=(4, 2),
)


def counting(**more: float) -> Counters:
    """The totals after those requests and `more`."""
    totals: dict[str, Any] = {name: total + more.get(name, 0) for name, total in OWN.items()}
    return Counters(**totals, accepted_per_position=(28, 38) if more else (4, 2), requests_processing=0)


def answer(task: int, tokens: int, at_s: float, *, drafted: int = 0, accepted: int = 0) -> LogBatch:
    """The lines of one request of 20 ms a token."""
    drafts: list[LogFact] = [VerificationSteps(0, task, accepted, drafted // 3, drafted)] if drafted else []
    times: list[LogFact] = [PromptTiming(0, task, 100.0, 64), DecodeTiming(0, task, 20.0 * (tokens - 1), tokens)]
    ratio: list[LogFact] = [RequestAcceptance(0, task, accepted, drafted, 2.0)] if drafted else []
    ends = TaskReleased(0, task, 64 + tokens, False, at_s=at_s + 0.1)
    return LogBatch(facts=(TaskLaunched(0, task, at_s=at_s), *drafts, *times, *ratio, ends))


def checked(*, known_first: bool = False) -> TargetState:
    """A server after its start, whose dashboard was open all the time; its record comes after the requests."""
    after = replace(TARGET, start_check=CHECK)
    state = TargetState(after if known_first else TARGET, wall_offset=lambda: WALL - NOW)
    slots = Slots((Slot(0, False, 4096, True, speculative_types=("draft-simple",)),))
    tell(state, NOW - 60, slots=slots, metrics=Counters(prompt_tokens=0, predicted_tokens=0))
    tell(state, NOW - 56, log=answer(PROBE, 16, 3.0, drafted=12, accepted=6))
    for task in BASELINE:
        tell(state, NOW - 55 + task / 100, log=answer(task, 2, 4.0 + task / 100))
    for at in (NOW - 51, NOW - 50.5):
        tell(state, at, metrics=counting())
    state.picture(NOW - 50, WALL - 50)
    state.retarget(after)
    return tell(state, NOW - 1, metrics=counting())


@pytest.mark.parametrize("known_first", [False, True])
def test_an_idle_new_server_shows_nothing_that_no_client_asked_for(known_first: bool) -> None:
    picture = checked(known_first=known_first).picture(NOW, WALL)
    backend, acceptance = picture.backend, picture.backend.speculation.acceptance
    assert (backend.requests_finished, picture.log.requests) == (0, ())
    assert (acceptance.window.value, acceptance.lifetime.value) == (None, None)
    assert (backend.prefill.value, backend.decode.value) == (None, None)
    assert (picture.speedup.value, picture.speedup.requests) == (None, 0)
    assert not backend.speculation.draft_tokens_total
    assert picture.views.drafter.acceptance is None


def test_then_its_clients_alone_are_counted_until_another_server_counts_less() -> None:
    state = tell(checked(), NOW - 0.5, log=answer(400, 101, 55.0, drafted=90, accepted=60))
    client = {"prompt_tokens": 64, "prompt_seconds": 0.1, "predicted_tokens": 101, "predicted_seconds": 2}
    drafts = {"decode_calls": 41, "draft_tokens": 90, "accepted_tokens": 60, "verification_steps": 30}
    picture = tell(state, NOW, metrics=counting(**client, **drafts)).picture(NOW, WALL)
    acceptance = picture.backend.speculation.acceptance
    assert (picture.backend.requests_finished, picture.speedup.requests) == (1, 1)
    assert [request.task for request in picture.log.requests] == [400]
    assert (acceptance.window.value, acceptance.lifetime.value) == pytest.approx((60 / 90, 60 / 90))
    assert picture.backend.speculation.draft_tokens_total == 90
    assert picture.backend.decode.value == pytest.approx(50.5), "101 tokens in 2 s"
    another = Counters(prompt_tokens=50, predicted_tokens=30, draft_tokens=20, accepted_tokens=10)
    found = tell(state, NOW + 1, metrics=another).picture(NOW + 1, WALL + 1)
    assert found.backend.speculation.acceptance.lifetime.value == pytest.approx(0.5)
