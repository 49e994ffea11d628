"""A bundle: whole or not there, every part in it or listed as missing, and a summary that can be pasted."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.errors import ExitCode, NotWrittenError
from specdash.core.records import Alert, AlertSeverity, EventKind, TimelineEvent
from specdash.export.incident.bundle import IncidentSpan, Parts, assemble, store, store_as
from specdash.export.incident.redaction import Redactor
from specdash.insight.charts import Metric
from specdash.insight.picture import BackendPicture, BackendState, Picture
from specdash.insight.rules.catalogue import Rule
from specdash.system import files
from support.bundles import manifest, members

NOW = 1_700_000_000.0
SPAN = IncidentSpan(NOW - 900, NOW)
SECRET = "wombat-8f3a77c1"
DOWN = Alert(
    "backend_down", "Server down", AlertSeverity.CRITICAL, "nothing listens on port 8080 | since the restart",
    NOW - 300, NOW - 298, NOW, evidence=(("port", "8080"), ("key", SECRET)), fix=(("LLAMA_CTX_SIZE", "8192"),),
)  # fmt: skip
PAST = replace(DOWN, rule="busy", title="Busy", severity=AlertSeverity.NOTICE, since=NOW - 800, ended=NOW - 700)
RULE = Rule(
    "backend_down", "availability", "Server down", AlertSeverity.CRITICAL, "The process is gone.",
    ("`systemctl --user status specdash-backend`", "the log's last lines"), "Start it again.",
)  # fmt: skip
APPLY = ApplyRecord(
    7, NOW - 400, NOW - 390, ApplyKind.APPLY, ApplyOutcome.APPLIED,
    (Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "16"), Change(Role.BACKEND, "LLAMA_API_KEY", "***", "***")),
    downtime_s=2.5,
)  # fmt: skip
ENV = f"# note\nLLAMA_DRAFT_MAX=16\nLLAMA_API_KEY={SECRET}\n"
SERIES = tuple((NOW - 900 + at, 0.7 if at < 600 else 0.2) for at in range(0, 900, 5))


def parts(**changes: object) -> Parts:
    whole = Parts(
        made=NOW,
        span=SPAN,
        url="http://127.0.0.1:8080",
        redactor=Redactor([SECRET]),
        picture=Picture(1.0, NOW, 300.0, BackendPicture("http://127.0.0.1:8080", BackendState.DOWN, "nothing listens")),
        alerts=(PAST, DOWN),
        cause="Server down: nothing listens on port 8080",
        events=(TimelineEvent(NOW - 300, EventKind.STATE, "down", detail=f"key {SECRET}"),),
        applies=(APPLY,),
        rules={"backend_down": RULE},
        series={Metric.ACCEPTANCE: SERIES},
        envs={"backend": ENV},
        versions={"specdash": "1", "engine": "llama-server b1"},
        machine={"host": "box", "command": ["llama-server", "--api-key", SECRET, "--model", "/m/q.gguf"]},
        run_records=({"kind": "backend", "url": "http://127.0.0.1:8080"},),
        missing=(("GPU state", "no driver"),),
    )
    return replace(whole, **changes)


def written(wanted: Parts, directory: Path) -> Path:
    return store(assemble(wanted), directory)


def test_everything_is_in_it_with_its_digest(tmp_path: Path) -> None:
    path = written(parts(), tmp_path)
    found = members(path)
    assert {
        "manifest.json", "summary.md", "snapshot.json", "alerts.json", "events.json", "applies.json", "env/backend.env",
        "versions.json", "machine.json", "run-records.json",
    } == set(found)  # fmt: skip
    listed = {member["name"]: member for member in manifest(path)["members"]}
    assert listed.keys() == found.keys() - {"manifest.json"}
    for name, entry in listed.items():
        assert (entry["bytes"], entry["sha256"]) == (len(found[name]), hashlib.sha256(found[name]).hexdigest())
    for name, data in found.items():
        if name.endswith(".json"):
            json.loads(data)


def test_the_secret_is_nowhere(tmp_path: Path) -> None:
    found = members(written(parts(), tmp_path))
    assert not [name for name, data in found.items() if SECRET.encode() in data]
    assert b"LLAMA_API_KEY=***" in found["env/backend.env"]
    assert b"note" not in found["env/backend.env"]


def test_a_member_that_a_secret_got_into_all_the_same_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Redactor, "env_file", lambda _self, text: text)
    path = written(parts(), tmp_path)
    assert "env/backend.env" not in members(path)
    assert any(entry["part"] == "env/backend.env" for entry in manifest(path)["missing"])


def test_the_summary_says_what_an_engineer_asks_first(tmp_path: Path) -> None:
    text = members(written(parts(), tmp_path))["summary.md"].decode()
    for words in (
        "**State:** the server was DOWN when this was written: nothing listens",
        "**Likely cause:** Server down: nothing listens on port 8080.",
        "### CRITICAL: Server down",
        "Nothing listens on port 8080 \\| since the restart.",
        "*What it means:* The process is gone.",
        "1. `systemctl --user status specdash-backend`",
        "`LLAMA_CTX_SIZE=8192`",
        "| Acceptance | 70.0 % | 20.0 % | -50.0 points |",
        "- LLAMA_DRAFT_MAX=4\n+ LLAMA_DRAFT_MAX=16",
        "2.5 s without a server",
        "- GPU state: no driver",
    ):
        assert words in text


def test_rows_of_its_tables_have_as_many_cells_as_their_heads(tmp_path: Path) -> None:
    text = members(written(parts(), tmp_path))["summary.md"].decode()
    head = 0
    for line in text.splitlines():
        if line.startswith("|---"):
            head = line.count("|")
        elif line.startswith("| ") and head:
            assert line.replace("\\|", "").count("|") == head
        elif not line.startswith("|"):
            head = 0


def test_nothing_at_all_is_a_bundle_too(tmp_path: Path) -> None:
    path = written(Parts(NOW, SPAN, "http://127.0.0.1:8080", Redactor()), tmp_path)
    found = members(path)
    assert b"no alert was raised in this time" in found["summary.md"]


def test_the_file_is_private_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = written(parts(), tmp_path / "deep" / "down")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert path.name.startswith("specdash-incident-")


def test_two_bundles_of_one_second_have_two_names(tmp_path: Path) -> None:
    assert written(parts(), tmp_path) != written(parts(), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("mine")
    with pytest.raises(NotWrittenError, match="exists already"):
        store_as(assemble(parts()), path)
    assert path.read_text() == "mine"


def full(*_: object) -> Path:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def forbidden(*_: object) -> Path:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize(("fails", "words"), [(full, "no space left"), (forbidden, "may not write")])
def test_what_keeps_it_from_being_written_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., Path], words: str
) -> None:
    monkeypatch.setattr(files, "temporary", fails)
    with pytest.raises(NotWrittenError, match=words) as told:
        written(parts(), tmp_path / "new")
    assert "\n" not in str(told.value)
    assert told.value.exit_code is ExitCode.NOT_WRITTEN


def test_a_directory_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotWrittenError, match="there is no directory"):
        store_as(assemble(parts()), tmp_path / "none" / "b.tar.gz")
    assert list(tmp_path.iterdir()) == []
