"""In any order of any readings no rule fails, and the same readings make the same alerts."""

from hypothesis import given
from hypothesis import strategies as st

from insight.rules.judging import LOADING, OK, WALL, Watch
from specdash.core.readings import Counters, FailureKind, Health, HealthStatus, ProcessTree, Slot, Slots, Source

FAILURES = st.sampled_from(list(FailureKind))
AMOUNTS = st.one_of(st.none(), st.floats(0, 1e9))
NUMBERS = st.one_of(st.none(), st.integers(0, 10**6))
TOTALS = ("prompt_tokens", "predicted_tokens", "decode_calls", "draft_tokens", "accepted_tokens", "requests_processing")
COUNTS = ("task", "n_decoded", "n_prompt_tokens_processed", "n_prompt_tokens", "n_ctx")
SLOT = st.builds(
    Slot,
    id=st.integers(0, 3),
    is_processing=st.booleans(),
    speculative=st.one_of(st.none(), st.booleans()),
    **dict.fromkeys(COUNTS, NUMBERS),
)
PROCESS = st.builds(
    ProcessTree,
    pid=st.integers(1, 3),
    name=st.one_of(st.none(), st.just("x")),
    started_wall=st.one_of(st.none(), st.floats(WALL - 1e6, WALL)),
    cpu_cores=st.one_of(st.none(), st.floats(0, 8)),
    stopped=st.sampled_from(((), (1,))),
    processes=st.integers(1, 3),
)
READINGS = {
    "health": st.one_of(st.sampled_from([OK, LOADING, Health(HealthStatus.ERROR, "no")]), FAILURES),
    "metrics": st.one_of(st.builds(Counters, **dict.fromkeys(TOTALS, AMOUNTS)), FAILURES),
    "slots": st.one_of(st.lists(SLOT, max_size=3).map(lambda slots: Slots(tuple(slots))), FAILURES),
    "process": st.one_of(PROCESS, FAILURES),
}
PAUSES = st.sampled_from((0.1, 1.0, 1.0, 7.0, 100.0))
STEPS = st.lists(st.tuples(PAUSES, st.fixed_dictionaries({}, optional=READINGS)), max_size=40)


@given(STEPS)
def test_no_reading_makes_a_rule_fail_and_the_same_readings_make_the_same_alerts(
    steps: list[tuple[float, dict[str, object]]],
) -> None:
    first, second = Watch(), Watch()
    for watch in (first, second):
        for pause, readings in steps:
            watch.at += pause
            for name, value in readings.items():
                watch.read(Source(name), value)
            assert [pair for pair in watch.state.alerts.picture().unjudged if "failed" in pair[1]] == []
    assert first.heard.events == second.heard.events
