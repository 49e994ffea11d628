"""The steps of an apply on its screen."""

import pytest

from specdash.core.changes import ApplyProgress, ApplyStep, StepState
from specdash.tui.screens.apply import step_lines

WAITING = "3 requests running upstream, 12 waiting, for 118 s at most"
DRAIN = ApplyProgress(ApplyStep.DRAIN, StepState.RUNNING, WAITING, 0.02, 2.4)


@pytest.mark.parametrize(("width", "count"), [(80, 2), (120, 2), (200, 1)])
def test_who_waits_and_until_when_can_be_read_at_every_width(width: int, count: int) -> None:
    lines = ["".join(text for text, _ in line) for line in step_lines([DRAIN], width)]
    assert len(lines) == count
    assert WAITING in lines[-1]
    assert max(map(len, lines)) <= width


def test_what_a_step_has_done_stays_on_its_line() -> None:
    done = ApplyProgress(ApplyStep.RESTART, StepState.DONE, "stopping the engine and starting the next", None, 1.2)
    (line,) = ("".join(text for text, _ in line) for line in step_lines([done], 80))
    assert line.endswith("stopping the engine a…")
    assert len(line) <= 80
