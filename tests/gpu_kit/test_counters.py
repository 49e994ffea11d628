"""What the kit holds the engine's and specdash's counters to, and that it notices when one is off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu.checks import counters
from gpu.counts import ALONE, TOGETHER, read_counts, write_counts
from gpu.kit import Kit
from gpu.report import Report, Result
from specdash.core.speculation import SPEC_TYPES
from support import tiny_models
from support.engines import llama_server_binary

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of some cases, as packing leaves them, and what must be counted."""
    models = tmp_path_factory.mktemp("packed") / "models"
    models.mkdir()
    tiny_models.write_llama(models / "automaton.gguf", layers=2)
    tiny_models.write_llama(models / "automaton-draft-most.gguf", wrong_every=8)
    tiny_models.write_mamba(models / "mamba.gguf", layers=2)
    write_counts(models)
    return models.parent


def kept(
    packed: Path, kit: Path, names: tuple[str, ...], change: Callable[[dict[str, Any]], object] = lambda case: case
) -> None:
    """A kit with some of the cases, changed; all targets are widened already."""
    cases = [case for case in json.loads((packed / "models" / "counts.json").read_text()) if case["name"] in names]
    for case in cases:
        change(case)
    (kit / "models").mkdir(parents=True)
    (kit / "models" / "counts.json").write_text(json.dumps(cases))
    for model in (packed / "models").glob("*.gguf"):
        (kit / "models" / model.name).symlink_to(model)
        (kit / "models" / f"{model.stem}-1gb.gguf").symlink_to(model)


def checked(directory: Path) -> dict[str, tuple[Result, Any, Any]]:
    """The findings of the check on a kit that lies where it works, by sentence."""
    kit = Kit(directory, directory, directory, Path(llama_server_binary()), cpu=True)
    report = Report(directory / "report.json", "matrix", "counters")
    counters.run(kit, report)
    return {finding.what: (finding.result, finding.measured, finding.expected) for finding in report.findings}


def test_every_spec_type_has_a_case(packed: Path) -> None:
    cases = read_counts(packed / "models")
    assert {name for case in cases for name in case.types.split(",")} == {spec_kind.name for spec_kind in SPEC_TYPES}


def test_what_must_be_counted_is_read_as_it_was_written(packed: Path) -> None:
    by_name = {case.name: case for case in read_counts(packed / "models")}
    case = by_name["draft-simple"]
    assert (len(case.alone), len(case.together)) == (ALONE, TOGETHER)
    # 70 tokens: the first comes with the prompt, each step brings one of the model's own.
    assert case.alone[0].accepted + case.alone[0].steps == case.tokens - 1
    assert sum(case.alone[0].at_position) == case.alone[0].accepted
    assert (
        by_name["draft-simple, all right"].together[0].accepted
        == by_name["draft-simple, all right"].together[0].drafted
    )
    assert by_name["draft-simple, all wrong"].together[0].at_position == ()


def test_a_line_that_nobody_knows_is_shown_without_its_text() -> None:
    line = "0.01.234.567 W cuda: cannot read /home/me/models/secret.gguf after 12 tries: 'what the user said' and more"
    assert counters.mask(line) == "0.0.0.0 W cuda: cannot read PATH after 0 tries:"


def test_an_unknown_error_fails_and_is_shown_before_other_lines(tmp_path: Path) -> None:
    unknown, report = counters.Unknown(), Report(tmp_path / "report.json", "matrix", "counters")
    plain = {"lines": 10, "unrecognised": 1, "unrecognised_samples": ["a plain line 7"], "warnings": {}}
    tally = {"count": 2, "sample": "E graph 3 lost"}
    unknown.add(plain)
    unknown.add(
        {**plain, "unrecognised": 2, "unrecognised_samples": ["E graph 3 lost"], "warnings": {"other_error": tally}}
    )
    unknown.tell(report)
    judged, figure = report.findings
    assert (judged.result, judged.measured) == (Result.FAILED, {"other_error": 2, "other_warning": 0})
    assert (figure.measured, figure.note) == (3, "E graph 0 lost; a plain line 0")


def lost() -> None:
    raise RuntimeError("no such kernel")


def test_a_case_that_cannot_run_does_not_end_the_others(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.json", "matrix", "counters")
    with report.part("one case"):
        lost()
    with report.part("another"):
        report.passed("it counts")
    assert [(finding.what, finding.result) for finding in report.findings] == [
        ("one case came to its end", Result.FAILED),
        ("it counts", Result.PASSED),
    ]
    assert "no such kernel" in report.findings[0].note


@pytest.mark.slow
@pytest.mark.llama_server
def test_the_counters_of_the_real_engine_are_exact(packed: Path, tmp_path: Path) -> None:
    kept(packed, tmp_path, ("draft-simple", "draft-simple with replays"))
    found = checked(tmp_path)
    # Types of which this kit has no case are failures, too: nobody said what they count.
    failed = {what for what, (result, _, _) in found.items() if result is Result.FAILED}
    assert failed == {
        f"{spec_kind.name} has a case in the kit" for spec_kind in SPEC_TYPES if spec_kind.name != "draft-simple"
    }
    _, told, known = found[
        "draft-simple with replays: /metrics, its positions, the snapshot and the log count the same"
    ]
    assert set(told) == {
        "/metrics", "snapshot, of /metrics", "snapshot, of the log's requests", "log, requests", "log, steps",
    }  # fmt: skip
    assert told["/metrics"] == known
    assert known["drafted"] > known["accepted"] > 0
    away = "draft-simple: of an answer whose client went away, /metrics has just the drafts of the log's steps"
    assert found[away][0] is Result.PASSED


@pytest.mark.slow
@pytest.mark.llama_server
def test_a_counter_that_is_off_by_one_is_a_failure(packed: Path, tmp_path: Path) -> None:
    def one_more_step(case: dict[str, Any]) -> None:
        case["together"][0]["steps"] += 1

    kept(packed, tmp_path, ("draft-simple",), one_more_step)
    found = checked(tmp_path)
    assert found["draft-simple: /metrics, its positions, the snapshot and the log count the same"][0] is Result.FAILED
    alone = "draft-simple, one after the other: each answer drafted and accepted what the models make certain"
    assert found[alone][0] is Result.PASSED
