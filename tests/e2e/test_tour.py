"""`specdash demo --tour` in a real terminal, on the real server: every step shows what it speaks of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.tmux, pytest.mark.engine]


@pytest.mark.timeout(400)
def test_the_tour_shows_a_verdict_that_turns_its_alert_and_a_change_before_and_after(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "specdash", "demo", "--tour"]
    with Terminal(command, columns=120, rows=36, env=env) as terminal:
        terminal.wait_for("TOUR 1/7", "measured", within_s=60)
        terminal.wait_for("TOUR 2/7", within_s=90)
        # Which of the two comes first: that speculation costs, or that acceptance has collapsed.
        terminal.wait_for("TOUR 3/7", "▲ warning", within_s=90)
        terminal.press("n")
        terminal.wait_for("TOUR 4/7", "1 pending", "may be applied", within_s=60)
        terminal.press("n")
        terminal.wait_for("TOUR 5/7", " → ", within_s=30)
        terminal.press("n")
        terminal.wait_for("TOUR 6/7", "APPLIED", within_s=120)
        terminal.wait_for("TOUR 7/7", "apply 1 · ", within_s=60)
        terminal.press("Escape")
        terminal.wait_gone("TOUR")
        terminal.press("q")
        assert terminal.wait_exit() == 0
