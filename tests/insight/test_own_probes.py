"""The requests with which specdash checks a start and measures a baseline are in none of the counts."""

import pytest
from msgspec.structs import replace

from specdash.core.log_facts import (
    DecodeTiming,
    LogBatch,
    LogFact,
    PromptTiming,
    RequestAcceptance,
    TaskLaunched,
    TaskReleased,
    VerificationSteps,
)
from specdash.core.readings import Counters, Reading, Slot, Slots, Source
from specdash.core.records import Drafting, StartCheck
from specdash.core.target import Target
from specdash.insight.picture import Picture
from specdash.insight.state import TargetState

WALL = 1_790_000_000.0
NOW = 1000.0
TARGET = Target("http://127.0.0.1:8080", engine="x", pid=10)
PROBE, BASELINE = 1, range(2, 302)
OWN = Counters(
    prompt_tokens=20_000, prompt_seconds=4, predicted_tokens=616, predicted_seconds=3, decode_calls=320,
    draft_tokens=12, accepted_tokens=6, verification_steps=4, accepted_per_position=(4, 2),
    requests_processing=0,
)  # fmt: skip
TOTALS = (
    "prompt_tokens", "prompt_seconds", "predicted_tokens", "predicted_seconds", "decode_calls", "draft_tokens",
    "accepted_tokens", "verification_steps",
)  # fmt: skip
CHECK = StartCheck(
    Drafting.YES,
    WALL + NOW - 50,
    "draft-simple, 6 of 12 drafted tokens accepted",
    probe_tokens=16,
    probe_tasks=(PROBE, *BASELINE),
    probe_totals=tuple((name, float(getattr(OWN, name))) for name in TOTALS),
    probe_positions=(4, 2),
)


def answer(task: int, tokens: int, at_s: float, *, drafted: int = 0, accepted: int = 0) -> list[LogFact]:
    """The lines of one request of 20 ms a token."""
    facts: list[LogFact] = [TaskLaunched(0, task, at_s=at_s)]
    if drafted:
        facts.append(VerificationSteps(0, task, accepted, drafted // 3, drafted))
    facts += [PromptTiming(0, task, 100.0, 64), DecodeTiming(0, task, 20.0 * (tokens - 1), tokens)]
    if drafted:
        facts.append(RequestAcceptance(0, task, accepted, drafted, 2.0))
    return [*facts, TaskReleased(0, task, 64 + tokens, False, at_s=at_s + 0.1)]


def tell(state: TargetState, at: float, *facts: LogFact) -> None:
    state.apply(Reading.known(Source.LOG, at, LogBatch(len(facts), facts=facts)))


def count(state: TargetState, at: float, counters: Counters) -> None:
    state.apply(Reading.known(Source.METRICS, at, counters))


def checked(*, known_first: bool = False) -> TargetState:
    """A server after its start, whose dashboard was open all the time; its record comes after the requests."""
    state = TargetState(replace(TARGET, start_check=CHECK) if known_first else TARGET, wall_offset=lambda: WALL)
    slots = Slots((Slot(0, False, 4096, True, speculative_types=("draft-simple",)),))
    state.apply(Reading.known(Source.SLOTS, NOW - 60, slots))
    count(state, NOW - 60, Counters(prompt_tokens=0, predicted_tokens=0))
    tell(state, NOW - 56, *answer(PROBE, 16, 3.0, drafted=12, accepted=6))
    for task in BASELINE:
        tell(state, NOW - 55 + task / 100, *answer(task, 2, 4.0 + task / 100))
    for at in (NOW - 51, NOW - 50.5):
        count(state, at, OWN)
    state.picture(NOW - 50, WALL + NOW - 50)
    state.retarget(replace(TARGET, start_check=CHECK))
    count(state, NOW - 1, OWN)
    return state


def seen(state: TargetState) -> Picture:
    return state.picture(NOW, WALL + NOW, 300.0)


@pytest.mark.parametrize("known_first", [False, True])
def test_an_idle_new_server_shows_nothing_that_no_client_asked_for(known_first: bool) -> None:
    picture = seen(checked(known_first=known_first))
    backend, acceptance = picture.backend, picture.backend.speculation.acceptance
    assert (backend.requests_finished, picture.log.requests) == (0, ())
    assert (acceptance.window.value, acceptance.lifetime.value) == (None, None)
    assert (backend.prefill.value, backend.decode.value) == (None, None)
    assert (picture.speedup.value, picture.speedup.requests) == (None, 0)
    assert not backend.speculation.draft_tokens_total
    assert picture.views.drafter.acceptance is None


def test_then_its_clients_alone_are_counted() -> None:
    state = checked()
    tell(state, NOW - 0.5, *answer(400, 101, 55.0, drafted=90, accepted=60))
    client = Counters(
        prompt_tokens=20_064, prompt_seconds=4.1, predicted_tokens=717, predicted_seconds=5, decode_calls=361,
        draft_tokens=102, accepted_tokens=66, verification_steps=34, accepted_per_position=(28, 38),
        requests_processing=0,
    )  # fmt: skip
    count(state, NOW, client)
    picture = seen(state)
    acceptance = picture.backend.speculation.acceptance
    assert picture.backend.requests_finished == 1
    assert [request.task for request in picture.log.requests] == [400]
    assert (acceptance.window.value, acceptance.lifetime.value) == pytest.approx((60 / 90, 60 / 90))
    assert picture.backend.speculation.draft_tokens_total == 90
    assert picture.speedup.requests == 1
    assert picture.backend.decode.value == pytest.approx(50.5), "101 tokens in 2 s"


def test_a_server_that_counts_less_than_the_note_says_is_another_one() -> None:
    state = checked()
    count(state, NOW, Counters(prompt_tokens=50, predicted_tokens=30, draft_tokens=20, accepted_tokens=10))
    assert seen(state).backend.speculation.acceptance.lifetime.value == pytest.approx(0.5)
