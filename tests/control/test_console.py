"""What the dashboard may ask of the services, without a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.env_store import Backups, read_env
from specdash.backend.journal import append_record
from specdash.control.console import Console, RunningApply
from specdash.control.deployment import Deployment, Service, ServiceState
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Role
from specdash.core.errors import ServiceError
from specdash.core.paths import applies_file, backups_dir

if TYPE_CHECKING:
    from pathlib import Path


def console(home: Path) -> Console:
    """A console on one backend whose env file is in `home`."""
    env_file = home / "backend.env"
    service = Service(Role.BACKEND, env_file, {"HOME": str(home)})
    return Console(lambda: Deployment(service), drain_timeout_s=1, health_timeout_s=1, env={"HOME": str(home)})


def applied(home: Path, number: int, value: str, kind: ApplyKind = ApplyKind.APPLY) -> None:
    """Change the env file, with a backup and a record, as an apply does."""
    env = {"HOME": str(home)}
    file = home / "backend.env"
    backup = Backups(backups_dir(env)).save(Role.BACKEND, read_env(file))
    file.write_text(f"LLAMA_DRAFT_MAX={value}\n", encoding="utf-8")
    record = ApplyRecord(
        number, 0.0, 1.0, kind, ApplyOutcome.APPLIED,
        backups={"backend": backup.number}, digests={"backend": read_env(file).digest},
    )  # fmt: skip
    append_record(applies_file(env), record)


def test_it_looks_at_values_state_and_what_a_rollback_goes_back_to(tmp_path: Path) -> None:
    (tmp_path / "backend.env").write_text("LLAMA_DRAFT_MAX=4\n", encoding="utf-8")
    assert console(tmp_path).look().services[0].last_good is None
    applied(tmp_path, 1, "8")
    applied(tmp_path, 2, "12")
    seen = console(tmp_path).look().services[0]
    assert (seen.values["LLAMA_DRAFT_MAX"], seen.status.state) == ("12", ServiceState.STOPPED)
    assert seen.last_good == {"LLAMA_DRAFT_MAX": "8"}
    assert "12" not in repr(seen)


def test_after_a_rollback_the_last_good_one_is_a_step_further_back(tmp_path: Path) -> None:
    (tmp_path / "backend.env").write_text("LLAMA_DRAFT_MAX=4\n", encoding="utf-8")
    applied(tmp_path, 1, "8")
    applied(tmp_path, 2, "12")
    applied(tmp_path, 3, "8", ApplyKind.ROLLBACK)
    assert console(tmp_path).look().services[0].last_good == {"LLAMA_DRAFT_MAX": "4"}


def test_what_cannot_be_found_or_read_is_a_problem_in_words_and_no_error(tmp_path: Path) -> None:
    def nothing() -> Deployment:
        raise ServiceError("systemd's user manager does not answer")

    lost = Console(nothing, drain_timeout_s=1, health_timeout_s=1, env={"HOME": str(tmp_path)})
    assert lost.look().problems == ("systemd's user manager does not answer",)
    (tmp_path / "backend.env").mkdir()
    assert "backend.env" in console(tmp_path).look().problems[0]


def test_an_apply_in_its_thread_leaves_its_record_or_its_error() -> None:
    rolled_back = ApplyRecord(1, 0.0, 1.0, ApplyKind.APPLY, ApplyOutcome.ROLLED_BACK)

    def fails() -> ApplyRecord:
        raise ServiceError("no such unit")

    for work, record, error in ((lambda: rolled_back, rolled_back, "None"), (fails, None, "no such unit")):
        running = RunningApply(work, lambda: False, [])
        running.join(10)
        assert (running.record, str(running.error)) == (record, error)
