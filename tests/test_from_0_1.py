"""What 0.1 left on a disk still opens. `tests/data/from_0_1/README.md` lists it."""

from __future__ import annotations

import shutil
from pathlib import Path

from specdash.control.apply.journal import JournalFile, read_records
from specdash.core.changes import Role
from specdash.history.store import Store

LEFT = Path(__file__).parent / "data/from_0_1"


def test_a_record_of_0_1_opens(tmp_path: Path) -> None:
    history = tmp_path / "history.db"
    shutil.copy(LEFT / "state/history.db", history)
    with Store(history) as store:
        assert store.targets()


def test_the_journal_of_a_killed_apply_holds_both_versions_of_the_env_file() -> None:
    journal = JournalFile(LEFT / "state/apply.journal").read()
    assert journal is not None
    edit = journal.edit(Role.BACKEND)
    assert edit is not None
    assert (edit.values(new=False)["LLAMA_DRAFT_MAX"], edit.values(new=True)["LLAMA_DRAFT_MAX"]) == ("6", "8")


def test_finished_applies_are_listed() -> None:
    assert [record.number for record in read_records(LEFT / "state/applies.jsonl")] == [1]
