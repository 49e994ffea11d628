"""Looking changes nothing: a picture is derived from the state and writes nothing to it, whoever asks for it."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import ActiveView, ProxyStatus, SessionView
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.target import Target
from specdash.insight import derive
from specdash.insight.state import TargetState
from support.drawn_readings import values


def digest(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """All that hangs on an object of ours, as plain values, but for what only saves time."""
    if id(value) in seen or callable(value):
        return None
    seen |= {id(value)}
    if isinstance(value, Mapping):
        return [(str(key), digest(entry, seen)) for key, entry in value.items()]
    if isinstance(value, list | tuple | deque):
        return [digest(entry, seen) for entry in value]
    if type(value).__module__.startswith("specdash") and not isinstance(value, str):
        slots = (name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()))
        names = sorted({*slots, *getattr(value, "__dict__", ())} - {"speedups"})
        return [(name, digest(getattr(value, name, None), seen)) for name in names]
    return repr(value)


PROXIES = st.builds(
    lambda count: ProxyStatus(
        requests=count,
        sessions=(SessionView("s", 1e9, context_tokens=count, context_window=2 * count + 1),),
        active=(ActiveView("r", "s", 1e9),),
        counters={"narrowing:narrowed": count},
    ),
    st.integers(0, 1000),
)


@given(
    st.lists(st.tuples(st.floats(0.0, 20.0), values | st.tuples(st.just(Source.PROXY), PROXIES)), max_size=25),
    st.permutations([10.0, 60.0, 300.0, 3600.0]),
    st.sampled_from([7.5, 900.0]),
    st.booleans(),
)
def test_looking_changes_nothing_and_no_window_changes_another(
    steps: list[tuple[float, tuple[Source, object]]], windows: list[float], later_s: float, for_rules: bool
) -> None:
    target = Target("http://127.0.0.1:8080", proxy_url="http://127.0.0.1:4000")
    told, now = TargetState(target, wall_offset=lambda: 0.0), 100.0
    for step, (source, value) in steps:
        now += step
        told.apply(
            Reading.unknown(source, now, value) if isinstance(value, FailureKind) else Reading.known(source, now, value)
        )
    told.picture(now, now, 60.0)
    before = digest(told)
    alone = {window_s: told.picture(now, now, window_s) for window_s in sorted(windows)}
    assert {window_s: told.picture(now, now, window_s) for window_s in windows} == alone
    derive.picture(told, now + later_s, now + later_s, 60.0, for_rules=for_rules)
    assert digest(told) == before
