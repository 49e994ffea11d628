"""What commands print as JSON, byte for byte: scripts read it."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from syrupy.assertion import SnapshotAssertion

from insight.scenes import baseline
from specdash.backend.baseline import add_baseline
from specdash.backend.demo import TARGET_MODEL, bundled_model
from specdash.backend.journal import append_record
from specdash.cli.options import print_json
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Change, Role
from specdash.core.paths import applies_file
from specdash.core.records import AlertSeverity
from specdash.export import fleet
from specdash.export.check_report import as_json, verdict
from specdash.export.snapshot import to_json
from specdash.insight.fleet import rows_of
from specdash.insight.rules.catalogue import shipped
from support.outside import say
from tui.fake_state import busy_picture

LOGS = Path(__file__).parents[1] / "data" / "logs"
MODELS = bundled_model(TARGET_MODEL).parent
NOW, WALL = 10_000.0, 1_790_000_000.0


def printed(*words: str) -> str:
    """The text with the places of this machine left out."""
    code, out, err = say(*words)
    assert (code, err) == (0, "")
    for place, name in ((MODELS, "MODELS"), (LOGS, "LOGS"), (Path.home(), "HOME")):
        out = out.replace(str(place), name)
    return out


def test_snapshot(snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(to_json(busy_picture(NOW, WALL, 300.0)))
    assert capsys.readouterr().out == snapshot


def test_check(snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]) -> None:
    judged = verdict(busy_picture(NOW, WALL, 300.0), shipped(), AlertSeverity.WARNING, 1.0, ended=True)
    print_json(as_json(judged, shipped()))
    assert capsys.readouterr().out == snapshot


def test_fleet(snapshot: SnapshotAssertion, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(fleet.to_json(rows_of(busy_picture(NOW, WALL, 300.0), "gpu1"), WALL, 300.0))
    assert capsys.readouterr().out == snapshot


def test_applies(snapshot: SnapshotAssertion) -> None:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "8")
    good = ApplyRecord(1, 1e9, 1e9 + 1, ApplyKind.APPLY, ApplyOutcome.APPLIED, (change,), downtime_s=0.412)
    bad = ApplyRecord(
        2, 1e9, 1e9, ApplyKind.APPLY, ApplyOutcome.ROLLED_BACK, (change,), "fast", ApplyStep.PROBE, "it does not draft"
    )
    for record in (good, bad):
        append_record(applies_file(), record)
    assert printed("applies", "--json") == snapshot


def test_baseline_list(snapshot: SnapshotAssertion) -> None:
    add_baseline(baseline())
    assert printed("baseline", "list", "--json") == snapshot


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--list-rules"),
        ("profile", "list"),
        ("config", "show"),
        ("autotune",),
        ("simulate",),
        ("parse-log", str(LOGS / "draft_simple_lv4.log")),
    ],
    ids=lambda words: words[0] if words[1:] != ("--list-rules",) else "rules",
)
def test_without_a_server(words: tuple[str, ...], snapshot: SnapshotAssertion) -> None:
    assert printed(*words, "--json") == snapshot


def test_the_schema_of_the_configuration_is_one(tmp_path: Path) -> None:
    schema: Any = json.loads(printed("config", "schema"))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert not list(validator.iter_errors({"window": "5m", "target": [{"name": "a", "url": "http://a:1"}]}))
    for wrong in ({"window": "4m"}, {"windw": "5m"}, {"target": [{"name": "a"}]}):
        assert list(validator.iter_errors(wrong))
