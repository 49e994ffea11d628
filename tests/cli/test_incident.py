"""`specdash incident`: a bundle whatever is there, and one clear line where there cannot be one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specdash.backend.demo import TARGET_MODEL, bundled_model
from specdash.backend.journal import append_record
from specdash.cli.options import resolved_settings
from specdash.cli.record import incident
from specdash.core import paths
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.errors import ExitCode
from specdash.core.records import Alert, AlertSeverity, EventKind, RunRecord, TimelineEvent
from specdash.core.target import Target
from specdash.history.writer import Batch, Bounds, Writer
from specdash.insight.picture import AlertsPicture, BackendPicture, Picture
from specdash.insight.rules.catalogue import shipped
from support.bundles import manifest, members
from support.engines import engine_env, running_backend
from support.fault_server import free_port
from support.outside import ran


def specdash(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ran("incident", *words, **env)


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    return f"http://127.0.0.1:{free_port()}"


def test_a_server_that_is_down_gets_its_bundle(tmp_path: Path, nobody: str) -> None:
    output = tmp_path / "b.tar.gz"
    done = specdash("--url", nobody, "--output", str(output))
    assert done.returncode == ExitCode.OK, done.stderr
    found, about = members(output), manifest(output)
    assert "the server was DOWN" in about["state"]
    missing = {entry["part"]: entry["why"] for entry in about["missing"]}
    assert {"the record", "log/llama-server.log", "env/backend.env"} <= missing.keys()
    assert all(missing.values())
    assert {"snapshot.json", "summary.md", "versions.json", "machine.json"} <= found.keys()
    assert json.loads(found["versions.json"])["python"]


def test_by_default_it_goes_to_the_state_directory(nobody: str) -> None:
    done = specdash("--url", nobody, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (path,) = paths.incidents_dir().iterdir()
    assert told["path"] == str(path)
    assert told["schema"] == "specdash.incident/1"
    assert {member["name"] for member in told["members"]} == members(path).keys() - {"manifest.json"}


def test_standard_output_takes_the_archive_itself(nobody: str) -> None:
    command = [sys.executable, "-m", "specdash", "incident", "--url", nobody, "--output", "-"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0
    assert "summary.md" in members(done.stdout)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--last", "1m", "--since", "02:00"], ExitCode.USAGE, "cannot be used together"),
        (["--last", "soon"], ExitCode.USAGE, "no length of time"),
        (["--since", "2030-01-01"], ExitCode.USAGE, "must be from 1 second to 24 hours"),
        (["--last", "3d"], ExitCode.USAGE, "must be from 1 second to 24 hours"),
        (["--until", "2199-01-01"], ExitCode.USAGE, "in the future"),
        (["--output", "-", "--json"], ExitCode.USAGE, "leave out --json"),
        (["--output", "/nowhere/at/all.tar.gz"], ExitCode.NOT_WRITTEN, "there is no directory"),
        (["--output", "/tmp"], ExitCode.NOT_WRITTEN, "is a directory"),  # noqa: S108
        (["--output", "/proc/b.tar.gz"], ExitCode.NOT_WRITTEN, "was not written"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(nobody: str, words: list[str], code: ExitCode, told: str) -> None:
    done = specdash("--url", nobody, *words)
    assert done.returncode == code
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_existing_file_is_refused_before_anything_is_gathered(tmp_path: Path, nobody: str) -> None:
    output = tmp_path / "b.tar.gz"
    output.write_text("mine")
    done = specdash("--url", nobody, "--output", str(output))
    assert done.returncode == ExitCode.NOT_WRITTEN
    assert "exists already" in done.stderr
    assert output.read_text() == "mine"


def test_a_disk_that_fills_up_leaves_nothing_half_written(tmp_path: Path, nobody: str) -> None:
    output = tmp_path / "b.tar.gz"
    words = [sys.executable, "-m", "specdash", "incident", "--url", nobody, "--output", str(output)]
    # No file may become longer than 512 bytes: what is written then fails as on a full disk.
    command = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == ExitCode.NOT_WRITTEN, done.stderr
    assert "no space left" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if "b.tar.gz" in path.name]


def test_values_of_unknown_keys_are_hidden_in_applies_and_what_is_told_of_them() -> None:
    now = time.time()
    change = Change(Role.BACKEND, "MY_OWN_THING", "hush-before", "hush-after")
    record = ApplyRecord(1, now - 9000, now - 8990, ApplyKind.APPLY, ApplyOutcome.APPLIED, (change,))
    append_record(paths.applies_file(), record)
    event = TimelineEvent(now - 60, EventKind.APPLY, "MY_OWN_THING hush-before→hush-after", ref="1")
    parts = gathered(Picture(1.0, now, 300.0, BackendPicture(URL), timeline=(event,)))
    found = members(incident.write(parts))
    assert not [name for name, data in found.items() if b"hush" in data]


URL = "http://127.0.0.1:8080"


def an_alert(rule: str, since: float, ended: float | None = None) -> Alert:
    return Alert(rule, rule.title(), AlertSeverity.WARNING, f"{rule} it is", since, since, ended or since, ended)


def gathered(picture: Picture | None = None, *, since: float = -900, until: float = 0, **more: Any) -> Any:
    now = time.time()
    span = incident.recent()
    span = type(span)(now + since, now + until)
    picture = picture or Picture(1.0, now, 300.0, BackendPicture(URL))
    return incident.gather(Target(URL), resolved_settings(None), span, picture=picture, **more)


def recorded(*alerts: Alert, at: float) -> None:
    path = paths.history_file()
    path.parent.mkdir(parents=True)
    writer = Writer(path, URL, Bounds(7, 500_000_000))
    writer.begin(TimelineEvent(at, EventKind.RECORDER, "recording began", ref="began"), frozenset())
    writer.write(Batch(points=[(at + second, "decode", 50.0) for second in range(60)], alerts=alerts))
    writer.end(TimelineEvent(at + 60, EventKind.RECORDER, "recording ended"))
    writer.close()


def test_alerts_come_from_the_record_and_from_now_each_once() -> None:
    now = time.time()
    recorded(an_alert("busy", now - 500), an_alert("gone", now - 400, now - 300), at=now - 600)
    seen = (an_alert("busy", now - 1), an_alert("fresh", now - 1))
    parts = gathered(Picture(1.0, now, 300.0, BackendPicture(URL), alerts=AlertsPicture(active=seen)))
    assert [(alert.rule, alert.since < now - 100) for alert in parts.alerts] == [
        ("busy", True),
        ("gone", True),
        ("fresh", False),
    ]
    assert {event.title for event in parts.events} >= {"recording began", "Busy", "Gone", "Fresh"}


def test_only_what_touches_the_span_is_told() -> None:
    now = time.time()
    recorded(an_alert("early", now - 3000, now - 2900), an_alert("late", now - 500, now - 400), at=now - 3100)
    parts = gathered(since=-3200, until=-2000)
    assert [alert.rule for alert in parts.alerts] == ["early"]
    assert parts.cause.startswith("Early")


def test_series_come_from_the_record_else_from_the_screen() -> None:
    def columns(metric: Any, _now: float, _window: float, count: int) -> list[float | None]:
        return [1.0 if metric == "acceptance" else None] * count

    parts = gathered(columns=columns)
    assert set(parts.series) == {"acceptance"}
    recorded(at=time.time() - 300)
    parts = gathered(columns=columns)
    assert set(parts.series) == {"acceptance", "decode"}


def test_applies_of_the_span_are_in_it() -> None:
    now = time.time()
    for number, at in ((1, now - 9000), (2, now - 60)):
        record = ApplyRecord(number, at, at + 5, ApplyKind.APPLY, ApplyOutcome.APPLIED)
        append_record(paths.applies_file(), record)
    assert [apply.number for apply in gathered().applies] == [2]


def test_a_part_that_fails_is_missing_and_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("a bug")

    monkeypatch.setattr("specdash.export.incident.bundle.versions", fails)
    path = paths.history_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database" * 100)
    parts = gathered()
    missing = dict(parts.missing)
    assert missing["versions.json"] == "failed: ValueError"
    assert "the record" in missing
    assert incident.write(parts).exists()


def test_secrets_of_the_env_files_and_of_this_process_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    path = paths.backend_env_file()
    path.parent.mkdir(parents=True)
    path.write_text("LLAMA_API_KEY=one-secret,two-secret\nLLAMA_EXTRA_ARGS='--api-key three-secret --mlock'\n")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "four-secret")
    parts = gathered()
    assert {"one-secret", "two-secret", "three-secret", "four-secret"} <= parts.redactor.secrets
    text = members(incident.write(parts))["env/backend.env"].decode()
    assert text == "LLAMA_API_KEY=***\nLLAMA_EXTRA_ARGS='--api-key *** --mlock'\n"


def test_the_server_that_was_recorded_last_is_meant_where_none_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident, "find_targets", lambda _settings: [])
    assert incident.target(resolved_settings(None)).url == incident.NO_SERVER
    recorded(at=time.time() - 300)
    assert incident.target(resolved_settings(None)).url == URL


def left_behind(**fields: Any) -> RunRecord:
    """What a backend that has ended left of itself."""
    log = paths.state_dir() / "server.log"
    env_file = paths.state_dir() / "own.env"
    record = RunRecord(
        4_190_000, 1.0, URL, "xllamacpp 1 (llama.cpp b11549)", str(log), str(env_file), ended=time.time() - 5,
        end="signal SIGKILL", crashed=True,
    )  # fmt: skip
    record = replace(record, **fields)
    directory = paths.ended_records_dir()
    directory.mkdir(parents=True)
    (directory / "it.json").write_text(record.to_json())
    log.write_text(
        "0.00.000.001 I build_info: b0-unknown\n0.00.000.002 W srv          stop: cancel task, id_task = 0\n"
    )
    env_file.write_text("LLAMA_DRAFT_MAX=4\n")
    return record


def test_a_backend_that_has_ended_left_its_log_its_env_file_and_its_build() -> None:
    left_behind()
    found = members(incident.write(gathered()))
    assert "LLAMA_DRAFT_MAX=4" in found["env/backend.env"].decode()
    assert "cancel task" in found["log/llama-server.log"].decode()
    versions = json.loads(found["versions.json"])
    assert versions["llama_cpp_build"] == "b11549"
    assert "b0-unknown" not in found["versions.json"].decode()


def test_the_server_that_has_just_crashed_is_meant_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Target("http://127.0.0.1:9")
    monkeypatch.setattr(incident, "find_targets", lambda _settings: [other])
    record = left_behind()
    found = incident.target(resolved_settings(None), since=time.time() - 900)
    assert (found.url, found.log, found.engine) == (URL, record.log, record.engine)
    assert incident.target(resolved_settings(None), since=time.time()).url == other.url
    monkeypatch.setenv("SPECDASH_URL", other.url)
    assert incident.target(resolved_settings(None), since=time.time() - 900).url == other.url


def criticals(now: float, count: int = 5) -> list[Alert]:
    """The server died, came back and died again."""
    spec = next(rule for rule in shipped() if rule.id == "backend_down")
    return [
        Alert(spec.id, spec.title, AlertSeverity.CRITICAL, "process 7 has ended", at, at, at + 5, at + 5)
        for at in (now - 60.0 * (index + 1) for index in range(count))
    ]


def test_a_cause_is_named_above_criticals_that_are_over_whatever_mild_thing_is_active() -> None:
    now = time.time()
    mild = replace(an_alert("context_overflow", now - 10), severity=AlertSeverity.NOTICE)
    recorded(*criticals(now), mild, at=now - 600)
    for active in ((mild,), (an_alert("endpoint_unusable", now - 5),), ()):
        picture = Picture(1.0, now, 300.0, BackendPicture(URL), alerts=AlertsPicture(active=active))
        parts = gathered(picture)
        assert parts.cause == "Server is down: process 7 has ended"
        assert "**Likely cause:** Server is down" in members(incident.write(parts))["summary.md"].decode()


def test_a_refuted_alert_is_no_bundles_cause() -> None:
    now = time.time()
    hang = replace(
        an_alert("server_hung", now - 100, now - 90), severity=AlertSeverity.CRITICAL, refuted=True,
        evidence=(("refuted", "it answered again"),),
    )  # fmt: skip
    recorded(hang, at=now - 600)
    parts = gathered()
    assert parts.alerts == (hang,)
    assert parts.cause == ""


@pytest.mark.engine
@pytest.mark.slow
def test_after_a_real_engine_was_killed_its_bundle_has_its_log_its_env_file_and_its_end(tmp_path: Path) -> None:
    env = {**engine_env("xllamacpp"), "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)), "LLAMA_CTX_SIZE": "512"}
    with running_backend(env, tmp_path) as running:
        killed = RunRecord.from_json(running.wait_record().read_text())
        assert killed is not None
        os.kill(killed.pid, signal.SIGKILL)
        running.process.wait(30)
        done = specdash("--output", str(tmp_path / "b.tar.gz"), XDG_STATE_HOME=str(running.state))
    assert done.returncode == ExitCode.OK, done.stderr
    found = members(tmp_path / "b.tar.gz")
    summary = found["summary.md"].decode()
    assert f"# Incident: `{running.url}`" in summary
    assert "**Likely cause:** Server is down" in summary, summary
    assert "LLAMA_CTX_SIZE" in found["env/backend.env"].decode()
    assert "log/llama-server.log" in found
    build = json.loads(found["versions.json"])["llama_cpp_build"]
    assert build is not None
    assert build in killed.engine
    (record,) = (load for load in json.loads(found["run-records.json"]) if load["url"] == running.url)
    assert (record["end"], record["crashed"], record["alive"]) == ("signal SIGKILL", True, False)
