"""Before and after an apply: which requests count, and what may be said of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.experiment_data import CHANGE, T, record, requests, sides
from specdash.core.changes import ApplyKind, ApplyOutcome, Change, Role
from specdash.core.proxy_events import RequestEvent
from specdash.core.proxy_events import RequestOutcome as Ended
from specdash.core.readings import Reading, Source
from specdash.core.target import Target
from specdash.insight.experiments import (
    ENOUGH,
    ExperimentCard,
    Experiments,
    ExperimentVerdict,
    MeasureComparison,
    MeasureName,
    compare,
    restarted_at,
    short_text,
)
from specdash.insight.request import KEPT, Samples, ServedRequest
from specdash.insight.state import TargetState
from specdash.llama.log.parser import LogParser

NONE = sides((), ())
OFFSET = T - 5000.0
"""Unix time less the monotonic clock of these tests."""


def logged(ended: float, **fields: object) -> tuple[float, ServedRequest]:
    """A finished request of 2 s, by the monotonic clock of these tests."""
    request = ServedRequest(
        0, 1, prompt_ms=100.0, processed_tokens=200, decode_ms=1900.0, decode_tokens=95, finished=True
    )
    request.draft_generated, request.draft_accepted = 100, 60
    for name, value in fields.items():
        setattr(request, name, value)
    return ended - OFFSET, request


def told(experiments: Experiments, wall: float = T + 3600) -> ExperimentCard:
    experiments.settle(wall - OFFSET, wall)
    card = experiments.card(wall)
    assert card is not None
    return card


def counts(experiments: Experiments, name: MeasureName = MeasureName.DECODE) -> tuple[int, int]:
    measure = of(told(experiments).measures, name)
    return measure.before.count, measure.after.count


def of(measures: tuple[MeasureComparison, ...], name: MeasureName) -> MeasureComparison:
    return next(measure for measure in measures if measure.name is name)


def with_requests(*ends: float) -> Experiments:
    experiments = Experiments()
    for end in ends:
        experiments.samples.add_logged(*logged(end))
    return experiments


def test_requests_before_the_restart_and_after_the_end_count_but_for_the_first_and_the_probe() -> None:
    # The last before ends while the proxy drains; the probe runs within the apply; then comes a cold one.
    experiments = with_requests(T - 60, T - 30, T + 3.9, T + 8, T + 10.1, T + 13, T + 16, T + 19)
    experiments.records = (record(),)
    assert counts(experiments) == (3, 2)


def test_only_half_an_hour_back_and_only_since_the_apply_before() -> None:
    experiments = with_requests(T - 1900, T - 1700, T - 300, T - 200, T - 100)
    experiments.records = (record(2),)
    assert counts(experiments) == (4, 0)
    experiments.records = (record(1, T - 400), record(2))
    assert counts(experiments) == (2, 0), "and the first after it was cold"


def test_an_apply_that_was_rolled_back_ends_the_comparison_and_the_one_before_stays_the_subject() -> None:
    experiments = with_requests(T - 30, T + 13, T + 20, T + 104.5, T + 108, T + 115, T + 120)
    failed = record(2, T + 100, outcome=ApplyOutcome.ROLLED_BACK)
    refused = record(3, T + 117, outcome=ApplyOutcome.REFUSED)
    experiments.records = (record(1), failed, refused)
    card = told(experiments)
    assert card.mark.record.number == 1
    # T+13 was the first, and so cold; T+104.5 ran into the restart.
    assert counts(experiments) == (1, 1)


def test_after_a_rollback_that_failed_nobody_knows_what_runs() -> None:
    experiments = with_requests(T + 13, T + 20, T + 130, T + 140)
    experiments.records = (record(1), record(2, T + 100, outcome=ApplyOutcome.ROLLBACK_FAILED))
    assert counts(experiments) == (0, 1)


def test_a_rollback_is_an_experiment_too_and_an_apply_without_a_change_is_none() -> None:
    experiments = Experiments()
    experiments.records = (record(1), record(2, T + 100, kind=ApplyKind.ROLLBACK), record(3, T + 200, changes=()))
    assert told(experiments).mark.record.number == 2
    experiments.records = (record(1, outcome=ApplyOutcome.REFUSED),)
    experiments.settle(0.0, T)
    assert experiments.card(T) is None


def test_cancelled_failed_and_cut_off_requests_do_not_count() -> None:
    experiments = Experiments()
    for fields in ({"cancelled": True}, {"error": "x"}, {"finished": False}, {}):
        experiments.samples.add_logged(*logged(T - 10, **fields))
    experiments.records = (record(),)
    assert counts(experiments) == (1, 0)


def event(at: float, name: str, **fields: object) -> RequestEvent:
    figures = {"duration_s": 2.0, "ttft_s": 0.3, "decode_rate": 40.0, "prefill_rate": 900.0, "prompt_tokens": 400}
    return RequestEvent(at, "s", name, completion_tokens=80, **{**figures, **fields})  # type: ignore[arg-type]


def test_the_proxys_events_give_the_first_token_and_the_log_does_where_there_are_none() -> None:
    experiments = with_requests(*(T - 100 + second for second in range(20)))
    experiments.records = (record(),)
    assert of(told(experiments).measures, MeasureName.TTFT).source == "log: prompt time"
    assert of(told(experiments).measures, MeasureName.TTFT).before.value == pytest.approx(0.1)
    experiments.samples.add_event(event(T - 50, "a"))
    experiments.samples.add_event(event(T - 40, "b"))
    measure = of(told(experiments).measures, MeasureName.TTFT)
    assert (measure.source, measure.before.value, measure.before.count) == ("proxy events", 0.3, 2)
    assert of(told(experiments).measures, MeasureName.DECODE).source == "log"


def test_the_source_that_suffices_comes_before_the_one_that_is_preferred() -> None:
    experiments = with_requests(*(T - 100 + second for second in range(20)), *(T + 20 + i for i in range(20)))
    experiments.records = (record(),)
    experiments.samples.add_event(event(T - 50, "a"))
    assert of(told(experiments).measures, MeasureName.TTFT).source == "log: prompt time"


def test_events_that_tell_of_something_else_do_not_count_and_none_counts_twice() -> None:
    samples = Samples()
    for bad in ({"outcome": Ended.ERROR}, {"retries": 1}, {"held_s": 3.0}, {"duration_s": None}):
        samples.add_event(event(T, "x", **bad))
    assert not samples.reported
    for _ in range(3):
        samples.add_event(event(T, "x"))
    assert len(samples.reported) == 1


def test_what_is_kept_is_bounded_and_both_sides_of_an_apply_outlive_it() -> None:
    experiments = with_requests(*(T - 500 + number for number in range(300)))
    experiments.records = (record(),)
    assert counts(experiments) == (200, 0)
    for number in range(KEPT + 500):
        experiments.samples.add_logged(*logged(T + 20 + number))
        experiments.samples.add_event(event(T + 20 + number, str(number)))
        if number % 1000 == 0:
            told(experiments)
    first = told(experiments).measures
    assert counts(experiments) == (200, 200)
    assert len(experiments.samples.logged) == KEPT
    assert len(experiments.samples.reported) == KEPT
    experiments.samples.add_logged(*logged(T + 9000, decode_ms=1.0))
    assert told(experiments).measures == first, "the 200 next to the apply are compared, whatever comes later"


def test_a_request_keeps_its_date_when_the_wall_clock_is_set() -> None:
    experiments = with_requests(T - 10)
    experiments.records = (record(),)
    assert counts(experiments) == (1, 0)
    wall = T + 9000
    experiments.settle(100.0, wall)
    assert counts(experiments) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ((CHANGE,), "DRAFT_MAX 4→12"),
        ((Change(Role.BACKEND, "LLAMA_DRAFT_MIN", None, "2"),), "DRAFT_MIN unset→2"),
        ((Change(Role.PROXY, "PROXY_X", "", "a" * 40), CHANGE), 'X ""→aaaaaaaaaaaaaaa… +1'),
        ((Change(Role.BACKEND, "LLAMA_MODEL", "/models/a.gguf", "/models/b.gguf"),), "MODEL a.gguf→b.gguf"),
        ((), "apply"),
    ],
)
def test_the_short_text_says_what_changed(changes: tuple[Change, ...], text: str) -> None:
    assert short_text(record(changes=changes)) == text


def test_the_restart_is_where_its_step_began_and_else_the_begin() -> None:
    assert restarted_at(record()) == T + 4.0
    assert restarted_at(record(step_seconds={})) == T
    assert restarted_at(record(step_seconds={"drain": 900.0, "restart": 1.0})) == T + 10.0


def answers(build: int, count: int, accepted: int, drafted: int) -> bytes:
    """What a server of this build writes of its start and of its requests."""
    lines = [
        "0.00.001.204 I srv  llama_server: initializing ...",
        f"0.00.003.900 I cmn  common_para: build {build} (aa11bb22c) with Clang 22.1.5 for Linux x86_64",
    ]
    for task in range(count):
        at = f"0.{30 + task}.000.10"
        lines += [
            f"{at}0 I slot launch_slot_: id  0 | task {task} | processing task, is_child = 0",
            (
                f"{at}1 I slot print_timing: id  0 | task {task} |        eval time =     900.00 ms /   457 tokens "
                "(   87.53 ms per token,    11.43 tokens per second)"
            ),
            (
                f"{at}2 I slot print_timing: id  0 | task {task} | draft acceptance = 0.5 ( {accepted} accepted / "
                f"{drafted} generated), mean len =  2.90"
            ),
            f"{at}3 I slot      release: id  0 | task {task} | stop processing: n_tokens = 757, truncated = 0",
        ]
    return "\n".join([*lines, ""]).encode()


def test_a_restart_whose_build_changed_gets_its_card() -> None:
    state, parser = TargetState(Target("http://x"), wall_offset=lambda: OFFSET), LogParser()
    for at, log in ((T, answers(9234, 14, 382, 600)), (T + 100, answers(9235, 15, 213, 898))):
        state.apply(Reading.known(Source.LOG, at - OFFSET, parser.feed(log)))
        state.picture(at - OFFSET, at)
    picture = state.picture(T + 110 - OFFSET, T + 110)
    card = picture.experiment
    assert card is not None
    assert (card.mark.name, card.mark.text, picture.applies) == ("restart", "build 9234→9235", ())
    acceptance = of(card.measures, MeasureName.ACCEPTANCE)
    assert (acceptance.before.count, acceptance.after.count) == (14, 14), "the first after a restart is cold"
    assert acceptance.before.value == pytest.approx(382 / 600)
    assert acceptance.after.value == pytest.approx(213 / 898)
    assert acceptance.verdict is ExperimentVerdict.WORSE


# What may be said -----------------------------------------------------------------------------------------------------


def measured(before: list[ServedRequest], after: list[ServedRequest]) -> dict[MeasureName, MeasureComparison]:
    return {measure.name: measure for measure in compare(sides(before, after), NONE)}


def test_a_difference_that_two_starts_of_one_configuration_have_is_none() -> None:
    before = [replace(request, proxy_rates=(None, 50.0)) for request in requests(random.Random(3), T, 30)]
    after = [replace(request_sample, proxy_rates=(None, 50.9)) for request_sample in before]
    found = measured(before, after)[MeasureName.DECODE]
    assert found.verdict is ExperimentVerdict.UNCLEAR
    assert found.change == pytest.approx(0.018)
    faster = [replace(request_sample, proxy_rates=(None, 51.1)) for request_sample in before]
    assert measured(before, faster)[MeasureName.DECODE].verdict is ExperimentVerdict.BETTER


samples = st.builds(
    requests,
    st.integers(0, 10**6).map(random.Random),
    st.just(T),
    st.integers(ENOUGH, 60),
    speed=st.floats(5.0, 200.0),
    rate=st.floats(0.2, 0.9),
    noise=st.floats(0.01, 0.6),
)
OPPOSITE = {
    ExperimentVerdict.BETTER: ExperimentVerdict.WORSE,
    ExperimentVerdict.WORSE: ExperimentVerdict.BETTER,
    ExperimentVerdict.UNCLEAR: ExperimentVerdict.UNCLEAR,
}


@given(samples, samples)
def test_the_interval_holds_the_change_and_exchanging_the_sides_turns_the_verdict(
    before: list[ServedRequest], after: list[ServedRequest]
) -> None:
    there, back = measured(before, after), measured(after, before)
    for name, comparison in there.items():
        other = back[name]
        assert comparison.change is not None
        assert comparison.low is not None
        assert comparison.high is not None
        assert other.change is not None
        assert comparison.low <= comparison.change <= comparison.high
        assert other.verdict is OPPOSITE[comparison.verdict]
        if comparison.is_relative:
            assert (1 + comparison.change) * (1 + other.change) == pytest.approx(1.0)
        else:
            assert comparison.change == pytest.approx(-other.change)


def fairness(before: list[ServedRequest], after: list[ServedRequest]) -> str:
    experiments = Experiments()
    experiments.samples.logged.extend([*before, *after])
    experiments.samples.version += 1
    experiments.records = (record(),)
    return "; ".join(told(experiments).caveats)


def test_an_unfair_comparison_says_why() -> None:
    rng = random.Random(4)
    before, after = requests(rng, T - 300, 30), requests(rng, T + 20, 30)
    plain = [replace(request_sample, decode_tokens=100) for request_sample in (*before, *after)]
    before, after = plain[:30], plain[30:]
    assert fairness(before, after) == ""
    assert "prompts are 3.0x longer after (500, then 1500 tokens)" in fairness(
        before, [replace(request_sample, prompt_total_tokens=1500) for request_sample in after]
    )
    assert "answers are 4.0x shorter after" in fairness(
        before, [replace(request_sample, decode_tokens=25) for request_sample in after]
    )
