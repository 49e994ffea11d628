"""The proxy in the picture: true for all that the proxy and its events give, bounded, and never a made-up zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import WALL, tell
from specdash.core.proxy_events import (
    ActiveView,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvents,
    ProxyStatus,
    RequestEvent,
    RequestOutcome,
    RequestPhase,
    SessionView,
)
from specdash.core.readings import FailureKind, ReadingStatus
from specdash.core.target import Target
from specdash.insight.picture import SERIES_COLUMNS, ProxyPicture, ProxyWindow
from specdash.insight.proxy.proxy import KEPT_REQUESTS
from specdash.insight.request import acceptance, cache_share, ended_how, prefill_progress
from specdash.insight.state import TargetState

TARGET = Target("http://127.0.0.1:1", proxy_url="http://127.0.0.1:4000", proxy_log="/p/events.jsonl")
DONE = RequestEvent(WALL - 10, "s1", "r1", duration_s=2.0, ttft_s=0.5, draft_tokens=10, accepted_tokens=7)


def seen(at: float = 1.0, target: Target = TARGET, **readings: object) -> TargetState:
    return tell(TargetState(target), at, **readings)


def events(*several: object) -> ProxyEvents:
    return ProxyEvents(tuple(several))  # type: ignore[arg-type]


def picture(state: TargetState, now: float = 2.0, window_s: float = 300.0) -> ProxyPicture:
    return state.picture(now, WALL, window_s).proxy


def acted(guardrail: Guardrail, action: GuardrailAction = GuardrailAction.APPLIED, ago: float = 5.0) -> GuardrailEvent:
    return GuardrailEvent(WALL - ago, "s1", guardrail, action)


def test_nothing_is_known_before_anything_was_seen() -> None:
    bare = picture(seen(target=Target("http://127.0.0.1:1")))
    assert (bare.configured, "--proxy-url" in bare.reason) == (False, True)
    named = picture(seen())
    assert (named.configured, named.live, named.reason) == (True, None, "no answer yet")
    assert named.window == ProxyWindow()
    only_log = picture(seen(target=replace(TARGET, proxy_url=None)))
    assert only_log.reason.startswith("only its log is known")


def test_a_dead_proxy_keeps_its_last_picture_as_stale_and_shows_nothing_as_running() -> None:
    active = (ActiveView("r", "s", WALL),)
    running = seen(proxy=ProxyStatus(active=active))
    assert picture(running).running == active
    dead = picture(tell(running, 3.0, proxy=FailureKind.REFUSED), now=4.0)
    assert (dead.status, dead.running) == (ReadingStatus.STALE, ())
    assert dead.live is not None
    assert "connection refused" in dead.reason


LEFT = replace(
    DONE, outcome=RequestOutcome.CLIENT_LEFT, draft_tokens=30, accepted_tokens=3, ttft_s=1.5, prompt_tokens=300,
    cached_tokens=300,
)  # fmt: skip
FAILED = replace(DONE, outcome=RequestOutcome.ERROR, draft_tokens=None, ttft_s=None, prompt_tokens=100, cached_tokens=0)
OLD = replace(DONE, at=WALL - 4000)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([OLD, DONE, FAILED, LEFT], ProxyWindow(3, 1, 1, 1 / 3, 1.0, None, 10 / 40, 0.75)),
        ([OLD], ProxyWindow(0, 0, 0)),
        ([acted(Guardrail.LOOP_BREAKER)], ProxyWindow()),
        # Ends without a status are requests and no errors.
        ([replace(DONE, status=None, ttft_s=None, draft_tokens=None, duration_s=None)], ProxyWindow(1)),
    ],
)
def test_figures_of_the_window_are_those_of_the_requests_that_ended_in_it(
    ended: list[object], expected: ProxyWindow
) -> None:
    assert picture(seen(proxy_events=events(*ended))).window == expected


def test_a_proxy_that_turns_up_is_shown_and_another_one_brings_nothing_of_the_first() -> None:
    state = seen(target=Target("http://127.0.0.1:1"))
    state.retarget(replace(TARGET, proxy_origin="run record of process 7"))
    found = picture(tell(state, 1.0, proxy=ProxyStatus(requests=3), proxy_events=events(DONE)))
    assert (found.url, found.origin, found.finished) == (TARGET.proxy_url, "run record of process 7", (DONE,))
    state.retarget(replace(TARGET, proxy_url="http://127.0.0.1:4001"))
    found = picture(state)
    assert (found.live, found.reason, found.finished) == (None, "no answer yet", (DONE,))
    state.retarget(replace(TARGET, proxy_log="/p/other.jsonl"))
    assert (picture(state).finished, picture(state).window.requests) == ((), None)


MALFORMED = Guardrail.MALFORMED_TOOL


@pytest.mark.parametrize(
    ("acts", "looks", "now", "counts"),
    [
        # In the window and in all; the total is the proxy's own where it has one.
        ([acted(Guardrail.LOOP_BREAKER), acted(MALFORMED, GuardrailAction.DETECTED, 4000.0),
          acted(MALFORMED, GuardrailAction.DETECTED), acted(MALFORMED, GuardrailAction.RECOVERED)],
         [], 2.0, [("malformed_tool", 2, 3), ("loop_breaker", 1, 1)]),
        ([acted(Guardrail.LOOP_BREAKER)], [(1, 0, 40)], 2.0, [("loop_breaker", 1, 40)]),
        # Without events by the growth of its counters, which begin again with another proxy.
        ([], [(1, 0, 40), (100, 0, 43), (110, 0, 43)], 120.0, [("loop_breaker", 3, 43)]),
        ([], [(1, 0, 40), (100, 0, 43), (110, 0, 43)], 900.0, [("loop_breaker", 0, 43)]),
        ([], [(1, 1, 40), (9, 8, 41)], 10.0, [("loop_breaker", 0, 41)]),
    ],
)  # fmt: skip
def test_guardrails_are_counted_in_the_window_and_in_all(
    acts: list[object], looks: list[tuple[float, float, int]], now: float, counts: list[tuple[str, int, int]]
) -> None:
    """`looks` at the proxy have their time, the proxy's start, and how many loops it counted."""
    state = seen(proxy_events=events(*acts)) if acts else seen()
    for at, started, count in looks:
        tell(state, at, proxy=ProxyStatus(started=started, counters={"loop_breaker:applied": count}))
    found = picture(state, now=now).guardrails
    assert [(one.guardrail, one.window, one.total) for one in found] == counts
    assert [sum(one.series or ()) for one in found] == [one.window for one in found]


