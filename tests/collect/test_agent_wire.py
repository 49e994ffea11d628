"""What an agent writes comes back whole, what is none is refused, and another machine's clocks are made this one's."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specdash.collect.agent import MOST_FACTS, MOST_WAITING, Outbox, weight_of
from specdash.collect.agent_wire import (
    AgentHello,
    AgentLine,
    AgentTarget,
    ClockDifference,
    event_key,
    read_line,
    read_reading,
    write_line,
)
from specdash.core.codec import UnreadableError
from specdash.core.log_facts import LogBatch, TaskLaunched
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import Health, HealthStatus, ProcessTree, Reading, Source
from specdash.core.sources import encode
from specdash.core.target import Target, ssh_host
from support.any_value import json_values, of_hint, readings

HELLO = AgentHello("0.1", 1, "gpu1")
OK = Health(HealthStatus.OK)


def written(line: AgentLine) -> bytes:
    try:
        return write_line(line)
    except ValueError:
        assume(False)  # numbers that are none are not written
        raise


@pytest.mark.slow
@given(st.lists(readings, max_size=3))
def test_every_reading_comes_back_as_it_was(found: list[Reading[Any]]) -> None:
    line = read_line(written(AgentLine(1.0, 2.0, readings=tuple(map(encode, found)))))
    assert list(map(read_reading, line.readings)) == found


@given(of_hint(AgentLine))
def test_every_line_comes_back_as_it_was(line: AgentLine) -> None:
    assert read_line(written(line)) == json_like(line)


def json_like(line: AgentLine) -> AgentLine:
    from dataclasses import replace

    return replace(line, readings=tuple(json.loads(json.dumps(line.readings))))


@given(json_values, st.sampled_from(list(Source)))
def test_whatever_comes_is_a_value_of_its_types_or_refused(data: Any, source: Source) -> None:
    row = {"source": source.value, "at": 1.0, "value": data}
    with contextlib.suppress(UnreadableError):
        read_line(json.dumps(data).encode())
    for whatever in (row, data):
        with contextlib.suppress(UnreadableError):
            read_reading(whatever)


@pytest.mark.parametrize(
    "row",
    [
        {"source": "metrics", "at": 1.0, "value": {"draft_tokens": "many"}},
        {"source": "metrics", "at": 1.0, "value": {"draft_tokens": float("inf")}},
        {"source": "slots", "at": 1.0, "value": {"slots": [{"id": True, "is_processing": False}]}},
        {"source": "slots", "at": 1.0, "value": {"slots": [{"id": 10**60, "is_processing": False}]}},
        {"source": "process", "at": 1.0, "value": {"pid": 7, "pids": [[7]]}},
        {"source": "health", "at": float("nan"), "value": {"status": "ok"}},
        {"source": "health", "at": 1.0},
        {"source": "health", "at": 1.0, "status": "unknown", "failure": ["connection refused", 7]},
        {"source": "astrology", "at": 1.0, "value": {}},
    ],
)
def test_a_field_of_another_type_is_refused(row: Any) -> None:
    with pytest.raises(UnreadableError):
        read_reading(row)


def test_a_target_is_told_without_its_keys_and_its_files_are_of_no_machine_but_its_own() -> None:
    known = Target("http://127.0.0.1:1", api_key="CANARY", proxy_key="CANARY", log="/var/log/llama.log", pid=7)
    line = write_line(AgentLine(0.0, 0.0, target=AgentTarget.of(known)))
    assert b"CANARY" not in line
    host = ssh_host("ssh://ann@gpu1")
    told = read_line(line).target
    assert told is not None
    seen = told.seen_from(Target(host.url, ssh=host), host)
    assert (seen.url, seen.log, seen.pid) == ("ssh://ann@gpu1", "ann@gpu1:/var/log/llama.log", 7)


class TestClocks:
    def test_readings_are_dated_by_the_line_that_was_least_under_way(self) -> None:
        clocks = ClockDifference()
        clocks.saw(AgentLine(100.0, 5000.0), 1003.0, 5003.0)
        clocks.saw(AgentLine(101.0, 5001.0), 1001.5, 5001.5)
        clocks.saw(AgentLine(102.0, 5002.0), 1020.0, 5020.0)
        assert clocks.here(102.0) == pytest.approx(1002.5, abs=0.01)
        assert clocks.wall_s == 0.0, "half a second under way is no difference of clocks"

    def test_a_wall_clock_that_is_wrong_there_moves_moments_and_leaves_durations(self) -> None:
        clocks = ClockDifference()
        clocks.saw(AgentLine(100.0, 5000.0), 200.0, 9000.0)
        assert clocks.dated(ProcessTree(7, started_wall=4000.0)) == ProcessTree(7, started_wall=8000.0)
        events = ProxyEvents((RequestEvent(4900.0, "s", "r", duration_s=3.0),))
        assert clocks.dated(events) == ProxyEvents((RequestEvent(8900.0, "s", "r", duration_s=3.0),))
        assert clocks.dated(OK) == OK


class TestOutbox:
    def lines(self, outbox: Outbox, count: int) -> list[AgentLine]:
        given_out = outbox.lines()
        return [read_line(next(given_out)) for _ in range(count)]

    def test_hello_comes_first_and_the_target_before_its_readings(self) -> None:
        outbox = Outbox(HELLO)
        outbox.know(Target("http://127.0.0.1:1"))
        outbox.add(Reading.known(Source.HEALTH, 1.0, OK))
        first, second = self.lines(outbox, 2)
        assert first.hello == HELLO
        assert second.target is not None
        assert len(second.readings) == 1

    def test_a_reader_that_stands_still_costs_log_lines_first_then_all_but_what_is_newest(self) -> None:
        outbox = Outbox(HELLO)
        for look in range(3000):
            batch = LogBatch(50, facts=(TaskLaunched(0, look),) * 10, tail=("a line",) * 50, age_s=float(look))
            outbox.add(Reading.known(Source.LOG, float(look), batch), (1, 2, look))
            outbox.add(Reading.known(Source.HEALTH, float(look), OK))
            assert outbox._weight - outbox._heaviest <= MOST_WAITING
        lines = [read_line(next(given_out := outbox.lines()))]
        while lines[-1].log_read is None:
            lines.append(read_line(next(given_out)))
        found = [read_reading(row) for line in lines for row in line.readings]
        batches = [reading.value for reading in found if isinstance(reading.value, LogBatch)]
        assert sum(batch.lines for batch in batches) == 3000 * 50, "counts are whole"
        newest = batches[-1]
        assert newest.facts[-1] == TaskLaunched(0, 2999)
        assert newest.age_s == 2999.0
        healths = [reading.at for reading in found if reading.source is Source.HEALTH]
        assert healths[-1] == 2999.0
        last = lines[-1]
        assert last.log_lines_left_out > 0
        assert last.readings_left_out > 0
        assert last.log_read == (1, 2, 2999)

    def test_a_long_log_is_told_in_pieces_that_are_the_whole(self) -> None:
        facts = tuple(TaskLaunched(0, task, at_s=float(task)) for task in range(MOST_FACTS * 3 + 7))
        whole = LogBatch(90_000, facts=facts, restarted=True, age_s=1.0)
        outbox = Outbox(HELLO)
        outbox.add(Reading.known(Source.LOG, 1.0, whole))
        pieces: list[Any] = [read_reading(row).value for line in self.lines(outbox, 5) for row in line.readings]
        assert sum((piece.facts for piece in pieces), ()) == facts
        assert [piece.more_follows for piece in pieces] == [True, True, True, False]
        assert [piece.restarted for piece in pieces] == [True, False, False, False]
        assert sum(piece.lines for piece in pieces) == whole.lines
        assert pieces[0].age_s == pytest.approx(1.0 + len(facts) - MOST_FACTS)
        assert all(weight_of(Reading.known(Source.LOG, 1.0, piece)) <= MOST_FACTS + 1 for piece in pieces)

    def test_a_number_that_is_none_costs_its_reading_and_says_so(self) -> None:
        outbox = Outbox(HELLO)
        outbox.add(Reading.known(Source.PROCESS, 1.0, ProcessTree(7, cpu_cores=float("nan"))))
        outbox.add(Reading.known(Source.HEALTH, 1.0, OK))
        process, health = map(read_reading, self.lines(outbox, 2)[1].readings)
        assert process.failure is not None
        assert health.value == OK


def test_an_event_is_known_again_by_all_that_it_says() -> None:
    event = RequestEvent(1.0, "s", "r", completion_tokens=3)
    assert event_key(event) == event_key(RequestEvent(1.0, "s", "r", completion_tokens=3))
    assert event_key(event) != event_key(RequestEvent(1.0, "s", "r", completion_tokens=4))
