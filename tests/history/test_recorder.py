"""The recorder: what goes in comes out, whatever becomes of the file, of the clock, and of other recorders."""

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import specdash.history.recorder as module
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord
from specdash.core.readings import FailureKind, Props, Reading, Source
from specdash.core.records import Alert, AlertEvent, AlertSeverity, EventKind, TimelineEvent, Transition
from specdash.history.recorder import Recorder
from specdash.history.store import LOOK_BACK_S, Store
from specdash.history.writer import to_keep
from specdash.insight.charts import Metric
from specdash.insight.state import TargetState
from support.busy_proxy import BusyServer
from support.recording import TARGET, URL, counters, env_of, file_of, health, hurry, recording, value
from support.waiting import until

FOREVER = 4e9


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def everything(directory: Path) -> list[Reading[Any]]:
    with Store(file_of(directory)) as store:
        return [reading for _, reading in store.readings(URL, 0, FOREVER)]


def numbers(directory: Path) -> list[float]:
    return [value(reading).prompt_tokens for reading in everything(directory) if reading.source is Source.METRICS]


def titles(directory: Path) -> list[str]:
    with Store(file_of(directory)) as store:
        return [event.title for event in store.events(URL, 0, FOREVER)]


def alert(**values: Any) -> Alert:
    now = time.time()
    return replace(Alert("slot_hung", "Slot hangs", AlertSeverity.WARNING, "busy", now, now, now), **values)


