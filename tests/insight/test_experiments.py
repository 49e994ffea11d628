"""Before and after an apply: which requests count, and what they show."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import CHANGE, DATA, NOW, WALL, record, requests, server, tell
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.proxy_events import RequestEvent
from specdash.core.proxy_events import RequestOutcome as Ended
from specdash.insight.experiments import (
    ENOUGH,
    ExperimentCard,
    Experiments,
    ExperimentVerdict,
    MeasureComparison,
    MeasureName,
    compare,
    short_text,
)
from specdash.insight.request import KEPT, Samples, ServedRequest
from specdash.llama.log.parser import LogParser

NONE = ((), ())
OFFSET = WALL - NOW
T = WALL
"""When the apply of most tests began."""
BETTER, WORSE, UNCLEAR, _ = ExperimentVerdict


def logged(ended: float, **fields: object) -> tuple[float, ServedRequest]:
    """A finished request of 2 s, by the monotonic clock of these tests."""
    request = ServedRequest(
        0, 1, prompt_ms=100.0, processed_tokens=200, decode_ms=1900.0, decode_tokens=95, finished=True
    )
    request.draft_generated, request.draft_accepted = 100, 60
    for name, value in fields.items():
        setattr(request, name, value)
    return ended - OFFSET, request


def card_of(experiments: Experiments, wall: float = T + 3600) -> ExperimentCard:
    experiments.settle(wall - OFFSET, wall)
    card = experiments.card(wall)
    assert card is not None
    return card


def measure(experiments: Experiments, name: MeasureName = MeasureName.DECODE) -> MeasureComparison:
    return next(one for one in card_of(experiments).measures if one.name is name)


def counts(experiments: Experiments) -> tuple[int, int]:
    return measure(experiments).before.count, measure(experiments).after.count


def with_requests(*ends: float, applies: tuple[ApplyRecord, ...] = (record(),)) -> Experiments:
    experiments = Experiments()
    for end in ends:
        experiments.samples.add_logged(*logged(T + end))
    experiments.records = applies
    return experiments


ROLLED_BACK = record(2, T + 100, outcome=ApplyOutcome.ROLLED_BACK)
REFUSED = record(3, T + 117, outcome=ApplyOutcome.REFUSED)


@pytest.mark.parametrize(
    ("applies", "ends", "subject", "expected"),
    [
        # The last before ends while the proxy drains; the probe runs within the apply; then comes a cold one.
        ((record(),), (-60, -30, 3.9, 8, 10.1, 13, 16, 19), 1, (3, 2)),
        # Only half an hour back, and only since the apply before, of which the first after it was cold.
        ((record(2),), (-1900, -1700, -300, -200, -100), 2, (4, 0)),
        ((record(1, T - 400), record(2)), (-1900, -1700, -300, -200, -100), 2, (2, 0)),
        # One that was rolled back ends the comparison: +13 was the first, and so cold; +104.5 ran into the restart.
        ((record(1), ROLLED_BACK, REFUSED), (-30, 13, 20, 104.5, 108, 115, 120), 1, (1, 1)),
        # After a rollback that failed it is unknown what runs.
        ((record(1), record(2, T + 100, outcome=ApplyOutcome.ROLLBACK_FAILED)), (13, 20, 130, 140), 1, (0, 1)),
        # A rollback is an experiment too, and an apply without a change is none.
        ((record(1), record(2, T + 100, kind=ApplyKind.ROLLBACK), record(3, T + 200, changes=())), (), 2, (0, 0)),
    ],
)
def test_which_requests_count(
    applies: tuple[ApplyRecord, ...], ends: tuple[float, ...], subject: int, expected: tuple[int, int]
) -> None:
    experiments = with_requests(*ends, applies=applies)
    assert card_of(experiments).mark.record.number == subject
    assert counts(experiments) == expected


def test_a_refused_apply_has_no_card_and_unfinished_requests_do_not_count() -> None:
    experiments = with_requests(applies=(record(1, outcome=ApplyOutcome.REFUSED),))
    experiments.settle(0.0, T)
    assert experiments.card(T) is None
    experiments = with_requests()
    for fields in ({"cancelled": True}, {"error": "x"}, {"finished": False}, {}):
        experiments.samples.add_logged(*logged(T - 10, **fields))
    assert counts(experiments) == (1, 0)


def event(at: float, name: str, **fields: Any) -> RequestEvent:
    figures = {"duration_s": 2.0, "ttft_s": 0.3, "decode_rate": 40.0, "prefill_rate": 900.0, "prompt_tokens": 400}
    return RequestEvent(at, "s", name, completion_tokens=80, **{**figures, **fields})


def test_the_proxys_events_give_the_first_token_and_the_log_does_where_they_do_not_suffice() -> None:
    experiments = with_requests(*(second - 100 for second in range(20)))
    ttft = measure(experiments, MeasureName.TTFT)
    assert ttft.source == "log: prompt time"
    assert ttft.before.value == pytest.approx(0.1)
    experiments.samples.add_event(event(T - 50, "a"))
    experiments.samples.add_event(event(T - 40, "b"))
    ttft = measure(experiments, MeasureName.TTFT)
    assert (ttft.source, ttft.before.value, ttft.before.count) == ("proxy events", 0.3, 2)
    assert measure(experiments).source == "log"
    for second in range(20):
        experiments.samples.add_logged(*logged(T + 20 + second))
    assert measure(experiments, MeasureName.TTFT).source == "log: prompt time"


def test_events_of_something_else_do_not_count_and_none_counts_twice() -> None:
    samples = Samples()
    for bad in ({"outcome": Ended.ERROR}, {"retries": 1}, {"held_s": 3.0}, {"duration_s": None}):
        samples.add_event(event(T, "x", **bad))
    assert not samples.reported
    for _ in range(3):
        samples.add_event(event(T, "x"))
    assert len(samples.reported) == 1


def test_what_is_kept_is_bounded_and_both_sides_of_an_apply_outlive_it() -> None:
    experiments = with_requests(*(number - 500 for number in range(300)))
    assert counts(experiments) == (200, 0)
    for number in range(KEPT + 500):
        experiments.samples.add_logged(*logged(T + 20 + number))
        experiments.samples.add_event(event(T + 20 + number, str(number)))
        if number % 1000 == 0:
            card_of(experiments)
    first = card_of(experiments).measures
    assert counts(experiments) == (200, 200)
    assert (len(experiments.samples.logged), len(experiments.samples.reported)) == (KEPT, KEPT)
    experiments.samples.add_logged(*logged(T + 9000, decode_ms=1.0))
    assert card_of(experiments).measures == first, "the 200 next to the apply are compared, not what comes later"


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
def test_the_short_text_names_what_changed(changes: tuple[Change, ...], text: str) -> None:
    assert short_text(record(changes=changes)) == text


def test_a_restart_whose_build_changed_gets_its_card() -> None:
    state, parser = server(), LogParser()
    lines = (DATA / "no_progress" / "08_build_changed_acceptance.log").read_bytes().splitlines(keepends=True)
    second = next(place for place, line in enumerate(lines) if place and b"llama_server: initializing" in line)
    for at, part in ((NOW, lines[:second]), (NOW + 100, lines[second:])):
        tell(state, at, log=parser.feed(b"".join(part)))
        state.picture(at, at + OFFSET)
    picture = state.picture(NOW + 110, T + 110)
    card = picture.experiment
    assert card is not None
    assert (card.mark.name, card.mark.text, picture.applies) == ("restart", "build 9234→9235", ())
    (acceptance,) = (one for one in card.measures if one.name is MeasureName.ACCEPTANCE)
    assert (acceptance.before.count, acceptance.after.count) == (3, 2), "the first one is cold"
    assert (acceptance.before.value, acceptance.after.value) == pytest.approx((382 / 600, 213 / 898))


# What they show


def compared(before: list[ServedRequest], after: list[ServedRequest]) -> dict[MeasureName, MeasureComparison]:
    return {one.name: one for one in compare((tuple(before), tuple(after)), NONE)}


def test_a_difference_that_two_starts_of_one_configuration_have_is_none() -> None:
    def at_rate(rate: float) -> list[ServedRequest]:
        return [replace(one, proxy_rates=(None, rate)) for one in requests(random.Random(3), T, 30)]

    found = compared(at_rate(50.0), at_rate(50.9))[MeasureName.DECODE]
    assert found.verdict is UNCLEAR
    assert found.change == pytest.approx(0.018)
    assert compared(at_rate(50.0), at_rate(51.1))[MeasureName.DECODE].verdict is BETTER


samples = st.builds(
    requests,
    st.integers(0, 10**6).map(random.Random),
    st.just(T),
    st.integers(ENOUGH, 60),
    speed=st.floats(5.0, 200.0),
    rate=st.floats(0.2, 0.9),
    noise=st.floats(0.01, 0.6),
)


@given(samples, samples)
def test_the_interval_holds_the_change_and_exchanging_the_sides_turns_the_verdict(
    before: list[ServedRequest], after: list[ServedRequest]
) -> None:
    back = compared(after, before)
    for name, there in compared(before, after).items():
        change, other = there.change, back[name].change
        assert change is not None
        assert other is not None
        assert there.low is not None
        assert there.high is not None
        assert there.low <= change <= there.high
        assert back[name].verdict is {BETTER: WORSE, WORSE: BETTER}.get(there.verdict, UNCLEAR)
        turned = (1 + change) * (1 + other) - 1 if there.is_relative else change + other
        assert turned == pytest.approx(0.0, abs=1e-9)


def test_an_unfair_comparison_gives_the_reason() -> None:
    plain = [replace(one, decode_tokens=100) for one in requests(random.Random(4), T - 300, 30)]
    later = [replace(one, began=one.began + 320, ended=one.ended + 320) for one in plain]

    def caveats(**changes: Any) -> str:
        experiments = with_requests()
        experiments.samples.logged.extend([*plain, *(replace(one, **changes) for one in later)])
        experiments.samples.version += 1
        return "; ".join(card_of(experiments).caveats)

    assert caveats() == ""
    assert "prompts are 3.0x longer after (500, then 1500 tokens)" in caveats(prompt_total_tokens=1500)
    assert "answers are 4.0x shorter after" in caveats(decode_tokens=25)


def test_settings_that_change_nothing_are_seldom_called_better_or_worse() -> None:
    """Of 150 with 5 % wrong ones at most 16 are, in 999 of 1,000 cases. Longer runs: docs/experiments.md."""
    rng, wrong = random.Random(20_260), Counter[MeasureName]()
    for _ in range(150):
        before, after = (requests(rng, T, 20, noise=0.25) for _ in range(2))
        wrong.update(name for name, one in compared(before, after).items() if one.verdict in (BETTER, WORSE))
    assert max(wrong.values(), default=0) <= 16, wrong
