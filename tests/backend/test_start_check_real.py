"""`specdash backend run` looks whether a real engine speculates, and says why not, or why it ended."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest

from specdash.backend.baseline import measure_unasked, read_baselines
from specdash.core.errors import ExitCode, RefusedError
from specdash.core.paths import trial_file
from specdash.core.records import BaselineMethod, Drafting
from specdash.llama.server_answers import parse_slots
from support import tiny_models
from support.engines import RunningBackend, engine_env, running_backend, write_env
from support.start_checks import behind_our_back, drafting
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = pytest.param("xllamacpp", marks=pytest.mark.engine)
pytestmark = pytest.mark.slow


def shown(backend: RunningBackend, words: str) -> str:
    """The line of ours that has these words, once it is there."""
    deadline = time.monotonic() + 30
    while True:
        for row in backend.stderr.read_text(encoding="utf-8").splitlines():
            if row.startswith("specdash: ") and words in row:
                return row
        assert time.monotonic() < deadline, backend.stderr.read_text(encoding="utf-8")
        time.sleep(0.02)


@pytest.mark.parametrize("engine", [PACKAGE])
@pytest.mark.parametrize("types", ["draft-simple", "ngram-mod", "ngram-simple,draft-simple"])
def test_a_server_that_speculates_is_seen_to(models: dict[str, Path], engine: str, types: str, tmp_path: Path) -> None:
    env = drafting(models, LLAMA_SPEC_TYPE=types, LLAMA_API_KEY="sesame", **engine_env(engine))
    if "draft" not in types:
        del env["LLAMA_DRAFT_MODEL"]
    with running_backend(env, tmp_path) as backend:
        found = backend.wait_checked()
        assert (found.drafting, found.slots_drafting) == (Drafting.YES, found.slots), found
        assert found.probe_drafted
        assert found.probe_tasks
        assert "drafted tokens accepted" in shown(backend, "speculating: ")


@pytest.mark.llama_server
def test_a_server_that_runs_without_is_named_with_the_cause(models: dict[str, Path], tmp_path: Path) -> None:
    words = [*tiny_models.TOKENS]
    words[280] = "▁zebra"
    other = tiny_models.write_variant(tmp_path / "other.gguf", tokens=words)
    env = drafting(models, **behind_our_back(tmp_path, "-md", str(other)))
    with running_backend(env, tmp_path / "run") as backend:
        found = backend.wait_checked()
        assert (found.drafting, found.cause) == (Drafting.FAILED, "vocab_mismatch")
        assert "because the draft model's vocabulary is not the target's; use a draft" in shown(
            backend, "running without"
        )
        assert backend.get("/health")["status"] == "ok"


@pytest.mark.llama_server
@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("-md", "RECURRENT", "--spec-draft-n-max", "8"), "cause: a rejected draft could not be taken back"),
        (("-m", "/absent.gguf"), "cause: the model file /absent.gguf does not exist; correct LLAMA_MODEL"),
    ],
)
def test_a_server_that_ends_is_told_with_its_cause_and_what_to_do(
    models: dict[str, Path], words: tuple[str, ...], cause: str, tmp_path: Path
) -> None:
    recurrent = tiny_models.write_mamba(tmp_path / "mamba.gguf", wrong_every=8)
    given = [str(recurrent) if word == "RECURRENT" else word for word in words]
    backend = RunningBackend(drafting(models, **behind_our_back(tmp_path, *given)), tmp_path)
    assert backend.process.wait(60) == ExitCode.FAILED
    last = backend.stderr.read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("specdash: llama-server ended with ")
    assert cause in last
    assert backend.records() == []


@pytest.mark.llama_server
def test_every_swap_is_checked_too(models: dict[str, Path], tmp_path: Path) -> None:
    env = drafting(models, **engine_env("llama-server"))
    with running_backend(env, tmp_path) as backend:
        assert backend.wait_checked().because.startswith("draft-simple, ")
        first = backend.wait_record()
        del env["LLAMA_DRAFT_MODEL"]
        write_env(tmp_path / "backend.env", {"LLAMA_PORT": str(backend.port), **env, "LLAMA_SPEC_TYPE": "ngram-mod"})
        backend.process.send_signal(signal.SIGUSR1)
        assert "drafted tokens accepted" in shown(backend, "speculating: ngram-mod, ")
        assert backend.wait_checked().drafting is Drafting.YES
        assert backend.wait_record() != first


@pytest.mark.engine
@pytest.mark.timeout(120)
def test_after_the_verdict_decode_without_speculation_is_measured_and_its_tasks_are_no_requests(
    models: dict[str, Path], tmp_path: Path
) -> None:
    env = drafting(models, LLAMA_START_BASELINE="1", LLAMA_PARALLEL="2", **engine_env("xllamacpp"))
    with running_backend(env, tmp_path) as backend:
        probe = len(backend.wait_checked().probe_tasks)
        until(lambda: len(backend.wait_checked().probe_tasks) > probe, 60)
        found = backend.wait_checked()
        slots = parse_slots(json.dumps(backend.get("/slots")).encode()).slots
        assert {slot.task for slot in slots if slot.task is not None} <= set(found.probe_tasks)
        assert dict(found.probe_totals)["predicted_tokens"] > (found.probe_tokens or 0)
        assert shown(backend, "speculating: ")
        assert backend.stderr.read_text(encoding="utf-8").count("specdash: speculating: ") == 1
    kept = read_baselines({"XDG_STATE_HOME": str(backend.state)})
    # Where others' tests make steps of a quarter of a millisecond too uneven, nothing is kept.
    assert {entry.method for entry in kept} <= {BaselineMethod.TWO_TOKENS}


def test_a_server_on_trial_is_not_measured_beside_its_trial(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    trial_file(env).parent.mkdir(parents=True)
    trial_file(env).write_text("{}", encoding="utf-8")
    with pytest.raises(RefusedError, match="a trial is under way"):
        measure_unasked("http://127.0.0.1:1", None, "engine", env=env)
