"""Time travel in a real terminal: back from a live demo."""

import sys
import time
from pathlib import Path

import pytest

from support.terminal import Terminal

pytestmark = [pytest.mark.tmux, pytest.mark.engine]


def test_from_a_live_demo_back_in_time_and_to_live_again(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    with Terminal([sys.executable, "-m", "specdash", "demo"], columns=120, rows=36, env=env) as terminal:
        terminal.wait_for("LIVE", "tok/s", within_s=60)
        time.sleep(15)
        terminal.press(",")
        terminal.wait_for("REPLAY", "(-1", "was live", within_s=60)
        terminal.press("Space")
        terminal.wait_for("▶")
        terminal.press("L")
        terminal.wait_gone("REPLAY")
        terminal.wait_for("LIVE")
        terminal.press("q")
        assert terminal.wait_exit() == 0
