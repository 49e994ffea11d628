"""`tools/gpu_check.py` without a GPU: every step on the tests' llama-server, and one document of them all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.engines import llama_server_binary

TOOL = Path(__file__).parents[2] / "tools" / "gpu_check.py"
STEPS = [
    "the machine", "write the model", "backend run", "doctor", "bench live", "snapshot", "verify", "backend run",
    "apply", "rollback",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.llama_server
@pytest.mark.timeout(600)
def test_every_step_is_well_on_a_cpu_and_the_document_tells_of_all(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    words = (
        "run",
        "--cpu",
        "--llama-server",
        llama_server_binary(),
        "--work",
        str(tmp_path / "work"),
        "--out",
        str(out),
    )
    done = subprocess.run(
        [sys.executable, str(TOOL), *words, "--out", str(out), "--rows", "1024", "--tokens", "16"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    document = json.loads(done.stdout)
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert document["passed"]
    assert [step["name"] for step in document["steps"]] == STEPS
    told = {step["name"]: step["result"] for step in document["steps"] if "result" in step}
    assert told["snapshot"]["drafting"]["state"] == "speculating"
    assert told["apply"]["outcome"] == "applied"
    assert told["apply"]["downtime_s"] > 0


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_build_that_cannot_begin_ends_the_check_with_its_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "run", "--work", str(tmp_path / "work")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert [step["name"] for step in document["steps"]] == ["the machine", "build llama-server"]
    assert "nvidia-smi names no card" in document["steps"][-1]["said"]
