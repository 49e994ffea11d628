"""A slot of a real server, saved, erased and restored with the keys of the speculation screen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdash.backend.baseline import read_baselines
from specdash.collect.discover import target_for_url
from specdash.collect.hub import Hub
from specdash.control.console import SlotConsole
from specdash.insight.state import TargetState
from specdash.tui.app import Dashboard
from specdash.tui.screens.modal import ConfirmScreen
from specdash.tui.screens.speculation import SpeculationScreen
from support.engines import engine_env, running_backend, with_draft
from support.tiny_models import SENTENCE, build
from tui.drawn import block
from tui.driven import opened, press, said, shown
from tui.fake_console import FakeConsole
from tui.waiting import until

pytestmark = pytest.mark.llama_server
PROMPT = " ".join(SENTENCE[:20])


async def test_what_a_slot_holds_comes_back_after_it_was_erased(tmp_path: Path) -> None:
    models, saved = build(tmp_path), tmp_path / "slots"
    saved.mkdir()
    more = {"LLAMA_CTX_SIZE": "1024", "LLAMA_LOG_VERBOSITY": "4", "LLAMA_SLOT_SAVE_PATH": str(saved)}
    env = with_draft(models, LLAMA_PARALLEL="1", **engine_env("llama-server"), **more)
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
                await until(
                    pilot,
                    lambda: (
                        opened(app, SpeculationScreen).board.slots in opened(app, SpeculationScreen).board.present()
                        and "SPECULATING" in shown(app)
                    ),
                )
                opened(app, SpeculationScreen).board.bring(opened(app, SpeculationScreen).board.slots)
                await press(pilot, "S", *["backspace"] * 12, *"one.bin", "enter")
                assert isinstance(app.screen, ConfirmScreen)
                page = block(app.screen.page.lines)
                assert "slot 0" in page
                assert "one.bin" in page
                await press(pilot, "enter")
                await until(pilot, lambda: (saved / "one.bin").exists())
                await press(pilot, "X", "enter")
                await until(pilot, lambda: "slot 0 erased" in said(app))
                await press(pilot, "O", *["backspace"] * 12, *"one.bin", "enter", "enter")
                await until(pilot, lambda: "slot 0 restored from" in said(app))
        again = backend.complete(PROMPT, 4)
    assert again["timings"]["cache_n"] > 0


@pytest.mark.timeout(120)
async def test_decode_without_speculation_is_measured_with_a_key_once_it_is_armed(tmp_path: Path) -> None:
    env = engine_env("llama-server") | {
        "LLAMA_MODEL": str(build(tmp_path)["target"]),
        "LLAMA_SPEC_TYPE": "ngram-mod",
        "LLAMA_CTX_SIZE": "1024",
    }
    with running_backend(env, tmp_path / "run") as backend:
        there = {**os.environ, "XDG_STATE_HOME": str(backend.state)}
        target = target_for_url(backend.url, there)
        app = Dashboard(
            TargetState(target),
            console=FakeConsole(),  # type: ignore[arg-type]
            slots=SlotConsole(lambda: target, there),
        )
        async with app.run_test(size=(120, 36)) as pilot:
            await press(pilot, "B")
            assert "press A to arm first" in said(app)
            await press(pilot, "A", "B")
            await until(pilot, lambda: "decode without speculation" in said(app).replace("measuring decode", ""))
        assert "tok/s" in said(app) or "steps without a draft take" in said(app)
        assert bool(read_baselines(there)) is ("tok/s" in said(app))
