"""A slot of a real server, saved, erased and restored with the keys of the speculation screen."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from specdash.collect.discover import target_for_url
from specdash.collect.hub import Hub
from specdash.control.slot_console import SlotConsole
from specdash.insight.state import TargetState
from specdash.tui import plot
from specdash.tui.app import Dashboard
from specdash.tui.screens.confirm import ConfirmScreen
from support.engines import engine_env, running_backend
from support.tiny_models import SENTENCE, build
from tui.drawn import block
from tui.fake_console import FakeConsole
from tui.test_speculation_screen import opened, said, shown
from tui.test_tune_screen import press

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

pytestmark = pytest.mark.llama_server
PROMPT = " ".join(SENTENCE[:20])
DEADLINE_S = 30.0


async def until(pilot: Pilot[None], met: Callable[[], bool]) -> None:
    """Let the screen go on until that is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < deadline, said(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.1)


async def test_what_a_slot_holds_comes_back_after_it_was_erased(tmp_path: Path) -> None:
    plot.load()
    models, saved = build(tmp_path), tmp_path / "slots"
    saved.mkdir()
    env = engine_env("llama-server") | {
        "LLAMA_MODEL": str(models["target"]),
        "LLAMA_DRAFT_MODEL": str(models["draft"]),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "8",
        "LLAMA_CTX_SIZE": "1024",
        "LLAMA_PARALLEL": "1",
        "LLAMA_LOG_VERBOSITY": "4",
        "LLAMA_SLOT_SAVE_PATH": str(saved),
    }
    with running_backend(env, tmp_path / "run") as backend:
        there = {**os.environ, "XDG_STATE_HOME": str(backend.state)}
        backend.wait_checked()
        backend.complete(PROMPT, 32)
        target = target_for_url(backend.url, there)
        state = TargetState(target)
        console = SlotConsole(lambda: state.target, there)
        with Hub(target, [state.apply], on_target=state.retarget, env=there):
            app = Dashboard(state, console=FakeConsole(), slots=console)  # type: ignore[arg-type]
            async with app.run_test(size=(120, 36)) as pilot:
                await press(pilot, "m", "A")
                await until(pilot, lambda: opened(app).knows_slots and "SPECULATING" in shown(app))
                opened(app).board.bring(opened(app).board.slots)
                await press(pilot, "S", *["backspace"] * 12, *"one.bin", "enter")
                assert isinstance(app.screen, ConfirmScreen)
                page = block(app.screen.page.lines)
                assert "slot 0" in page
                assert "one.bin" in page
                await press(pilot, "enter")
                await until(pilot, lambda: (saved / "one.bin").exists())
                await press(pilot, "X", "enter")
                await until(pilot, lambda: "slot 0 erased" in said(app))
                await press(pilot, "R")
                prompt = opened(app).prompt
                assert prompt is not None
                assert prompt.value == "one.bin"
                await press(pilot, "enter", "enter")
                await until(pilot, lambda: "slot 0 restored from" in said(app))
        again = backend.complete(PROMPT, 4)
    assert again["timings"]["cache_n"] > 0
