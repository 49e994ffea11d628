"""The log around warnings: bounded, dated, and of the span alone."""

import os
from pathlib import Path

import pytest

from specdash.export.incident.bundle import IncidentSpan
from specdash.export.incident.excerpt import MAX_LINES, SHOWN_OF_A_CLASS, excerpt

NOW = 1_700_000_000.0
EVER = IncidentSpan(0.0, NOW + 10)


def written(path: Path, lines: list[str], at: float = NOW) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.utime(path, (at, at))
    return path


def at(seconds: float, text: str, level: str = "I") -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}.{int(rest):02d}.{int(rest % 1 * 1000):03d}.000 {level} {text}"


def request(second: float, task: int) -> list[str]:
    return [at(second, f"slot launch_slot_: id  0 | task {task} | processing task, is_child = 0")]


WARNING = "find_slot: non-consecutive token position 24 after 23 for sequence 0 with 512 new tokens"
CLASS = "find_slot_non_consecutive"


def test_lines_are_rebuilt_with_their_time_and_steps_of_requests_are_counted(tmp_path: Path) -> None:
    chatter = [at(19.5, "slot update_slots: id  0 | task 7 | n_tokens = 0, memory_seq_rm [0, end)")] * 3
    log = written(tmp_path / "log", [*request(19, 7), *chatter, at(20, WARNING, "W"), *request(21, 8)])
    found = excerpt(log, EVER)
    assert [line.split("  ", 1)[1] for line in found.lines if not line.startswith(" ")] == [
        "19.000 s I slot: id 0 | task 7 | processing task, is_child = 0",
        "20.000 s W non-consecutive token position 24 after 23 for sequence 0 with 512 new tokens",
        "21.000 s I slot: id 0 | task 8 | processing task, is_child = 0",
    ]
    assert any("3 lines left out" in line for line in found.lines)
    assert dict(found.counts)[CLASS] == 1


def test_only_lines_of_the_span_count(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [at(second, WARNING, "W") for second in (0, 100, 200)])
    found = excerpt(log, IncidentSpan(NOW - 150, NOW - 50))
    assert dict(found.counts) == {CLASS: 1}
    assert [line for line in found.lines if "100.000 s" in line]


def test_a_server_before_a_restart_is_dated_by_when_the_next_one_began(tmp_path: Path) -> None:
    first = [at(0, "srv  main: initializing ..."), at(50, WARNING, "W")]
    second = [at(0, "srv  main: initializing ..."), at(1000, WARNING, "W")]
    log = written(tmp_path / "log", first + second)
    assert dict(excerpt(log, IncidentSpan(NOW - 1100, NOW - 900)).counts)[CLASS] == 1
    assert dict(excerpt(log, IncidentSpan(NOW - 900, NOW + 1)).counts)[CLASS] == 1
    assert dict(excerpt(log, IncidentSpan(NOW - 1100, NOW + 1)).counts)[CLASS] == 2


def test_a_storm_is_counted_and_not_copied(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [at(second / 100, WARNING, "W") for second in range(5000)])
    found = excerpt(log, EVER)
    assert dict(found.counts) == {CLASS: 5000}
    assert sum("position 24" in line for line in found.lines) == SHOWN_OF_A_CLASS
    assert any("4," in line and "left out" in line for line in found.lines)


def test_lines_that_no_table_has_never_appear(tmp_path: Path) -> None:
    log = written(
        tmp_path / "log", [at(1, WARNING, "W"), "aardvark said so", at(2, "aardvark", "E"), at(3, "aardvark")]
    )
    told = "\n".join(excerpt(log, EVER).lines)
    assert "aardvark" not in told
    assert "an error that specdash does not know" in told


def test_a_log_without_time_stamps_is_taken_from_its_end(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [WARNING] * 3)
    found = excerpt(log, IncidentSpan(NOW - 5, NOW))
    assert dict(found.counts) == {CLASS: 3}
    assert any("no time stamps" in remark for remark in found.remarks)


def test_of_a_large_log_only_the_end_is_looked_at(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [at(second, WARNING, "W") for second in range(5000)])
    found = excerpt(log, EVER, read_bytes=64 * 1024)
    assert dict(found.counts)[CLASS] < 2000
    assert any("only the last" in remark for remark in found.remarks)


def test_it_is_never_longer_than_its_bound(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [line for n in range(MAX_LINES) for line in (at(n, WARNING, "W"), *request(n, n))])
    found = excerpt(log, EVER)
    assert len(found.lines) == MAX_LINES
    assert any("were left out" in remark for remark in found.remarks)


def test_an_empty_log_and_one_that_is_not_there(tmp_path: Path) -> None:
    assert excerpt(written(tmp_path / "log", []), EVER).lines == ()
    with pytest.raises(FileNotFoundError):
        excerpt(tmp_path / "none", EVER)
