"""Requests of a log are dated by the file's own time, those of an idle server too."""

import os
from pathlib import Path
from typing import Any

import pytest

from insight.experiment_data import T
from specdash.collect.logs import LogCollector
from specdash.core.readings import Reading, Source
from specdash.core.target import Target
from specdash.insight.state import TargetState
from specdash.llama.log.parser import LogParser
from specdash.llama.log.safe import own_seconds

START = b"%s I srv  llama_server: initializing ...\n"
REQUEST = b"""%(at)s I slot launch_slot_: id  0 | task %(task)d | processing task, is_child = 0
%(end)s I slot print_timing: id  0 | task %(task)d | prompt eval time =      19.23 ms /   122 tokens (    0.16 ms per token,  6344.25 tokens per second)
%(end)s I slot print_timing: id  0 | task %(task)d |        eval time =     900.00 ms /   120 tokens (    7.50 ms per token,   133.33 tokens per second)
%(end)s I slot print_timing: id  0 | task %(task)d |       total time =     919.23 ms /   242 tokens
%(end)s I slot print_timing: id  0 | task %(task)d | draft acceptance = 0.71631 (  101 accepted /   141 generated)
%(end)s I slot      release: id  0 | task %(task)d | stop processing: n_tokens = 241, truncated = 0
"""  # noqa: E501  as the server prints them


def stamp(seconds: float) -> bytes:
    whole, micro = divmod(round(seconds * 1e6), 1_000_000)
    return b"%d.%02d.%03d.%03d" % (whole // 60, whole % 60, micro // 1000, micro % 1000)


def request(start: float, task: int) -> bytes:
    return REQUEST % {b"at": stamp(start), b"end": stamp(start + 1), b"task": task}


class Watched:
    """A log file, its collector and the state, on clocks of this test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 5000.0
        self.state = TargetState(Target("http://127.0.0.1:8080", log=str(path)))
        self.collector = LogCollector(str(path), self.take, clock=lambda: self.now, wall=lambda: self.wall)

    @property
    def wall(self) -> float:
        return T - 5000.0 + self.now

    def take(self, reading: Reading[Any]) -> None:
        self.state.apply(reading)

    def write(self, data: bytes, ago: float = 0.0, *, path: Path | None = None) -> None:
        """Append what was written so long ago."""
        with (path or self.path).open("ab") as file:
            file.write(data)
        os.utime(path or self.path, (self.wall - ago, self.wall - ago))

    def look(self) -> list[float]:
        """When the requests ended, as seconds before now, oldest first."""
        self.collector.step()
        self.state.picture(self.now, self.wall)
        return [round(self.wall - request_sample.ended, 2) for request_sample in self.state.experiments.samples.logged]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "server.log")


def test_a_log_of_an_idle_server_is_as_old_as_its_file(watched: Watched) -> None:
    watched.write(START % stamp(0.1) + request(10, 1) + request(100, 2), ago=600)
    assert watched.look() == [690, 600]
    (first, _) = watched.state.experiments.samples.logged
    assert first.ended - first.began == pytest.approx(1.0)


def test_lines_that_say_nothing_at_the_end_make_the_requests_older(watched: Watched) -> None:
    watched.write(
        START % stamp(0.1) + request(10, 1) + stamp(311) + b" I srv  log_server_r: done request: GET /health\n"
    )
    assert watched.look() == [300]


ENDED = START % stamp(0.1) + request(10, 1) + request(500, 2)
RUNNING = START % stamp(0.1) + request(20, 1) + request(29, 2)


def test_requests_of_a_server_that_ended_before_we_looked_are_not_dated(watched: Watched) -> None:
    watched.write(ENDED + RUNNING, ago=5)
    assert watched.look() == [14, 5]


def test_a_long_log_is_read_in_several_parts_and_each_request_dated_once(watched: Watched) -> None:
    log = START % stamp(0.1) + b"".join(request(10 + 2 * task, task) for task in range(600))
    assert len(log) > 4 * 64 * 1024, "several reads"
    watched.write(log, ago=0)
    ages = watched.look()
    assert (len(ages), ages[-1], ages[0]) == (600, 0, 2 * 599)


def test_a_log_without_time_stamps_dates_only_what_comes_while_it_is_watched(watched: Watched) -> None:
    def bare(task: int) -> bytes:
        return b"\n".join(line.partition(b" I ")[2] for line in request(0, task).splitlines()) + b"\n"

    watched.write(bare(1), ago=300)
    assert watched.look() == []
    watched.now += 60
    watched.write(bare(2))
    assert watched.look() == [0]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("0.00.005.202 I cmn  common_param: x", 0.005202),
        ("12.03.000.001 W srv  x", 723.000001),
        ("Oct 05 10:00:00 host llama-server[123]: 1.02.000.000 I srv x", 62.0),
        ('{"type":"log","time":2500000,"level":"info","msg":"x"}', 2.5),
        ("[8081] 0.00.005.202 I srv x", None),
        ("I srv x", None),
        ("", None),
        ("no 1.2.3 stamp", None),
    ],
)
def test_a_whole_line_tells_its_own_servers_time(line: str, seconds: float | None) -> None:
    assert own_seconds(line) == seconds


def test_a_router_child_that_began_later_is_dated_by_its_own_clock() -> None:
    lines = b"500.00.000.000 I srv  x: y\n" + b"".join(b"[8090] " + line + b"\n" for line in request(5, 1).splitlines())
    state = TargetState(Target("http://127.0.0.1:8080"))
    batch = LogParser().feed(lines)
    from msgspec.structs import replace

    state.apply(Reading.known(Source.LOG, 100.0, replace(batch, age_s=2.0)))
    state.picture(100.0, T)
    (sample,) = state.experiments.samples.logged
    assert T - sample.ended == pytest.approx(2.0)
