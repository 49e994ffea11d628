"""Decode without speculation, measured on a real server with a key of the screen."""

import os
from pathlib import Path

import pytest

from specdash.backend.baseline import read_baselines
from specdash.collect.discover import target_for_url
from specdash.control.console import SlotConsole
from specdash.insight.state import TargetState
from specdash.tui.app import Dashboard
from support.engines import engine_env, running_backend
from support.tiny_models import build
from tui.driven import press, said
from tui.fake_console import FakeConsole
from tui.waiting import until

pytestmark = pytest.mark.engine


@pytest.mark.timeout(120)
async def test_decode_without_speculation_is_measured_with_a_key_once_it_is_armed(tmp_path: Path) -> None:
    env = engine_env("xllamacpp") | {
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
