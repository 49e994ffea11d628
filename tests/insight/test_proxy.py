"""The proxy in the picture: true for whatever the proxy and its events tell, bounded, and never a made-up zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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
from specdash.core.readings import FailureKind, Reading, ReadingStatus, Source
from specdash.core.target import Target
from specdash.insight.log.counter_log import KEEP_S
from specdash.insight.picture import SERIES_COLUMNS, ProxyPicture, acceptance, cache_share, ended_how, prefill_progress
from specdash.insight.proxy.proxy import KEPT_REQUESTS, RateTally
from specdash.insight.state import TargetState

TARGET = Target("http://127.0.0.1:1", proxy_url="http://127.0.0.1:4000", proxy_log="/p/events.jsonl")
WALL = 1_700_000_000.0
DONE = RequestEvent(WALL - 10, "s1", "r1", duration_s=2.0, ttft_s=0.5, draft_tokens=10, accepted_tokens=7)


def state(target: Target = TARGET) -> TargetState:
    return TargetState(target)


def told(*readings: Reading[object], target: Target = TARGET) -> TargetState:
    target_state = state(target)
    for reading in readings:
        target_state.apply(reading)
    return target_state


def events(*several: object, at: float = 1.0) -> Reading[object]:
    return Reading.known(Source.PROXY_EVENTS, at, ProxyEvents(tuple(several)))  # type: ignore[arg-type]


def status(at: float = 1.0, **fields: object) -> Reading[object]:
    return Reading.known(Source.PROXY, at, replace(ProxyStatus(), **fields))


def picture(target_state: TargetState, now: float = 2.0, window_s: float = 300.0) -> ProxyPicture:
    return target_state.picture(now, WALL, window_s).proxy


def acted(guardrail: Guardrail, action: GuardrailAction = GuardrailAction.APPLIED, ago: float = 5.0) -> GuardrailEvent:
    return GuardrailEvent(WALL - ago, "s1", guardrail, action)


def test_without_a_proxy_the_picture_says_how_to_name_one() -> None:
    bare = picture(state(Target("http://127.0.0.1:1")))
    assert not bare.configured
    assert "--proxy-url" in bare.reason


def test_nothing_is_known_before_anything_was_seen() -> None:
    proxy_picture = picture(state())
    assert proxy_picture.configured
    assert proxy_picture.live is None
    assert (proxy_picture.window.requests, proxy_picture.window.error_rate, proxy_picture.window.acceptance) == (
        None,
        None,
        None,
    )
    assert proxy_picture.reason == "no answer yet"


def test_a_dead_proxy_keeps_its_last_picture_as_stale_and_shows_nothing_as_running() -> None:
    active = (ActiveView("r", "s", WALL),)
    refused = Reading[object].unknown(Source.PROXY, 3.0, FailureKind.REFUSED, "nothing listens there")
    proxy_picture = picture(told(status(active=active), refused), now=4.0)
    assert proxy_picture.status is ReadingStatus.STALE
    assert proxy_picture.live is not None
    assert proxy_picture.running == ()
    assert "connection refused" in proxy_picture.reason
    assert picture(told(status(active=active))).running == active


def test_figures_of_the_window_are_those_of_the_requests_that_ended_in_it() -> None:
    failed = replace(DONE, outcome=RequestOutcome.ERROR, error_type="overloaded_error", draft_tokens=None, ttft_s=None)
    left = replace(DONE, outcome=RequestOutcome.CLIENT_LEFT, draft_tokens=30, accepted_tokens=3, ttft_s=1.5)
    old = replace(DONE, at=WALL - 4000)
    failed, left = (
        replace(failed, prompt_tokens=100, cached_tokens=0),
        replace(left, prompt_tokens=300, cached_tokens=300),
    )
    window = picture(told(events(old, DONE, failed, left))).window
    assert window.cache_share == pytest.approx(0.75)
    assert (window.requests, window.errors, window.clients_left) == (3, 1, 1)
    assert window.error_rate == pytest.approx(1 / 3)
    assert window.acceptance == pytest.approx(10 / 40)
    assert window.ttft_p50_s == pytest.approx(1.0)


def test_a_window_in_which_nothing_ended_has_no_rates() -> None:
    window = picture(told(events(replace(DONE, at=WALL - 4000)))).window
    assert window.requests == 0
    assert (window.error_rate, window.acceptance, window.ttft_p50_s, window.cache_share) == (None,) * 4


def test_a_log_that_tells_of_no_requests_does_not_make_them_zero() -> None:
    assert picture(told(events(acted(Guardrail.LOOP_BREAKER)))).window.requests is None


def test_ends_without_a_status_make_requests_but_no_errors() -> None:
    partial = replace(DONE, status=None, ttft_s=None, draft_tokens=None, duration_s=None)
    window = picture(told(events(partial))).window
    assert (window.requests, window.errors, window.clients_left, window.error_rate) == (1, None, None, None)
    assert ended_how(replace(partial, outcome=RequestOutcome.ERROR)) == "error"


def test_a_proxy_that_turns_up_is_shown_and_another_one_brings_nothing_of_the_first() -> None:
    target_state = told(target=Target("http://127.0.0.1:1"))
    assert not picture(target_state).configured
    target_state.retarget(replace(TARGET, proxy_origin="run record of process 7"))
    target_state.apply(status(requests=3))
    target_state.apply(events(DONE))
    assert (picture(target_state).url, picture(target_state).origin) == (TARGET.proxy_url, "run record of process 7")
    assert picture(target_state).finished == (DONE,)
    target_state.retarget(replace(TARGET, proxy_url="http://127.0.0.1:4001"))
    assert picture(target_state).live is None
    assert picture(target_state).reason == "no answer yet"
    assert picture(target_state).finished == (DONE,)
    target_state.retarget(replace(TARGET, proxy_log="/p/other.jsonl"))
    assert picture(target_state).finished == ()
    assert picture(target_state).window.requests is None


def test_requests_are_bounded_and_the_newest_come_first() -> None:
    many = [replace(DONE, request_id=f"r{i}") for i in range(KEPT_REQUESTS + 50)]
    finished = picture(told(events(*many))).finished
    assert len(finished) == KEPT_REQUESTS
    assert finished[0].request_id == f"r{KEPT_REQUESTS + 49}"


def test_guardrails_are_counted_in_the_window_and_in_all() -> None:
    target_state = told(
        events(
            acted(Guardrail.LOOP_BREAKER),
            acted(Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, 4000.0),
            acted(Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED),
            acted(Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED),
        )
    )
    malformed, loops = picture(target_state).guardrails
    assert (malformed.guardrail, malformed.window, malformed.total) == ("malformed_tool", 2, 3)
    assert malformed.actions == (("detected", 2), ("recovered", 1))
    assert (loops.window, sum(loops.series or ())) == (1, 1)


def test_totals_are_the_proxys_own_where_it_tells_them() -> None:
    target_state = told(status(counters={"loop_breaker:applied": 40}), events(acted(Guardrail.LOOP_BREAKER)))
    (loops,) = picture(target_state).guardrails
    assert (loops.window, loops.total) == (1, 40)


def test_without_events_the_growth_of_the_counters_tells_what_happened_in_the_window() -> None:
    name = "loop_breaker:applied"
    target_state = told(
        status(1.0, counters={name: 40}), status(100.0, counters={name: 43}), status(110.0, counters={name: 43})
    )
    (loops,) = picture(target_state, now=120.0).guardrails
    assert (loops.window, loops.total) == (3, 43)
    assert picture(target_state, now=900.0).guardrails[0].window == 0


def test_a_restarted_proxy_counts_anew_and_never_backwards() -> None:
    name = "loop_breaker:applied"
    target_state = told(status(1.0, started=1.0, counters={name: 40}), status(9.0, started=8.0, counters={name: 41}))
    (loops,) = picture(target_state, now=10.0).guardrails
    assert (loops.window, loops.total) == (0, 41)


def test_the_fullest_session_is_the_one_that_uses_most_of_its_own_window() -> None:
    big = SessionView("big", WALL, context_tokens=50_000, context_window=200_000)
    full = SessionView("full", WALL, context_tokens=7_000, context_window=8_000)
    fullest = picture(told(status(sessions=(SessionView("?", WALL), big, full)))).fullest
    assert fullest == full
    assert picture(told(status(sessions=(SessionView("?", WALL),)))).fullest is None


def test_what_a_request_does_not_tell_is_unknown() -> None:
    bare = ActiveView("r", "s", WALL, RequestPhase.PREFILL)
    assert (acceptance(bare), cache_share(bare), prefill_progress(bare)) == (None, None, None)
    assert prefill_progress(replace(bare, prompt_tokens=100, prompt_done=40)) == pytest.approx(0.4)
    assert prefill_progress(replace(bare, phase=RequestPhase.WAITING, prompt_tokens=100)) is None
    assert acceptance(replace(bare, draft_tokens=0, accepted_tokens=0)) is None


def test_an_end_is_told_in_the_words_of_the_protocol() -> None:
    assert ended_how(replace(DONE, stop_reason="tool_use")) == "tool_use"
    assert ended_how(replace(DONE, outcome=RequestOutcome.ERROR, status=529)) == "HTTP 529"
    assert ended_how(replace(DONE, outcome=RequestOutcome.ERROR, error_type="api_error")) == "api_error"
    assert ended_how(replace(DONE, outcome=RequestOutcome.CLIENT_LEFT)) == "client left"


@given(
    st.lists(st.tuples(st.floats(0, 10_000), st.integers(1, 5)), max_size=50),
    st.sampled_from([60.0, 300.0, 900.0, 3600.0]),
)
def test_columns_hold_every_count_of_the_window_once(came: list[tuple[float, int]], window_s: float) -> None:
    tally, now = RateTally(), 10_000.0
    for at, count in sorted(came):
        tally.add(at, "x", count)
    columns = tally.columns("x", now, window_s, SERIES_COLUMNS)
    width = window_s / SERIES_COLUMNS
    first = (now // width - SERIES_COLUMNS + 1) * width
    assert sum(columns) == sum(count for at, count in came if first <= int(at))
    assert tally.count("nothing", now, window_s) == 0


@pytest.mark.slow
def test_a_tally_is_bounded_in_time_and_in_names() -> None:
    tally = RateTally()
    for second in range(20_000):
        tally.add(float(second), "x")
    for index in range(1000):
        tally.add(1.0, f"name {index}")
    assert len(tally._names["x"]._times) <= 1.05 * KEEP_S + 2
    assert len(tally._names) <= 64
