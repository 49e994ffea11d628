"""The file of baselines is whole at every moment, private, and keeps what it does not understand."""

import stat
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from insight.scenes import baseline
from specdash.backend.baseline import add_baseline, read_baselines
from specdash.core.errors import NotWrittenError
from specdash.core.paths import apply_journal_file, baselines_file
from specdash.system import files


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def test_nothing_is_recorded_at_first(env: dict[str, str]) -> None:
    assert read_baselines(env) == ()


def test_what_is_added_is_there_and_only_for_its_owner(env: dict[str, str]) -> None:
    add_baseline(baseline(), env)
    assert read_baselines(env) == (baseline(),)
    assert stat.S_IMODE(baselines_file(env).stat().st_mode) == 0o600


def test_a_newer_one_takes_the_place_of_its_key_and_of_no_other(env: dict[str, str]) -> None:
    other, newer = baseline(context=4096), replace(baseline(rate=60.0), at=baseline().at + 1)
    for item in (baseline(), other, newer):
        add_baseline(item, env)
    assert set(read_baselines(env)) == {other, newer}


def test_what_an_apply_writes_beside_it_meanwhile_is_left_alone(env: dict[str, str]) -> None:
    """Its journal lies in the same directory, and takes its place a moment after it is written."""
    add_baseline(baseline(), env)
    draft = files.temporary(apply_journal_file(env), b"{}")
    add_baseline(baseline(rate=60.0), env)
    assert draft.exists()


def test_lines_of_a_newer_version_stay(env: dict[str, str]) -> None:
    add_baseline(baseline(), env)
    with baselines_file(env).open("a", encoding="utf-8") as file:
        file.write('{"kind": "of a later version"}\n')
    add_baseline(replace(baseline(), model="n.gguf"), env)
    assert read_baselines(env) == (baseline(), replace(baseline(), model="n.gguf"))
    assert "of a later version" in baselines_file(env).read_text(encoding="utf-8")


def test_two_writers_lose_nothing(env: dict[str, str]) -> None:
    def write(first: int) -> None:
        for context in range(first, 40, 2):
            add_baseline(baseline(context=context + 1), env)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {read_baseline.context for read_baseline in read_baselines(env)} == set(range(1, 41))


def test_where_it_cannot_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / ".local").write_text("in the way", encoding="utf-8")
    with pytest.raises(NotWrittenError, match="was not written"):
        add_baseline(baseline(), {"HOME": str(tmp_path)})
