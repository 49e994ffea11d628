"""The tail follows a log file through everything that happens to log files."""

import errno
import os
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


@pytest.fixture
def tail(log: Path) -> LogTail:
    """A tail that has read a file with this in it."""
    log.write_bytes(b"one\n")
    tail = LogTail(str(log))
    assert drain(tail) == (b"one\n", False)
    return tail


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


def failure_of(tail: LogTail) -> str:
    failure = tail.read().failure
    assert failure is not None
    assert failure.kind is FailureKind.UNAVAILABLE
    return failure.detail


def faulty(code: int) -> Callable[..., Any]:
    """A system call that fails."""

    def fails(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fails


class TestStart:
    def test_of_a_large_file_only_the_end_is_read_from_the_start_of_a_line(self, log: Path) -> None:
        log.write_bytes(b"".join(b"line %06d\n" % number for number in range(1000)))
        data, _ = drain(LogTail(str(log), whole_below=1000, backfill=100))
        assert data.startswith(b"line 000")
        assert data.endswith(b"line 000999\n")
        assert len(data) < 100

    def test_the_unfinished_line_at_which_a_large_file_is_entered_is_left_out_whole(self, log: Path) -> None:
        log.write_bytes(b"x" * 5000)
        tail = LogTail(str(log), whole_below=1000, backfill=100)
        for data, found in ((b"", b""), (b"y" * 50, b""), (b"end\nnext\n", b"next\n")):
            append(log, data)
            assert drain(tail) == (found, False)

    def test_a_file_that_is_not_there_yet_is_read_from_its_start_when_it_comes(self, log: Path) -> None:
        tail = LogTail(str(log), whole_below=4, backfill=4)
        assert failure_of(tail) == f"{log} is not there yet"
        assert failure_of(LogTail(str(log / "such.log"))).endswith("is not there yet")
        log.touch()
        assert tail.read() == TailChunk()
        append(log, b"one\ntwo\n")
        assert drain(tail) == (b"one\ntwo\n", False)

    def test_what_cannot_be_read_as_a_log_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        for path in (tmp_path, fifo, Path("/dev/null")):
            assert failure_of(LogTail(str(path))) == f"{path} is not a log file"
        assert "cannot be the name of a file" in failure_of(LogTail("a\0b"))
        monkeypatch.setattr(os, "open", faulty(errno.EACCES))
        assert failure_of(LogTail(str(fifo))) == f"{fifo} cannot be read: permission denied"


def test_only_what_is_new_is_read_in_bounded_pieces_as_it_is(log: Path, tail: LogTail) -> None:
    assert tail.read() == TailChunk()
    append(log, b"01\xff\x0056789")
    assert [tail.read(4) for _ in range(3)] == [
        TailChunk(b"01\xff\x00", more=True),
        TailChunk(b"5678", more=True),
        TailChunk(b"9"),
    ]
    assert tail.written_at == log.stat().st_mtime


class TestReplacement:
    def test_a_new_file_that_is_still_empty_does_not_end_the_old_one(self, log: Path, tail: LogTail) -> None:
        old = log.with_name("server.log.1")
        log.rename(old)
        log.touch()
        assert drain(tail) == (b"", False)
        append(old, b"the server holds on to its file\n")
        assert drain(tail) == (b"the server holds on to its file\n", False)
        append(log, b"now\n")
        assert drain(tail) == (b"now\n", True)

    def test_a_file_that_became_shorter_is_begun_again_and_one_that_did_not_goes_on(
        self, log: Path, tail: LogTail
    ) -> None:
        for content, found, replaced in (
            (b"2\n", b"2\n", True),
            (b"", b"", False),
            (b"two\n", b"two\n", True),
            (b"TWO\nlonger\n", b"longer\n", False),
        ):
            log.write_bytes(content)
            assert drain(tail) == (found, replaced)

    def test_another_file_under_the_same_name_or_symlink_is_noticed(
        self, log: Path, tail: LogTail, tmp_path: Path
    ) -> None:
        (tmp_path / "other").write_bytes(b"two\n")
        (tmp_path / "other").replace(log)
        assert drain(tail) == (b"two\n", True)
        (tmp_path / "third").write_bytes(b"three\n")
        log.unlink()
        log.symlink_to(tmp_path / "third")
        assert drain(tail) == (b"three\n", True)

    def test_a_deleted_file_is_read_on_while_its_writer_holds_it(self, log: Path, tail: LogTail) -> None:
        with log.open("ab", buffering=0) as writer:
            log.unlink()
            assert "is not there (any more)" in failure_of(tail)
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
            for data, replaced in ((b"after\n", True), (b"more\n", False)):
                writer.write(data)
                assert drain(tail) == (data, replaced)


STEP = st.one_of(
    st.tuples(st.just("append"), st.binary(min_size=1, max_size=300)),
    st.tuples(st.just("read"), st.integers(1, 200)),
    st.tuples(st.just("rotate"), st.binary(min_size=1, max_size=100)),
)


@given(st.lists(STEP, max_size=25))
def test_all_that_is_appended_and_rotated_arrives_once_and_in_order(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, written, got = Path(folder, "log"), b"", b""
        log.touch()
        tail = LogTail(str(log))
        for number, (kind, argument) in enumerate(steps):
            if kind == "read":
                got += tail.read(argument).data
                continue
            if kind == "rotate":
                got += drain(tail)[0]
                log.rename(log.with_name(f"log.{number}"))
            append(log, argument)
            written += argument
        for _ in range(3):
            got += drain(tail)[0]
        tail.close()
    assert got == written


class TestFaults:
    """An error of a moment, as network file systems have them, costs nothing that was read before."""

    @pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES])
    @pytest.mark.parametrize("call", ["stat", "fstat", "pread"])
    def test_a_file_is_never_read_twice(
        self, log: Path, tail: LogTail, monkeypatch: pytest.MonkeyPatch, call: str, code: int
    ) -> None:
        append(log, b"three\n" if call == "pread" else b"")
        with monkeypatch.context() as patched:
            patched.setattr(os, call, faulty(code))
            failure_of(tail)
            patched.setattr(os, "open", faulty(errno.EIO))
            failure_of(tail)
        append(log, b"four\n")
        assert drain(tail) == (b"three\nfour\n" if call == "pread" else b"four\n", False)

    def test_another_file_in_its_place_is_read_from_its_start(
        self, log: Path, tail: LogTail, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", faulty(errno.ESTALE))
            failure_of(tail)
        log.rename(log.with_name("old"))
        log.write_bytes(b"another one\n")
        assert drain(tail) == (b"another one\n", True)
