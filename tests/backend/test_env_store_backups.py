"""Every version of an env file is kept: numbered, whole, and never overwritten."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.env_store import Backups, read_env
from specdash.core.changes import Role
from specdash.core.errors import InputError, NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from specdash.backend.env_store import EnvSnapshot


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    file = tmp_path / "a.env"
    file.write_bytes(b"A=1\n")
    return file


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    return Backups(tmp_path / "state" / "backups")


def version(env_file: Path, data: bytes) -> EnvSnapshot:
    env_file.write_bytes(data)
    return read_env(env_file)


def test_a_version_is_kept_with_its_number_time_digest_and_file(backups: Backups, env_file: Path) -> None:
    before = time.time()
    backup = backups.save(Role.BACKEND, read_env(env_file))
    assert (backup.number, backup.digest) == (1, read_env(env_file).digest)
    assert (backup.original, backup.existed) == (env_file, True)
    assert before <= backup.at <= time.time()
    assert backup.path.stat().st_mtime == pytest.approx(backup.at)
    assert backup.path.name == "0001.env"
    assert backup.path.read_bytes() == b"A=1\n"


def test_versions_are_for_their_owner_only(backups: Backups, env_file: Path) -> None:
    env_file.chmod(0o644)
    folder = backups.save(Role.PROXY, read_env(env_file)).path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_each_role_counts_for_itself(backups: Backups, env_file: Path) -> None:
    for _ in range(2):
        backups.save(Role.BACKEND, read_env(env_file))
    backups.save(Role.PROXY, read_env(env_file))
    assert [backup.number for backup in backups.list(Role.BACKEND)] == [1, 2]
    assert [backup.number for backup in backups.list(Role.PROXY)] == [1]


def test_any_version_can_be_read_again(backups: Backups, env_file: Path) -> None:
    for data in (b"A=1\n", b"A=2\xff\n", b""):
        backups.save(Role.BACKEND, version(env_file, data))
    assert [backups.read(Role.BACKEND, n) for n in (1, 2, 3)] == [b"A=1\n", b"A=2\xff\n", b""]


def test_that_there_was_no_file_is_a_version_too(backups: Backups, tmp_path: Path) -> None:
    backup = backups.save(Role.BACKEND, read_env(tmp_path / "none.env"))
    assert (backup.existed, backups.read(Role.BACKEND, 1)) == (False, b"")


def test_there_are_none_at_first(backups: Backups) -> None:
    assert backups.list(Role.BACKEND) == ()


def test_a_number_that_was_never_given_is_said(backups: Backups) -> None:
    with pytest.raises(InputError, match="the backend has no backup 7; `specdash env history` lists them"):
        backups.read(Role.BACKEND, 7)


def test_a_number_is_not_given_again_when_its_version_is_deleted(backups: Backups, env_file: Path) -> None:
    backups.save(Role.BACKEND, read_env(env_file)).path.unlink()
    assert backups.save(Role.BACKEND, read_env(env_file)).number == 2


def test_a_damaged_version_is_not_handed_out(backups: Backups, env_file: Path) -> None:
    backups.save(Role.BACKEND, read_env(env_file)).path.write_bytes(b"A=")
    with pytest.raises(InputError, match="is damaged"):
        backups.read(Role.BACKEND, 1)


def test_two_processes_never_take_one_number(backups: Backups, env_file: Path) -> None:
    snapshot = read_env(env_file)
    taken: list[int] = []

    def save() -> None:
        taken.extend(backups.save(Role.BACKEND, snapshot).number for _ in range(5))

    savers = [threading.Thread(target=save) for _ in range(6)]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join(60)
    assert sorted(taken) == list(range(1, 31))
    assert len(backups.list(Role.BACKEND)) == 30


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace", "utime"])
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_is_cut_short_leaves_whole_versions_only(
    call: str, at: int, error: BaseException, backups: Backups, env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = backups.save(Role.BACKEND, version(env_file, b"A=1\n"))
    second = version(env_file, b"A=2\n")
    real: Callable[..., Any] = getattr(os, call)
    calls = iter(range(1000))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, failing)
    with suppress(NotWrittenError, KeyboardInterrupt):
        backups.save(Role.BACKEND, second)
    monkeypatch.undo()
    kept = [backups.read(Role.BACKEND, backup.number) for backup in backups.list(Role.BACKEND)]
    assert kept in ([b"A=1\n"], [b"A=1\n", b"A=2\n"])
    assert not [path.name for path in first.path.parent.iterdir() if path.name.startswith(".")]
    assert backups.read(Role.BACKEND, backups.save(Role.BACKEND, second).number) == b"A=2\n"


def test_a_failed_save_says_why_and_where(
    backups: Backups, env_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NotWrittenError, match=rf"no backup of {env_file} could be kept in .*backend: no space left"):
        backups.save(Role.BACKEND, read_env(env_file))
