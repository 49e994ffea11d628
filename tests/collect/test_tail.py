"""The tail follows a log file through everything that happens to log files."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.collect.tail import LogTail, TailChunk
from specdash.core.readings import FailureKind


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def drain(tail: LogTail, limit: int = 1 << 20) -> tuple[bytes, bool]:
    """All that is new, and whether some of it began a new file."""
    data, replaced = b"", False
    while True:
        chunk = tail.read(limit)
        data += chunk.data
        replaced = replaced or chunk.replaced
        if not chunk.more:
            return data, replaced


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


class TestStart:
    def test_a_small_file_is_read_from_its_start(self, log: Path) -> None:
        log.write_bytes(b"one\ntwo\n")
        assert drain(LogTail(str(log))) == (b"one\ntwo\n", False)

    def test_of_a_large_file_only_the_end_is_read_from_the_start_of_a_line(self, log: Path) -> None:
        log.write_bytes(b"".join(b"line %06d\n" % number for number in range(1000)))
        data, _ = drain(LogTail(str(log), whole_below=1000, backfill=100))
        assert data.startswith(b"line 000")
        assert data.endswith(b"line 000999\n")
        assert len(data) < 100

    def test_the_unfinished_line_at_which_a_large_file_is_entered_is_left_out_whole(self, log: Path) -> None:
        log.write_bytes(b"x" * 5000)
        tail = LogTail(str(log), whole_below=1000, backfill=100)
        assert drain(tail) == (b"", False)
        append(log, b"y" * 50)
        assert drain(tail) == (b"", False)
        append(log, b"end\nnext\n")
        assert drain(tail) == (b"next\n", False)

    def test_an_empty_file_has_nothing_and_no_failure(self, log: Path) -> None:
        log.touch()
        assert LogTail(str(log)).read() == TailChunk()

    def test_a_file_that_is_not_there_yet_is_read_from_its_start_when_it_comes(self, log: Path) -> None:
        tail = LogTail(str(log), whole_below=4, backfill=4)
        failure = tail.read().failure
        assert failure is not None
        assert failure.kind is FailureKind.UNAVAILABLE
        assert "is not there yet" in failure.detail
        log.write_bytes(b"one\ntwo\n")
        assert drain(tail) == (b"one\ntwo\n", False)

    def test_a_folder_that_is_not_there_yet_is_no_different(self, tmp_path: Path) -> None:
        failure = LogTail(str(tmp_path / "no" / "such.log")).read().failure
        assert failure is not None
        assert "is not there yet" in failure.detail

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_may_not_be_read_says_so(self, log: Path) -> None:
        log.write_bytes(b"secret\n")
        log.chmod(0)
        failure = LogTail(str(log)).read().failure
        assert failure is not None
        assert "permission denied" in failure.detail

    def test_a_permission_error_says_so(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", denied)
        failure = LogTail(str(log)).read().failure
        assert failure is not None
        assert failure.detail == f"{log} cannot be read: permission denied"

    def test_what_is_no_file_says_so(self, tmp_path: Path) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        for path in (tmp_path, fifo, Path("/dev/null")):
            failure = LogTail(str(path)).read().failure
            assert failure is not None
            assert failure.detail == f"{path} is not a log file"

    def test_a_name_that_cannot_be_one_says_so(self) -> None:
        failure = LogTail("a\0b").read().failure
        assert failure is not None
        assert failure.kind is FailureKind.UNAVAILABLE


class TestGrowth:
    def test_only_what_is_new_is_read(self, log: Path) -> None:
        log.write_bytes(b"one\n")
        tail = LogTail(str(log))
        drain(tail)
        assert tail.read() == TailChunk()
        append(log, b"two\n")
        assert drain(tail) == (b"two\n", False)

    def test_reads_are_bounded_and_say_that_there_is_more(self, log: Path) -> None:
        log.write_bytes(b"0123456789")
        tail = LogTail(str(log))
        assert tail.read(4) == TailChunk(b"0123", more=True)
        assert tail.read(4) == TailChunk(b"4567", more=True)
        assert tail.read(4) == TailChunk(b"89")

    def test_a_line_of_ten_megabytes_and_invalid_utf8_pass_as_they_are(self, log: Path) -> None:
        data = b"\xff\xfe\x00" + b"x" * 10_000_000 + b"\nend\n"
        log.write_bytes(data)
        tail = LogTail(str(log), whole_below=1 << 30)
        assert drain(tail) == (data, False)


class TestReplacement:
    def test_rotation_finishes_the_old_file_first(self, log: Path, tmp_path: Path) -> None:
        log.write_bytes(b"one\n")
        tail = LogTail(str(log))
        drain(tail)
        old = tmp_path / "server.log.1"
        log.rename(old)
        append(old, b"last words\n")
        log.write_bytes(b"new\n")
        chunks = [tail.read() for _ in range(4)]
        assert [(chunk.data, chunk.replaced) for chunk in chunks if chunk.data] == [
            (b"last words\n", False),
            (b"new\n", True),
        ]

    def test_a_new_file_that_is_still_empty_does_not_end_the_old_one(self, log: Path, tmp_path: Path) -> None:
        log.write_bytes(b"one\n")
        tail = LogTail(str(log))
        drain(tail)
        old = tmp_path / "server.log.1"
        log.rename(old)
        log.touch()
        assert drain(tail) == (b"", False)
        append(old, b"the server holds on to its file\n")
        assert drain(tail) == (b"the server holds on to its file\n", False)
        append(log, b"now\n")
        assert drain(tail) == (b"now\n", True)

    def test_truncation_begins_anew(self, log: Path) -> None:
        log.write_bytes(b"a long first life\n")
        tail = LogTail(str(log))
        drain(tail)
        log.write_bytes(b"short\n")
        assert drain(tail) == (b"short\n", True)

    def test_truncation_seen_while_the_file_is_empty_is_told_with_the_first_data(self, log: Path) -> None:
        log.write_bytes(b"one\n")
        tail = LogTail(str(log))
        drain(tail)
        log.write_bytes(b"")
        assert drain(tail) == (b"", False)
        append(log, b"two\n")
        assert drain(tail) == (b"two\n", True)

    def test_a_file_that_is_no_shorter_goes_on_whatever_stands_in_it(self, log: Path) -> None:
        log.write_bytes(b"0.00.001 first life\n")
        tail = LogTail(str(log))
        drain(tail)
        log.write_bytes(b"0.00.002 other life\nlonger\n")
        assert drain(tail) == (b"longer\n", False)

    def test_another_file_under_the_same_name_and_of_the_same_size_is_noticed(self, log: Path, tmp_path: Path) -> None:
        log.write_bytes(b"one\n")
        tail = LogTail(str(log))
        drain(tail)
        other = tmp_path / "other"
        other.write_bytes(b"two\n")
        other.replace(log)
        assert drain(tail) == (b"two\n", True)

    def test_a_symlink_that_comes_to_name_another_file_is_followed(self, tmp_path: Path) -> None:
        first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
        first.write_bytes(b"one\n")
        second.write_bytes(b"two\n")
        link.symlink_to(first)
        tail = LogTail(str(link))
        assert drain(tail) == (b"one\n", False)
        link.unlink()
        link.symlink_to(second)
        assert drain(tail) == (b"two\n", True)

    def test_a_deleted_file_is_said_to_be_and_read_on_while_its_writer_holds_it(self, log: Path) -> None:
        with log.open("ab", buffering=0) as writer:
            writer.write(b"one\n")
            tail = LogTail(str(log))
            drain(tail)
            log.unlink()
            failure = tail.read().failure
            assert failure is not None
            assert "is not there (any more)" in failure.detail
            writer.write(b"two\n")
            assert drain(tail) == (b"two\n", False)
        log.write_bytes(b"three\n")
        assert drain(tail) == (b"three\n", True)

    def test_the_hole_that_copytruncate_leaves_is_skipped(self, log: Path) -> None:
        with log.open("wb", buffering=0) as writer:
            writer.write(b"x" * 1_000_000 + b"\n")
            tail = LogTail(str(log))
            drain(tail)
            os.truncate(log, 0)
            assert drain(tail) == (b"", False)
            writer.write(b"after\n")
            assert drain(tail) == (b"after\n", True)
            writer.write(b"more\n")
            assert drain(tail) == (b"more\n", False)


STEP = st.one_of(
    st.tuples(st.just("append"), st.binary(min_size=1, max_size=300)),
    st.tuples(st.just("read"), st.integers(1, 200)),
    st.tuples(st.just("rotate"), st.binary(min_size=1, max_size=100)),
)


@given(st.lists(STEP, max_size=25))
def test_whatever_is_appended_and_rotated_arrives_once_and_in_order(steps: list[tuple[str, bytes | int]]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        log, written, got, files = folder / "log", b"", b"", 0
        log.touch()
        tail = LogTail(str(log))
        for kind, argument in steps:
            if kind == "append" and isinstance(argument, bytes):
                append(log, argument)
                written += argument
            elif kind == "read" and isinstance(argument, int):
                got += tail.read(argument).data
            elif kind == "rotate" and isinstance(argument, bytes):
                got += drain(tail)[0]
                files += 1
                log.rename(folder / f"log.{files}")
                append(log, argument)
                written += argument
        for _ in range(3):
            got += drain(tail)[0]
        tail.close()
        assert got == written
    finally:
        shutil.rmtree(folder)


class TestFaults:
    """An error of a moment, as network file systems have them, costs nothing that was read before."""

    @pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES])
    @pytest.mark.parametrize("call", ["stat", "fstat", "pread"])
    def test_a_file_is_never_read_twice(self, log: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
        log.write_bytes(b"one\ntwo\n")
        tail = LogTail(str(log))
        assert drain(tail) == (b"one\ntwo\n", False)
        append(log, b"three\n" if call == "pread" else b"")
        with monkeypatch.context() as patched:
            patched.setattr(os, call, faulty(code))
            failure = tail.read().failure
        assert failure is not None
        append(log, b"four\n")
        assert drain(tail) == (b"three\nfour\n" if call == "pread" else b"four\n", False)

    def test_nor_is_one_that_cannot_be_opened_for_a_while(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log.write_bytes(b"one\n")
        tail = LogTail(str(log))
        drain(tail)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", faulty(errno.ESTALE))
            assert tail.read().failure is not None
            patched.setattr(os, "open", faulty(errno.EIO))
            assert tail.read().failure is not None
        append(log, b"two\n")
        assert drain(tail) == (b"two\n", False)

    def test_another_file_in_its_place_is_read_from_its_start(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log.write_bytes(b"one\n")
        tail = LogTail(str(log))
        drain(tail)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", faulty(errno.ESTALE))
            tail.read()
        log.rename(log.with_name("old"))
        log.write_bytes(b"another one\n")
        assert drain(tail) == (b"another one\n", True)


def faulty(code: int) -> Callable[..., Any]:
    """A system call that fails."""

    def fails(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fails
