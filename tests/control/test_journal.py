"""The journal of an apply: whatever was written is read back, and a torn or foreign file is never taken for one."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.control.apply_work import Work
from specdash.control.journal import (
    Before,
    HeldProxy,
    Journal,
    JournalEdit,
    JournalFile,
    Phase,
    describe,
)
from specdash.core.applies import STEPS, ApplyKind, Step, StoredChange
from specdash.core.changes import Role
from specdash.core.errors import InputError, NotWrittenError

if TYPE_CHECKING:
    from pathlib import Path

TEXT = st.text(max_size=12)
CHANGES = st.builds(
    StoredChange, role=st.sampled_from(["backend", "proxy"]), key=TEXT, before=st.none() | TEXT, after=TEXT
)
EDITS = st.builds(
    JournalEdit,
    role=st.sampled_from(Role),
    service=TEXT,
    manager=TEXT,
    env_file=TEXT,
    old=st.binary(max_size=40),
    new=st.binary(max_size=40),
    existed=st.booleans(),
    backup=st.integers(1, 99),
    changes=st.lists(CHANGES, max_size=2).map(tuple),
    needs_restart=st.booleans(),
    before=st.builds(
        Before,
        running=st.booleans(),
        healthy=st.booleans(),
        speculative=st.none() | st.booleans(),
        main_pid=st.none() | st.integers(1, 99999),
        engine_pid=st.none() | st.integers(1, 99999),
        digest=st.none() | TEXT,
    ),
)
JOURNALS = st.builds(
    Journal,
    number=st.integers(1, 999),
    kind=st.sampled_from(ApplyKind),
    at=st.floats(0, 2e9),
    pid=st.integers(1, 99999),
    pid_started=st.floats(0, 2e9),
    step=st.sampled_from(Step),
    edits=st.lists(EDITS, max_size=2).map(tuple),
    phase=st.sampled_from(Phase),
    profile=st.none() | TEXT,
    url=st.none() | TEXT,
    force=st.booleans(),
    held=st.lists(st.builds(HeldProxy, pid=st.integers(1, 9), pid_started=st.floats(0, 9), url=TEXT), max_size=2).map(
        tuple
    ),
    touched=st.lists(st.sampled_from(Role), unique=True).map(tuple),
    failed_step=st.none() | st.sampled_from(Step),
    reason=TEXT,
    log_lines=st.lists(TEXT, max_size=2).map(tuple),
    warnings=st.lists(TEXT, max_size=2).map(tuple),
)


def a_journal() -> Journal:
    before = Before(running=True, healthy=True)
    change = StoredChange("backend", "LLAMA_DRAFT_MAX", "4", "8")
    edit = JournalEdit(
        Role.BACKEND,
        "b",
        "systemd",
        "/e",
        b"LLAMA_DRAFT_MAX=4\n",
        b"LLAMA_DRAFT_MAX=8\n",
        True,
        3,
        (change,),
        True,
        before,
    )
    return Journal(4, ApplyKind.APPLY, 0.0, os.getpid(), 1.0, Step.WRITE, (edit,))


@given(JOURNALS)
def test_every_journal_is_read_back_as_it_was_written(journal: Journal) -> None:
    assert Journal.from_json(journal.to_json()) == journal


def test_it_is_kept_whole_private_and_without_leftovers(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "state" / "apply.journal")
    assert file.read() is None
    file.write(a_journal())
    file.write(replace(a_journal(), step=Step.HEALTH))
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == ["apply.journal"]
    found = file.read()
    assert found is not None
    assert found.step is Step.HEALTH
    file.remove()
    file.remove()
    assert list(file.path.parent.iterdir()) == []


@given(st.integers(0, 400))
def test_a_journal_that_was_cut_off_is_never_half_believed(cut: int) -> None:
    text = a_journal().to_json()
    with pytest.raises((ValueError, KeyError, TypeError)):
        Journal.from_json(text[: min(cut, len(text) - 1)])


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"number": 1}', "\x00"])
def test_a_file_that_is_no_journal_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "apply.journal"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"apply\.journal is no journal .* move it away"):
        JournalFile(path).read()


def test_the_last_version_stays_when_the_next_cannot_be_written(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "apply.journal")
    file.write(a_journal())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(NotWrittenError, match="cannot go on safely"):
            file.write(replace(a_journal(), step=Step.HEALTH))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read() == a_journal()
    assert [one.name for one in tmp_path.iterdir()] == ["apply.journal"]


def test_its_words_say_what_was_cut_short_and_where() -> None:
    assert "apply 4 of " in a_journal().words
    assert a_journal().words.endswith("(LLAMA_DRAFT_MAX 4 -> 8) was cut short at step write")
    back = replace(a_journal(), phase=Phase.ROLLING_BACK, failed_step=Step.PROBE)
    assert back.words.endswith("was cut short while it was rolling back from probe")


def test_changes_are_described_in_a_line_that_stays_short() -> None:
    many = tuple(StoredChange("backend", f"K{index}", None, "1") for index in range(7))
    assert describe(many) == "K0 unset -> 1, K1 unset -> 1, K2 unset -> 1, K3 unset -> 1, 3 more"
    assert describe((StoredChange("backend", "K", "", None),)) == "K '' -> unset"


def test_a_restart_whose_end_was_not_seen_is_not_settled() -> None:
    """Only what was seen healthy, or never asked to restart, needs no restart to be undone."""
    for step in Step:
        for touched in ((), (Role.BACKEND,)):
            work = Work.__new__(Work)
            work.journal = replace(a_journal(), step=step, touched=touched)
            seen = step is Step.ROLLBACK or step in STEPS[STEPS.index(Step.HEALTH) :]
            assert work.unsettled is (bool(touched) and not seen)
