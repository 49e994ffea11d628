"""Real disks that are full, directories that cannot be written, files of somebody else: said, and nothing changed."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdash.backend.env_store import Backups, check_writable, read_env, replace_env
from specdash.core.changes import Role
from specdash.core.errors import NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root")
NOBODY = 65534
BIG = b"A=" + b"x" * 100_000 + b"\n"


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


def in_namespace(script: str, directory: Path) -> str:
    """What `script` prints after the mounts that it makes for itself, in a mount namespace of its own."""
    done = subprocess.run(
        [
            shutil.which("unshare") or "unshare",
            "-m",
            "--propagation",
            "private",
            sys.executable,
            "-c",
            script,
            str(directory),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
print(file.read_bytes())
"""
MOUNTED_FILE = """
file.write_bytes(b"A=1\\n")
mount("--bind", file, file)
said(replace_env, read_env(file), b"A=2\\n")
print(file.read_bytes(), sorted(one.name for one in directory.iterdir()))
"""


@ROOT
def test_a_full_disk_is_said_and_the_old_file_stays_until_there_is_room(tmp_path: Path) -> None:
    big, check, small, backup, left, again, written, new = in_namespace(PREPARE + FULL, tmp_path).splitlines()
    why = f"{tmp_path}/a.env was not written, and is as it was: no space left on the file system of {tmp_path}; free"
    assert big.startswith(why)
    assert check.startswith(why)
    assert small.startswith(why)
    assert backup.startswith(
        f"no backup of {tmp_path}/a.env could be kept in {tmp_path}/backups/backend: no space left"
    )
    assert left == "b'A=1\\n' ['a.env', 'fill']"
    assert (again, written, new) == ("written", "written", "b'A=2\\n'")


@ROOT
def test_a_read_only_directory_is_said(tmp_path: Path) -> None:
    check, replaced, new, left = in_namespace(PREPARE + READ_ONLY, tmp_path).splitlines()
    why = f"{tmp_path}/a.env was not written, and is as it was: {tmp_path} is on a read-only file system; make it"
    assert check.startswith(why)
    assert replaced.startswith(why)
    assert "is on a read-only file system" in new
    assert left == "b'A=1\\n'"


@ROOT
def test_a_file_that_is_a_mount_point_is_said(tmp_path: Path) -> None:
    replaced, left = in_namespace(PREPARE + MOUNTED_FILE, tmp_path).splitlines()
    assert "the file is a mount point and cannot be replaced; mount its directory instead" in replaced
    assert left == "b'A=1\\n' ['a.env']"


@ROOT
@pytest.mark.parametrize("protected", ["file", "directory"])
def test_what_is_immutable_is_said(protected: str, tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_bytes(b"A=1\n")
    chattr, what = shutil.which("chattr") or "chattr", file if protected == "file" else tmp_path
    if subprocess.run([chattr, "+i", str(what)], capture_output=True, timeout=10, check=False).returncode != 0:
        pytest.skip("the file system has no immutable files")
    try:
        for act in (check_writable, lambda snapshot: replace_env(snapshot, b"A=2\n")):
            with pytest.raises(NotWrittenError, match="is protected"):
                act(read_env(file))
    finally:
        subprocess.run([chattr, "-i", str(what)], timeout=10, check=True)
    assert file.read_bytes() == b"A=1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.env"]


def test_a_file_size_limit_is_said_as_no_space(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_bytes(b"A=1\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(NotWrittenError, match="no space left"):
            replace_env(read_env(file), BIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == b"A=1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.env"]


@pytest.mark.parametrize(
    "act", [check_writable, lambda snapshot: replace_env(snapshot, b"A=2\n")], ids=["check_writable", "replace_env"]
)
@ROOT
class TestAsAnotherUser:
    def test_a_file_of_somebody_else_is_said_with_the_ways_out(
        self, act: Callable[[object], object], open_directory: Path
    ) -> None:
        file = open_directory / "a.env"
        file.write_bytes(b"A=1\n")
        open_directory.chmod(0o777)
        with as_nobody(), pytest.raises(NotWrittenError) as caught:
            act(read_env(file))
        assert "belongs to root:root, which user nobody cannot keep; run the command as its owner" in str(caught.value)
        assert f"or take it over with `sudo chown nobody: {file}`" in str(caught.value)
        assert file.read_bytes() == b"A=1\n"
        assert [path.name for path in open_directory.iterdir()] == ["a.env"]

    def test_a_file_of_another_group_is_said(self, act: Callable[[object], object], open_directory: Path) -> None:
        file = open_directory / "a.env"
        file.write_bytes(b"A=1\n")
        open_directory.chmod(0o777)
        os.chown(file, NOBODY, 0)
        with as_nobody(), pytest.raises(NotWrittenError, match="belongs to nobody:root, which user nobody cannot"):
            act(read_env(file))

    def test_a_directory_of_somebody_else_is_said(self, act: Callable[[object], object], open_directory: Path) -> None:
        file = open_directory / "a.env"
        file.write_bytes(b"A=1\n")
        os.chown(file, NOBODY, NOBODY)
        with as_nobody(), pytest.raises(NotWrittenError, match=f"user nobody may not write in {open_directory}; ask"):
            act(read_env(file))
        with as_nobody(), pytest.raises(NotWrittenError, match=f"user nobody may not write in {open_directory}; ask"):
            act(read_env(open_directory / "deep" / "new.env"))

    def test_a_file_of_ones_own_is_written(self, act: Callable[[object], object], open_directory: Path) -> None:
        file = open_directory / "a.env"
        file.write_bytes(b"A=1\n")
        for path in (file, open_directory):
            os.chown(path, NOBODY, NOBODY)
        with as_nobody():
            act(read_env(file))
        assert file.stat().st_uid == NOBODY


def test_backups_need_no_right_to_write_the_env_file(tmp_path: Path) -> None:
    file = tmp_path / "a.env"
    file.write_bytes(b"A=1\n")
    file.chmod(0o400)
    assert Backups(tmp_path / "backups").save(Role.PROXY, read_env(file)).number == 1
