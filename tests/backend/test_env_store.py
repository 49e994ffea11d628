"""Env files on the disk: replaced whole or not at all, never over somebody else's change, and every version kept."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.env_store import Backups, check_writable, read_env, replace_env
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, InputError, NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD, NEW = b"# mine\nA=1\n", b"# mine\nA=2\n"
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    file = tmp_path / "config" / "a.env"
    file.parent.mkdir()
    file.write_bytes(OLD)
    return file


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    return Backups(tmp_path / "state" / "backups")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def failing(monkeypatch: pytest.MonkeyPatch, call: str, at: int, error: BaseException) -> None:
    """The call of `os` with this number raises."""
    real, calls = getattr(os, call), iter(range(1000))

    def maybe(*arguments: Any, **named: Any) -> Any:
        if next(calls) == at:
            raise error
        return real(*arguments, **named)

    monkeypatch.setattr(os, call, maybe)


def at_once(count: int, act: Callable[[], object]) -> None:
    """The same in many threads."""
    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_a_file_is_its_bytes_values_digest_and_owner_and_prints_no_content(env_file: Path, tmp_path: Path) -> None:
    env_file.chmod(0o640)
    link = tmp_path / "link.env"
    link.symlink_to(env_file)
    snapshot = read_env(link)
    assert (snapshot.path, snapshot.target) == (link, env_file)
    assert (snapshot.data, snapshot.exists, snapshot.mode) == (OLD, True, 0o640)
    assert (snapshot.uid, snapshot.gid) == (env_file.stat().st_uid, env_file.stat().st_gid)
    assert (snapshot.values, snapshot.digest) == ({"A": "1"}, hashlib.sha256(OLD).hexdigest())
    assert snapshot == read_env(link)
    assert "A=1" not in repr(snapshot)


def test_a_missing_file_is_empty_and_does_not_exist(tmp_path: Path) -> None:
    snapshot = read_env(tmp_path / "none" / "a.env")
    assert (snapshot.exists, snapshot.data, snapshot.values, snapshot.mode) == (False, b"", {}, 0o600)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 30), "File too large"),
    ],
)
def test_what_is_no_env_file_is_said(make: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    make(tmp_path / "odd.env")
    with pytest.raises(InputError, match=said):
        read_env(tmp_path / "odd.env")


def test_an_unreadable_line_is_named_when_the_values_are_asked_for(env_file: Path) -> None:
    env_file.write_bytes(b"A=1\nnonsense\n")
    assert read_env(env_file).file.entries[1].problem is not None
    with pytest.raises(InputError, match=rf"{env_file}:2: no '='"):
        _ = read_env(env_file).values


def test_a_new_version_has_mode_owner_and_attributes_of_the_file_as_it_is_now(env_file: Path) -> None:
    snapshot = read_env(env_file)
    env_file.chmod(0o604)
    if os.geteuid() == 0:
        os.chown(env_file, 1234, 2345)
    with suppress(OSError):  # the file system may have none
        os.setxattr(env_file, "user.note", b"x")
    noted, owner = os.listxattr(env_file), env_file.stat()
    (env_file.parent / ".a.env.4194309-2.specdash-new").write_bytes(b"left by a specdash that was killed")
    after = replace_env(snapshot, NEW)
    assert (env_file.read_bytes(), after) == (NEW, read_env(env_file))
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o604
    assert (env_file.stat().st_uid, env_file.stat().st_gid) == (owner.st_uid, owner.st_gid)
    assert os.listxattr(env_file) == noted
    assert names(env_file.parent) == ["a.env"]


def test_a_new_file_and_its_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "new.env"
    assert replace_env(read_env(file), NEW).exists
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]


@pytest.mark.parametrize("exists", [True, False])
def test_a_symlink_stays_and_the_file_that_it_names_is_written(env_file: Path, tmp_path: Path, exists: bool) -> None:
    target = env_file if exists else tmp_path / "elsewhere" / "a.env"
    link = tmp_path / "link.env"
    link.symlink_to(target)
    replace_env(read_env(link), NEW)
    assert link.is_symlink()
    assert target.read_bytes() == NEW


def test_of_many_processes_at_once_loses_no_change(env_file: Path) -> None:
    """Eight writers count to ten each; whoever comes late is told, and tries again."""
    env_file.write_bytes(b"A=0\n")

    def count() -> None:
        done = 0
        while done < 10:
            snapshot = read_env(env_file)
            with suppress(ConflictError):
                replace_env(snapshot, b"A=%d\n" % (int(snapshot.values["A"]) + 1))
                done += 1

    at_once(8, count)
    assert env_file.read_bytes() == b"A=80\n"
    assert names(env_file.parent) == ["a.env"]


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda file: file.write_bytes(b"A=3\n"),
        lambda file: file.unlink(),
        lambda file: (file.unlink(), file.symlink_to("/etc/passwd")),
        lambda file: (file.unlink(), file.mkdir()),
    ],
)
def test_a_file_that_is_not_as_it_was_read_is_left_alone(meanwhile: Callable[[Path], object], env_file: Path) -> None:
    snapshot = read_env(env_file)
    meanwhile(env_file)
    with pytest.raises(ConflictError, match="was changed since it was read"):
        replace_env(snapshot, NEW)
    assert names(env_file.parent) in (["a.env"], [])
    assert not (env_file.is_file() and env_file.read_bytes() == NEW)


def test_a_change_while_the_new_version_is_written_is_seen_too(env_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("call", "at"),
    [(name, at) for name, n in (("fsync", 2), ("replace", 1), ("write", 1), ("open", 6)) for at in range(n)],
)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_whatever_fails_the_old_or_the_new_version_is_there_whole_and_no_other_file(
    call: str, at: int, error: BaseException, env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = read_env(env_file)
    failing(monkeypatch, call, at, error)
    with suppress(NotWrittenError, ConflictError, KeyboardInterrupt):
        replace_env(snapshot, NEW)
    monkeypatch.undo()
    assert env_file.read_bytes() in (OLD, NEW)
    assert names(env_file.parent) == ["a.env"]


@pytest.mark.parametrize(
    ("at", "there", "said"),
    [
        (0, OLD, "was not written, and is as it was: Input/output error"),
        (1, NEW, "has its new content, but the disk did not confirm it"),
    ],
)
def test_a_failed_write_says_which_version_is_there(
    at: int, there: bytes, said: str, env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "fsync", at, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(NotWrittenError, match=said):
        replace_env(read_env(env_file), NEW)
    assert env_file.read_bytes() == there


def test_a_check_beforehand_leaves_no_trace(env_file: Path, tmp_path: Path) -> None:
    check_writable(read_env(env_file))
    check_writable(read_env(tmp_path / "a" / "b" / "new.env"))
    assert names(env_file.parent) == ["a.env"]
    assert names(tmp_path) == ["config"]


def test_a_version_is_kept_with_its_number_time_digest_and_file_for_its_owner_only(
    backups: Backups, env_file: Path
) -> None:
    env_file.chmod(0o644)
    before = time.time()
    backup = backups.save(Role.BACKEND, read_env(env_file))
    assert backups.list(Role.BACKEND) == (backup,)
    assert (backup.number, backup.digest, backup.path.name) == (1, read_env(env_file).digest, "0001.env")
    assert (backup.original, backup.existed) == (env_file, True)
    assert before <= backup.at <= time.time()
    folder = backup.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_any_version_of_a_role_can_be_read_again_also_that_there_was_no_file(backups: Backups, env_file: Path) -> None:
    assert backups.list(Role.BACKEND) == ()
    for data in (b"A=1\n", b"A=2\xff\n", b""):
        env_file.write_bytes(data)
        backups.save(Role.BACKEND, read_env(env_file))
    assert [backups.read(Role.BACKEND, n) for n in (1, 2, 3)] == [b"A=1\n", b"A=2\xff\n", b""]
    none = backups.save(Role.PROXY, read_env(env_file.with_name("none.env")))
    assert (none.number, none.existed, backups.read(Role.PROXY, 1)) == (1, False, b"")


def test_a_version_that_is_not_there_or_damaged_is_said_and_its_number_not_given_again(
    backups: Backups, env_file: Path
) -> None:
    with pytest.raises(InputError, match="the backend has no backup 7; `specdash env history` lists them"):
        backups.read(Role.BACKEND, 7)
    first = backups.save(Role.BACKEND, read_env(env_file))
    first.path.write_bytes(b"A=")
    with pytest.raises(InputError, match="is damaged"):
        backups.read(Role.BACKEND, 1)
    first.path.unlink()
    assert backups.save(Role.BACKEND, read_env(env_file)).number == 2


def test_two_processes_never_take_one_number(backups: Backups, env_file: Path) -> None:
    snapshot = read_env(env_file)
    taken: list[int] = []
    at_once(6, lambda: taken.extend(backups.save(Role.BACKEND, snapshot).number for _ in range(5)))
    assert sorted(taken) == list(range(1, 31))
    assert len(backups.list(Role.BACKEND)) == 30


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("error", [NO_SPACE, KeyboardInterrupt()])
def test_a_save_that_is_cut_short_leaves_whole_versions_only(
    call: str, at: int, error: BaseException, backups: Backups, env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = backups.save(Role.BACKEND, read_env(env_file))
    env_file.write_bytes(NEW)
    second = read_env(env_file)
    failing(monkeypatch, call, at, error)
    with suppress(NotWrittenError, KeyboardInterrupt):
        backups.save(Role.BACKEND, second)
    monkeypatch.undo()
    kept = [backups.read(Role.BACKEND, backup.number) for backup in backups.list(Role.BACKEND)]
    assert kept in ([OLD], [OLD, NEW])
    assert not [name for name in names(first.path.parent) if name.startswith(".")]
    assert backups.read(Role.BACKEND, backups.save(Role.BACKEND, second).number) == NEW
