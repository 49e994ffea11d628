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

from specdash.backend.journal import Edit, HeldProxy, Journal, describe, read_note, remove_note, write_note
from specdash.core.changes import ApplyKind, ApplyStep, Change, Role, differences
from specdash.core.errors import InputError, NotWrittenError
from specdash.core.records import read

if TYPE_CHECKING:
    from pathlib import Path

LINES = [b"LLAMA_DRAFT_MAX=4\n", b"LLAMA_DRAFT_MAX=8\n", b"LLAMA_API_KEY=k\n", b"B=\xff\n", b"# c\n", b"no line\n"]
BYTES = st.lists(st.sampled_from(LINES), max_size=4).map(b"".join) | st.binary(max_size=40)


def a_journal() -> Journal:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "8")
    edit = Edit(Role.BACKEND, "/e", b"LLAMA_DRAFT_MAX=4\n", b"LLAMA_DRAFT_MAX=8\n", True, (change,), True, 3)
    return Journal(4, ApplyKind.APPLY, 0.0, os.getpid(), 1.0, ApplyStep.WRITE, (edit,))


@given(BYTES, BYTES, st.text(max_size=12), st.floats(0, 2e9))
def test_a_journal_is_read_back_as_it_was_written_whatever_the_files_hold(
    old: bytes, new: bytes, text: str, at: float
) -> None:
    edit = Edit(Role.PROXY, text, old, new, False, (), False, 3)
    edit = replace(edit, changes=differences(edit.role, edit.values(new=False), edit.values(new=True)))
    held, known = (HeldProxy(7, at, text),), tuple(Role)
    made = replace(a_journal(), edits=(edit,), held=held, written=known, touched=known, reason=text, at=at)
    assert read(Journal, json.loads(made.to_json())) == made


def noted(path: Path) -> Journal | None:
    return read_note(path, Journal, "journal")


def test_it_is_kept_whole_private_and_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "state" / "apply.journal"
    assert noted(path) is None
    write_note(path, a_journal())
    write_note(path, replace(a_journal(), step=ApplyStep.HEALTH))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in path.parent.iterdir()] == ["apply.journal"]
    found = noted(path)
    assert found is not None
    assert found.step is ApplyStep.HEALTH
    remove_note(path)
    remove_note(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "null", '{"number": 1}', "\x00", a_journal().to_json()[:-9]], ids=range(6))
def test_a_file_that_is_no_whole_journal_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "apply.journal"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"apply\.journal is not a journal .* move it away"):
        noted(path)


def test_the_last_version_stays_when_the_next_cannot_be_written(tmp_path: Path) -> None:
    write_note(tmp_path / "apply.journal", a_journal())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(NotWrittenError, match="no space left"):
            write_note(tmp_path / "apply.journal", replace(a_journal(), step=ApplyStep.HEALTH))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert noted(tmp_path / "apply.journal") == a_journal()
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
