"""A stop that is asked for at any line of a run: nothing is begun after it, and the original is put back."""

import linecache
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from specdash.backend.steps import CancelledApplyError, Steps
from specdash.bench.load.samples import EngineAddress
from specdash.cli import signals
from specdash.cli.signals import cancelled_by_signals, stopped_by_signals, undisturbed
from specdash.core.changes import ApplyStep
from specdash.tune.run import loop as loop_module
from specdash.tune.run.status import Ending, RunEnd
from support.tuning import FAST, START, Scene, ScriptedBed

FILES = (loop_module.__file__, signals.__file__, __file__)


class ScriptedApply:
    """The steps of an apply, with the real decision between its end and a cancel."""

    def __init__(self) -> None:
        self.steps = Steps(lambda _: None)
        self.cancelled = False
        self.log: list[str] = []

    @property
    def undoing(self) -> bool:
        return self.steps.undoing

    def cancel(self) -> bool:
        self.cancelled = True
        return self.steps.cancel()

    def run(self) -> str:
        try:
            for step in (ApplyStep.WRITE, ApplyStep.RESTART):
                with self.steps.step(step):
                    self.log.append(step)
            with self.steps.step(ApplyStep.RECORD):
                self.steps.keep()
                self.log.append("kept")
        except CancelledApplyError:
            self.steps.undoing = True
            self.log.append("undone")
            return "rolled back"
        return "applied"


class GuardedBed(ScriptedBed):
    """Boots and restores as the bed on the service does: applies that answer signals themselves."""

    @contextmanager
    def boot(self, configuration: Mapping[str, str]) -> Iterator[EngineAddress]:
        apply: Any = ScriptedApply()
        self.boots += 1
        self.restored = 0
        with cancelled_by_signals(apply):
            outcome = apply.run()
            self.log.append(outcome)
        if apply.cancelled:
            raise KeyboardInterrupt
        with ScriptedBed.boot(self, configuration) as place:
            self.boots -= 1
            yield place

    def restore(self) -> None:
        with undisturbed():
            ScriptedBed.restore(self)


class Trigger:
    """Sends SIGINT at the n-th line of a run, and notes what there was by then."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.bed = GuardedBed()
        self.lines: list[tuple[str, int]] = []
        self.boots: int | None = None

    def __call__(self, frame: FrameType, event: str, _given: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and frame.f_code.co_name not in ("_handle", "ask"):
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) == self.at:
                self.boots = self.bed.boots
                os.kill(os.getpid(), signal.SIGINT)
        return self


def run(trigger: Trigger) -> RunEnd | None:
    """A run as `specdash tune` does it; None where it ended with an interrupt."""
    scene = Scene(bed=trigger.bed, points=(START, FAST))
    end: RunEnd | None = None
    before = sys.gettrace()
    try:
        with stopped_by_signals() as stoppable:
            loop = scene.loop(stop=stoppable.asked)
            sys.settrace(trigger)
            try:
                end = loop.run()
            except KeyboardInterrupt:
                scene.bed.restore()
                raise
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)
    return end


def moments() -> list[int]:
    """When each line is reached for the last time in a whole run, and lines of the loop for the first time; from 1."""
    trigger = Trigger()
    end = run(trigger)
    assert end is not None
    assert end.ending is Ending.FINISHED
    assert trigger.bed.boots == 2
    found: dict[tuple[str, int], list[int]] = {}
    for number, line in enumerate(trigger.lines, 1):
        # A tracer stops there, too; CPython itself answers no signals between the two sides of these.
        if not linecache.getline(*line).lstrip().startswith(("with ", "try:", "finally:")):
            found.setdefault(line, []).append(number)
    first = [numbers[0] for (file, _), numbers in found.items() if file == loop_module.__file__]
    return sorted({*first, *(numbers[-1] for numbers in found.values())})


def test_a_stop_at_any_line_begins_nothing_else_and_puts_the_original_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    tested = moments()
    assert len(tested) > 150
    for at in tested:
        trigger = Trigger(at)
        end = run(trigger)
        file, line = trigger.lines[at - 1]
        where = f"{Path(file).name}:{line}, moment {at}"
        assert end is None or end.ending is Ending.STOPPED, where
        assert trigger.bed.boots == trigger.boots, where
        assert trigger.bed.boots == 0 or trigger.bed.restored, where
        assert signal.getsignal(signal.SIGINT) is before, where
