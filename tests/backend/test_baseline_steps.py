"""Decode without speculation, measured on a server that speculates: completions of two tokens cannot draft."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from specdash.backend.baseline import (
    BaselineEffort,
    MeasuredServer,
    add_baseline,
    measure,
    step_of,
)
from specdash.collect.hub import Hub
from specdash.core.errors import InputError, RefusedError
from specdash.core.records import Baseline, BaselineMethod
from specdash.core.target import Target
from specdash.insight.speedup.verdict import ENOUGH
from specdash.insight.state import TargetState
from specdash.system.http import ask
from support import tiny_models as tiny
from support.engines import engine_env, running_backend
from support.start_checks import drafting
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.insight.picture import SpeedUpPicture
    from support.engines import RunningBackend

EFFORT = BaselineEffort((64, 700), (1, 2), rounds=6, tokens=2, limit_s=60.0, widest=1000.0)


def test_of_a_draft_model_its_own_pass_is_taken_off_and_the_interval_holds_nothing_and_most_of_it() -> None:
    plain = step_of([10.0] * 9, read_along=False)
    found = step_of([10.0] * 9, read_along=True)
    assert plain is not None
    assert found is not None
    assert (plain.value, plain.low, plain.high) == (10.0, 10.0, 10.0)
    assert (found.value, found.low, found.high) == pytest.approx((9.0, 8.0, 10.0))


def test_a_stall_widens_the_interval_and_counts_no_more_than_three_steps() -> None:
    found = step_of([10.0] * 8 + [5000.0], read_along=False)
    assert found is not None
    assert found.value == pytest.approx(110 / 9)
    assert found.high > found.value * 1.2


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("types", ["ngram-mod", "draft-simple"])
def test_each_context_and_concurrency_is_measured_and_every_task_is_named(
    models: dict[str, Path], types: str, tmp_path: Path
) -> None:
    env = drafting(models, LLAMA_SPEC_TYPE=types, LLAMA_PARALLEL="2", LLAMA_START_PROBE="0", **engine_env("xllamacpp"))
    if types == "ngram-mod":
        del env["LLAMA_DRAFT_MODEL"]
    kept: list[Baseline] = []
    with running_backend(env, tmp_path) as backend, MeasuredServer(backend.url, engine="e", gpu="g") as server:
        assert server.speculates
        report = measure(server, EFFORT, kept.append)
        assert [(entry.context, entry.concurrency) for entry in kept] == [(64, 1), (64, 2), (700, 1), (700, 2)], report
        assert {entry.method for entry in kept} == {BaselineMethod.TWO_TOKENS}
        assert {entry.model for entry in kept} == {models["target"].name}
        assert {slot.task for slot in server.look().slots} <= server.tasks
        counted = [line for line in backend.log.read_text().splitlines() if "n_predict" in line]
        assert not [line for line in counted if "truncated = 1" in line]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_server_that_drafts_one_token_has_a_baseline_and_a_factor_with_its_interval(
    models: dict[str, Path], tmp_path: Path
) -> None:
    env = drafting(models, LLAMA_DRAFT_MAX="1", LLAMA_START_PROBE="0", **engine_env("xllamacpp"))
    kept: list[Baseline] = []
    with running_backend(env, tmp_path) as backend:
        with MeasuredServer(backend.url) as server:
            effort = replace(EFFORT, contexts=(64, 700), concurrencies=(1,))
            report = measure(server, effort, kept.append)
        assert len(kept) == 2, report.left_out
        for _ in range(2 * ENOUGH):
            ask(backend.url, "/completion", body={"prompt": "one two", "n_predict": 64, "ignore_eos": True}, timeout=60)
        state = {"XDG_STATE_HOME": str(tmp_path / "state")}
        for entry in kept:
            add_baseline(entry, state)
        target = Target(backend.url, log=str(backend.log))
        watched = TargetState(target, rules=())
        with Hub(target, [watched.apply], gpu=False, host=False, env={**os.environ, **state}):
            until(lambda: shown(watched).requests >= ENOUGH)
            found = shown(watched)
    assert found.mean_accepted_length is not None
    assert found.mean_accepted_length <= 2
    assert found.low is not None
    assert found.high is not None


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_it_steps_aside_for_requests_of_others_and_refuses_what_no_slot_holds(
    models: dict[str, Path], tmp_path: Path
) -> None:
    env = drafting(models, LLAMA_START_PROBE="0", **engine_env("xllamacpp"))
    with running_backend(env, tmp_path) as backend, MeasuredServer(backend.url) as server:
        with pytest.raises(InputError, match="a slot has"):
            measure(server, replace(EFFORT, contexts=(8192,)), lambda _: None)
        stop = threading.Event()
        asked = threading.Thread(target=endless, args=(backend, stop))
        asked.start()
        try:
            while not any(slot.is_processing for slot in server.look().slots):
                pass
            with pytest.raises(RefusedError, match="in use"):
                measure(server, replace(EFFORT, concurrencies=(1,), idle_s=0.0), lambda _: None)
        finally:
            stop.set()
            asked.join()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_model_with_recurrent_states_is_refused_because_its_steps_save_them(tmp_path: Path) -> None:
    env = {
        "LLAMA_MODEL": str(tiny.write_mamba(tmp_path / "mamba.gguf", layers=3)),
        "LLAMA_SPEC_TYPE": "ngram-mod",
        "LLAMA_START_PROBE": "0",
        **engine_env("xllamacpp"),
    }
    with (
        running_backend(env, tmp_path) as backend,
        MeasuredServer(backend.url) as server,
        pytest.raises(RefusedError, match="recurrent states"),
    ):
        measure(server, EFFORT, lambda _: None)


def shown(state: TargetState) -> SpeedUpPicture:
    """The speed-up of this moment."""
    return state.picture(time.monotonic(), time.time(), 300.0).speedup


def endless(backend: RunningBackend, stop: threading.Event) -> None:
    """A request that is answered until `stop`."""
    body = json.dumps({"prompt": "one two", "n_predict": 3500, "ignore_eos": True, "stream": True}).encode()
    while not stop.is_set():
        with urllib.request.urlopen(urllib.request.Request(backend.url + "/completion", body), timeout=60) as answer:
            while not stop.is_set() and answer.readline():
                pass
