"""Progress of long measurements."""

from __future__ import annotations

import io

from specdash.bench.report import StepProgress
from support.clock import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_kept_up_to_date_and_cleared() -> None:
    screen, clock = Terminal(), Clock(0.0)
    progress = StepProgress(10, stream=screen, clock=clock)
    clock.now = 20.0
    progress.show(5, "prose-2")
    progress.end()
    assert screen.getvalue() == "\r\x1b[K   50 %  prose-2  20 s left\r\x1b[K"


def test_in_a_file_a_line_a_minute_is_enough() -> None:
    file, clock = io.StringIO(), Clock(0.0)
    progress = StepProgress(100, stream=file, clock=clock)
    for number in range(1, 100):
        clock.now = number * 1.5
        progress.show(number, "x")
    assert file.getvalue().splitlines() == ["specdash:  40 %  x  1 min 30 s left", "specdash:  80 %  x  30 s left"]


def test_before_there_is_a_pace_nothing_is_promised() -> None:
    progress = StepProgress(100, stream=io.StringIO(), clock=Clock(0.0))
    assert progress.left_s(0) is None
    assert progress.left_s(1) is None


def test_quiet_shows_no_progress_but_says_what_must_be_said() -> None:
    screen = Terminal()
    progress = StepProgress(2, quiet=True, stream=screen)
    progress.show(1, "x")
    progress.say("trouble")
    assert screen.getvalue() == "specdash: trouble\n"
