"""Boots in turns: each on the disk as soon as it is measured, and nothing lost by an end at any point."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.compare import ab, matrix, sweep
from specdash.bench.compare.machine import check_same, fingerprint
from specdash.bench.compare.trials import BootFile, BootMeasurement, Candidate, Trials
from specdash.bench.load.drive import Interrupted, MeasuredRun
from specdash.bench.load.samples import BenchSample, BootFailedError, EngineAddress, MeasureOptions, WorkloadPrompt
from specdash.bench.report import Results
from specdash.core.errors import InputError, RefusedError, SpecdashError

PROMPTS = tuple(WorkloadPrompt(f"p{number}", "coding", ({"role": "user", "content": "x"},)) for number in range(3))
NAMES = ("A", "B")
CANDIDATES = tuple(Candidate(name, {"LLAMA_DRAFT_MAX": name}) for name in NAMES)
SCHEDULE = [(turn, name) for turn in range(3) for name in NAMES]


def samples(rate: float, kind: str = "coding") -> tuple[BenchSample, ...]:
    return tuple(
        BenchSample(
            prompt.id, kind, 0, 0.0, 0.0, 0.1, 1.0, 50, 0, 10.0, 65, 64 / rate * 1000, 40, 20, "length",
            accepted_per_position=(12, 8),
        )
        for prompt in PROMPTS
    )  # fmt: skip


def booted(name: str, turn: int, rate: float = 50.0, failure: str = "") -> BootMeasurement:
    return BootMeasurement(name, turn, 1.0, 0.5, 2.0, () if failure else samples(rate), failure)


class ScriptedBed:
    """A bed whose configurations come up, or do not, as told."""

    def __init__(self, broken: Mapping[str, Exception | type[KeyboardInterrupt]] = {}) -> None:
        self.broken = broken
        self.booted: list[str] = []

    @contextmanager
    def boot(self, configuration: Mapping[str, str]) -> Iterator[EngineAddress]:
        name = configuration["LLAMA_DRAFT_MAX"]
        self.booted.append(name)
        if name in self.broken:
            raise self.broken[name]
        yield EngineAddress(f"http://{name}")

    def announce(self, number: int | None, planned: int | None = None) -> None:
        """Nobody watches."""

    def restore(self) -> None:
        pass


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(place: EngineAddress, *_: object, **__: object) -> MeasuredRun:
        return MeasuredRun(samples(50.0 if place.url.endswith("A") else 60.0), 3, 1.0, 2.0)

    monkeypatch.setattr("specdash.bench.compare.trials.measure", measure)


def trials(bed: ScriptedBed, directory: Path, there: list[BootMeasurement] | None = None) -> Trials:
    file = BootFile(directory)
    file.begin({"what": "test"})
    return Trials(bed, CANDIDATES, PROMPTS, MeasureOptions(), SCHEDULE, file, booted=there or [])


def test_every_boot_is_on_the_disk_as_it_was_measured(tmp_path: Path, measured: None) -> None:
    run = trials(ScriptedBed(), tmp_path)
    run.run()
    head, rows = run.file.read()
    assert head == {"what": "test"}
    assert rows == run.booted
    assert [(row.round, row.name) for row in rows] == SCHEDULE
    assert (tmp_path / "boots.jsonl").stat().st_mode & 0o777 == 0o600


@given(cut=st.integers(1, 400))
def test_a_line_that_a_kill_cut_short_is_taken_off_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    file = BootFile(tmp_path_factory.mktemp("cut"))
    file.begin({"what": "test"})
    file.add(booted("A", 0))
    whole = file.path.read_bytes()
    file.add(booted("B", 0))
    data = file.path.read_bytes()
    file.path.write_bytes(data[: max(len(whole), len(data) - cut)])
    assert [measurement.name for measurement in file.read()[1]] == ["A"]
    assert file.path.read_bytes() == whole
    file.add(booted("B", 0))
    assert file.path.read_bytes() == data


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"what":"x"}\n{"name":3}\n'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "boots.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"boots\.jsonl"):
        BootFile(tmp_path).read()


def test_what_is_there_is_not_measured_again(tmp_path: Path, measured: None) -> None:
    bed = ScriptedBed()
    there = [booted("A", 0), booted("B", 1)]
    run = trials(bed, tmp_path, there)
    run.run()
    assert bed.booted == ["B", "A", "A", "B"]
    assert {(measurement.round, measurement.name) for measurement in run.booted} == set(SCHEDULE)


def test_a_configuration_that_does_not_come_up_is_tried_twice_and_the_others_go_on(
    tmp_path: Path, measured: None
) -> None:
    bed = ScriptedBed({"B": BootFailedError("out of memory")})
    run = trials(bed, tmp_path)
    run.run()
    assert bed.booted == ["A", "B", "A", "B", "A"]
    assert [measurement.failure for measurement in run.booted if measurement.name == "B"] == ["out of memory"] * 2


def test_an_error_of_the_bed_ends_it_with_what_was_measured(tmp_path: Path, measured: None) -> None:
    run = trials(ScriptedBed({"B": SpecdashError("the env file was changed")}), tmp_path)
    with pytest.raises(SpecdashError, match="env file"):
        run.run()
    assert [measurement.name for measurement in run.file.read()[1]] == ["A"]


def test_an_engine_that_cannot_be_measured_is_a_failure_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object, **__: object) -> MeasuredRun:
        raise SpecdashError("the first request failed")

    monkeypatch.setattr("specdash.bench.compare.trials.measure", measure)
    run = trials(ScriptedBed(), tmp_path)
    run.run()
    assert {measurement.failure for measurement in run.booted} == {"the first request failed"}


def test_a_stop_in_the_middle_of_a_boot_keeps_the_boots_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def measure(*_: object, **__: object) -> MeasuredRun:
        ran.append(1)
        if len(ran) == 3:
            raise Interrupted(MeasuredRun(samples(50.0)[:1], 3, 1.0, 2.0))
        return MeasuredRun(samples(50.0), 3, 1.0, 2.0)

    monkeypatch.setattr("specdash.bench.compare.trials.measure", measure)
    run = trials(ScriptedBed(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert len(run.file.read()[1]) == 2


def test_results_of_other_conditions_are_not_gone_on_with() -> None:
    values = {"LLAMA_MODEL": "/no/such.gguf", "LLAMA_CTX_SIZE": "512", "LLAMA_API_KEY": "hush"}
    entry = fingerprint(values, PROMPTS, MeasureOptions(), env={})
    check_same(entry, fingerprint({**values, "LLAMA_PORT": "1"}, PROMPTS, MeasureOptions(log="x"), env={}), "it")
    assert "hush" not in json.dumps(entry)
    for other in (
        fingerprint({**values, "LLAMA_CTX_SIZE": "1024"}, PROMPTS, MeasureOptions(), env={}),
        fingerprint(values, PROMPTS[:1], MeasureOptions(), env={}),
        fingerprint(values, PROMPTS, MeasureOptions(max_tokens=8), env={}),
    ):
        with pytest.raises(RefusedError, match="other conditions"):
            check_same(entry, other, "it")


def found(rates: Mapping[str, list[float]]) -> tuple[BootMeasurement, ...]:
    return tuple(booted(name, turn, rate) for name, all_of in rates.items() for turn, rate in enumerate(all_of))


def test_the_report_of_an_ab_crowns_who_is_really_faster(tmp_path: Path) -> None:
    ran = found({"A": [50, 51, 50, 49], "B": [60, 61, 60, 60]})
    report = ab.AbReport(CANDIDATES, ran, {"fingerprint": {"engine": "e"}})
    assert report.winner == "B"
    assert report.decided
    told = ab.report(report).document
    assert told["comparisons"][0]["verdict"] == "real: faster"
    assert told["comparisons"][0]["gain"] == pytest.approx(0.205, abs=0.01)
    assert told["configurations"][0]["acceptance_boots"]["mean"] == 0.5
    with Results(tmp_path) as results:
        ab.report(report).save(results)
        assert results.trouble is None
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md"}
    assert any("B is faster than A: +20" in line for line in ab.report(report).lines)


def test_the_report_of_equals_crowns_nobody() -> None:
    report = ab.AbReport(CANDIDATES, found({"A": [50, 53, 48, 51], "B": [52, 49, 51, 50]}), {})
    assert report.winner is None
    assert "nothing was found to be faster than A" in report.conclusion
    assert any("more rounds" in line or "more round" in line for line in report.conclusion)


def test_settings_that_are_the_references_are_said_to_be_and_nothing_is_advised() -> None:
    """The difference of these would be called real, and a smaller one would need more rounds."""
    for rates in ([60.0, 61.0, 60.0, 60.0], [52.0, 49.0, 51.0, 50.0]):
        report = ab.AbReport(CANDIDATES, found({"A": [50, 53, 48, 51], "B": rates}), {}, identical=frozenset({"B"}))
        assert (report.winner, report.more_rounds, report.decided) == (None, 0, True)
        assert not any("more round" in line and "would decide" in line for line in report.conclusion)
        assert any("B is A to the engine, with the very same settings" in line for line in report.conclusion)
        assert ab.comparison_table(report)[1][3] == "same settings"


def test_a_report_can_be_made_of_whatever_there_is() -> None:
    ran = found({"A": [50, 51], "B": [60, 61]})
    for count in range(len(ran) + 1):
        report = ab.AbReport(CANDIDATES, ran[:count], {}, stopped=True)
        told = ab.report(report)
        assert told.lines
        assert told.page
        assert json.dumps(told.document)
    only_failed = ab.AbReport(CANDIDATES, (booted("A", 0, failure="no memory"),), {})
    assert any("A was not measured: no memory" in line for line in only_failed.conclusion)


def swept(rates: Mapping[str, list[float]], reference: list[float]) -> sweep.SweepReport:
    tried = (Candidate(sweep.REFERENCE, {}), *(Candidate(name, {}) for name in rates))
    return sweep.SweepReport(tried, found({sweep.REFERENCE: reference, **rates}), {})


def test_a_sweep_ranks_and_says_who_may_be_the_best() -> None:
    report = swept({"x": [60.0], "y": [59.8], "z": [20.0]}, [50.0, 50.2, 49.8, 50.1])
    assert [candidate.name for candidate in report.top] == ["x", "y", "as it is", "z"]
    assert [candidate.name for candidate in report.ranked if candidate.may_be_best] == ["x", "y"]
    assert report.boot_sd == pytest.approx(0.0034, rel=0.1)
    assert report.ranked[0].gain == pytest.approx(0.2, abs=0.01)
    assert any("x was the fastest, and cannot be distinguished from y" in line for line in sweep.report(report).lines)
    assert "| x |" in sweep.report(report).page


def test_a_sweep_that_knows_nothing_of_noise_names_no_best() -> None:
    report = swept({"x": [60.0], "y": [50.0]}, [50.0])
    assert report.boot_sd is None
    assert all(candidate.may_be_best and candidate.low is None for candidate in report.ranked)


def test_a_sweep_of_which_only_one_came_up_names_no_best() -> None:
    report = swept({"x": []}, [50.0, 50.2, 49.8])
    assert any("only as it is was measured" in line for line in sweep.report(report).lines)
    assert not any("fastest" in line for line in sweep.report(report).lines)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 1000))
def test_a_sweep_boots_everything_once_a_pass_and_the_reference_all_along(count: int, passes: int, seed: int) -> None:
    names = [f"c{number}" for number in range(count)]
    plan = sweep.schedule(names, passes, seed)
    assert len(set(plan)) == len(plan)
    assert plan[0][1] == plan[-1][1] == sweep.REFERENCE
    for turn in range(passes):
        assert sorted(name for at, name in plan if at == turn and name != sweep.REFERENCE) == sorted(names)
    places = [at for at, (_, name) in enumerate(plan) if name == sweep.REFERENCE]
    assert all(later - before <= sweep.BETWEEN + 1 for before, later in pairwise(places))


def test_a_matrix_has_a_reason_where_it_has_no_numbers() -> None:
    pairings = (
        matrix.Pairing("t", "none", CANDIDATES[0]),
        matrix.Pairing("t", "draft", CANDIDATES[1]),
    )
    report = matrix.MatrixReport(pairings, (*found({"A": [50, 51]}), booted("B", 0, failure="another vocabulary")), {})
    assert matrix.refusals(report) == ["draft with t: another vocabulary"]
    rows = matrix.table(report)
    assert rows[1] == ["none", "2", "50.5 ± 0.71", "50.0 % ± 0.0"]
    assert rows[2] == ["draft", "0", "refused", "--"]
    assert json.dumps(matrix.report(report).document)
