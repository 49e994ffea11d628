"""What 0.1 left on a disk still opens. `tests/data/from_0_1/README.md` lists it."""

import shutil
from pathlib import Path

from specdash.backend.journal import JournalFile, read_records
from specdash.control.profiles import find_profile
from specdash.core.changes import Role
from specdash.core.config import resolve
from specdash.core.paths import user_profiles_dir
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


def test_a_saved_profile_is_converted(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    folder = user_profiles_dir(env)
    folder.mkdir(parents=True)
    shutil.copy(LEFT / "config/profiles/evening.toml", folder)
    evening = find_profile("evening", env)
    assert evening.summary == "what the workshop runs after six"
    assert evening.values == {
        Role.BACKEND: {
            "LLAMA_SPEC_TYPE": "draft-simple",
            "LLAMA_DRAFT_MAX": "6",
            "LLAMA_CTX_SIZE": "4096",
            "LLAMA_PARALLEL": "2",
        },
        Role.PROXY: {"PROXY_LOOP_BREAKER": "1"},
    }
    assert sorted(path.name for path in folder.iterdir()) == ["evening.env", "evening.toml.converted"]


def test_a_config_with_every_key_of_0_1_warns_of_what_was_removed_and_keeps_the_rest() -> None:
    warnings: list[str] = []
    text = (LEFT / "config/config.toml").read_text(encoding="utf-8")
    settings = resolve({}, {}, text, "config.toml", warnings.append)
    assert (settings["window"].value, settings["history_days"].value) == ("15m", 3)
    assert "manager" not in settings
    (table,) = settings["target"].value
    assert "backend_service" not in table
    assert all(" was removed and is ignored" in warning for warning in warnings)
    assert [warning.split(" was removed")[0] for warning in warnings] == [
        "config.toml: layout",
        "config.toml: manager",
        "config.toml: backend_service",
        "config.toml: proxy_service",
        "config.toml: ascii",
        "config.toml: ssh",
        "config.toml [[target]]: gpu_host",
        "config.toml [[target]]: backend_service",
    ]
