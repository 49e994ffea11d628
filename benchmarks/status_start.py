"""How long `specdash status` takes, interpreter start included: with a note of a program that watches, by asking a
server that nobody watches, and when the server is away. `specdash --version` and a bare interpreter beside it.

    python benchmarks/status_start.py [--runs N]

The server is a socket that answers at once: what llama-server itself takes is at most the 0.1 s that it is given.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from specdash.core import paths  # noqa: E402
from specdash.core.status import STATUS_FIELDS, StatusNote  # noqa: E402
from support.fault_server import FaultServer, says  # noqa: E402


def main() -> None:
    """Print median and worst of each, in milliseconds, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    routes = {
        "/health": says(200, '{"status":"ok"}'),
        "/props": says(200, '{"model_path":"/m.gguf","total_slots":4}'),
        "/metrics": says(200, "llamacpp:tokens_predicted_total 1000\n"),
    }
    program = str(Path(sys.executable).with_name("specdash"))
    with tempfile.TemporaryDirectory() as home, FaultServer(routes) as server:
        env = {"HOME": home, "PATH": os.environ["PATH"]}
        watched = "http://127.0.0.1:1"
        commands = {
            "a bare interpreter": (sys.executable, "-c", "pass"),
            "specdash --version": (program, "--version"),
            "status, somebody watches": (program, "status", "--url", watched),
            "status, nobody watches": (program, "status", "--url", server.url),
            "status, the server is away": (program, "status", "--url", "http://127.0.0.1:2"),
        }
        figures = {}
        for name, command in commands.items():
            leave_note(env, watched)
            seconds = [timed(command, env) for _ in range(runs)]
            figures[name] = {"median_ms": statistics.median(seconds) * 1000, "worst_ms": max(seconds) * 1000}
    json.dump(figures, sys.stdout, indent=1)
    print()


def leave_note(env: dict[str, str], url: str) -> None:
    """As a dashboard does."""
    fields = {**dict.fromkeys(STATUS_FIELDS, "--"), "state": "live", "url": url}
    directory = paths.status_notes_dir(env)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "note.json").write_text(StatusNote(url, time.time(), os.getpid(), fields).to_json(), encoding="utf-8")


def timed(command: tuple[str, ...], env: dict[str, str]) -> float:
    """Wall time of a run."""
    began = time.perf_counter()
    subprocess.run(command, env=env, capture_output=True, check=False)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
