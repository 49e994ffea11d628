"""What stands in the way before anything is touched, and services that are not ours; with a manager of plain data."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from specdash.control.apply import apply as apply_module
from specdash.control.apply.apply import Apply, ApplyOptions, plan_apply, plan_rollback

from specdash.backend import demo
from specdash.backend.env_store import Backups, read_env
from specdash.backend.journal import append_record, journal_file, read_records
from specdash.backend.launch import free_port
from specdash.control.plan import disagreements, preview
from specdash.control.services.services import (
    Deployment,
    ManagedService,
    ServiceProblem,
    ServiceState,
    ServiceStatus,
)
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Role, parse_assignments
from specdash.core.errors import ExitCode, InputError, NotWrittenError, ServiceError
from specdash.core.paths import applies_file, backups_dir
from support.deployment import misbehaving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdash.backend.env_store import EnvSnapshot
    from specdash.core.changes import WantedValues


@dataclass
class FakeManager:
    """Knows one service, and runs nothing."""

    now: ServiceStatus
    refuses: str | None = None
    asked: list[str] = field(default_factory=list)
    kind: str = "fake"

    def status(self, name: str) -> ServiceStatus:
        if self.refuses is not None:
            raise ServiceError(self.refuses)
        return self.now

    def _ask(self, what: str) -> None:
        self.asked.append(what)

    def start(self, name: str) -> None:
        self._ask("start")

    def stop(self, name: str) -> None:
        self._ask("stop")

    def restart(self, name: str) -> None:
        self._ask("restart")

    def bring_up(self) -> None:
        """It is there."""

    def reload(self, name: str) -> None:
        self._ask("reload")

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        return ()


@dataclass
class Setting:
    """A backend of a fake manager, in a home of its own."""

    home: Path
    manager: FakeManager
    service: ManagedService

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"]}

    def apply(self, *words: str) -> tuple[Apply, ApplyRecord]:
        plan = plan_apply(Deployment(self.service), parse_assignments(list(words)), env=self.env)
        apply = Apply(plan, ApplyOptions(1, 2, 0), lambda _: None, self.env)
        return apply, apply.run()

    def assert_untouched(self, before: bytes) -> None:
        assert self.service.env_file.read_bytes() == before
        assert self.manager.asked == []
        assert not journal_file(self.env).path.exists()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    file = tmp_path / "backend.env"
    text = demo.env_text(
        port=free_port("127.0.0.1"), log=tmp_path / "log", spec_types=("draft-simple",), engine="xllamacpp"
    )
    file.write_text(text, encoding="utf-8")
    manager = FakeManager(ServiceStatus("llama", ServiceState.STOPPED))
    return Setting(tmp_path, manager, ManagedService(Role.BACKEND, "llama", manager, file, True, "test"))


def test_a_service_that_is_not_there_is_said_with_the_reason() -> None:
    deployment = Deployment(
        missing=(ServiceProblem(Role.BACKEND, "no service found; `specdash services install` sets it up"),)
    )
    with pytest.raises(ServiceError, match="no backend service to change: backend: no service found"):
        plan_apply(deployment, parse_assignments(["LLAMA_DRAFT_MAX=8"]))


def test_a_profile_that_only_spells_a_value_otherwise_changes_nothing(setting: Setting) -> None:
    with setting.service.env_file.open("a", encoding="utf-8") as file:
        file.write("LLAMA_DRAFT_P_MIN=0.8\n")
    wanted: WantedValues = {Role.BACKEND: {"LLAMA_DRAFT_P_MIN": "0.80"}}
    assert plan_apply(Deployment(setting.service), wanted, profile="mine", env=setting.env).empty
    assert not plan_apply(Deployment(setting.service), wanted, env=setting.env).empty


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
def test_services_that_would_not_take_each_other_are_told_of(setting: Setting, key: str, found: list[str]) -> None:
    with setting.service.env_file.open("a", encoding="utf-8") as file:
        file.write("LLAMA_API_KEY=sesame\n")
    port = read_env(setting.service.env_file).values["LLAMA_PORT"]
    proxy_file = setting.home / "proxy.env"
    proxy_file.write_bytes(f"LLAMA_CPP_BASE=http://127.0.0.1:{port}/v1\nPROXY_UPSTREAM_API_KEY={key}\n".encode())
    proxy = ManagedService(Role.PROXY, "proxy", setting.manager, proxy_file, True, "test")
    told = disagreements(Deployment(setting.service, proxy), setting.env)
    assert [finding.key for finding in told] == found
    assert disagreements(Deployment(setting.service), setting.env) == ()


MISSING = ServiceStatus("llama", ServiceState.MISSING, detail="systemd knows no such unit")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"now": MISSING}, "llama: systemd knows no such unit (test); nothing was changed"),
        ({"refuses": "systemd's user manager does not run"}, "systemd's user manager does not run"),
    ],
    ids=["unit", "manager"],
)
def test_a_service_that_cannot_be_asked_for_is_refused(setting: Setting, changed: dict[str, Any], reason: str) -> None:
    before = setting.service.env_file.read_bytes()
    for name, value in changed.items():
        setattr(setting.manager, name, value)
    apply, record = setting.apply("LLAMA_DRAFT_MAX=8")
    assert (record.outcome, record.failed_step, record.reason) == (ApplyOutcome.REFUSED, ApplyStep.PREFLIGHT, reason)
    assert apply.error is not None
    assert apply.error.exit_code is ExitCode.SERVICE
    setting.assert_untouched(before)


@pytest.mark.parametrize("reason", ["no space left", "is on a read-only file system", "belongs to root"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_else(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def check(snapshot: EnvSnapshot) -> None:
        raise NotWrittenError(f"{snapshot.path} was not written, and is as it was: {reason}")

    before = setting.service.env_file.read_bytes()
    monkeypatch.setattr(apply_module, "check_writable", check)
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
    assert setting.manager.asked == []


def test_whoever_looks_on_cannot_break_it(setting: Setting) -> None:
    def report(_: object) -> None:
        raise BrokenPipeError

    plan = plan_apply(
        Deployment(setting.service), parse_assignments(["LLAMA_DRAFT_MAX=2", "LLAMA_DRAFT_MIN=3"]), env=setting.env
    )
    assert Apply(plan, ApplyOptions(), report, setting.env).run().outcome is ApplyOutcome.REFUSED


def test_the_preview_shows_the_diff_the_arguments_and_what_is_done(setting: Setting) -> None:
    words = ["LLAMA_DRAFT_MAX=8", "LLAMA_API_KEY=hush-hush"]
    plan = plan_apply(Deployment(setting.service), parse_assignments(words), env=setting.env)
    (edit_preview,) = preview(plan, setting.env)
    assert '-LLAMA_DRAFT_MAX="4"' in edit_preview.diff
    assert "+LLAMA_DRAFT_MAX=8" in edit_preview.diff
    assert "- speculative.draft.n_max = 4" in edit_preview.arguments
    assert "+ speculative.draft.n_max = 8" in edit_preview.arguments
    assert edit_preview.action == "start llama, which does not run now"
    assert "draft-simple" in dict(edit_preview.readers)["LLAMA_DRAFT_MAX"]
    assert "hush-hush" not in str(edit_preview.as_json())
    assert "hush-hush" not in repr(plan)


def test_a_preview_of_values_that_no_engine_can_run_says_why_instead_of_a_diff(setting: Setting) -> None:
    plan = plan_apply(Deployment(setting.service), parse_assignments(["LLAMA_ENGINE=nonsense"]), env=setting.env)
    (edit_preview,) = preview(plan, setting.env)
    (why,) = edit_preview.arguments
    assert why.startswith("! ")
    assert "LLAMA_ENGINE" in why


@dataclass
class ShellManager(FakeManager):
    """Runs an adopted service: a shell script of somebody else's that reads the env file and runs llama-server."""

    script: str = ""
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def status(self, name: str) -> ServiceStatus:
        if self.process is None:
            return ServiceStatus(name, ServiceState.STOPPED)
        code = self.process.poll()
        if code is None:
            return ServiceStatus(name, ServiceState.RUNNING, self.process.pid)
        return ServiceStatus(name, ServiceState.FAILED, exit_code=code, detail=f"exit code {code}")

    def start(self, name: str) -> None:
        self._ask("start")
        self.process = subprocess.Popen(["/bin/sh", "-c", self.script], env=self.env, start_new_session=True)

    def stop(self, name: str) -> None:
        self._ask("stop")
        if self.process is not None:
            # Nobody else can have the group's number: the process is not reaped yet.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)
            self.process = None

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)


