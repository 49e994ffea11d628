"""The journal of an apply: whatever was written is read back, and a torn or foreign file is never taken for one."""

from __future__ import annotations

import json
import os
import resource
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.backend.journal import Edit, HeldProxy, Journal, NoteFile, describe
from specdash.core.changes import ApplyKind, ApplyStep, Change, Role, differences
from specdash.core.errors import InputError, NotWrittenError
from specdash.core.records import read

if TYPE_CHECKING:
    from pathlib import Path

TEXT = st.text(max_size=12)
LINES = [b"LLAMA_DRAFT_MAX=4\n", b"LLAMA_DRAFT_MAX=8\n", b"LLAMA_API_KEY=k\n", b"B=\xff\n", b"# c\n", b"no line\n"]
BYTES = st.lists(st.sampled_from(LINES), max_size=4).map(b"".join) | st.binary(max_size=40)
EDITS = st.builds(
    Edit,
    role=st.sampled_from(Role),
    env_file=TEXT,
    old=BYTES,
    new=BYTES,
    existed=st.booleans(),
    backup=st.integers(1, 99),
    changes=st.just(()),
    needs_restart=st.booleans(),
).map(lambda edit: replace(edit, changes=differences(edit.role, edit.values(new=False), edit.values(new=True))))
JOURNALS = st.builds(
    Journal,
    number=st.integers(1, 999),
    kind=st.sampled_from(ApplyKind),
    at=st.floats(0, 2e9),
    pid=st.integers(1, 99999),
    pid_started=st.floats(0, 2e9),
    step=st.sampled_from(ApplyStep),
    edits=st.lists(EDITS, max_size=2).map(tuple),
    profile=st.none() | TEXT,
    url=st.none() | TEXT,
    force=st.booleans(),
    held=st.lists(st.builds(HeldProxy, pid=st.integers(1, 9), pid_started=st.floats(0, 9), url=TEXT), max_size=2).map(
        tuple
    ),
    written=st.lists(st.sampled_from(Role), unique=True).map(tuple),
    touched=st.lists(st.sampled_from(Role), unique=True).map(tuple),
    failed_step=st.none() | st.sampled_from(ApplyStep),
    reason=TEXT,
    log_lines=st.lists(TEXT, max_size=2).map(tuple),
    warnings=st.lists(TEXT, max_size=2).map(tuple),
)


def a_journal() -> Journal:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "8")
    edit = Edit(
        Role.BACKEND,
        "/e",
        b"LLAMA_DRAFT_MAX=4\n",
        b"LLAMA_DRAFT_MAX=8\n",
        True,
        (change,),
        True,
        3,
    )
    return Journal(4, ApplyKind.APPLY, 0.0, os.getpid(), 1.0, ApplyStep.WRITE, (edit,))


@given(JOURNALS)
def test_every_journal_is_read_back_as_it_was_written(journal: Journal) -> None:
    assert read(Journal, json.loads(journal.to_json())) == journal


def test_what_an_earlier_version_left_is_read() -> None:
    change = {"role": "backend", "key": "LLAMA_API_KEY", "before": "***", "after": "***"}
    edit = {
        "role": "backend", "service": "b", "manager": "systemd", "env_file": "/e", "existed": True, "backup": 3,
        "old": "TExBTUFfQVBJX0tFWT1hCg==", "new": "TExBTUFfQVBJX0tFWT1iCg==",
        "needs_restart": True, "changes": [change],
        "before": {"running": True, "healthy": True, "speculative": None, "engine_pid": 7, "digest": None},
    }  # fmt: skip
    text = json.dumps(
        {
            "number": 4, "kind": "apply", "at": 0.0, "pid": 9, "pid_started": 1.0, "step": "write", "edits": [edit],
            "phase": "applying", "profile": None, "url": None, "drain_timeout_s": 120.0, "health_timeout_s": 600.0,
            "settle_s": 15.0, "trial": False, "force": False, "held": [], "touched": ["backend"], "failed_step": None,
            "reason": "", "log_lines": [], "warnings": [],
        },
        sort_keys=True,
    )  # fmt: skip
    journal = read(Journal, json.loads(text))
    assert (journal.edits[0].old, journal.edits[0].new) == (b"LLAMA_API_KEY=a\n", b"LLAMA_API_KEY=b\n")
    assert journal.what == "LLAMA_API_KEY *** -> ***"
    assert read(Journal, json.loads(journal.to_json())) == journal


def test_it_is_kept_whole_private_and_without_leftovers(tmp_path: Path) -> None:
    file = NoteFile(tmp_path / "state" / "apply.journal", Journal, "journal")
    assert file.read() is None
    file.write(a_journal())
    file.write(replace(a_journal(), step=ApplyStep.HEALTH))
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == ["apply.journal"]
    found = file.read()
    assert found is not None
    assert found.step is ApplyStep.HEALTH
    file.remove()
    file.remove()
    assert list(file.path.parent.iterdir()) == []


@given(st.integers(0, 400))
def test_a_journal_that_was_cut_off_is_never_half_believed(cut: int) -> None:
    text = a_journal().to_json()
    assert Journal.from_json(text[: min(cut, len(text) - 1)]) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"number": 1}', "\x00"])
def test_a_file_that_is_no_journal_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "apply.journal"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"apply\.journal is not a journal .* move it away"):
        NoteFile(path, Journal, "journal").read()


def test_the_last_version_stays_when_the_next_cannot_be_written(tmp_path: Path) -> None:
    file = NoteFile(tmp_path / "apply.journal", Journal, "journal")
    file.write(a_journal())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(NotWrittenError, match="no space left"):
            file.write(replace(a_journal(), step=ApplyStep.HEALTH))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read() == a_journal()
    assert [path.name for path in tmp_path.iterdir()] == ["apply.journal"]


def test_its_words_say_what_was_cut_short_and_where() -> None:
    assert "apply 4 of " in a_journal().words
    assert a_journal().words.endswith("(LLAMA_DRAFT_MAX 4 -> 8) was cut short at step write")
    back = replace(a_journal(), failed_step=ApplyStep.PROBE)
    assert back.words.endswith("was cut short while it was rolling back from probe")


def test_changes_are_described_in_a_line_that_stays_short() -> None:
    many = tuple(Change(Role.BACKEND, f"K{index}", None, "1") for index in range(7))
    assert describe(many) == "K0 unset -> 1, K1 unset -> 1, K2 unset -> 1, K3 unset -> 1, 3 more"
    assert describe((Change(Role.BACKEND, "K", "", None),)) == "K '' -> unset"