def test_readings_come_out_as_they_went_in_with_the_time_of_day(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        went_in = [
            counters(1.0),
            health(),
            Reading.unknown(Source.SLOTS, time.monotonic(), FailureKind.TIMEOUT, "late"),
        ]
        offset = time.time() - time.monotonic()
        for reading in went_in:
            recorder.on_reading(reading)
    came_out = everything(tmp_path)
    assert [(reading.source, reading.status, reading.value, reading.failure) for reading in came_out] == [
        (reading.source, reading.status, reading.value, reading.failure) for reading in went_in
    ]
    for before, after in zip(went_in, came_out, strict=True):
        assert after.at == pytest.approx(before.at + offset, abs=0.01)


def test_what_was_written_a_moment_ago_can_be_read_while_it_goes_on(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(1.0))
        until(lambda: file_of(tmp_path).exists() and recorder.is_recording)
        with Store(file_of(tmp_path)) as store:
            until(lambda: store.span(URL) is not None)
            assert [value(reading).prompt_tokens for _, reading in store.readings(URL, 0, FOREVER)] == [1.0]
            recorder.on_reading(counters(2.0))
            until(lambda: len(list(store.readings(URL, 0, FOREVER))) == 2)


def test_a_reader_in_the_middle_of_a_long_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        for number in range(50):
            recorder.on_reading(counters(float(number)))
        until(lambda: recorder.is_recording)
        with Store(file_of(tmp_path)) as store:
            until(lambda: store.span(URL) is not None)
            reading = store.readings(URL, 0, FOREVER)
            next(reading)
            recorder.on_reading(counters(99.0))
            until(lambda: 99.0 in numbers(tmp_path))
            assert not recorder.problem


def test_the_files_are_private(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(1.0))
        until(lambda: recorder.is_recording)
        until(lambda: file_of(tmp_path).with_name("history.db-wal").exists())
        for path in file_of(tmp_path).parent.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_points_become_columns_alerts_and_events_a_timeline(tmp_path: Path) -> None:
    now = time.time()
    with recording(tmp_path) as recorder:
        for number in range(10):
            recorder.on_point(Metric.DECODE, time.monotonic(), float(number))
        recorder.on_point(Metric.DECODE, time.monotonic(), None)
        raised = alert()
        recorder.on_alert(AlertEvent(Transition.RAISED, raised, raised.raised))
        recorder.on_alert(AlertEvent(Transition.ENDED, replace(raised, ended=now + 5), now + 5))
        recorder.on_event(TimelineEvent(now, EventKind.RESTART, "restarted"))
        recorder.on_reading(health())
    with Store(file_of(tmp_path)) as store:
        assert list(store.points(URL, Metric.DECODE, now - 30, now + 30, 1)) == [4.5]
        assert store.points(URL, Metric.CPU, now - 30, now + 30, 2) == [None, None]
        assert [item.ended for item in store.alerts(URL, 0, FOREVER)] == [now + 5]
        assert {"restarted", "Slot hangs", "recording began", "recording ended"} == {
            event.title for event in store.events(URL, 0, FOREVER)
        }


def test_an_apply_is_an_event_once_however_often_it_is_read(tmp_path: Path) -> None:
    record = ApplyRecord(3, 1000.0, 1010.0, ApplyKind.APPLY, ApplyOutcome.APPLIED)
    for _ in range(2):
        with recording(tmp_path) as recorder:
            for _ in range(3):
                recorder.on_reading(Reading.known(Source.APPLIES, time.monotonic(), (record,)))
                time.sleep(0.03)
    with Store(file_of(tmp_path)) as store:
        assert [(event.at, event.ref) for event in store.events(URL, 0, FOREVER) if event.kind is EventKind.APPLY] == [
            (1000.0, "3")
        ]


def test_what_seldom_changes_is_known_long_after_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdash.history.writer.BLOCK_S", 0.05)
    with recording(tmp_path) as recorder:
        recorder.on_reading(Reading.known(Source.PROPS, time.monotonic(), Props(model_alias="tiny")))
        recorder.on_reading(Reading.unknown(Source.LOG, time.monotonic(), FailureKind.NOT_CONFIGURED, "no log"))
        for number in range(40):
            recorder.on_reading(counters(float(number)))
            time.sleep(0.01)
    with Store(file_of(tmp_path)) as store:
        assert store.stats().targets[0].blocks > 3
        found = {reading.source: reading for _, reading in store.latest(URL, time.time() + 1)}
        assert found[Source.PROPS].value == Props(model_alias="tiny")
        assert found[Source.LOG].failure is not None
        assert value(found[Source.METRICS]).prompt_tokens == 39.0


def test_the_only_reading_of_the_last_block_is_found_though_its_time_was_rounded_down(tmp_path: Path) -> None:
    with recording(tmp_path, clock=lambda: 0.0, wall=lambda: 1000.0) as recorder:
        recorder.on_reading(counters(7.0, at=0.00004))
    with Store(file_of(tmp_path)) as store:
        assert store.stats().targets[0].blocks == 1
        assert [value(reading).prompt_tokens for _, reading in store.latest(URL, 2000.0)] == [7.0]


def test_a_full_queue_drops_the_oldest_and_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_MOST", 50)
    recorder = Recorder(TARGET, env=env_of(tmp_path))
    for number in range(80):
        recorder.on_reading(counters(float(number)))
    recorder.start()
    until(lambda: recorder.is_recording)
    recorder.close()
    assert recorder.lost == 30
    assert numbers(tmp_path) == [float(number) for number in range(30, 80)]
    assert "30 readings were not recorded" in titles(tmp_path)


def test_what_waited_for_long_becomes_blocks_no_longer_than_others(tmp_path: Path) -> None:
    wall, mono = [1_800_000_000.0], [1000.0]
    recorder = Recorder(TARGET, env=env_of(tmp_path), clock=lambda: mono[0], wall=lambda: wall[0])
    for number in range(3000):
        recorder.on_reading(counters(float(number), mono[0]))
        wall[0] += 1
        mono[0] += 1
    recorder._work()
    recorder._end()
    assert numbers(tmp_path) == [float(number) for number in range(3000)]
    with Store(file_of(tmp_path)) as store:
        spans = store._rows("SELECT last - first FROM blocks")
        assert max(span for (span,) in spans) < LOOK_BACK_S


def test_a_clock_that_was_set_back_leaves_both_records_and_the_later_one_counts(tmp_path: Path) -> None:
    wall = [1_800_000_000.0]
    mono = [1000.0]
    recorder = Recorder(TARGET, env=env_of(tmp_path), clock=lambda: mono[0], wall=lambda: wall[0])
    for number in range(20):
        recorder.on_reading(counters(float(number), mono[0]))
        wall[0] += 1
        mono[0] += 1
        if number == 9:
            wall[0] -= 5.5
    recorder._work()
    recorder._end()
    found = [(reading.at, value(reading).prompt_tokens) for reading in everything(tmp_path)]
    times = [at for at, _ in found]
    assert times == sorted(times)
    # Seconds 5 to 9 of the first era were seen again after the clock was set back.
    assert [number for _, number in found] == [0, 1, 2, 3, 4, *range(10, 20)]
    assert "the clock was set back by 5.5 s" in titles(tmp_path)


def test_a_machine_that_slept_leaves_a_gap_and_an_event(tmp_path: Path) -> None:
    wall, mono = [1_800_000_000.0], [1000.0]
    recorder = Recorder(TARGET, env=env_of(tmp_path), clock=lambda: mono[0], wall=lambda: wall[0])
    for number in range(6):
        recorder.on_reading(counters(float(number), mono[0]))
        wall[0] += 1 + 3600 * (number == 2)
        mono[0] += 1
    recorder._work()
    recorder._end()
    found = [reading.at - 1_800_000_000.0 for reading in everything(tmp_path)]
    assert found == pytest.approx([0, 1, 2, 3603, 3604, 3605])
    assert "the clock went 3600.0 s ahead" in titles(tmp_path)
    with Store(file_of(tmp_path)) as store:
        assert len(store.spans(URL)) == 2


def test_a_clock_that_is_corrected_bit_by_bit_is_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdash.history.writer.BLOCK_S", 60.0)
    wall, mono = [1_800_000_000.0], [1000.0]
    recorder = Recorder(TARGET, env=env_of(tmp_path), clock=lambda: mono[0], wall=lambda: wall[0])
    for number in range(3600):
        recorder.on_reading(counters(float(number), mono[0]))
        wall[0] += 1.0005
        mono[0] += 1
        recorder._work()
    recorder._end()
    assert titles(tmp_path) == ["recording began", "recording ended"]
    found = everything(tmp_path)
    assert len(found) == 3600
    assert found[-1].at == pytest.approx(1_800_000_000 + 3599 * 1.0005, abs=0.1)


def test_a_second_recorder_waits_and_takes_over_without_a_gap(tmp_path: Path) -> None:
    with recording(tmp_path) as first:
        until(lambda: first.is_recording)
        with recording(tmp_path) as second:
            for number in range(30):
                for recorder in (first, second):
                    recorder.on_reading(counters(float(number)))
                time.sleep(0.01)
                if number == 14:
                    assert not second.is_recording
                    assert not second.problem
                    first.close()
            until(lambda: second.is_recording)
    found = numbers(tmp_path)
    assert found == sorted(set(found))
    assert found == [float(number) for number in range(30)]
    assert titles(tmp_path) == ["recording began", "recording ended", "recording goes on", "recording ended"]


def test_an_alert_that_two_recorders_saw_is_one_alert(tmp_path: Path) -> None:
    with recording(tmp_path) as first, recording(tmp_path) as second:
        until(lambda: first.is_recording or second.is_recording)
        leader, follower = (first, second) if first.is_recording else (second, first)
        raised = alert()
        leader.on_alert(AlertEvent(Transition.RAISED, raised, raised.raised))
        follower.on_alert(
            AlertEvent(Transition.RAISED, replace(raised, raised=raised.raised + 0.1), raised.raised + 0.1)
        )
        for recorder in (leader, follower):
            recorder.on_reading(counters(1.0))
        time.sleep(0.1)
        leader._stopping.set()
        leader._thread.join(5)
        until(lambda: follower.is_recording)
        ended = replace(raised, raised=raised.raised + 0.1, ended=time.time())
        follower.on_alert(AlertEvent(Transition.ENDED, ended, time.time()))
    with Store(file_of(tmp_path)) as store:
        (found,) = store.alerts(URL, 0, FOREVER)
    assert found.raised == raised.raised
    assert found.ended == ended.ended


def test_an_alert_that_a_dead_recorder_left_open_ended_with_its_last_reading(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        raised = alert()
        recorder.on_alert(AlertEvent(Transition.RAISED, raised, raised.raised))
        recorder.on_reading(counters(1.0))
    with recording(tmp_path) as later:
        later.on_reading(counters(2.0))
    with Store(file_of(tmp_path)) as store:
        (found,) = store.alerts(URL, 0, FOREVER)
        assert found.ended == pytest.approx(next(store.readings(URL, 0, FOREVER))[0], abs=0.05)


def test_a_record_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(1.0))
        until(lambda: recorder.is_recording)
        for path in file_of(tmp_path).parent.iterdir():
            path.unlink()
        recorder.on_reading(counters(2.0))
        until(lambda: file_of(tmp_path).exists())
        recorder.on_reading(counters(3.0))
    assert 3.0 in numbers(tmp_path)
    assert not recorder.problem


@pytest.mark.parametrize("source", [Source.HEALTH, Source.PROXY_EVENTS, Source.PROPS])
def test_a_reading_that_cannot_be_stored_costs_itself_and_nothing_else(tmp_path: Path, source: Source) -> None:
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(4.0))
        recorder.on_reading(Reading.known(source, time.monotonic(), object()))
        recorder.on_reading(counters(5.0))
        until(lambda: recorder.fault)
        assert f"a reading of {source} was left out: TypeError" in recorder.trouble
        assert not recorder.problem
    assert numbers(tmp_path) == [4.0, 5.0]
    (unread,) = (reading for reading in everything(tmp_path) if reading.source is source)
    assert unread.failure is not None
    assert unread.failure.detail == "not recorded: TypeError"
    assert titles(tmp_path).count("recording has a fault") == 1


