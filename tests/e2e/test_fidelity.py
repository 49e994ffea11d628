"""Every figure equals the server's own: counters equal /metrics, acceptance equals the requests' `timings`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.collect.hub import Hub
from specdash.core.target import Target
from specdash.export.snapshot import to_json
from specdash.insight.state import TargetState
from support.asking import ask, read
from support.engines import engine_env, running_backend, with_draft
from support.waiting import until

pytestmark = pytest.mark.engine
DRAFT_LENGTH = 4


@contextmanager
def backend(tmp_path: Path, **more: str) -> Iterator[Target]:
    """The bundled models on the real engine, through `specdash backend run`."""
    models = {"target": bundled_model(TARGET_MODEL), "draft": bundled_model(DRAFT_MODEL)}
    values = {"LLAMA_DRAFT_MAX": str(DRAFT_LENGTH), "LLAMA_CTX_SIZE": "8192", "LLAMA_PARALLEL": "2", **more}
    with running_backend(with_draft(models, **engine_env("xllamacpp"), **values), tmp_path) as running:
        yield Target(running.url, log=str(running.log))


def complete(url: str, seed: int, tokens: int = 200, prompt: str = "") -> dict[str, Any]:
    """One request's own `timings`."""
    words = f"{seed}: {prompt}Write the function def read_{seed}(path): read file {seed}"
    body = {
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "temperature": 0.8,
        "seed": seed,
    }
    timings: dict[str, Any] = ask(f"{url}/v1/chat/completions", body)["timings"]
    return timings


def run_requests(url: str, seeds: range, clients: int = 2, prompt: str = "") -> list[dict[str, Any]]:
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda seed: complete(url, seed, prompt=prompt), seeds))


def finish(state: TargetState, requests: int, timings: list[dict[str, Any]]) -> None:
    """Wait until log and counters have every request."""

    def has_all() -> bool:
        backend = state.picture(time.monotonic(), time.time(), 300.0).backend
        drafted = sum(timing.get("draft_n", 0) for timing in timings)
        return (backend.requests_finished, backend.speculation.draft_tokens_total) == (requests, drafted)

    until(has_all)


def acceptance(timings: list[dict[str, Any]]) -> float:
    accepted: int = sum(t.get("draft_n_accepted", 0) for t in timings)
    generated: int = sum(t.get("draft_n", 0) for t in timings)
    return accepted / generated


def own_metrics(url: str) -> dict[str, float]:
    lines = read(f"{url}/metrics").decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_known_synthetic_acceptance_is_reported_as_the_requests_report_it(tmp_path: Path) -> None:
    mean_length = 2.5
    with backend(tmp_path, LLAMA_EXTRA_ARGS=f"--spec-synth-len {mean_length}") as target:
        state = TargetState(target)
        with Hub(target, [state.apply], gpu=False, host=False):
            until(lambda: state.counters.last is not None)
            timings = run_requests(target.url, range(24))
            finish(state, 24, timings)
            snapshot: Any = to_json(state.picture(time.monotonic(), time.time(), 300.0))["backend"]["speculation"]
        assert snapshot["active"] is True
        assert snapshot["types"] == ["draft-simple"]
        assert snapshot["acceptance"]["window"] == pytest.approx(acceptance(timings), abs=0.005)
        assert snapshot["acceptance"]["lifetime"] == pytest.approx(acceptance(timings), abs=0.005)
        assert snapshot["mean_accepted_length"] == pytest.approx(mean_length, rel=0.06)
        assert sum(snapshot["accepted_per_position"]) == snapshot["accepted_tokens_total"]
        assert snapshot["accepted_tokens_total"] == sum(t.get("draft_n_accepted", 0) for t in timings)
        assert snapshot["draft_tokens_total"] == sum(t["draft_n"] for t in timings)


def test_a_window_counts_only_the_requests_that_ended_in_it(tmp_path: Path) -> None:
    with backend(tmp_path) as target:
        state = TargetState(target)
        with Hub(target, [state.apply], interval_s=0.5, gpu=False, host=False):
            until(lambda: state.counters.last is not None)
            earlier = run_requests(target.url, range(8))
            finish(state, 8, earlier)
            boundary = time.monotonic()
            recent = run_requests(target.url, range(100, 112))
            finish(state, 20, earlier + recent)
            now = time.monotonic()
            picture = state.picture(now, time.time(), now - boundary)
        window = picture.backend.speculation.acceptance.window
        assert window.value == pytest.approx(acceptance(recent), abs=0.005)


def test_snapshot_counters_equal_the_servers_own(tmp_path: Path) -> None:
    with backend(tmp_path) as target:
        timings = run_requests(target.url, range(6))
        command = [
            sys.executable,
            "-m",
            "specdash",
            "snapshot",
            "--json",
            "--url",
            target.url,
            "--log",
            str(target.log),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        own, snapshot = own_metrics(target.url), json.loads(done.stdout)
        speculation = snapshot["backend"]["speculation"]
        assert snapshot["backend"]["state"] == "live"
        assert speculation["draft_tokens_total"] == own["llamacpp:spec_decode_num_draft_tokens_total"]
        assert speculation["accepted_tokens_total"] == own["llamacpp:spec_decode_num_accepted_tokens_total"]
        assert speculation["verification_steps_total"] == own["llamacpp:spec_decode_num_drafts_total"]
        assert snapshot["backend"]["counters"]["predicted_tokens"] == own["llamacpp:tokens_predicted_total"]
        assert snapshot["backend"]["counters"]["prompt_tokens"] == own["llamacpp:prompt_tokens_total"]
        name = 'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{}"}}'
        positions = [own[name.format(i)] for i in range(DRAFT_LENGTH)]
        assert speculation["accepted_per_position"] == positions
        assert len(snapshot["log"]["requests"]) == 6
        by_task = {r["draft_generated"]: r["draft_accepted"] for r in snapshot["log"]["requests"]}
        assert by_task == {t["draft_n"]: t["draft_n_accepted"] for t in timings}


def test_rates_lie_between_the_slowest_and_the_fastest_request_and_live_acceptance_is_that_of_all(
    tmp_path: Path,
) -> None:
    with backend(tmp_path) as target:
        state = TargetState(target)
        with Hub(target, [state.apply], gpu=False, host=False):
            until(lambda: state.counters.last is not None)
            # Some builds count the time of a prompt in whole milliseconds: it shall be many.
            timings = run_requests(target.url, range(12), clients=1, prompt="return the value of the list " * 80)
            finish(state, 12, timings)
            picture = state.picture(time.monotonic(), time.time(), 300.0).backend
        assert picture.speculation.acceptance.live.value == pytest.approx(acceptance(timings), abs=0.005)
        for measured, tokens, ms in (
            (picture.prefill, "prompt_n", "prompt_ms"),
            (picture.decode, "predicted_n", "predicted_ms"),
        ):
            own = [timing[tokens] / timing[ms] * 1000 for timing in timings]
            assert measured.value is not None
            assert min(own) * 0.95 <= measured.value <= max(own) * 1.05