@pytest.fixture
def adopted(setting: Setting) -> Iterator[Setting]:
    file = setting.service.env_file
    words = misbehaving(setting.home, "good")
    program = words[1].partition("=")[2]
    values = [*words, f"LLAMA_PORT={free_port('127.0.0.1')}", f"LLAMA_MODEL={demo.bundled_model(demo.TARGET_MODEL)}"]
    file.write_text("\n".join([*values, "LLAMA_SPEC_TYPE=ngram-mod", ""]), encoding="utf-8")
    given = '--port "$LLAMA_PORT" --alias "$LLAMA_ALIAS" --model "$LLAMA_MODEL" --spec-type "$LLAMA_SPEC_TYPE"'
    script = f'. {file}; {program} {given} ${{LLAMA_CTX_SIZE:+--ctx-size "$LLAMA_CTX_SIZE"}}; exit $?'
    manager = ShellManager(ServiceStatus("uap", ServiceState.RUNNING), script=script, env={"PATH": os.environ["PATH"]})
    setting.manager = manager
    setting.service = ManagedService(Role.BACKEND, "uap", manager, file, False, "recognised (UAP)")
    manager.start("uap")
    deadline = time.monotonic() + 20
    from support.asking import healthy

    while not healthy(f"http://127.0.0.1:{values[3].partition('=')[2]}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    manager.asked.clear()
    yield setting
    manager.stop("uap")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_adopted_service_is_restarted_verified_and_rolled_back_by_its_process(adopted: Setting) -> None:
    _, record = adopted.apply("LLAMA_CTX_SIZE=2048")
    assert record.outcome is ApplyOutcome.APPLIED, record.reason
    assert adopted.manager.asked == ["stop", "start"]
    assert record.downtime_s is not None
    before = adopted.service.env_file.read_bytes()
    for way, step in (
        ("exits", ApplyStep.HEALTH),
        ("no-drafts", ApplyStep.SPECULATION),
        ("dies-on-probe", ApplyStep.PROBE),
    ):
        _, record = adopted.apply(f"LLAMA_ALIAS={way}")
        assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, step), record.reason
        assert adopted.service.env_file.read_bytes() == before
        assert adopted.service.status().state is ServiceState.RUNNING
    assert [read_record.outcome for read_record in read_records(applies_file(adopted.env))] == [
        ApplyOutcome.APPLIED,
        *[ApplyOutcome.ROLLED_BACK] * 3,
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_change_that_does_not_reach_an_adopted_server_is_rolled_back_with_that_reason(adopted: Setting) -> None:
    before = adopted.service.env_file.read_bytes()
    _, record = adopted.apply("LLAMA_PARALLEL=2")
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.HEALTH)
    assert "LLAMA_PARALLEL=2 did not reach process" in record.reason
    assert adopted.service.env_file.read_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_old_bytes_that_cannot_be_put_back_leave_the_journal_for_another_try(
    adopted: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdash.control.apply.undo import recover, unfinished

    from specdash.backend.env_store import replace_env

    before = adopted.service.env_file.read_bytes()

    def full(snapshot: EnvSnapshot, data: bytes) -> EnvSnapshot:
        if data == before:
            raise NotWrittenError(f"{snapshot.path} was not written: no space left")
        return replace_env(snapshot, data)

    monkeypatch.setattr("specdash.control.apply.forward.replace_env", full)
    monkeypatch.setattr("specdash.control.apply.undo._TRIES_APART_S", 0.01)
    _, record = adopted.apply("LLAMA_ALIAS=no-tokens")
    assert record.outcome is ApplyOutcome.ROLLBACK_FAILED
    assert "no space left; then run `specdash recover`" in record.reason
    monkeypatch.setattr("specdash.control.apply.forward.replace_env", replace_env)
    journal = unfinished(adopted.env)
    assert journal is not None
    again = recover(Deployment(adopted.service), journal, finish=False, on_progress=lambda _: None, env=adopted.env)
    assert (again.outcome, again.number) == (ApplyOutcome.ROLLED_BACK, record.number + 1)
    assert adopted.service.env_file.read_bytes() == before
    assert unfinished(adopted.env) is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_env_file_that_an_apply_made_is_gone_again_after_its_rollback(adopted: Setting) -> None:
    service = adopted.service
    words = [line for line in service.env_file.read_text(encoding="utf-8").splitlines() if line]
    adopted.manager.stop("uap")
    service.env_file.unlink()
    _, record = adopted.apply(
        *[word for word in words if not word.startswith(("LLAMA_ALIAS", "LLAMA_ENGINE", "LLAMA_BIN"))],
        "LLAMA_ALIAS=no-tokens",
    )
    assert (record.outcome, record.failed_step) == (ApplyOutcome.ROLLED_BACK, ApplyStep.PROBE), record.reason
    assert not service.env_file.exists()
    assert service.status().state is ServiceState.STOPPED
