"""The log of a supervised service: private, bounded while it is written to, read from its end."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from specdash.control.services import supervisor as supervisor_log
from specdash.control.services import supervisor as supervisor_runner
from specdash.control.services.supervisor import Service, Supervisor, bound_log, last_line, open_log, tail
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

WRITES = "import time\nwhile True: print('x' * 100, flush=True); time.sleep(0.001)"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    limit = 4096
    monkeypatch.setattr(supervisor_log, "LIMIT_BYTES", limit)
    return limit


def test_a_log_over_its_limit_is_kept_once_and_emptied_under_its_writer(tmp_path: Path, small: int) -> None:
    path, old = tmp_path / "logs" / "log", tmp_path / "logs" / "log.1"
    with open_log(path) as file:
        file.write(b"a" * small)
        bound_log(path)
        assert (path.stat().st_size, old.exists()) == (small, False)
        file.write(b"b\n")
        bound_log(path)
        file.write(b"c\n")
    assert path.read_bytes() == b"c\n"
    assert old.read_bytes() == b"a" * small + b"b\n"
    assert [path.stat().st_mode & 0o777 for path in (path, old)] == [0o600, 0o600]
    assert sorted(path.name for path in path.parent.iterdir()) == ["log", "log.1"]


def test_a_log_that_cannot_be_kept_is_bounded_all_the_same(tmp_path: Path, small: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * (small + 1))
    (tmp_path / "log.1").mkdir()
    bound_log(path)
    assert path.read_bytes() == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]


@pytest.mark.usefixtures("small")
def test_a_service_that_writes_for_ever_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_runner, "_LOG_CHECK_S", 0.02)
    log = tmp_path / "log"
    with Supervisor(handle_signals=False) as supervisor:
        supervisor.add(Service("s", (sys.executable, "-c", WRITES), dict(os.environ), log=str(log)))
        supervisor.launch("s")
        until((tmp_path / "log.1").exists)
        until(lambda: 0 < log.stat().st_size < 100_000)
        assert tail(str(log), 1) == ("x" * 100,)


def test_the_tail_is_text_whatever_was_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n\n  \n\xff\xfe second \r\nthird " + b"y" * 5000 + b"\nno end")
    assert tail(str(path), 9) == ("first", "\ufffd\ufffd second", ("third " + "y" * 5000)[:2048], "no end")
    assert last_line(str(path)) == "no end"


def test_where_there_is_no_log_there_is_no_tail(tmp_path: Path) -> None:
    assert tail(None, 5) == tail(str(tmp_path / "none"), 5) == tail(str(tmp_path), 5) == ()
    assert last_line(None) == ""
