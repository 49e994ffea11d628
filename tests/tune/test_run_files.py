"""The files of a run: written whole, read by others while they are written, and believed only as far as they can be."""

import json
import os
from pathlib import Path

import psutil

from specdash.core.paths import tune_runs_dir
from specdash.tune.model.problem import BootResult, Budget, Point, PromptResult, Stage, TuneOutcome, WorkloadShares
from specdash.tune.run.status import (
    NOW,
    RUN,
    Boot,
    CurrentStep,
    Ending,
    Knob,
    RunEnd,
    RunHead,
    RunPlan,
    RunState,
    TuneRunRecord,
    TuneStep,
    decode,
    newest_run,
    read_run,
)

START = Point(("draft-simple",), n_max=4)
FASTER = Point(("draft-simple",), n_max=8, p_min=0.5)


def plan() -> RunPlan:
    """What a run is to do."""
    return RunPlan(
        service="specdash-backend.service",
        start=START,
        knobs=(Knob("LLAMA_DRAFT_MAX", "1 to 16", "4"),),
        points=45,
        budget=Budget(12, 60.0),
        workload=WorkloadShares((("coding", 0.7), ("prose", 0.3))),
    )


def head(pid: int | None = None, at: float = 100.0) -> RunHead:
    """A run that this process does, or another one."""
    return RunHead(plan(), at, pid or os.getpid(), psutil.Process().create_time())


def boot(number: int, point: Point = START, failure: str = "") -> Boot:
    """A boot that ended."""
    prompts = () if failure else (PromptResult("a", "coding", 256, 4.0, 300, 200),)
    return Boot(
        number, Stage.EXPLORE, "it tells most", BootResult(point, prompts, failure=failure), 100.0 + number,
        settings=(("LLAMA_DRAFT_MAX", "4"),), speed=None if failure else 64.0,
    )  # fmt: skip


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = TuneRunRecord(tmp_path / "run")
    files.add(head())
    files.add(boot(1))
    files.add(boot(2, FASTER, "out of memory"))
    now = CurrentStep(103.0, TuneStep.MEASURE, 3, Stage.RACE, FASTER, "both are booted in turn", done=3, total=24)
    files.tell(now)
    run = read_run(tmp_path / "run")
    assert run is not None
    assert run.plan == plan()
    assert run.boots == (boot(1), boot(2, FASTER, "out of memory"))
    assert run.now == now
    assert run.state is RunState.RUNNING
    end = RunEnd(
        200.0, Ending.FINISHED, TuneOutcome(FASTER, improved=True, gain=0.1, low=0.05, high=0.15), (("A", "1"),)
    )
    files.add(end)
    run = read_run(tmp_path / "run")
    assert run is not None
    assert (run.end, run.state, run.now) == (end, RunState.FINISHED, None)


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    files = TuneRunRecord(tmp_path / "run")
    files.add(head())
    files.tell(CurrentStep(1.0, TuneStep.PLAN))
    for path in (tmp_path / "run" / RUN, tmp_path / "run" / NOW):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_off_is_passed_over_and_the_next_is_not_lost(tmp_path: Path) -> None:
    files = TuneRunRecord(tmp_path)
    files.add(head())
    with (tmp_path / RUN).open("ab") as file:
        file.write(b'{"event":"boot","numb')
    files.add(boot(1))
    run = read_run(tmp_path)
    assert run is not None
    assert [item.number for item in run.boots] == [1]


def test_what_is_no_event_is_none() -> None:
    for line in (
        b"",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"{}",
        b'{"event":"boot"}',
        b'{"event":"end","at":NaN}',
        b"[" * 100_000,
    ):
        assert decode(RunHead | Boot | RunEnd, line) is None
    wrong = json.dumps({"event": "end", "at": 1.0, "ending": "crowned"}).encode()
    assert decode(RunHead | Boot | RunEnd, wrong) is None


def test_unknown_keys_of_a_newer_version_are_passed_over() -> None:
    line = json.dumps({"event": "end", "at": 1, "ending": "stopped", "colour": "blue"}).encode()
    assert decode(RunHead | Boot | RunEnd, line) == RunEnd(1.0, Ending.STOPPED)


def test_a_run_whose_process_is_gone_was_cut_short(tmp_path: Path) -> None:
    files = TuneRunRecord(tmp_path)
    files.add(RunHead(plan(), 1.0, 2**22 + 1, 1.0))
    run = read_run(tmp_path)
    assert run is not None
    assert run.state is RunState.CUT_SHORT


def test_a_live_run_comes_before_a_newer_one_that_ended(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert newest_run(env) is None
    TuneRunRecord(tune_runs_dir(env) / "1").add(head())
    ended = TuneRunRecord(tune_runs_dir(env) / "2")
    ended.add(head())
    ended.add(RunEnd(2.0, Ending.STOPPED))
    run = newest_run(env)
    assert run is not None
    assert Path(run.directory).name == "1"
