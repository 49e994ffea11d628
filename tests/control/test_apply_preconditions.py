"""What stands in the way before anything is touched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from specdash.backend import demo, journal, transaction
from specdash.backend.env_store import Backups, read_env, replace_env
from specdash.backend.journal import Edit, Journal, append_record, read_records, write_note
from specdash.backend.launch import free_port
from specdash.backend.proxies import ProxyChange
from specdash.backend.trial import repair
from specdash.control.change import Apply
from specdash.control.deployment import Deployment, Service
from specdash.control.plan import ApplyOptions, plan_apply, plan_rollback, preview
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Change, Role, parse_assignments
from specdash.core.errors import ExitCode, InputError, NotWrittenError, ServiceError, errors
from specdash.core.paths import applies_file, apply_journal_file, backups_dir

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.backend.env_store import EnvSnapshot
    from specdash.core.changes import WantedValues


@dataclass
class Setting:
    """A backend that does not run, in a home of its own."""

    home: Path
    service: Service

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"]}

    def apply(self, *words: str) -> tuple[Apply, ApplyRecord]:
        plan = plan_apply(Deployment(self.service), parse_assignments(list(words)), env=self.env)
        apply = Apply(plan, ApplyOptions(1, 2, 0), lambda _: None, self.env)
        return apply, apply.run()

    def assert_untouched(self, before: bytes) -> None:
        assert self.service.env_file.read_bytes() == before
        assert not apply_journal_file(self.env).exists()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    file = tmp_path / "backend.env"
    text = demo.env_text(
        port=free_port("127.0.0.1"), log=tmp_path / "log", spec_types=("draft-simple",), engine="xllamacpp"
    )
    file.write_text(text, encoding="utf-8")
    return Setting(tmp_path, Service(Role.BACKEND, file, {"HOME": str(tmp_path)}))


def test_a_service_that_is_not_there_is_said_with_the_reason() -> None:
    deployment = Deployment(missing={Role.BACKEND: "none runs; `specdash services install` sets one up"})
    with pytest.raises(ServiceError, match="no backend to change: none runs"):
        plan_apply(deployment, parse_assignments(["LLAMA_DRAFT_MAX=8"]))


def test_a_profile_that_only_spells_a_value_otherwise_changes_nothing(setting: Setting) -> None:
    with setting.service.env_file.open("a", encoding="utf-8") as file:
        file.write("LLAMA_DRAFT_P_MIN=0.8\n")
    wanted: WantedValues = {Role.BACKEND: {"LLAMA_DRAFT_P_MIN": "0.80"}}
    assert not plan_apply(Deployment(setting.service), wanted, profile="mine", env=setting.env).edits
    assert plan_apply(Deployment(setting.service), wanted, env=setting.env).edits


def test_a_rollback_goes_to_before_the_last_apply_or_to_before_the_one_that_is_named(setting: Setting) -> None:
    versions = []
    for number in (1, 2):
        snapshot = read_env(setting.service.env_file)
        versions.append(snapshot.data)
        backup = Backups(backups_dir(setting.env)).save(Role.BACKEND, snapshot).number
        record = ApplyRecord(number, 0.0, 1.0, ApplyKind.APPLY, ApplyOutcome.APPLIED, backups={"backend": backup})
        append_record(applies_file(setting.env), record)
        setting.service.env_file.write_bytes(snapshot.data + f"LLAMA_DRAFT_MIN={number}\n".encode())

    def back(number: int | None = None) -> bytes:
        return plan_rollback(Deployment(setting.service), number, env=setting.env).edits[0].new

    assert [back(), back(2), back(1)] == [versions[1], versions[1], versions[0]]
    with pytest.raises(InputError, match="there is no apply 3"):
        back(3)


@pytest.mark.parametrize(("key", "found"), [("theirs", ["PROXY_UPSTREAM_API_KEY"]), ("sesame", [])])
def test_a_change_is_judged_beside_the_service_that_is_not_changed(
    setting: Setting, key: str, found: list[str]
) -> None:
    port = read_env(setting.service.env_file).values["LLAMA_PORT"]
    proxy_file = setting.home / "proxy.env"
    proxy_file.write_bytes(f"LLAMA_CPP_BASE=http://127.0.0.1:{port}/v1\nPROXY_UPSTREAM_API_KEY={key}\n".encode())
    both = Deployment(setting.service, Service(Role.PROXY, proxy_file))
    plan = plan_apply(both, parse_assignments(["LLAMA_API_KEY=sesame"]), env=setting.env)
    assert [finding.key for finding in errors(plan.findings)] == found


@pytest.mark.parametrize("reason", ["no space left", "is on a read-only file system", "belongs to root"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_else(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def check(snapshot: EnvSnapshot) -> None:
        raise NotWrittenError(f"{snapshot.path} was not written, and is as it was: {reason}")

    before = setting.service.env_file.read_bytes()
    monkeypatch.setattr(transaction, "check_writable", check)
    apply, record = setting.apply("LLAMA_DRAFT_MAX=8")
    assert record.outcome is ApplyOutcome.REFUSED
    assert reason in record.reason
    assert apply.error is not None
    assert apply.error.exit_code is ExitCode.NOT_WRITTEN
    setting.assert_untouched(before)


def test_a_state_directory_that_cannot_be_written_is_refused_before_anything_else(setting: Setting) -> None:
    before = setting.service.env_file.read_bytes()
    (setting.home / ".local").write_text("in the way", encoding="utf-8")
    plan = plan_apply(Deployment(setting.service), parse_assignments(["LLAMA_DRAFT_MAX=8"]), env=setting.env)
    with pytest.raises(NotWrittenError, match="nothing was changed"):
        Apply(plan, ApplyOptions(), lambda _: None, setting.env).run()
    assert setting.service.env_file.read_bytes() == before


def test_the_preview_shows_the_diff_the_arguments_and_what_is_done(setting: Setting) -> None:
    words = ["LLAMA_DRAFT_MAX=8", "LLAMA_API_KEY=hush-hush"]
    plan = plan_apply(Deployment(setting.service), parse_assignments(words), env=setting.env)
    (edit_preview,) = preview(plan, setting.env)
    assert '-LLAMA_DRAFT_MAX="4"' in edit_preview["diff"]
    assert "+LLAMA_DRAFT_MAX=8" in edit_preview["diff"]
    assert "- speculative.draft.n_max = 4" in edit_preview["arguments"]
    assert "+ speculative.draft.n_max = 8" in edit_preview["arguments"]
    assert (
        edit_preview["action"]
        == f"write {edit_preview['env_file']}; no backend runs with it: it counts at its next start"
    )
    assert "draft-simple" in edit_preview["readers"]["LLAMA_DRAFT_MAX"]
    assert "hush-hush" not in str(edit_preview)
    assert "hush-hush" not in repr(plan)


def test_a_preview_of_values_that_no_engine_can_run_says_why_instead_of_a_diff(setting: Setting) -> None:
    plan = plan_apply(Deployment(setting.service), parse_assignments(["LLAMA_ENGINE=nonsense"]), env=setting.env)
    (why,) = preview(plan, setting.env)[0]["arguments"]
    assert why.startswith("! ")
    assert "LLAMA_ENGINE" in why


def test_old_bytes_that_cannot_be_put_back_leave_the_journal_for_the_next_start(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full when a change that failed has to go back."""
    before = setting.service.env_file.read_bytes()
    real = replace_env

    def full(snapshot: EnvSnapshot, data: bytes) -> EnvSnapshot:
        if data == before:
            raise NotWrittenError(f"{snapshot.path} was not written: no space left")
        return real(snapshot, data)

    def fails(self: ProxyChange, engine: object) -> None:
        raise ServiceError("it does not go on")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "replace_env", full)
        patch.setattr(ProxyChange, "to_ask", fails)
        _, record = setting.apply("LLAMA_DRAFT_MAX=8")
    assert record.outcome is ApplyOutcome.ROLLBACK_FAILED
    assert "no space left; the next start of the backend tries again" in record.reason
    assert apply_journal_file(setting.env).exists()
    repair(str(setting.service.env_file), setting.env)
    assert setting.service.env_file.read_bytes() == before
    assert not apply_journal_file(setting.env).exists()