def test_what_is_wrong_with_the_recording_is_known_until_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    in_the_way = tmp_path / "specdash"
    in_the_way.write_text("in the way")
    recorder = Recorder(TARGET, env=env_of(tmp_path))
    state = TargetState(TARGET, observer=recorder)

    def go(begin: int, end: int) -> str:
        for second in range(begin, end):
            recorder._guarded(recorder._work)
            state.apply(health(1000.0 + second))
        return state.recording_trouble

    told = go(0, 10)
    assert told.startswith("not recording: ")
    assert str(in_the_way) in told
    in_the_way.unlink()
    assert not go(10, 20)


def never_ends(*_: object) -> bytes:
    return never_ends()


@pytest.mark.parametrize("where", ["specdash.history.block.pack", "specdash.history.tiers.TierChunk.pack"])
def test_a_fault_in_packing_ends_no_record_and_is_not_met_again(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdash.history.writer.BLOCK_VALUES", 5)
    monkeypatch.setattr(where, never_ends)
    with recording(tmp_path) as recorder:
        for number in range(40):
            recorder.on_reading(counters(float(number)))
            recorder.on_reading(Reading.known(Source.PROPS, time.monotonic(), Props(model_alias=f"m{number}")))
            recorder.on_point(Metric.DECODE, time.monotonic(), float(number))
            time.sleep(0.005)
        until(lambda: recorder.fault)
        assert "RecursionError" in recorder.trouble
        assert not recorder.problem
        assert not recorder.lost
        monkeypatch.undo()
        hurry(monkeypatch)
        monkeypatch.setattr("specdash.history.writer.BLOCK_VALUES", 5)
        for number in range(40, 60):
            recorder.on_reading(counters(float(number)))
            time.sleep(0.005)
        until(lambda: not recorder.trouble)
    assert numbers(tmp_path) == [float(number) for number in range(60)]
    assert titles(tmp_path).count("recording has a fault") == 1
    with Store(file_of(tmp_path)) as store:
        assert not store.check()
        assert not store.damaged
        found = {reading.source: reading for _, reading in store.latest(URL, time.time() + 1)}
        assert found[Source.PROPS].value == Props(model_alias="m39")


def test_what_a_killed_recorder_left_is_kept_plain_where_it_cannot_be_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Recorder(TARGET, env=env_of(tmp_path))
    for number in range(9):
        dead.on_reading(counters(float(number)))
    dead._work()
    dead._discard()
    dead._leadership.give_back()
    monkeypatch.setattr("specdash.history.block.pack", never_ends)
    with recording(tmp_path) as recorder:
        until(lambda: recorder.is_recording)
        recorder.on_reading(counters(9.0))
        until(lambda: recorder.fault)
    assert numbers(tmp_path) == [float(number) for number in range(10)]


@pytest.mark.parametrize(("sessions", "seconds"), [(3, 40), (65, 40), (100, 20)])
def test_a_busy_proxy_is_recorded_without_loss(tmp_path: Path, sessions: int, seconds: int) -> None:
    server = BusyServer(sessions, requests=5)
    wall, mono = [server.wall], [server.at]
    recorder = Recorder(TARGET, env=env_of(tmp_path), clock=lambda: mono[0], wall=lambda: wall[0])
    went_in: list[Reading[Any]] = []
    for readings in server.seconds(seconds):
        for reading in readings:
            recorder.on_reading(reading)
            went_in.append(to_keep(reading))
        wall[0], mono[0] = server.wall + 1, server.at + 1
        recorder._work()
    recorder._end()
    assert not recorder.trouble
    assert not recorder.lost
    assert [(reading.source, reading.value) for reading in everything(tmp_path)] == [
        (reading.source, reading.value) for reading in went_in
    ]


def test_two_targets_share_a_record(tmp_path: Path) -> None:
    other = Recorder(replace(TARGET, model="second"), env=env_of(tmp_path))
    other.start()
    with recording(tmp_path) as recorder:
        recorder.on_reading(counters(1.0))
        other.on_reading(counters(2.0))
        other.close()
    assert numbers(tmp_path) == [1.0]
    with Store(file_of(tmp_path)) as store:
        assert set(store.targets()) == {URL, f"{URL} second"}
        assert [value(reading).prompt_tokens for _, reading in store.readings(f"{URL} second", 0, FOREVER)] == [2.0]
