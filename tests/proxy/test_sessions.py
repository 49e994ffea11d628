"""Sessions: who is remembered, for how long, and what a turn teaches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import Usage
from specdash.proxy.sessions import ProxySession, SessionStore
from support.clock import Clock


def make_store(ttl: float = 100.0, cap: int = 3) -> tuple[SessionStore, Clock]:
    clock = Clock()
    return SessionStore(ttl, cap, clock, lambda: clock.now + 1_700_000_000), clock


def make_session() -> ProxySession:
    return ProxySession("s", 0.0)


def test_the_same_id_gives_the_same_session() -> None:
    store, _ = make_store()
    assert store.get("a") is store.get("a")
    assert store.find("b") is None
    assert len(store) == 1


def test_a_session_idle_for_longer_than_the_ttl_is_forgotten() -> None:
    store, clock = make_store(ttl=100)
    first = store.get("a")
    clock.now += 99
    assert store.find("a") is first
    clock.now += 2
    assert store.find("a") is None
    assert store.get("a") is not first


def test_latest_is_the_last_one_seen_active_or_not() -> None:
    store, _ = make_store()
    assert store.latest() is None
    first = store.get("a")
    store.enter(first)
    second = store.get("b")
    assert store.latest() is second
    store.leave(first)
    assert store.latest() is first


STEPS = st.lists(
    st.tuples(st.sampled_from(("get", "enter", "leave", "wait")), st.integers(0, 12), st.floats(0, 60)), max_size=80
)


@given(cap=st.integers(1, 6), steps=STEPS)
def test_the_cap_is_never_exceeded(cap: int, steps: list[tuple[str, int, float]]) -> None:
    store, clock = make_store(ttl=100, cap=cap)
    running: list[ProxySession] = []
    for what, number, seconds in steps:
        if what == "get":
            store.get(str(number))
        elif what == "enter":
            running.append(store.get(str(number)))
            store.enter(running[-1])
        elif what == "leave" and running:
            store.leave(running.pop(number % len(running)))
        else:
            clock.now += seconds
        assert len(store) <= cap
        assert len({proxy_session.id for proxy_session in store.all()}) == len(store)
    for proxy_session in running:
        store.leave(proxy_session)
    assert all(proxy_session.active == 0 for proxy_session in store.all())


def test_a_turn_says_what_it_used_of_the_window() -> None:
    session = make_session()
    assert session.utilisation(1000) is None
    session.turn_done(Usage(prompt=600, cached=100, completion=150), None, 1000)
    session.turn_done(Usage(prompt=400, completion=50), None, 1000)
    assert session.utilisation(1000) == pytest.approx(0.45)
    assert session.utilisation(None) is None
    assert (session.peak_tokens, session.peak_prompt_tokens) == (750, 600)
    view = session.view(1000)
    assert (view.context_tokens, view.context_window, view.output_tokens) == (450, 1000, 50)


@pytest.mark.parametrize(
    ("sizes", "remaining"),
    [
        ([], None),
        ([400], None),
        ([400, 500], 5),
        ([400, 300, 500], 2),
        ([400, 300], None),
        ([100, 200, 150, 450], 2),
        ([900, 1100], 0),
    ],
)
def test_turns_remaining_is_the_room_over_the_mean_growth(sizes: list[int], remaining: int | None) -> None:
    session = make_session()
    for size in sizes:
        session.turn_done(Usage(prompt=size), None, 1000)
    assert session.turns_remaining(1000) == remaining
    assert session.turns_remaining(None) is None


def test_the_scale_moves_only_when_the_ratio_moved_by_more_than_a_tenth() -> None:
    session = make_session()
    session.turn_done(Usage(prompt=10_900), 10_000, None)
    assert session.scale == 1.0
    session.turn_done(Usage(prompt=12_000), 10_000, None)
    assert session.scale == pytest.approx(1.2)
    session.turn_done(Usage(prompt=13_100), 10_000, None)
    assert session.scale == pytest.approx(1.2)


def test_forced_requests_are_counted_once_per_turn() -> None:
    session = make_session()
    for forced, messages in ((True, 3), (True, 3), (True, 5)):
        session.note_forced(forced, messages)
    assert session.forced_streak == 2
    session.note_forced(False, 7)
    assert session.forced_streak == 0
    session.note_forced(True, 7)
    assert session.forced_streak == 1


def test_pauses_are_between_an_answer_and_the_longer_request_that_follows() -> None:
    session = ProxySession("s", 0.0)
    session.note_arrival(1, 10.0)
    assert session.pause_s(1) is None
    for turn in range(1, 6):
        session.answered = 100.0 * turn
        session.note_arrival(1 + 2 * turn, 100.0 * turn + turn)
        session.note_arrival(1 + 2 * turn, 100.0 * turn + 50)
    assert list(session.pauses) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert session.pause_s(3) == 4.0
    assert session.pause_s(10) == 3.0
    assert session.pause_s(11) is None
