"""What a dashboard holds is bounded: hours of a busy server, with more sessions than any list shows, grow nothing."""

import gc
from collections import deque
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import pytest

from specdash.core.target import Target
from specdash.insight.state import TargetState
from support.busy_proxy import BusyServer

TARGET = Target("http://127.0.0.1:8080", proxy_url="http://127.0.0.1:4000")
MOST = 5000
"""Of anything that is kept one by one: the tail of the log is the longest."""


def containers(value: Any, path: str, seen: set[int], depth: int = 6) -> Iterator[tuple[str, int]]:
    """The sizes of all lists, tables and queues that hang on an object of specdash, by where they are."""
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    if isinstance(value, str | bytes):
        return
    if isinstance(value, Sized):
        yield path, len(value)
    if isinstance(value, Mapping):
        for key, entry in list(value.items())[:3]:
            yield from containers(entry, f"{path}[{type(key).__name__}]", seen, depth - 1)
    elif isinstance(value, list | tuple | deque):
        for entry in list(value)[-3:]:
            yield from containers(entry, f"{path}[]", seen, depth - 1)
    elif type(value).__module__.startswith("specdash"):
        slots = (name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()))
        for name in {*slots, *getattr(value, "__dict__", ())}:
            yield from containers(getattr(value, name, None), f"{path}.{name}", seen, depth - 1)


def sizes(state: TargetState) -> dict[str, int]:
    found: dict[str, int] = {}
    for path, size in containers(state, "state", set()):
        found[path] = max(size, found.get(path, 0))
    return found


def fed(state: TargetState, server: BusyServer, seconds: int) -> None:
    for readings in server.seconds(seconds):
        # Rules are judged once a minute: what they keep is by the clock, and judging is most of the time.
        is_judged = int(server.at) % 60 == 0
        for reading in readings:
            state.apply(reading) if is_judged else state.take_unjudged(reading)
        if is_judged:
            state.picture(server.at + 1, server.wall + 1, 300.0)


@pytest.mark.slow
def test_what_is_kept_of_hours_with_many_sessions_is_bounded() -> None:
    server = BusyServer(sessions=400, requests=4)
    state = TargetState(TARGET, wall_offset=lambda: server.wall - server.at)
    fed(state, server, 4200)
    gc.collect()
    first = sizes(state)
    assert len(first) > 50, "the walk has lost its way"
    assert {path: size for path, size in first.items() if size > MOST} == {}
    server.sessions = 5000
    fed(state, server, 2400)
    gc.collect()
    grown = {
        path: (first[path], size)
        for path, size in sizes(state).items()
        if path in first and size > first[path] * 1.1 + 64
    }
    assert grown == {}
