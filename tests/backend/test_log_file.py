"""The log a backend's output is kept in: private, rotated, bounded, and never in the server's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend.output import LogFile
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_is_kept_unchanged_for_its_owner_only_and_the_one_before_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "server.log"
    path.parent.mkdir()
    path.touch(0o644)
    for text in (b"first\n", bytes(range(256))):
        log = LogFile(path, 1)
        log.write(text)
        log.close()
    assert path.read_bytes() == bytes(range(256))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name("server.log.1").read_bytes() == b"first\n"


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


@pytest.mark.parametrize(("device", "lost"), [("/dev/null", 0), ("/dev/full", 5)])
def test_a_device_is_written_to_as_it_is_and_a_full_disk_loses_output_and_counts_it(device: str, lost: int) -> None:
    log = LogFile(device, 1)
    log.write(b"12345")
    log.close()
    assert log.lost == lost


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
