"""A server that is watched from its own machine: what comes, what is said when nothing comes, and beginning again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdash.collect import over_ssh
from specdash.collect.agent_wire import PROTOCOL
from specdash.core.readings import FailureKind, HealthStatus, Source
from specdash.insight.picture import BackendState
from specdash.insight.state import TargetState
from support.fault_server import FaultServer, says
from support.over_ssh import AGENT, Watched, behind_ssh, local_ssh, started
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = (Path(__file__).parents[1] / "data/logs/mamba_draft75_lv5.log").read_bytes()
HELLO = json.dumps({"now": 1.0, "wall": 2.0, "hello": {"version": "9.9", "protocol": PROTOCOL, "host": "far"}})


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer({"/health": says(200, '{"status": "ok"}')}) as server:
        yield server


def agent_that(folder: Path, *lines: str, then: str = "sys.stdin.read()") -> str:
    """A program that says these lines in the place of an agent."""
    script = folder / "agent.py"
    words = "".join(f"print({line!r}, flush=True)\n" for line in lines)
    script.write_text(f"import sys\n{words}{then}\n")
    return shlex.join([sys.executable, str(script)])


def place(server: FaultServer) -> str:
    return server.url.removeprefix("http://")


def test_its_readings_are_dated_here_and_its_target_is_known(tmp_path: Path, server: FaultServer) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(LOG)
    target = behind_ssh(local_ssh(tmp_path), AGENT, "--log", str(log), server=place(server))
    with Watched(target) as watched:
        until(lambda: watched.values(Source.HEALTH) and watched.values(Source.LOG) and watched.values(Source.HOST))
    assert watched.values(Source.HEALTH)[-1].status is HealthStatus.OK
    assert watched.values(Source.LOG)[0].lines == len(LOG.splitlines())
    assert watched.targets[-1].log == f"far:{log}"
    assert watched.targets[-1].url == target.url
    health = next(reading for reading in watched.readings if reading.value == watched.values(Source.HEALTH)[-1])
    assert abs(health.at - watched.readings[0].at) < 60.0, "by this machine's clock"


def test_a_connection_that_dies_is_told_and_made_again_and_no_line_of_the_log_is_read_twice(
    tmp_path: Path, server: FaultServer
) -> None:
    log = tmp_path / "server.log"
    half = LOG[: LOG.index(b"\n", len(LOG) // 2) + 1]
    log.write_bytes(half)
    target = behind_ssh(local_ssh(tmp_path), AGENT, "--log", str(log), server=place(server))
    state = TargetState(target)
    with Watched(target) as watched:
        watched.hub.bus._sinks.append(state.apply)
        until(lambda: watched.values(Source.HEALTH) and sum(b.lines for b in watched.values(Source.LOG)))
        known = len(watched.values(Source.HEALTH))
        os.kill(started(tmp_path)[0], signal.SIGKILL)
        until(lambda: "signal 9" in watched.failure())
        now = watched.readings[-1].at
        assert state.picture(now, 1e9).backend.state is BackendState.UNKNOWN, "nobody looks: it is not down"
        with log.open("ab") as more:
            more.write(LOG[len(half) :])
        until(lambda: len(started(tmp_path)) == 2 and len(watched.values(Source.HEALTH)) > known)
        lines = len(LOG.splitlines())
        until(lambda: sum(batch.lines for batch in watched.values(Source.LOG)) >= lines)
    assert sum(batch.lines for batch in watched.values(Source.LOG)) == lines


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("/no/such/specdash", "specdash is not installed on far as `/no/such/specdash` (exit 127)"),
        ("exit 255; :", "ssh to far has no connection (exit 255)"),
        ("echo 'sk-0123456789abcdef refused' >&2; exit 3; :", "the agent on far ended (exit 3)"),
        ("echo unknown command agent >&2; exit 2; :", "is of another version than"),
        ("true", "ended without a word: is it specdash?"),
    ],
)
def test_why_there_is_no_agent_is_told_by_its_exit_code_with_the_way_out(
    tmp_path: Path, program: str, words: str
) -> None:
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n')
    script.chmod(0o755)
    with Watched(behind_ssh((str(script),), program)) as watched:
        until(lambda: words in watched.failure(), why=watched.failure)
        asked = {source for source in Source if watched.failure(source)}
    assert {Source.METRICS, Source.SLOTS, Source.GPU, Source.LOG} <= asked, "who waits for them need not"
    assert Source.PROCESS not in asked, "nobody said that it has ended"


def test_an_ssh_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Watched(behind_ssh((str(tmp_path / "nossh"),))) as watched:
        until(lambda: "command in config.toml" in watched.failure(), why=watched.failure)


@pytest.mark.parametrize(("protocol", "way_out"), [(PROTOCOL + 1, "upgrade it here"), (0, "upgrade it on far")])
def test_another_protocol_is_told_with_both_versions(tmp_path: Path, protocol: int, way_out: str) -> None:
    hello = json.dumps({"hello": {"version": "9.9", "protocol": protocol, "host": "far"}, "unheard": "of"})
    with Watched(behind_ssh(local_ssh(tmp_path), agent_that(tmp_path, hello))) as watched:
        until(lambda: way_out in watched.failure(), why=watched.failure)
    assert "9.9" in watched.failure()


def test_what_a_shell_prints_first_is_passed_over_and_what_is_no_line_is_counted_and_named(tmp_path: Path) -> None:
    good = {"now": 2.0, "wall": 3.0, "readings": [{"source": "health", "at": 2.0, "value": {"status": "ok"}}]}
    bad = {"now": 2.0, "wall": 3.0, "readings": [{"source": "gpu", "at": 2.0, "value": {"gpus": [7]}}]}
    lines = ("Welcome to far!", HELLO, "{", json.dumps(bad), json.dumps({"now": "noon"}), json.dumps(good))
    with Watched(behind_ssh(local_ssh(tmp_path), agent_that(tmp_path, *lines))) as watched:
        until(lambda: watched.values(Source.HEALTH), why=watched.failure)
    assert "3 lines of the agent on far" in watched.failure(Source.SCHEDULING, FailureKind.GARBAGE)
    assert not watched.values(Source.GPU)


def test_a_line_without_an_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_ssh, "MOST_LINE_BYTES", 100_000)
    good = {"now": 2.0, "wall": 3.0, "readings": [{"source": "health", "at": 2.0, "value": {"status": "ok"}}]}
    program = agent_that(tmp_path, HELLO, "x" * 900_000, json.dumps(good))
    with Watched(behind_ssh(local_ssh(tmp_path), program)) as watched:
        until(lambda: watched.values(Source.HEALTH), why=watched.failure)
    assert "1 line of" in watched.failure(Source.SCHEDULING, FailureKind.GARBAGE)


def test_a_dead_connection_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_ssh, "SILENT_S", 1.0)
    with Watched(behind_ssh(local_ssh(tmp_path), agent_that(tmp_path, HELLO))) as watched:
        until(lambda: "the connection is dead" in watched.failure(), why=watched.failure)
        until(lambda: len(started(tmp_path)) > 1)


def test_a_slow_link_is_told_with_what_it_cost(tmp_path: Path) -> None:
    line = {"now": 2.0, "wall": 3.0, "log_lines_left_out": 1200, "readings_left_out": 3}
    with Watched(behind_ssh(local_ssh(tmp_path), agent_that(tmp_path, HELLO, json.dumps(line)))) as watched:
        until(lambda: "1,200 log lines, 3 readings left out" in watched.failure(Source.SCHEDULING))


def test_an_agent_that_finds_no_server_says_so(tmp_path: Path) -> None:
    line = {"now": 2.0, "wall": 3.0, "waiting": "no llama-server is found there yet"}
    with Watched(behind_ssh(local_ssh(tmp_path), agent_that(tmp_path, HELLO, json.dumps(line)))) as watched:
        until(lambda: "far: no llama-server" in watched.failure(Source.METRICS))
