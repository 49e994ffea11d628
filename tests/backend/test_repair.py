"""What a runner finishes at its start that another left half-done: plain files, no process."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from msgspec.structs import replace

from specdash.backend import journal
from specdash.backend.journal import Edit, Journal, append_record, apply_lock, read_records, write_note
from specdash.backend.trial import repair
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Change, Role
from specdash.core.errors import NotWrittenError
from specdash.core.paths import applies_file, apply_journal_file, trial_file

if TYPE_CHECKING:
    from specdash.backend.env_store import EnvSnapshot

OLD, NEW = b"LLAMA_API_KEY=hush-hush\nLLAMA_DRAFT_MAX=4\n", b"LLAMA_API_KEY=hush-hush\nLLAMA_DRAFT_MAX=8\n"
LEFT_BY_0_1 = Path(__file__).parents[1] / "data/from_0_1/state"
THEIRS = b"# an editor was here\n"


class Home:
    """A user's files, with a journal of a process that is gone."""

    def __init__(self, directory: Path) -> None:
        self.env = {"HOME": str(directory)}
        self.file = directory / "backend.env"
        self.file.write_bytes(NEW)

    def journal(self, **changes: object) -> Journal:
        change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "8")
        edit = Edit(Role.BACKEND, str(self.file), OLD, NEW, True, (change,), True, 1)
        made = Journal(1, ApplyKind.APPLY, 1.0, 2**22 + 1, 1.0, ApplyStep.HEALTH, (edit,), written=(Role.BACKEND,))
        return replace(made, **changes)

    def leave(self, **changes: object) -> None:
        write_note(apply_journal_file(self.env), self.journal(**changes))

    def repair(self) -> str:
        return "\n".join(repair(str(self.file), self.env)[0])

    def records(self) -> tuple[ApplyRecord, ...]:
        return read_records(applies_file(self.env))

    @property
    def pending(self) -> bool:
        return apply_journal_file(self.env).exists()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_the_old_bytes_go_back_and_the_change_is_recorded_without_a_secret(home: Home) -> None:
    draft = home.file.with_name(".backend.env.1234.specdash-new")
    draft.write_bytes(b"left by the write that was killed")
    home.leave()
    said = home.repair()
    assert "the settings from before are back" in said
    assert (home.file.read_bytes(), home.pending, draft.exists()) == (OLD, False, False)
    (record,) = home.records()
    assert (record.number, record.kind, record.outcome) == (1, ApplyKind.RECOVER, ApplyOutcome.ROLLED_BACK)
    assert record.failed_step is ApplyStep.HEALTH
    assert "killed at step health" in record.reason
    assert "hush" not in said + applies_file(home.env).read_text(encoding="utf-8")
    assert home.repair() == ""
    assert len(home.records()) == 1


def test_a_change_that_was_recorded_before_the_runner_died_is_kept(home: Home) -> None:
    home.leave(step=ApplyStep.RECORD)
    append_record(applies_file(home.env), ApplyRecord(1, 1.0, 2.0, ApplyKind.APPLY, ApplyOutcome.APPLIED))
    assert home.repair() == ""
    assert home.file.read_bytes() == NEW
    assert not home.pending
    assert len(home.records()) == 1


def test_an_edit_that_was_made_meanwhile_is_left_and_the_backup_named(home: Home) -> None:
    home.leave()
    home.file.write_bytes(THEIRS)
    assert "backup 1 of `specdash env history`" in home.repair()
    assert home.file.read_bytes() == THEIRS
    assert not home.pending


def test_a_file_that_the_change_made_is_gone_again(home: Home) -> None:
    edit = replace(home.journal().edits[0], existed=False, old=b"")
    home.leave(edits=(edit,))
    home.repair()
    assert not home.file.exists()


def test_a_full_disk_leaves_the_journal_for_the_next_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(snapshot: EnvSnapshot, data: bytes) -> EnvSnapshot:
        raise NotWrittenError(f"{snapshot.path} was not written: no space left")

    home.leave()
    with monkeypatch.context() as patch:
        patch.setattr(journal, "replace_env", full)
        assert "no space left" in home.repair()
    assert (home.pending, home.file.read_bytes()) == (True, NEW)
    home.repair()
    assert (home.pending, home.file.read_bytes()) == (False, OLD)
    assert [record.outcome for record in home.records()] == [ApplyOutcome.ROLLBACK_FAILED, ApplyOutcome.ROLLED_BACK]
    assert [record.number for record in home.records()] == [1, 2]


def test_what_another_process_works_on_or_another_runner_reads_is_left_to_it(home: Home, tmp_path: Path) -> None:
    home.leave()
    with apply_lock("another", home.env):
        assert home.repair() == ""
    assert repair(str(tmp_path / "other.env"), home.env) == ([], ())
    other = psutil.Process(os.getppid())
    home.leave(pid=other.pid, pid_started=other.create_time())
    assert home.repair() == ""
    assert home.pending
    assert home.file.read_bytes() == NEW


def test_a_journal_that_cannot_be_read_is_said_and_keeps_nothing_from_starting(home: Home) -> None:
    path = apply_journal_file(home.env)
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    assert "is not a journal of this version" in home.repair()
    assert home.file.read_bytes() == NEW


@pytest.mark.parametrize("edited", [False, True])
def test_a_trial_of_0_1_whose_process_died_goes_back_or_leaves_an_edit(home: Home, edited: bool) -> None:
    home.file.write_bytes(b"LLAMA_DRAFT_MAX=5\n")
    note = json.loads((LEFT_BY_0_1 / "trial.json").read_text(encoding="utf-8"))
    note |= {"env_file": str(home.file), "tried": [hashlib.sha256(home.file.read_bytes()).hexdigest()]}
    trial_file(home.env).parent.mkdir(parents=True)
    trial_file(home.env).write_text(json.dumps(note), encoding="utf-8")
    if edited:
        home.file.write_bytes(THEIRS)
    assert ("cut short" if edited else "the original is back") in home.repair()
    assert home.file.read_bytes() == (THEIRS if edited else base64.b64decode(note["original"]))
    assert not trial_file(home.env).exists()
