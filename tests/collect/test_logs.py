"""The log collector turns a growing file into batches on the bus: few, complete, and each of one server's life."""

from pathlib import Path

import pytest

from collect.seen import Seen
from specdash.collect.logs import LogCollector
from specdash.core.log_facts import LogBatch, TaskLaunched
from specdash.core.readings import FailureKind, Source

LAUNCH = b"0.00.%03d.000 I slot launch_slot_: id  0 | task %d | processing task, is_child = 0\n"


class Log(Seen):
    """A log file, its collector, and what that published."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.now = 0.0
        self.collector = LogCollector(str(path), self.take, clock=lambda: self.now)

    def write(self, data: bytes) -> "Log":
        """More of the log, and a look at it."""
        with self.path.open("ab") as file:
            file.write(data)
        self.collector.step()
        return self

    @property
    def batches(self) -> list[LogBatch]:
        return self.values(Source.LOG)

    def tasks(self) -> list[int]:
        return [fact.task for batch in self.batches for fact in batch.facts if isinstance(fact, TaskLaunched)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "server.log")


def test_the_first_batch_holds_all_that_the_file_had(log: Log) -> None:
    log.write(b"".join(LAUNCH % (number % 1000, number) for number in range(5000)))
    assert [batch.lines for batch in log.batches] == [5000]
    assert log.tasks() == list(range(5000))


def test_a_line_cut_in_two_is_one_fact(log: Log) -> None:
    line = LAUNCH % (1, 7)
    assert log.write(line[:40]).write(line[40:]).tasks() == [7]


def test_an_empty_log_is_known_to_be_empty_and_nothing_new_is_not_published(log: Log) -> None:
    log.path.touch()
    for _ in range(4):
        assert 0 < log.collector.step() <= 0.5
    assert log.batches == [LogBatch()]


def test_a_missing_log_is_a_reason_once_and_found_when_it_comes(log: Log) -> None:
    for _ in range(2):
        log.collector.step()
    log.write(LAUNCH % (1, 7))
    assert log.tasks() == [7]
    assert not log.batches[-1].restarted
    log.path.unlink()
    for _ in range(2):
        log.collector.step()
    kinds = [reading.failure and reading.failure.kind for reading in log.readings]
    assert kinds == [FailureKind.UNAVAILABLE, None, FailureKind.UNAVAILABLE]


def test_a_new_log_under_the_same_name_is_a_restart(log: Log) -> None:
    log.write(LAUNCH % (900, 7) + b"an unfinished li")
    log.path.write_bytes(b"")
    log.write(LAUNCH % (1, 0))
    assert log.batches[-1].restarted
    assert log.tasks() == [7, 0]
    assert sum(batch.lines for batch in log.batches) == 3


def test_a_backlog_is_worked_off_in_turns_of_bounded_length(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowParser:
        def feed(self, data: bytes) -> LogBatch:
            log.now += 0.05
            return LogBatch(lines=data.count(b"\n"))

    monkeypatch.setattr("specdash.llama.log.parser.LogParser", SlowParser)
    log.write(b"")
    log.path.write_bytes(b"x\n" * 6_000_000)
    log.readings.clear()
    turns = 0
    while sum(batch.lines for batch in log.batches) < 6_000_000:
        started, turns = log.now, turns + 1
        pause = log.collector.step()
        assert log.now - started < 0.3
        assert pause >= min(0.2, log.now - started) - 1e-9, "at least as long a rest as the work, up to the period"
    assert turns > 10
    assert len(log.readings) == turns
