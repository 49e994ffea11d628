"""Looking changes nothing: a picture is derived from the state and writes nothing to it, whoever asks for it."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insight.experiment_data import record
from specdash.core.log_facts import LogBatch, Touched, WarningTally
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.target import Target
from specdash.insight import derive
from specdash.insight.state import Memo, TargetState
from support.busy_proxy import BusyServer
from support.drawn_readings import values


def digest(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """All that hangs on an object of ours, as plain values. Memos are left out: nothing depends on them."""
    if id(value) in seen or isinstance(value, Memo | Callable):
        return None
    seen |= {id(value)}
    if isinstance(value, Mapping):
        return [(str(key), digest(entry, seen)) for key, entry in value.items()]
    if isinstance(value, list | tuple | deque):
        return [digest(entry, seen) for entry in value]
    if type(value).__module__.startswith("specdash") and not isinstance(value, str):
        slots = (name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()))
        names = sorted({*slots, *getattr(value, "__dict__", ())})
        return [(name, digest(getattr(value, name, None), seen)) for name in names]
    return repr(value)


@pytest.fixture(scope="module")
def watched() -> tuple[TargetState, BusyServer]:
    """A minute of a busy server behind a proxy, with an apply in the middle."""
    server = BusyServer(sessions=20, requests=2)
    state = TargetState(Target("http://127.0.0.1:8080", proxy_url="http://127.0.0.1:4000"), wall_offset=lambda: 1e9)
    for readings in server.seconds(60):
        for reading in readings:
            state.apply(reading)
    warnings = (WarningTally("find_slot_non_consecutive", 9, 1.0, 2.0, "find_slot: ...", Touched((0,))),)
    state.apply(Reading.known(Source.LOG, server.at, LogBatch(9, warnings=warnings)))
    state.apply(Reading.known(Source.APPLIES, server.at, (record(1, server.wall - 30, ended_at=server.wall - 25),)))
    state.picture(server.at, server.wall)
    return state, server


@pytest.mark.parametrize("for_rules", [False, True])
def test_a_picture_of_any_moment_and_window_leaves_the_state_as_it_was(
    watched: tuple[TargetState, BusyServer], *, for_rules: bool
) -> None:
    state, server = watched
    before = digest(state)
    for later_s in (0.0, 7.5, 900.0):
        for window_s in (10.0, 60.0, 3600.0):
            derive.picture(state, server.at + later_s, server.wall + later_s, window_s, for_rules=for_rules)
    assert digest(state) == before


@given(st.lists(st.tuples(st.floats(0.0, 20.0), values), max_size=25), st.permutations([10.0, 60.0, 300.0, 3600.0]))
def test_looking_changes_nothing_and_no_window_changes_another(
    steps: list[tuple[float, tuple[Source, object]]], windows: list[float]
) -> None:
    told, now = TargetState(Target("http://127.0.0.1:8080"), wall_offset=lambda: 0.0), 100.0
    for step, (source, value) in steps:
        now += step
        told.apply(
            Reading.unknown(source, now, value) if isinstance(value, FailureKind) else Reading.known(source, now, value)
        )
    told.picture(now, now, 60.0)
    before = digest(told)
    alone = {window_s: told.picture(now, now, window_s) for window_s in sorted(windows)}
    assert {window_s: told.picture(now, now, window_s) for window_s in windows} == alone
    assert digest(told) == before
