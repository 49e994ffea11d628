"""The state of a target: whatever the readings say, the picture is true, complete, and can be printed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.readings import (
    Counters,
    FailureKind,
    Gpu,
    Gpus,
    Health,
    HealthStatus,
    ProcessTree,
    Reading,
    ReadingStatus,
    Slot,
    Slots,
    Source,
)
from specdash.core.target import Target
from specdash.export.snapshot import to_json, to_text
from specdash.insight.charts import Metric
from specdash.insight.picture import BackendState, SlotPhase
from specdash.insight.state import TargetState
from specdash.llama.log.parser import LogParser
from specdash.llama.server_answers import parse_metrics, parse_slots
from support.drawn_readings import values

DATA = Path(__file__).parents[1] / "data"
OK = Health(HealthStatus.OK)


def state(**readings: tuple[float, object]) -> TargetState:
    """A state that was told each source's value at a time."""
    told = TargetState(Target("http://127.0.0.1:8080"))
    for source, (at, value) in readings.items():
        told.apply(Reading.known(Source(source), at, value))
    return told


def test_a_real_scrape_becomes_lifetime_figures() -> None:
    counters = parse_metrics((DATA / "http" / "metrics_after_1.txt").read_bytes())
    slots = parse_slots((DATA / "http" / "slots_busy_1.json").read_bytes())
    backend = state(health=(1.0, OK), metrics=(1.0, counters), slots=(1.0, slots)).picture(1.5, 0.0).backend
    assert backend.state is BackendState.LIVE
    assert backend.speculation.acceptance.lifetime.value == pytest.approx(1465 / 1492)
    assert backend.speculation.mean_accepted_length == pytest.approx(1 + 1465 / 34)
    assert backend.speculation.types == ("draft-simple", "ngram-mod")
    assert backend.decode.value == pytest.approx(1500 / 1.47132)
    assert backend.decode.basis == "lifetime"
    assert backend.slots is not None
    assert [slot.phase for slot in backend.slots] == [SlotPhase.IDLE, SlotPhase.DECODE]
    assert backend.slots[1].progress == pytest.approx(732 / 1500)


def test_nothing_is_known_before_anything_was_seen() -> None:
    document: Any = to_json(TargetState(Target("http://127.0.0.1:8080")).picture(5.0, 0.0))
    backend = document["backend"]
    assert backend["state"] == "unknown"
    assert backend["prefill"]["tokens_per_second"] is None
    assert backend["decode"]["tokens_per_second"] is None
    assert backend["slots"] is None
    assert backend["speculation"]["active"] is None
    assert set(backend["speculation"]["acceptance"].values()) == {None}
    assert document["gpu"]["unavailable"]
    assert document["host"] is None


def test_above_a_million_tokens_the_logs_exact_figures_replace_the_rounded_counters() -> None:
    told = state(metrics=(0.0, Counters(draft_tokens=5.00001e6, accepted_tokens=3e6)))
    told.apply(Reading.known(Source.METRICS, 1.0, Counters(draft_tokens=5.00002e6, accepted_tokens=3.00001e6)))
    line = (
        b"slot print_timing: id  0 | task 7 | draft acceptance = 0.75000 (    9 accepted /    12 generated)\n"
        b"slot      release: id  0 | task 7 | stop processing: n_tokens = 24, truncated = 0\n"
    )
    told.apply(Reading.known(Source.LOG, 1.0, LogParser().feed(line)))
    window = told.picture(1.0, 0.0, 60.0).backend.speculation.acceptance.window
    assert (window.value, window.source) == (0.75, Source.LOG)


def test_acceptance_of_a_server_without_counters_is_the_logs_and_says_so() -> None:
    line = (
        b"slot print_timing: id  0 | task 7 | draft acceptance = 0.75000 (    9 accepted /    12 generated)\n"
        b"slot      release: id  0 | task 7 | stop processing: n_tokens = 24, truncated = 0\n"
    )
    told = state(log=(1.0, LogParser().feed(line)))
    for now, status in ((2.0, ReadingStatus.KNOWN), (90.0, ReadingStatus.STALE)):
        window = told.picture(now, 0.0, 60.0).backend.speculation.acceptance.window
        assert (window.value, window.source, window.status) == (0.75, Source.LOG, status)
    assert window.age_s == 89.0


def test_what_is_held_is_the_window_that_ended_with_the_newest_drafts() -> None:
    told = state(metrics=(0.0, Counters(draft_tokens=0, accepted_tokens=0)))
    for second, drafted, accepted in ((100.0, 1000, 100), (190.0, 1100, 190), (200.0, 1200, 280)):
        told.apply(Reading.known(Source.METRICS, second, Counters(draft_tokens=drafted, accepted_tokens=accepted)))
    told.apply(Reading.known(Source.METRICS, 900.0, Counters(draft_tokens=1200, accepted_tokens=280)))
    short, long = (
        told.picture(900.0, 0.0, window_s).backend.speculation.acceptance.window for window_s in (60.0, 300.0)
    )
    assert (short.value, short.age_s, short.window_s) == (0.9, 700.0, 60.0)
    assert (long.value, long.age_s, long.window_s) == (280 / 1200, 700.0, 300.0)


