"""The report of a run, from what it wrote down."""

import json
from pathlib import Path

import pytest

from specdash.cli.bench.tune import report_words
from specdash.tune.run.run_report import write_report
from specdash.tune.run.status import TuneRunRecord
from support.tuning import Scene, boot_failed, disturbed


def test_the_report_tells_the_choice_the_boots_and_what_was_discarded(tmp_path: Path) -> None:
    record = TuneRunRecord(tmp_path)
    scene = Scene(measured={2: disturbed})
    scene.bed.faults = {4: boot_failed("out of memory")}
    loop = scene.loop()
    loop.record = record
    loop.run()
    write_report(tmp_path, report_words)
    text = (tmp_path / "report.md").read_text()
    assert "better: draft-simple n6, +40.0 % [+39.0, +41.0]" in text
    assert "not usable: out of memory" in text
    assert "discarded: the engine generated 17 tokens for other clients" in text
    assert "POINT=draft-simple n6" in text
    data = json.loads((tmp_path / "report.json").read_text())
    assert [boot["result"]["failure"] for boot in data["boots"]] == ["", "", "out of memory", ""]
    assert data["boots"][1]["classes"]["coding"]["speed"] == pytest.approx(70.0)
    assert data["boots"][1]["against_the_start"]["gain"] == pytest.approx(0.4)
    assert data["end"]["outcome"]["improved"] is True


def test_a_run_of_which_nothing_is_known_has_no_report(tmp_path: Path) -> None:
    write_report(tmp_path, report_words)
    assert list(tmp_path.iterdir()) == []
