"""`specdash demo` without the screen: a real server, a true snapshot, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def demo(tmp_path: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdash", "demo", "--headless", *options],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path), **(env or {})},
        check=False,
    )


def snapshot(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_it_prints_what_the_real_server_did_and_that_speculation_pays(tmp_path: Path) -> None:
    record = tmp_path / "timings.jsonl"
    done = demo(tmp_path, "--seconds", "45", "--json", "--engine", "xllamacpp", "--record", str(record))
    seen = snapshot(done)
    backend, speculation = seen["backend"], seen["backend"]["speculation"]
    assert seen["schema"] == "specdash.snapshot/1"
    assert backend["state"] == "live"
    assert "xllamacpp" in backend["engine"]
    assert speculation["active"] is True
    assert speculation["types"] == ["draft-simple"]
    assert backend["prefill"]["tokens_per_second"] > 0
    assert backend["decode"]["tokens_per_second"] > 0
    assert 1 < speculation["mean_accepted_length"] <= 4
    assert len(speculation["accepted_per_position"]) >= 3
    assert len(backend["slots"]) == 4
    assert seen["log"]["unrecognised"] == 0
    assert seen["host"]["cpu_count"] == os.cpu_count()
    assert "unavailable" in seen["gpu"] or len(seen["gpu"]) >= 1
    timings = [json.loads(line)["timings"] for line in record.read_text().splitlines()]
    accepted = sum(t.get("draft_n_accepted", 0) for t in timings)
    generated = sum(t.get("draft_n", 0) for t in timings)
    # Requests that the end of the load cut off are in the counters and not in the record: `rest` drafts.
    rest = speculation["draft_tokens_total"] - generated
    assert rest >= 0
    lowest, highest = accepted / (generated + rest), (accepted + rest) / (generated + rest)
    assert lowest - 0.03 <= speculation["acceptance"]["window"] <= highest + 0.03
    assert speculation["acceptance"]["lifetime"] > 0.3
    assert list(tmp_path.glob("specdash-demo-*")) == []
    if os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip("a machine that is this busy gives the demo too little of a core to compare speeds")
    assert seen["speedup"]["basis"] == "measured"
    assert seen["speedup"]["low"] > 1, seen["speedup"]["why"]
    assert seen["speedup"]["verdict"] == "paying"


def test_the_text_form_is_for_people(tmp_path: Path) -> None:
    done = demo(tmp_path, "--seconds", "4")
    assert done.returncode == 0, done.stderr
    assert "LIVE" in done.stdout
    assert "acceptance" in done.stdout


def test_an_engine_that_cannot_start_is_one_clear_line(tmp_path: Path) -> None:
    env = {"LLAMA_BIN": str(tmp_path / "no-such-server")}
    done = demo(tmp_path, "--engine", "llama-server", env=env)
    assert done.returncode == 5
    assert "no-such-server" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("specdash-demo-*")) == []
