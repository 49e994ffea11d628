"""Tuning from the dashboard, in a real terminal, on the real server and proxy under load."""

import re
import sys
from functools import partial
from pathlib import Path

import pytest

from support.terminal import Terminal

pytestmark = [pytest.mark.tmux, pytest.mark.engine, pytest.mark.timeout(300)]


def demo(tmp_path: Path) -> Terminal:
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    return Terminal([sys.executable, "-m", "specdash", "demo"], columns=120, rows=36, env=env)


def selected(screen: str) -> str | None:
    """The selected key, None where none is drawn as such."""
    row = re.search(r"^>.?([A-Z_]+)\b", screen, re.MULTILINE)
    return row[1] if row is not None else None


def another_is_selected(key: str | None, screen: str) -> bool:
    """Whether the selection has moved on from `key`."""
    return selected(screen) not in (key, None)


def select(terminal: Terminal, key: str) -> None:
    """Move down until the key is the selected one."""
    at: str | None = None
    for _ in range(30):
        at = selected(terminal.wait_until(partial(another_is_selected, at)))
        if at == key:
            return
        terminal.press("j")
    pytest.fail(f"{key} cannot be selected:\n{terminal.screen}")


def test_arm_change_a_draft_length_apply_see_the_marker_and_the_card_and_roll_back_with_one_key(tmp_path: Path) -> None:
    with demo(tmp_path) as terminal:
        terminal.wait_for("LIVE", "n-max 3", within_s=40)
        terminal.press("e")
        terminal.wait_for("Settings", "LLAMA_DRAFT_MAX")
        select(terminal, "LLAMA_DRAFT_MAX")
        terminal.press("Enter", "2", "Enter")
        terminal.wait_for("1 pending", "may be applied")
        terminal.press("a")
        terminal.wait_for("press A to arm")
        terminal.press("A")
        terminal.wait_for("ARMED")
        terminal.press("a")
        terminal.wait_for("3 → 2", "enter applies")
        terminal.press("Enter")
        screen = terminal.wait_for("APPLIED", within_s=90)
        for step in ("hold", "drain", "restart", "health", "speculation", "probe", "resume"):
            assert step in screen
        terminal.press("Escape")
        terminal.wait_for("nothing pending")
        terminal.press("Escape")
        terminal.wait_for("LIVE", "n-max 2", within_s=60)
        # Where other marks leave it no room, a mark's text is the apply's number. It leaves the charts after a minute.
        terminal.wait_until(lambda screen: "DRAFT_MAX 3→2" in screen or "▼#1" in screen or "#1▼" in screen, within_s=60)
        terminal.press("e")
        terminal.wait_for("apply 1 · DRAFT_MAX 3 → 2", "acceptance %", within_s=120)
        if "read-only" in terminal.screen:
            # Armed once more where so much time has passed.
            terminal.press("A")
            terminal.wait_for("ARMED")
        terminal.press("R")
        terminal.wait_for("2 → 3")
        terminal.press("Enter")
        terminal.wait_for("APPLIED", within_s=90)
        terminal.press("Escape", "Escape")
        terminal.wait_for("LIVE", "n-max 3", within_s=30)
        terminal.press("q")
        assert terminal.wait_exit() == 0