def test_an_env_file_that_a_change_made_is_gone_again_after_its_rollback(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: ProxyChange, engine: object) -> None:
        raise ServiceError("it does not go on")

    words = [line.replace('"', "") for line in setting.service.env_file.read_text("utf-8").splitlines() if "=" in line]
    setting.service.env_file.unlink()
    monkeypatch.setattr(ProxyChange, "to_ask", fails)
    _, record = setting.apply(*[word for word in words if not word.startswith("#")])
    assert record.outcome is ApplyOutcome.ROLLED_BACK, record.reason
    assert not setting.service.env_file.exists()


def left_by_a_dead_process(setting: Setting, env_file: Path) -> bytes:
    """A change of this env file that was killed after its write; the version from before."""
    old = b"LLAMA_DRAFT_MAX=4\n"
    new = b"LLAMA_DRAFT_MAX=9\n"
    env_file.write_bytes(new)
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "9")
    edit = Edit(Role.BACKEND, str(env_file), old, new, True, (change,), True, 1)
    dead = Journal(1, ApplyKind.APPLY, 1.0, 2**22 + 1, 1.0, ApplyStep.HEALTH, (edit,), written=(Role.BACKEND,))
    write_note(apply_journal_file(setting.env), dead)
    return old


def test_a_change_that_was_cut_short_is_undone_before_the_next_begins(setting: Setting) -> None:
    other = setting.home / "other.env"
    old = left_by_a_dead_process(setting, other)
    _, record = setting.apply("LLAMA_DRAFT_MAX=8")
    assert record.outcome is ApplyOutcome.APPLIED
    assert any("the settings from before are back" in warning for warning in record.warnings)
    assert other.read_bytes() == old
    kinds = [known.kind for known in read_records(applies_file(setting.env))]
    assert kinds == [ApplyKind.RECOVER, ApplyKind.APPLY]
    assert not apply_journal_file(setting.env).exists()


def test_a_change_that_was_cut_short_and_cannot_be_undone_keeps_its_journal(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(snapshot: EnvSnapshot, data: bytes) -> EnvSnapshot:
        raise NotWrittenError(f"{snapshot.path} was not written: no space left")

    before = setting.service.env_file.read_bytes()
    left_by_a_dead_process(setting, setting.home / "other.env")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "replace_env", full)
        with pytest.raises(NotWrittenError, match=r"no space left.*; nothing was changed"):
            setting.apply("LLAMA_DRAFT_MAX=8")
    assert setting.service.env_file.read_bytes() == before
    assert apply_journal_file(setting.env).exists()
