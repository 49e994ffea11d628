"""Writing whole files: what a killed writer leaves is gone with the next one, what a living writer is at stays."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from specdash.system import files

WRITER = """
import sys, time
from pathlib import Path
from specdash.system import files
print(files.temporary(Path(sys.argv[1]), b"half of it"), flush=True)
time.sleep(60)
"""


def begun(target: Path) -> tuple[subprocess.Popen[str], Path]:
    """A writer that has written, and not yet put its version into place; that version."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    return writer, target.with_name(os.path.basename(writer.stdout.readline().strip()))  # noqa: PTH119


def killed(writer: subprocess.Popen[str]) -> None:
    writer.kill()
    writer.communicate(timeout=10)


@pytest.mark.parametrize("name", ["now.json", "a[b]*.json"])
def test_what_a_killed_writer_left_goes_with_the_next_version(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    writer, draft = begun(target)
    assert draft.read_bytes() == b"half of it"
    files.replace(target, b"first")
    files.sweep(tmp_path)
    assert draft.exists(), "its writer lives"
    killed(writer)
    files.replace(target, b"whole")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: b"whole"}


def test_drafts_of_other_files_go_with_a_sweep_and_no_file_besides(tmp_path: Path) -> None:
    writer, other = begun(tmp_path / "other.json")
    killed(writer)
    bystander = tmp_path / ".hidden.specdash-new"
    bystander.write_bytes(b"no draft")
    files.replace(tmp_path / "now.json", b"whole")
    assert other.exists()
    files.sweep(tmp_path)
    assert (other.exists(), bystander.exists()) == (False, True)


def test_a_lock_for_one_file_of_a_directory_leaves_the_drafts_of_others_alone(tmp_path: Path) -> None:
    """An apply writes its journal without the lock, where baselines and saved slots are kept with it."""
    left, own = begun(tmp_path / "baselines.jsonl")
    killed(left)
    writer, journal = begun(tmp_path / "apply.journal")
    try:
        with files.locked(tmp_path, "baselines.jsonl"):
            assert not own.exists()
            assert journal.exists()
    finally:
        killed(writer)
    with files.locked(tmp_path):
        assert not journal.exists()


def test_what_cannot_take_its_place_is_not_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "now.json"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        files.replace(target, b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["now.json"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_has_the_mode_that_was_asked_for_in_private_folders_of_its_own(tmp_path: Path, durable: bool) -> None:
    target = tmp_path / "a" / "b" / "unit"
    for mode in (0o600, 0o644):
        files.replace(target, b"whole", mode, durable=durable)
        assert stat.S_IMODE(target.stat().st_mode) == mode
    assert target.read_bytes() == b"whole"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (target.parent.parent, target.parent)] == [0o700, 0o700]


def test_a_line_is_added_behind_one_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    files.append_line(path, b"first")
    with path.open("ab") as file:
        file.write(b"cut o")
    files.append_line(path, b"second")
    assert path.read_bytes() == b"first\ncut o\nsecond\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_that_the_disk_does_not_take_is_an_error() -> None:
    with pytest.raises(OSError, match="No space left"):
        files.append_line(Path("/dev/full"), b"first")


def test_a_bound_is_kept_when_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="too large") as raised:
        files.read_bounded(path, 4)
    assert raised.value.errno == errno.EFBIG
