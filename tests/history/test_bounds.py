"""The record stays within its bounds of age and size, whatever is written."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdash.history.writer as module
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.history.store import PAGE_BYTES, Store, file_bytes
from specdash.history.tiers import TIERS
from specdash.history.writer import Batch, Bounds, Writer
from support.recording import URL, counters

START = 1_800_000_000.0
DAY = 86400.0


def event(at: float, title: str = "x") -> TimelineEvent:
    return TimelineEvent(at, EventKind.RECORDER, title)


def batch(at: float, number: int, size: int = 5) -> Batch:
    readings = [counters(hash((number, i)) % 10**12 + 0.123, at + i / size) for i in range(size)]
    alert = Alert("slot_hung", "t", AlertSeverity.NOTICE, "s", at, at, at, ended=at + 1)
    return Batch(readings, [(at, "decode", float(number))], [alert], [event(at, str(number))])


@pytest.fixture(autouse=True)
def _trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRUSTED_AFTER_S", -1.0)


@pytest.mark.slow
def test_every_second_is_kept_for_its_days_and_tiers_for_longer(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    writer = Writer(path, URL, Bounds(1.0, 10**9))
    writer.begin(event(START), set())
    for number in range(20 * 24):
        writer.write(batch(START + number * 3600.0, number))
    writer.close()
    now = START + (20 * 24 - 1) * 3600.0
    with Store(path) as store:
        span = store.span(URL)
        assert span is not None
        assert now - 1.1 * DAY < span[0] <= now - 0.9 * DAY
        steps = dict(store._rows("SELECT step, min(start) FROM tiers GROUP BY step"))
        for tier in TIERS:
            oldest = now - tier.times_longer * DAY
            assert steps[tier.step_s] >= oldest - 2 * tier.span_s
            assert steps[tier.step_s] <= max(oldest, START) + 3600 + tier.span_s
        assert len(store.alerts(URL, 0, 4e9)) == 480


def test_nothing_is_deleted_for_its_age_before_the_clock_has_proved_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRUSTED_AFTER_S", 600.0)
    path = tmp_path / "history.db"
    writer = Writer(path, URL, Bounds(1.0, 10**9))
    writer.begin(event(START), set())
    for number in range(5):
        writer.write(batch(START + number * 300.0, number))
    writer.new_era(event(START + 1000 * DAY))
    for number in range(5):
        writer.write(batch(START + 1000 * DAY + number * 300.0, number))
    writer.close()
    with Store(path) as store:
        assert len(list(store.readings(URL, START, START + 10 * DAY))) == 25


@pytest.mark.slow
@settings(max_examples=2)
@given(megabytes=st.floats(1.0, 3.0), sizes=st.lists(st.integers(1, 400), min_size=30, max_size=120))
def test_the_file_is_never_larger_than_its_bound(megabytes: float, sizes: list[int]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "history.db"
        bounds = Bounds(3650.0, int(megabytes * 1e6))
        writer = Writer(path, URL, bounds)
        writer.begin(event(START), set())
        largest = 0
        for number, size in enumerate(sizes * 6):
            writer.write(batch(START + number * 130.0, number, size))
            largest = max(largest, file_bytes(path))
        writer.close()
        # What is written between two looks at the size: one block's worth, and its way through the log.
        assert largest <= bounds.size_bytes + 100 * PAGE_BYTES
        with Store(path) as store:
            span = store.span(URL)
            assert span is not None
            assert span[1] > START + (len(sizes) * 6 - 2) * 130.0
            assert not store.check()


def test_the_newest_survives_even_where_the_bound_is_absurd(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    writer = Writer(path, URL, Bounds(3650.0, 1))
    writer.begin(event(START), set())
    for number in range(20):
        writer.write(batch(START + number * 130.0, number))
    writer.close()
    with Store(path) as store:
        assert store.span(URL) is not None
