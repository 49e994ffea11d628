"""The log collector turns a growing file into batches on the bus: few, complete, and each of one server's life."""

from pathlib import Path
from typing import Any

import pytest

from specdash.collect.logs import LogCollector
from specdash.core.log_facts import LogBatch, TaskLaunched
from specdash.core.readings import FailureKind, Reading, ReadingStatus, Source

LAUNCH = b"0.00.%03d.000 I slot launch_slot_: id  0 | task %d | processing task, is_child = 0\n"


class Published(list[Reading[Any]]):
    def batches(self) -> list[LogBatch]:
        return [reading.value for reading in self if reading.value is not None]

    def facts(self) -> list[Any]:
        return [fact for batch in self.batches() for fact in batch.facts]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def published() -> Published:
    return Published()


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_the_first_batch_holds_all_that_the_file_had(log: Path, published: Published) -> None:
    log.write_bytes(b"".join(LAUNCH % (number % 1000, number) for number in range(5000)))
    LogCollector(str(log), published.append).step()
    assert len(published) == 1
    assert published[0].source is Source.LOG
    assert published.batches()[0].lines == 5000
    assert [fact.task for fact in published.facts()] == list(range(5000))


def test_a_line_cut_in_two_is_one_fact(log: Path, published: Published) -> None:
    collector = LogCollector(str(log), published.append)
    line = LAUNCH % (1, 7)
    log.write_bytes(line[:40])
    collector.step()
    append(log, line[40:])
    collector.step()
    assert [fact.task for fact in published.facts()] == [7]


def test_an_empty_log_is_known_to_be_empty_and_nothing_new_is_not_published(log: Path, published: Published) -> None:
    log.touch()
    collector = LogCollector(str(log), published.append)
    for _ in range(4):
        assert 0 < collector.step() <= 0.5
    assert published.batches() == [LogBatch()]


def test_a_missing_log_is_said_once_and_found_when_it_comes(log: Path, published: Published) -> None:
    collector = LogCollector(str(log), published.append)
    collector.step()
    collector.step()
    assert [reading.status for reading in published] == [ReadingStatus.UNKNOWN]
    assert published[0].failure is not None
    assert published[0].failure.kind is FailureKind.UNAVAILABLE
    log.write_bytes(LAUNCH % (1, 7))
    collector.step()
    assert published[-1].status is ReadingStatus.KNOWN
    assert [fact.task for fact in published.facts()] == [7]
    assert not published.batches()[-1].restarted


def test_a_new_log_under_the_same_name_is_a_restart(log: Path, published: Published) -> None:
    log.write_bytes(LAUNCH % (900, 7) + b"an unfinished li")
    collector = LogCollector(str(log), published.append)
    collector.step()
    log.write_bytes(LAUNCH % (1, 0))
    collector.step()
    *_, last = published.batches()
    assert last.restarted
    assert [fact.task for fact in last.facts if isinstance(fact, TaskLaunched)] == [0]
    assert sum(batch.lines for batch in published.batches()) == 3


def test_a_deleted_log_is_a_failure_after_its_last_words(log: Path, published: Published) -> None:
    log.write_bytes(LAUNCH % (1, 7))
    collector = LogCollector(str(log), published.append)
    collector.step()
    log.unlink()
    collector.step()
    collector.step()
    assert [reading.status for reading in published] == [ReadingStatus.KNOWN, ReadingStatus.UNKNOWN]


def test_a_backlog_is_worked_off_in_turns_of_bounded_length(
    log: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    class SlowParser:
        def feed(self, data: bytes) -> LogBatch:
            now[0] += 0.05
            return LogBatch(lines=data.count(b"\n"))

        def close(self) -> LogBatch:
            return LogBatch()

    monkeypatch.setattr("specdash.llama.log.parser.LogParser", SlowParser)
    log.touch()
    collector = LogCollector(str(log), published.append, clock=lambda: now[0])
    collector.step()
    append(log, b"x\n" * 6_000_000)
    published.clear()
    lines, turns = 0, 0
    while lines < 6_000_000:
        started = now[0]
        pause = collector.step()
        assert now[0] - started < 0.3
        lines = sum(batch.lines for batch in published.batches())
        if lines < 6_000_000:
            # At least as long a rest as the work, up to the period.
            assert pause == pytest.approx(min(0.2, now[0] - started))
        turns += 1
    assert turns > 10
    assert len(published) == turns
