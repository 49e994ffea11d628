"""The list of applies, the lock, and the plan of going back: plain files, no service."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.backend.env_store import Backups, EnvSnapshot
from specdash.backend.journal import append_record, apply_lock, next_number, read_records
from specdash.control.plan import undone_stack
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Role
from specdash.core.errors import ConflictError, InputError, NotWrittenError
from specdash.core.paths import apply_lock_file

if TYPE_CHECKING:
    from pathlib import Path


def record(number: int, **more: object) -> ApplyRecord:
    return replace(ApplyRecord(number, 1.0, 2.0, ApplyKind.APPLY, ApplyOutcome.APPLIED), **more)


def test_records_are_appended_privately_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state" / "applies.jsonl"
    assert read_records(path) == ()
    for number in (1, 2):
        append_record(path, record(number))
    assert read_records(path) == (record(1), record(2))
    assert next_number(read_records(path)) == 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_short_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "applies.jsonl"
    append_record(path, record(1))
    with path.open("ab") as file:
        file.write(b'{"number": 2, "at": \xff')
    append_record(path, record(2))
    assert [read_record.number for read_record in read_records(path)] == [1, 2]


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    (tmp_path / "applies.jsonl").symlink_to("/dev/full")
    with pytest.raises(NotWrittenError, match="apply 1 is not in the list"):
        append_record(tmp_path / "applies.jsonl", record(1))


def test_a_list_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "applies.jsonl").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_records(tmp_path / "applies.jsonl")


def test_the_lock_names_its_holder_and_is_free_when_that_is_killed(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    code = (
        "import sys, time; from specdash.backend.journal import apply_lock;"
        f"lock = apply_lock('apply LLAMA_DRAFT_MAX 4 -> 8', {env!r}); lock.__enter__();"
        "print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ConflictError, match=rf"pid {holder.pid}, since .*LLAMA_DRAFT_MAX 4 -> 8"),
            apply_lock("another", env),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate(timeout=10)
    with apply_lock("another", env):
        assert apply_lock_file(env).read_text(encoding="utf-8").startswith(f"pid {os.getpid()}, since ")
        with pytest.raises(ConflictError), apply_lock("a third", env):
            pass
    with apply_lock("a fourth", env):
        pass


def snapshot(path: Path, data: bytes) -> EnvSnapshot:
    return EnvSnapshot(path, path, data, True, 0o600, os.geteuid(), os.getegid())


class History:
    """Applies and rollbacks on one env file, as records and backups keep them."""

    def __init__(self, directory: Path) -> None:
        self.backups = Backups(directory)
        self.records: list[ApplyRecord] = []
        self.now = b"A=0\n"
        self.file = directory / "env"

    def go(self, data: bytes, kind: ApplyKind, outcome: ApplyOutcome = ApplyOutcome.APPLIED) -> ApplyRecord:
        before = snapshot(self.file, self.now)
        kept = self.backups.save(Role.BACKEND, before)
        if outcome is ApplyOutcome.APPLIED:
            self.now = data
        digest = snapshot(self.file, self.now).digest
        self.records.append(
            record(
                len(self.records) + 1,
                kind=kind,
                outcome=outcome,
                backups={"backend": kept.number},
                digests={"backend": digest},
            )
        )
        return self.records[-1]

    @property
    def stack(self) -> list[ApplyRecord]:
        return undone_stack(tuple(self.records), self.backups)

    def undo(self) -> None:
        top = self.stack[-1]
        self.go(self.backups.read(Role.BACKEND, top.backups["backend"]), ApplyKind.ROLLBACK)


@given(st.lists(st.sampled_from(["apply", "fail", "undo"]), max_size=12))
def test_undoing_again_and_again_goes_back_step_by_step_to_the_beginning(steps: list[str]) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as directory:
        history = History(Path(directory))
        versions = [history.now]
        for index, step in enumerate(steps):
            if step == "undo" and history.stack:
                history.undo()
                versions.pop()
            elif step == "apply":
                versions.append(b"A=%d\n" % (index + 1))
                history.go(versions[-1], ApplyKind.APPLY)
            elif step == "fail":
                history.go(b"A=nine\n", ApplyKind.APPLY, ApplyOutcome.ROLLED_BACK)
            assert history.now == versions[-1]
            assert len(history.stack) == len(versions) - 1
