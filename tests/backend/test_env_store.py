"""Env files on the disk: replaced whole or not at all, never over somebody else's change, and every version kept."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.env_store import EnvSnapshot, check_writable, read_env, replace_env
from specdash.core.errors import ConflictError, InputError, NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD, NEW = b"# mine\nA=1\n", b"# mine\nA=2\n"


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    file = tmp_path / "config" / "a.env"
    file.parent.mkdir()
    file.write_bytes(OLD)
    return file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class TestReading:
    def test_a_file_is_its_bytes_values_digest_and_owner(self, env_file: Path) -> None:
        env_file.chmod(0o640)
        snapshot = read_env(env_file)
        assert (snapshot.data, snapshot.exists, snapshot.mode) == (OLD, True, 0o640)
        assert (snapshot.uid, snapshot.gid) == (env_file.stat().st_uid, env_file.stat().st_gid)
        assert snapshot.values == {"A": "1"}
        assert snapshot.digest == hashlib.sha256(OLD).hexdigest()
        assert snapshot.file.text == OLD.decode()

    def test_a_missing_file_is_empty_and_does_not_exist(self, tmp_path: Path) -> None:
        snapshot = read_env(tmp_path / "none" / "a.env")
        assert (snapshot.exists, snapshot.data, snapshot.values, snapshot.mode) == (False, b"", {}, 0o600)

    def test_a_symlink_leads_to_its_target(self, env_file: Path, tmp_path: Path) -> None:
        link = tmp_path / "link.env"
        link.symlink_to(env_file)
        assert (read_env(link).path, read_env(link).target) == (link, env_file)

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda path: path.mkdir(), "is not a regular file"),
            (os.mkfifo, "is not a regular file"),
            (lambda path: path.symlink_to(path), "symbolic links"),
            (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 30), "File too large"),
        ],
    )
    def test_what_is_no_env_file_is_said(self, make: Callable[[Path], object], said: str, tmp_path: Path) -> None:
        make(tmp_path / "odd.env")
        with pytest.raises(InputError, match=said):
            read_env(tmp_path / "odd.env")

    def test_an_unreadable_line_is_named_when_the_values_are_asked_for(self, env_file: Path) -> None:
        env_file.write_bytes(b"A=1\nnonsense\n")
        snapshot = read_env(env_file)
        assert snapshot.file.entries[1].problem is not None
        with pytest.raises(InputError, match=rf"{env_file}:2: no '='"):
            _ = snapshot.values

    def test_a_snapshot_prints_no_content(self, env_file: Path) -> None:
        env_file.write_bytes(b"LLAMA_API_KEY=sk-1\n")
        assert "sk-1" not in repr(read_env(env_file))
        assert "sk-1" not in repr(read_env(env_file).file)


class TestReplacing:
    def test_puts_the_new_version_in_place_and_leaves_nothing_else(self, env_file: Path) -> None:
        after = replace_env(read_env(env_file), NEW)
        assert env_file.read_bytes() == NEW
        assert after == read_env(env_file)
        assert names(env_file.parent) == ["a.env"]

    @pytest.mark.parametrize("mode", [0o600, 0o644, 0o640, 0o400])
    def test_keeps_the_mode(self, mode: int, env_file: Path) -> None:
        env_file.chmod(mode)
        replace_env(read_env(env_file), NEW)
        assert stat.S_IMODE(env_file.stat().st_mode) == mode

    def test_keeps_the_mode_that_it_has_now(self, env_file: Path) -> None:
        snapshot = read_env(env_file)
        env_file.chmod(0o604)
        assert replace_env(snapshot, NEW).mode == 0o604

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_keeps_the_owner(self, env_file: Path) -> None:
        os.chown(env_file, 1234, 2345)
        replace_env(read_env(env_file), NEW)
        assert (env_file.stat().st_uid, env_file.stat().st_gid) == (1234, 2345)

    def test_keeps_extended_attributes(self, env_file: Path) -> None:
        try:
            os.setxattr(env_file, "user.note", b"x")
        except OSError:
            pytest.skip("the file system has no extended attributes")
        replace_env(read_env(env_file), NEW)
        assert os.getxattr(env_file, "user.note") == b"x"

    def test_follows_a_symlink_and_keeps_it(self, env_file: Path, tmp_path: Path) -> None:
        link = tmp_path / "link.env"
        link.symlink_to("config/a.env")
        replace_env(read_env(link), NEW)
        assert link.is_symlink()
        assert env_file.read_bytes() == NEW
        assert names(tmp_path) == ["config", "link.env"]

    def test_makes_a_new_file_for_its_owner_only_and_its_directories_too(self, tmp_path: Path) -> None:
        file = tmp_path / "a" / "b" / "new.env"
        snapshot = replace_env(read_env(file), NEW)
        assert (snapshot.exists, snapshot.mode) == (True, 0o600)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file.parent.parent)] == [0o700, 0o700]

    def test_makes_the_file_that_a_dangling_symlink_names(self, tmp_path: Path) -> None:
        link, file = tmp_path / "link.env", tmp_path / "elsewhere" / "a.env"
        link.symlink_to(file)
        replace_env(read_env(link), NEW)
        assert link.is_symlink()
        assert file.read_bytes() == NEW

    def test_sweeps_up_what_a_killed_specdash_left(self, env_file: Path) -> None:
        (env_file.parent / ".a.env.4194309-2.specdash-new").write_bytes(b"half")
        replace_env(read_env(env_file), NEW)
        assert names(env_file.parent) == ["a.env"]

    def test_of_many_processes_at_once_loses_no_change(self, env_file: Path) -> None:
        """Eight writers count to ten each; whoever comes late is told, and tries again."""
        env_file.write_bytes(b"A=0\n")

        def count() -> None:
            done = 0
            while done < 10:
                snapshot = read_env(env_file)
                with suppress(ConflictError):
                    replace_env(snapshot, b"A=%d\n" % (int(snapshot.values["A"]) + 1))
                    done += 1

        writers = [threading.Thread(target=count) for _ in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(60)
        assert env_file.read_bytes() == b"A=80\n"
        assert names(env_file.parent) == ["a.env"]


class TestConflicts:
    @pytest.mark.parametrize(
        "meanwhile",
        [
            lambda file: file.write_bytes(b"A=3\n"),
            lambda file: file.unlink(),
            lambda file: (file.unlink(), file.symlink_to("/etc/passwd")),
            lambda file: (file.unlink(), file.mkdir()),
        ],
    )
    def test_a_file_that_is_not_as_it_was_read_is_left_alone(
        self, meanwhile: Callable[[Path], object], env_file: Path
    ) -> None:
        snapshot = read_env(env_file)
        meanwhile(env_file)
        with pytest.raises(ConflictError, match="was changed since it was read"):
            replace_env(snapshot, NEW)
        assert names(env_file.parent) in (["a.env"], [])
        assert not (env_file.is_file() and env_file.read_bytes() == NEW)

    def test_a_file_that_came_meanwhile_is_one_too(self, tmp_path: Path) -> None:
        snapshot = read_env(tmp_path / "new.env")
        (tmp_path / "new.env").write_bytes(OLD)
        with pytest.raises(ConflictError, match="was changed"):
            replace_env(snapshot, NEW)
        assert (tmp_path / "new.env").read_bytes() == OLD

    def test_a_change_while_the_new_version_is_written_is_seen_too(
        self, env_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.fsync
        first = [True]

        def edited_meanwhile(descriptor: int) -> None:
            real(descriptor)
            if first.pop() if first else False:
                env_file.write_bytes(b"A=3\n")

        monkeypatch.setattr(os, "fsync", edited_meanwhile)
        with pytest.raises(ConflictError):
            replace_env(read_env(env_file), NEW)
        assert env_file.read_bytes() == b"A=3\n"
        assert names(env_file.parent) == ["a.env"]


FAULTS = [
    (name, at) for name, times in (("fsync", 2), ("replace", 1), ("write", 1), ("open", 6)) for at in range(times)
]


class TestCutShort:
    """Whatever fails, at whichever step, the old or the new version is there whole, and no other file."""

    @pytest.mark.parametrize(("call", "at"), FAULTS)
    @pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
    def test_at_any_step(
        self, call: str, at: int, error: BaseException, env_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot = read_env(env_file)
        real: Callable[..., Any] = getattr(os, call)
        calls = iter(range(1000))

        def failing(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == at:
                raise error
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, failing)
        with suppress(NotWrittenError, ConflictError, KeyboardInterrupt):
            replace_env(snapshot, NEW)
        monkeypatch.undo()
        assert env_file.read_bytes() in (OLD, NEW)
        assert names(env_file.parent) == ["a.env"]

    def test_a_failed_write_says_that_the_old_file_is_there(
        self, env_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(NotWrittenError, match="was not written, and is as it was: Input/output error"):
            replace_env(read_env(env_file), NEW)
        assert env_file.read_bytes() == OLD

    def test_an_unconfirmed_rename_says_that_the_new_file_is_there(
        self, env_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.fsync

        def broken_for_directories(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.EIO, "Input/output error")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", broken_for_directories)
        with pytest.raises(NotWrittenError, match="has its new content, but the disk did not confirm it"):
            replace_env(read_env(env_file), NEW)
        assert env_file.read_bytes() == NEW


class TestCheckingBeforehand:
    def test_leaves_no_trace(self, env_file: Path) -> None:
        before = env_file.parent.stat().st_mtime_ns
        check_writable(read_env(env_file))
        assert env_file.parent.stat().st_mtime_ns == before
        assert names(env_file.parent) == ["a.env"]

    def test_of_a_new_file_looks_at_the_nearest_directory_and_makes_none(self, tmp_path: Path) -> None:
        check_writable(read_env(tmp_path / "a" / "b" / "new.env"))
        assert names(tmp_path) == []

    def test_works_where_files_cannot_be_nameless(self, env_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.open

        def without(path: Any, flags: int, *rest: Any, **kwargs: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return real(path, flags, *rest, **kwargs)

        monkeypatch.setattr(os, "open", without)
        check_writable(read_env(env_file))
        assert names(env_file.parent) == ["a.env"]


def test_two_snapshots_of_one_state_are_equal(env_file: Path) -> None:
    first: EnvSnapshot = read_env(env_file)
    assert first == read_env(env_file)
