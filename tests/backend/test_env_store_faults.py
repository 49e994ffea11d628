"""Real disks that are full, directories that cannot be written, files of somebody else: said, and nothing changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.env_store import check_writable, read_env, replace_env
from specdash.core.errors import NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root")
NOBODY = 65534
BIG = b"A=" + b"x" * 100_000 + b"\n"
ACTS = pytest.mark.parametrize(
    "act", [check_writable, lambda snapshot: replace_env(snapshot, b"A=2\n")], ids=["check_writable", "replace_env"]
)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """This process as a user who owns nothing."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may enter; pytest's own are private."""
    directory = Path(tempfile.mkdtemp(prefix="sd-env-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def env_file(directory: Path) -> Path:
    file = directory / "a.env"
    file.write_bytes(b"A=1\n")
    return file


def assert_untouched(file: Path) -> None:
    assert file.read_bytes() == b"A=1\n"
    assert [path.name for path in file.parent.iterdir()] == ["a.env"]


PREPARE = """
import subprocess, sys
from pathlib import Path
from specdash.backend.env_store import Backups, check_writable, read_env, replace_env
from specdash.core.changes import Role
from specdash.core.errors import NotWrittenError

def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)

def said(act, *arguments):
    try:
        act(*arguments)
    except NotWrittenError as error:
        print(error)
    else:
        print("written")

directory = Path(sys.argv[1])
file = directory / "a.env"
"""
FULL = """
mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", directory)
file.write_bytes(b"A=1\\n")
snapshot = read_env(file)
said(replace_env, snapshot, b"A=" + b"x" * 100_000 + b"\\n")
(directory / "fill").write_bytes(b"x" * 15 * 4096)
said(check_writable, snapshot)
said(replace_env, snapshot, b"A=2\\n")
said(Backups(directory / "backups").save, Role.BACKEND, snapshot)
print(file.read_bytes(), sorted(one.name for one in directory.iterdir() if one.is_file()))
(directory / "fill").unlink()
said(check_writable, snapshot)
said(replace_env, snapshot, b"A=2\\n")
print(file.read_bytes())
"""
READ_ONLY = """
file.write_bytes(b"A=1\\n")
mount("--bind", directory, directory)
mount("-o", "remount,ro,bind", directory)
snapshot = read_env(file)
said(check_writable, snapshot)
said(replace_env, snapshot, b"A=2\\n")
said(replace_env, read_env(directory / "new" / "b.env"), b"A=2\\n")
"""
MOUNTED_FILE = """
file.write_bytes(b"A=1\\n")
mount("--bind", file, file)
said(replace_env, read_env(file), b"A=2\\n")
"""


def in_namespace(script: str, directory: Path) -> list[str]:
    """What `script` prints after the mounts that it makes for itself, in a mount namespace of its own."""
    command = [shutil.which("unshare") or "unshare", "-m", "--propagation", "private", sys.executable, "-c"]
    done = subprocess.run(
        [*command, PREPARE + script, str(directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@ROOT
def test_a_full_disk_is_said_and_the_old_file_stays_until_there_is_room(tmp_path: Path) -> None:
    big, check, small, backup, left, again, written, new = in_namespace(FULL, tmp_path)
    why = f"{tmp_path}/a.env was not written, and is as it was: no space left on the file system of {tmp_path}; free"
    assert all(line.startswith(why) for line in (big, check, small))
    assert f"no backup of {tmp_path}/a.env could be kept in {tmp_path}/backups/backend: no space left" in backup
    assert left == "b'A=1\\n' ['a.env', 'fill']"
    assert (again, written, new) == ("written", "written", "b'A=2\\n'")


@ROOT
def test_a_read_only_directory_and_a_file_that_is_a_mount_point_are_said(tmp_path: Path) -> None:
    said = in_namespace(READ_ONLY, tmp_path)
    for name, line in zip(("a.env", "a.env", "new/b.env"), said, strict=True):
        assert line.startswith(f"{tmp_path}/{name} was not written, and is as it was: {tmp_path}")
        assert "is on a read-only file system; make it" in line
    (replaced,) = in_namespace(MOUNTED_FILE, tmp_path)
    assert "the file is a mount point and cannot be replaced; mount its directory instead" in replaced
    assert_untouched(tmp_path / "a.env")


@ROOT
@ACTS
@pytest.mark.parametrize(
    ("owner", "group", "mode", "name", "said"),
    [
        (0, 0, 0o777, "a.env", "belongs to root:0, which user nobody cannot keep; run the command as its owner"),
        (0, 0, 0o777, "a.env", "or take it over with `sudo chown nobody: {}`"),
        (NOBODY, 0, 0o777, "a.env", "belongs to nobody:0, which user nobody cannot"),
        (NOBODY, NOBODY, 0o755, "a.env", "user nobody may not write in {.parent}; ask"),
        (NOBODY, NOBODY, 0o755, "deep/new.env", "user nobody may not write in {.parent}; ask"),
    ],
)
def test_what_another_user_may_not_write_is_said_with_the_way_out(
    act: Any, owner: int, group: int, mode: int, name: str, said: str, open_directory: Path
) -> None:
    file = env_file(open_directory)
    os.chown(file, owner, group)
    open_directory.chmod(mode)
    with as_nobody(), pytest.raises(NotWrittenError) as caught:
        act(read_env(open_directory / name))
    assert said.format(file) in str(caught.value)
    assert_untouched(file)


@ROOT
@ACTS
def test_a_file_of_ones_own_is_written_and_keeps_its_owner(act: Any, open_directory: Path) -> None:
    file = env_file(open_directory)
    for path in (file, open_directory):
        os.chown(path, NOBODY, NOBODY)
    with as_nobody():
        act(read_env(file))
    assert file.stat().st_uid == NOBODY
