"""What a run writes about itself, and when it may be taken up again."""

import json
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from specdash.bench.load.samples import WorkloadPrompt
from specdash.core.errors import InputError
from specdash.tune.run.measuring import MeasuredBoot
from specdash.tune.run.planning import TuneOptions, fingerprint, options_of
from specdash.tune.run.run_report import write_report
from specdash.tune.run.status import Setup, TuneRunRecord, changed, known_warnings, read_setup
from support.tuning import Scene, boot_failed, samples

PROMPTS = (WorkloadPrompt("a", "coding", ({"role": "user", "content": "x"},)),)


def told(values: dict[str, str], **more: str) -> dict[str, str]:
    return fingerprint(values, engine="b1", gpus=("card, 300 W",), prompts=PROMPTS, files={}, more=more)


def test_everything_that_results_depend_on_is_compared() -> None:
    before = told({"LLAMA_CTX_SIZE": "4096", "LLAMA_MODEL": "m"}, service="s")
    assert changed(before, told({"LLAMA_CTX_SIZE": "4096", "LLAMA_MODEL": "m"}, service="s")) == []
    now = {**told({"LLAMA_CTX_SIZE": "8192", "LLAMA_HOST": "h"}, service="s"), "engine": "b2", "GPUs": ""}
    assert changed(before, now) == [
        "GPUs: card, 300 W then, none now", "engine: b1 then, b2 now", "LLAMA_CTX_SIZE was changed",
        "LLAMA_HOST was added", "LLAMA_MODEL was removed",
    ]  # fmt: skip


def test_no_setting_can_be_read_from_a_fingerprint() -> None:
    assert "hush" not in json.dumps(told({"LLAMA_API_KEY": "hush"}))


def test_a_model_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    entry = fingerprint({}, engine="", gpus=(), prompts=(), files={"model": str(file)}, more={})
    file.write_bytes(b"two")
    two = fingerprint({}, engine="", gpus=(), prompts=(), files={"model": str(file), "draft model": None}, more={})
    assert len(changed(entry, two)) == 1
    assert changed(entry, two)[0].startswith("model: m.gguf, 3 bytes, ")


def test_the_setup_comes_back_and_a_damaged_one_is_said(tmp_path: Path) -> None:
    record = TuneRunRecord(tmp_path / "run")
    options = replace(TuneOptions(), restarts=7, minutes=1.5)
    record.write_setup(Setup(to_builtins(options), {"engine": "b1"}))
    found = read_setup(tmp_path / "run")
    assert options_of(found.options) == options
    assert found.fingerprint == {"engine": "b1"}
    (tmp_path / "run/setup.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is damaged"):
        read_setup(tmp_path / "run")
    with pytest.raises(InputError, match="name the directory of a run"):
        read_setup(tmp_path)
    with pytest.raises(InputError, match="another version"):
        options_of({"no such": 1})


def test_warnings_of_counted_boots_are_known_again(tmp_path: Path) -> None:
    record = TuneRunRecord(tmp_path)
    record.keep(1, MeasuredBoot((), warnings=frozenset({"a"})), "")
    record.keep(2, MeasuredBoot((), warnings=frozenset({"b"})), "")
    record.keep(1, MeasuredBoot((), warnings=frozenset({"thrown"})), "disturbed")
    assert known_warnings(tmp_path, [1]) == frozenset({"a"})
    assert known_warnings(tmp_path, [3]) is None
    assert known_warnings(tmp_path / "none", [1]) is None


def test_the_report_tells_the_choice_the_boots_and_what_was_discarded(tmp_path: Path) -> None:
    record = TuneRunRecord(tmp_path)
    scene = Scene()
    scene.bed.faults = {3: boot_failed("out of | memory")}
    loop = scene.loop()
    loop.gear = replace(loop.gear, record=record)
    loop.run()
    record.keep(2, MeasuredBoot(samples(1.0)), "somebody came")
    write_report(record)
    text = (tmp_path / "report.md").read_text()
    assert "**Better: draft-simple n6**, +40.0 % [+39.0, +41.0]." in text
    assert "By its own boots alone: +40.0 %" in text
    assert "out of \\| memory" in text
    assert "- discarded, boot 2: somebody came" in text
    assert "POINT=draft-simple n6" in text
    data = json.loads((tmp_path / "report.json").read_text())
    assert [boot["result"]["failure"] for boot in data["boots"]] == ["", "", "out of | memory", ""]
    assert data["boots"][1]["classes"]["coding"]["speed"] == pytest.approx(70.0)
    assert data["boots"][1]["against_the_start"]["gain"] == pytest.approx(0.4)
    assert data["boots"][1]["latency_p95_s"] == pytest.approx(0.1 + 100 / 70)
    assert data["end"]["outcome"]["improved"] is True


def test_a_run_of_which_nothing_is_known_has_no_report(tmp_path: Path) -> None:
    write_report(TuneRunRecord(tmp_path))
    assert list(tmp_path.iterdir()) == []
