"""The log a backend's output is kept in: private, rotated, bounded, and never in the server's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend.output import LogFile
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_previous_run_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "server.log"
    for text in (b"first\n", b"second\n"):
        log = LogFile(path, 1)
        log.write(text)
        log.close()
    assert path.read_bytes() == b"second\n"
    assert path.with_name("server.log.1").read_bytes() == b"first\n"


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch(0o644)
    LogFile(path, 1).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_growth_is_bounded_to_twice_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = LogFile(path, 1)
    line = b"x" * 65535 + b"\n"
    for _ in range(100):
        log.write(line)
    log.close()
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert all(size <= 1024 * 1024 for size in sizes)


def test_bytes_are_kept_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = LogFile(path, 0)
    log.write(bytes(range(256)))
    log.close()
    assert path.read_bytes() == bytes(range(256))


def test_a_device_is_written_to_as_it_is() -> None:
    log = LogFile("/dev/null", 1)
    log.write(b"x")
    log.close()


def test_a_full_disk_loses_output_and_counts_it() -> None:
    log = LogFile("/dev/full", 1)
    log.write(b"12345")
    log.close()
    assert log.lost == 5


def test_a_place_that_cannot_be_written_is_named() -> None:
    with pytest.raises(InputError, match=r"log file /proc/nope/x\.log: cannot be written"):
        LogFile("/proc/nope/x.log", 1)


def test_the_bound_can_be_moved_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = LogFile(path, 0)
    for _ in range(3):
        log.write(b"x" * (1 << 20))
    assert path.stat().st_size == 3 << 20
    log.max_mib = 1
    log.write(b"y")
    log.close()
    assert path.read_bytes() == b"y"
    assert path.with_name("server.log.1").stat().st_size == 3 << 20
