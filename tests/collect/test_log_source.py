"""A log of a file, or of journalctl, docker and podman, by programs that print what the real ones did; as batches."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collect.seen import Seen
from specdash.cli.main import main
from specdash.collect.checkup import check_log
from specdash.collect.log_source import ProgramLines, command_of, lines_of, past, place_of_process
from specdash.collect.logs import LogCollector
from specdash.collect.tail import LogTail
from specdash.core.errors import ExitCode
from specdash.core.log_facts import LogBatch, TaskLaunched
from specdash.core.log_places import check_place, program_and_name
from specdash.core.readings import FailureKind, Source
from support.terminal import Terminal
from support.waiting import until

STORED = Path(__file__).parents[1] / "data" / "logs" / "draft_simple_lv4.log"
PLACES = ("journal:llama-server.service", "docker:llama", "podman:llama")
COMPLAINTS = {
    "docker:llama": (1, "Error response from daemon: No such container: llama"),
    "podman:llama": (125, 'Error: no container with name or ID "llama" found: no such container'),
}
"""What docker 28 and podman 4.3 print to standard error, and their exit codes."""
LINES = b"main: loading model\nsrv  update_slots: all slots are idle\n"
DASHBOARD = [sys.executable, "-m", "specdash"]


Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a program of that name, with that shell code, first on the path; it writes down what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(place: str, code: str) -> Path:
        found = program_and_name(place)
        assert found is not None
        file = folder / ("journalctl" if found[0] == "journal" else found[0])
        file.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{code}\n', encoding="utf-8")
        file.chmod(0o755)
        return tmp_path / "asked"

    return make


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    file = tmp_path / "kept"
    file.write_bytes(LINES)
    return file


def read_all(lines: ProgramLines, data: bytearray) -> bytearray:
    """`data` with what is new."""
    data += lines.read().data
    return data


@pytest.mark.parametrize("place", PLACES)
def test_the_past_and_what_follows_are_read(place: str, program: Program, kept: Path) -> None:
    asked = program(place, f"exec tail -n +1 -f {kept}")
    lines, data = ProgramLines(place), bytearray()
    try:
        until(lambda: read_all(lines, data) == LINES, 15)
        process = lines._process
        assert process is not None
        with kept.open("ab") as file:
            file.write(b"one more\n")
        until(lambda: read_all(lines, data) == LINES + b"one more\n", 15)
        assert time.time() - (lines.written_at or 0.0) < 15
    finally:
        lines.close()
    assert "-f" in asked.read_text(encoding="utf-8").split()
    assert process.poll() is not None, "none is left behind"
    both = ["--unit", "a.service", "--user-unit", "a.service"]
    assert command_of("journal:a.service", 7) == ["journalctl", *both, "-o", "cat", "-q", "-n", "7", "-f"]


@pytest.mark.parametrize("place", COMPLAINTS)
def test_a_complaint_is_a_reason_and_no_line_of_the_log(place: str, program: Program) -> None:
    status, words = COMPLAINTS[place]
    program(place, f"echo '{words}' >&2; exit {status}")
    seen = Seen()
    collector = LogCollector(place, seen.take)
    try:
        until(lambda: collector.step() and seen.kind(Source.LOG), 15)
    finally:
        collector.close()
    assert seen.detail(Source.LOG) == f"{place}: {words}"
    assert not any(batch.lines for batch in seen.values(Source.LOG))
    (chunk,) = past(place)
    assert (chunk.data, chunk.failure and chunk.failure.detail) == (b"", f"{place}: {words}")
    assert check_log(place).failure == f"{place}: {words}"


def test_what_prints_nothing_is_a_reason(program: Program, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write_bytes(b"")
    place = PLACES[0]
    program(place, f"exec tail -n +1 -f {kept}")
    seen = Seen()
    collector = LogCollector(place, seen.take)
    try:
        until(lambda: collector.step() and seen.kind(Source.LOG), 15)
        assert "no line of such a unit" in seen.detail(Source.LOG)
        kept.write_bytes(LINES)
        until(lambda: collector.step() and sum(batch.lines for batch in seen.values(Source.LOG)) == 2, 15)
    finally:
        collector.close()
    program(place, "exit 0")
    assert "no line of such a unit" in (check_log(place).failure or "")
    monkeypatch.setattr("specdash.collect.log_source._SILENT_S", 0.2)
    program("docker:llama", "exec sleep 60")
    assert check_log("docker:llama").failure == "docker:llama: docker printed nothing for 0.2 s"


def test_a_container_that_comes_back_is_followed_from_where_it_ended(program: Program, kept: Path) -> None:
    asked = program("docker:llama", f"cat {kept}")
    now = [0.0]
    lines, data = ProgramLines("docker:llama", clock=lambda: now[0]), bytearray()
    until(lambda: read_all(lines, data) == LINES, 15)
    ended = time.time()
    now[0] = 6.0
    until(lambda: read_all(lines, data) == 2 * LINES, 15)
    lines.close()
    first, second = (line.split() for line in asked.read_text(encoding="utf-8").splitlines()[:2])
    assert first == ["logs", "--tail", "20000", "-f", "llama"]
    assert (second[:2], second[3:]) == (["logs", "--since"], ["-f", "llama"])
    assert ended - 15 < float(second[2]) <= ended + 0.001


def test_a_program_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    failure = ProgramLines("podman:llama").read().failure
    assert failure is not None
    assert failure.detail == check_log("podman:llama").failure == "podman:llama: podman is not installed"


@pytest.mark.parametrize(
    ("group", "stderr", "expected"),
    [
        ("0::/user.slice/user@1000.service/app.slice/llama.service", "socket:[1]", "journal:llama.service"),
        ("0::/system.slice/llama@gpu0.service", "socket:[1]", "journal:llama@gpu0.service"),
        ("0::/system.slice/llama.service", "/dev/null", None),
        ("0::/user.slice/user-1000.slice/session-3.scope", "socket:[1]", None),
        ("0::/system.slice/llama.service", __file__, __file__),
        (f"0::/system.slice/docker-{'0a' * 32}.scope", "pipe:[1]", "docker:0a0a0a0a0a0a"),
        (f"12:pids:/docker/{'0a' * 32}", "pipe:[1]", "docker:0a0a0a0a0a0a"),
        (f"0::/machine.slice/libpod-{'1b' * 32}.scope/container", "pipe:[1]", "podman:1b1b1b1b1b1b"),
    ],
)
def test_where_a_process_logs_is_found_from_its_control_group(
    group: str, stderr: str, expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/cgroup").write_text(f"{group}\n", encoding="utf-8")
    (tmp_path / "7/fd/2").symlink_to(stderr)
    assert place_of_process(7, tmp_path) == expected


def test_all_that_a_program_keeps_is_parsed(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    asked = program("docker:llama", f"cat {STORED} >&2")
    assert main(["parse-log", "docker:llama", "--json"]) == ExitCode.OK
    assert json.loads(capfd.readouterr().out)["requests"]
    assert asked.read_text(encoding="utf-8") == "logs llama\n"
    status, complaint = COMPLAINTS["docker:llama"]
    program("docker:llama", f"printf '\\033[31m{complaint}\\n' >&2; exit {status}")
    assert main(["parse-log", "docker:llama"]) == ExitCode.BAD_INPUT
    assert f"docker:llama: {complaint}\n" in capfd.readouterr().err


def test_standard_input_is_a_log_for_one_look() -> None:
    words = [*DASHBOARD, "snapshot", "--url", "http://127.0.0.1:1", "--log", "-", "--json"]
    data = STORED.read_bytes()
    done = subprocess.run(words, input=data, stdout=subprocess.PIPE, timeout=60, check=False)
    assert json.loads(done.stdout)["log"]["lines"] == len(data.splitlines())


@pytest.mark.tmux
def test_standard_input_is_a_log_while_the_keys_come_from_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(STORED.read_bytes())
    dashboard = f"{' '.join(DASHBOARD)} --url http://127.0.0.1:1 --log -"
    with Terminal(["sh", "-c", f"tail -n +1 -f {log} | {dashboard}"], columns=120, rows=36) as terminal:
        terminal.wait_for("DOWN")
        with log.open("a", encoding="utf-8") as file:
            file.write("0.30.000.000 W srv          init: one line more\n")
        terminal.wait_for("one line more", within_s=30)
        terminal.press("q")
        assert terminal.wait_exit() == 0


def test_a_terminal_as_the_log_is_refused_with_an_example() -> None:
    outer, inner = os.openpty()
    words = [*DASHBOARD, "--log", "-"]
    done = subprocess.run(words, stdin=inner, capture_output=True, text=True, timeout=60, check=False)
    os.close(outer)
    os.close(inner)
    assert done.returncode == ExitCode.USAGE
    assert "| specdash --log -" in done.stderr


@pytest.mark.parametrize("place", ["journal:", "docker:a b", "podman:-f", "journal:../x"])
def test_a_name_that_no_unit_or_container_has_is_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a file, journal:UNIT, docker:NAME, podman:NAME, or - "):
        check_place(place)
    assert isinstance(lines_of(str(tmp_path / place)), LogTail)


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
