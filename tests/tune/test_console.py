"""Runs of the tuner as children: planned, begun, watched and stopped from afar. The child is a stand-in for `specdash
tune` that writes what a real one would."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specdash.core.errors import ConflictError, SpecdashError
from specdash.core.paths import tune_runs_dir
from specdash.tune.model.problem import Budget
from specdash.tune.run.console import TunerConsole
from specdash.tune.run.status import RunState
from support.waiting import until

CHILD = """
import json, os, signal, sys, time
from pathlib import Path
import psutil

state = Path(os.environ["XDG_STATE_HOME"]) / "specdash" / "tune"
arguments = sys.argv[1:]
(state.parent / "arguments").parent.mkdir(parents=True, exist_ok=True)
(state.parent / "arguments").write_text(" ".join(arguments))
if os.environ.get("SAYS"):
    print("progress", flush=True)
    sys.exit("specdash: " + os.environ["SAYS"])
restarts = int(arguments[2]) if "--restarts" in arguments else 12
plan = {"service": "backend", "points": 46, "budget": {"restarts": restarts}}
if "--dry-run" in arguments:
    print(json.dumps(plan))
    sys.exit(0)

def stop(number, frame):
    with (directory / "run.jsonl").open("a") as file:
        file.write(json.dumps({"event": "end", "at": time.time(), "ending": "stopped", "restored": True}) + "\\n")
    sys.exit(130)

directory = state / "1"
directory.mkdir(parents=True)
signal.signal(signal.SIGTERM, stop)
me = psutil.Process()
head = {"event": "head", "plan": plan, "at": time.time(), "pid": me.pid, "pid_started": me.create_time()}
(directory / "run.jsonl").write_text(json.dumps(head) + "\\n")
time.sleep(60)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where the stand-in is `specdash`."""
    package = tmp_path / "lib" / "specdash"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(CHILD)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "lib"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def console(environment: dict[str, str]) -> Iterator[TunerConsole]:
    """Its run is ended whatever happens."""
    tuner_console = TunerConsole(environment)
    yield tuner_console
    run = tuner_console.look().run
    if run is not None and run.alive:
        tuner_console.stop(run)
    until(lambda: (run := tuner_console.look().run) is None or not tuner_console.alive(run))


def test_a_plan_is_asked_for_and_touches_nothing(console: TunerConsole, environment: dict[str, str]) -> None:
    plan = console.plan(Budget(8, 30.0))
    assert (plan.points, plan.budget.restarts) == (46, 8)
    assert console.look().run is None
    said = (tune_runs_dir(environment).parent / "arguments").read_text()
    assert said == "tune --restarts 8 --minutes 30 --dry-run --json"


@pytest.mark.parametrize("does", [lambda item: item.plan(Budget()), lambda item: item.start(Budget())])
def test_why_it_cannot_be_is_the_last_thing_it_said(
    environment: dict[str, str], does: Callable[[TunerConsole], object]
) -> None:
    console = TunerConsole({**environment, "SAYS": "ngram-cache has no knob to turn"})
    with pytest.raises(SpecdashError, match=r"(?<!specdash: )ngram-cache has no knob to turn$"):
        does(console)


def test_a_run_is_begun_in_a_session_of_its_own_and_stopped_as_ctrl_c_does(console: TunerConsole) -> None:
    run = console.start(Budget(8))
    assert run.state is RunState.RUNNING
    assert os.getsid(run.head.pid) == run.head.pid != os.getsid(0)
    with pytest.raises(ConflictError, match="goes on already"):
        console.start(Budget(8))
    console.stop(run)
    until(lambda: (run := console.look().run) is not None and run.state is RunState.STOPPED)
    ended = console.look().run
    assert ended is not None
    until(lambda: not TunerConsole.alive(ended))
    with pytest.raises(ConflictError, match="nothing to stop"):
        console.stop(ended)


def test_a_python_that_cannot_be_run_is_said(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    console = TunerConsole(environment)
    for does in (console.plan, console.start):
        with pytest.raises(SpecdashError, match="cannot be run"):
            does(Budget())
