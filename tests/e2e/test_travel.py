"""Time travel in a real terminal: back from a live demo, and a record without any server."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from cli.test_replay import record
from support.terminal import Terminal

pytestmark = pytest.mark.tmux


def specdash(tmp_path: Path, *words: str) -> Terminal:
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    return Terminal([sys.executable, "-m", "specdash", *words], columns=120, rows=36, env=env)


@pytest.mark.engine
def test_from_a_live_demo_back_in_time_and_to_live_again(tmp_path: Path) -> None:
    with specdash(tmp_path, "demo") as terminal:
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


def test_a_record_is_replayed_without_any_server(tmp_path: Path) -> None:
    record(tmp_path / "state" / "specdash" / "history.db", start=time.time() - 3 * 3600)
    with specdash(tmp_path, "replay", "--since=-178m") as terminal:
        terminal.wait_for("REPLAY", "(-2h58m)", "was live", "http://127.0.0.1:8080")
        terminal.press("+", "+", "Space")
        terminal.wait_for("5x")
        terminal.wait_for("(-2h57m)")
        terminal.press("A")
        terminal.wait_for("read-only")
        terminal.press("q")
        assert terminal.wait_exit() == 0