def test_a_log_read_from_its_beginning_does_not_pass_for_this_moment() -> None:
    text = (DATA / "logs" / "mamba_draft75_lv3_trace1.log").read_bytes()
    told = state(health=(1000.0, OK), process=(1000.0, ProcessTree(1, started_wall=0.0)))
    told.apply(Reading.known(Source.LOG, 1000.0, LogParser().feed(text)))
    fresh = told.picture(1000.0, 1000.0).backend.speculation.acceptance.live
    assert fresh.value is not None, "without a known age the newest line counts as now"
    later = told.picture(1060.0, 1060.0).backend.speculation.acceptance.live
    assert later.value is None


def test_a_source_that_fails_keeps_its_last_value_and_says_why() -> None:
    told = state(health=(1.0, OK), metrics=(1.0, Counters(draft_tokens=10, accepted_tokens=5)))
    told.apply(Reading.unknown(Source.METRICS, 2.0, FailureKind.TIMEOUT, "no answer within 3.0 s"))
    backend = told.picture(2.0, 0.0).backend
    assert backend.state is BackendState.BUSY
    assert backend.speculation.draft_tokens_total == 10
    (source,) = [s for s in backend.sources if s.source is Source.METRICS]
    assert (source.status, source.reason) == (ReadingStatus.STALE, "no answer in time: no answer within 3.0 s")


def test_a_gpu_that_is_lost_keeps_its_last_values_and_says_why_once_they_are_old() -> None:
    told = state(gpu=(1.0, Gpus((Gpu(0, "H100"),))))
    told.apply(Reading.unknown(Source.GPU, 2.0, FailureKind.ERROR, "GPU is lost"))
    young, old = told.picture(3.0, 0.0).gpu, told.picture(600.0, 0.0).gpu
    assert (young.gpus, young.status, young.unavailable) == ((Gpu(0, "H100"),), ReadingStatus.KNOWN, None)
    assert (old.gpus, old.status, old.unavailable) == (young.gpus, ReadingStatus.STALE, "error: GPU is lost")


@pytest.mark.parametrize("kind", [FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.ERROR])
def test_figures_of_metrics_that_are_not_understood_are_stale_at_once_and_dated(kind: FailureKind) -> None:
    told = state(health=(1.0, OK), metrics=(1.0, Counters(draft_tokens=0, accepted_tokens=0)))
    counters = Counters(draft_tokens=10, accepted_tokens=5, requests_processing=2)
    told.apply(Reading.known(Source.METRICS, 2.0, counters))
    told.apply(Reading.unknown(Source.METRICS, 5.0, kind))
    backend = told.picture(5.0, 0.0).backend
    shown = backend.speculation.acceptance
    for measured in (shown.window, shown.lifetime):
        assert (measured.value, measured.status, measured.age_s) == (0.5, ReadingStatus.STALE, 3.0)
    assert backend.requests_processing is None
    assert backend.speculation.acceptance_per_position_window is None
    document = to_json(told.picture(5.0, 0.0))["backend"]["speculation"]["acceptance"]
    assert (document["window"], document["held"]) == (None, 0.5)
    told.apply(Reading.known(Source.METRICS, 6.0, counters))
    assert told.picture(6.0, 0.0).backend.speculation.acceptance.window.status is ReadingStatus.KNOWN


def test_slots_at_work_make_the_live_speeds_of_dashboard_and_chart() -> None:
    told = state(health=(1.0, OK))
    for at, decoded, read in ((1.0, 10, 0), (2.0, 60, 100)):
        writing = Slot(0, is_processing=True, task=1, n_decoded=decoded)
        reading = Slot(1, is_processing=True, task=2, n_decoded=0, n_prompt_tokens_processed=read)
        told.apply(Reading.known(Source.SLOTS, at, Slots((writing, reading))))
    backend = told.picture(2.5, 0.0).backend
    assert (backend.decode.value, backend.decode.basis) == (50.0, "live")
    assert (backend.prefill.value, backend.prefill.basis) == (100.0, "live")
    assert told.columns(Metric.DECODE, 2.0, 4.0, 4)[-1] == 50.0
    assert told.columns(Metric.PREFILL, 2.0, 4.0, 4)[-1] == 100.0


