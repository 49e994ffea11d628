"""Writing whole files: what a killed writer leaves is gone with the next one, what a living writer is at stays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from specdash.control import safe_file

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sys, time
from pathlib import Path
from specdash.control import safe_file
print(safe_file.temporary(Path(sys.argv[1]), b"half of it"), flush=True)
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


def test_what_a_killed_writer_left_goes_with_the_next_version(tmp_path: Path) -> None:
    target = tmp_path / "now.json"
    writer, draft = begun(target)
    assert draft.read_bytes() == b"half of it"
    killed(writer)
    safe_file.replace(target, b"whole")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"now.json": b"whole"}


def test_the_draft_of_a_writer_that_lives_is_left_to_it(tmp_path: Path) -> None:
    target = tmp_path / "now.json"
    writer, draft = begun(target)
    try:
        safe_file.replace(target, b"whole")
        safe_file.sweep(tmp_path)
        assert draft.read_bytes() == b"half of it"
    finally:
        killed(writer)


def test_only_drafts_of_the_file_itself_go_with_its_next_version_and_all_of_them_with_a_sweep(tmp_path: Path) -> None:
    writer, other = begun(tmp_path / "other.json")
    killed(writer)
    bystander = tmp_path / ".hidden.specdash-new"
    bystander.write_bytes(b"nobody's")
    safe_file.replace(tmp_path / "now.json", b"whole")
    assert other.exists()
    safe_file.sweep(tmp_path)
    assert not other.exists()
    assert bystander.exists()


def test_whoever_locks_a_directory_for_one_file_leaves_the_drafts_of_others_alone(tmp_path: Path) -> None:
    """An apply writes its journal without the lock, where baselines and saved slots are kept with it."""
    left, own = begun(tmp_path / "baselines.jsonl")
    killed(left)
    writer, journal = begun(tmp_path / "apply.journal")
    try:
        with safe_file.locked(tmp_path, "baselines.jsonl"):
            assert not own.exists()
            assert journal.exists()
    finally:
        killed(writer)
    with safe_file.locked(tmp_path):
        assert not journal.exists()


def test_what_cannot_take_its_place_is_not_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "now.json"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        safe_file.replace(target, b"whole")
    assert [one.name for one in tmp_path.iterdir()] == ["now.json"]


def test_names_with_signs_of_patterns_are_names(tmp_path: Path) -> None:
    target = tmp_path / "a[b]*.json"
    writer, draft = begun(target)
    killed(writer)
    safe_file.replace(target, b"whole")
    assert not draft.exists()