@given(st.lists(st.floats(0, 10_000), max_size=50), st.sampled_from([60.0, 300.0, 900.0, 3600.0]))
def test_columns_hold_every_count_of_the_window_once(came: list[float], window_s: float) -> None:
    now, width = WALL + 10_000, window_s / SERIES_COLUMNS
    actions = [replace(acted(Guardrail.LOOP_BREAKER), at=WALL + at) for at in sorted(came)]
    first = (now // width - SERIES_COLUMNS + 1) * width
    found = seen(proxy_events=events(*actions)).picture(1.0, now, window_s).proxy.guardrails
    assert sum(sum(one.series or ()) for one in found) == sum(first <= int(WALL + at) for at in came)


def test_what_is_kept_is_bounded_and_the_newest_come_first() -> None:
    done = events(*(replace(DONE, request_id=f"r{i}") for i in range(KEPT_REQUESTS + 50)))
    finished = picture(seen(proxy_events=done)).finished
    assert (len(finished), finished[0].request_id) == (KEPT_REQUESTS, f"r{KEPT_REQUESTS + 49}")
    many = [replace(acted(Guardrail.LOOP_BREAKER), guardrail=f"newer {index}") for index in range(1000)]
    assert len(seen(proxy_events=events(*many)).proxy._acted) <= 64


def test_the_fullest_session_is_the_one_that_uses_most_of_its_own_window() -> None:
    unknown = SessionView("?", WALL)
    big = SessionView("big", WALL, context_tokens=50_000, context_window=200_000)
    full = SessionView("full", WALL, context_tokens=7_000, context_window=8_000)
    assert picture(seen(proxy=ProxyStatus(sessions=(unknown, big, full)))).fullest == full
    assert picture(seen(proxy=ProxyStatus(sessions=(unknown,)))).fullest is None


def test_what_a_request_does_not_have_is_unknown() -> None:
    bare = ActiveView("r", "s", WALL, RequestPhase.PREFILL)
    assert (acceptance(bare), cache_share(bare), prefill_progress(bare)) == (None, None, None)
    assert prefill_progress(replace(bare, prompt_tokens=100, prompt_done=40)) == pytest.approx(0.4)
    assert prefill_progress(replace(bare, phase=RequestPhase.WAITING, prompt_tokens=100)) is None
    assert acceptance(replace(bare, draft_tokens=0, accepted_tokens=0)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop_reason": "tool_use"}, "tool_use"),
        ({"outcome": RequestOutcome.ERROR, "status": 529}, "HTTP 529"),
        ({"outcome": RequestOutcome.ERROR, "status": None}, "error"),
        ({"outcome": RequestOutcome.ERROR, "error_type": "api_error"}, "api_error"),
        ({"outcome": RequestOutcome.CLIENT_LEFT}, "client left"),
    ],
)
def test_its_end_is_in_the_words_of_the_protocol(changes: dict[str, object], words: str) -> None:
    assert ended_how(replace(DONE, **changes)) == words