@given(st.lists(st.tuples(st.floats(0.0, 20.0), values), max_size=40), st.sampled_from([60.0, 3600.0]))
def test_whatever_comes_the_picture_can_be_made_and_printed(
    steps: list[tuple[float, tuple[Source, object]]], window_s: float
) -> None:
    told, now = TargetState(Target("http://127.0.0.1:8080")), 100.0
    for step, (source, value) in steps:
        now += step
        if isinstance(value, FailureKind):
            told.apply(Reading.unknown(source, now, value))
        else:
            told.apply(Reading.known(source, now, value))
    picture = told.picture(now, 1e9, window_s)
    document = json.loads(json.dumps(to_json(picture), allow_nan=False))
    assert to_text(picture)
    for name in ("window", "lifetime", "live"):
        rate = document["backend"]["speculation"]["acceptance"][name]
        assert rate is None or 0 <= rate <= 1
    for name in ("prefill", "decode"):
        rate = document["backend"][name]["tokens_per_second"]
        assert rate is None or rate >= 0
    for metric in Metric:
        assert len(told.columns(metric, now, window_s, 40)) == 40


class TestJudging:
    """When rules are judged: at every look at health, and when that is long in coming."""

    @staticmethod
    def judged(*readings: Reading[object], every_s: float = 0.0) -> list[float]:
        told = TargetState(Target("http://127.0.0.1:8080"), judged_every_s=every_s, wall_offset=lambda: 0.0)
        moments: list[float] = []
        for reading in readings:
            told.apply(reading)
            last = told.alerts.past.last
            if last is not None and (not moments or last.at != moments[-1]):
                moments.append(last.at)
        return moments

    def test_every_health_is_judged_and_what_comes_soon_after_it_is_not(self) -> None:
        readings = [Reading.known(Source.HEALTH, 1.0, OK), Reading.known(Source.METRICS, 2.0, Counters())]
        assert self.judged(*readings, Reading.known(Source.HEALTH, 2.1, OK)) == [1.0, 2.1]

    def test_among_many_servers_a_good_one_is_judged_less_often_and_one_that_fails_at_once(self) -> None:
        readings: list[Reading[object]] = [Reading.known(Source.HEALTH, 1.0 + second, OK) for second in range(4)]
        readings.append(Reading.unknown(Source.HEALTH, 4.5, FailureKind.REFUSED))
        readings.append(Reading.known(Source.HEALTH, 5.0, OK))
        assert self.judged(*readings, every_s=2.0) == [1.0, 3.0, 4.5, 5.0]

    def test_a_process_that_was_stopped_is_judged_at_once(self) -> None:
        well, stopped = ProcessTree(pid=1), ProcessTree(pid=1, stopped=(1,))
        readings = [Reading.known(Source.PROCESS, 0.9, well), Reading.known(Source.HEALTH, 1.0, OK)]
        readings.append(Reading.known(Source.PROCESS, 1.2, stopped))
        assert self.judged(*readings, Reading.known(Source.PROCESS, 1.4, stopped)) == [1.0, 1.2]

    def test_a_source_that_fails_is_judged_at_once_and_only_once(self) -> None:
        readings: list[Reading[object]] = [
            Reading.known(Source.HEALTH, 1.0, OK),
            Reading.known(Source.GPU, 1.1, Gpus(())),
            Reading.unknown(Source.GPU, 1.3, FailureKind.ERROR, "lost"),
            Reading.unknown(Source.GPU, 1.5, FailureKind.ERROR, "lost"),
            Reading.known(Source.GPU, 1.7, Gpus(())),
        ]
        assert self.judged(*readings) == [1.0, 1.3]


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.LOADING])
def test_totals_after_an_absence_count_from_zero_though_they_are_larger(kind: FailureKind) -> None:
    told = state(metrics=(1.0, Counters(predicted_tokens=100.0, prompt_tokens=50.0)))
    told.apply(Reading.unknown(Source.HEALTH, 2.0, kind, "gone"))
    told.apply(Reading.known(Source.METRICS, 3.0, Counters(predicted_tokens=120.0, prompt_tokens=60.0)))
    assert told.counters.restarted_at == 3.0
    window = told.counters.window(3.0, 60.0)
    assert window is not None
    assert window[0].at == 2.0  # since the absence: what was counted before was another server's


def test_that_the_server_began_to_work_is_news_and_that_it_goes_on_or_rests_is_none() -> None:
    def slots(count: int) -> Slots:
        return Slots(tuple(Slot(number, is_processing=number < count) for number in range(2)))

    told = state(slots=(1.0, slots(0)), health=(1.0, OK))
    headlines = []
    for at, busy in enumerate((1, 2, 0, 0, 1), 2):
        told.apply(Reading.known(Source.SLOTS, float(at), slots(busy)))
        headlines.append(told.headline)
    first, busier, resting, rests, again = headlines
    assert first == busier == resting == rests != again
