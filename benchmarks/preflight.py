"""Time of one preflight check with everything in memory, and of the first one, on a model with a large vocabulary.

The port is held by the service's own process, as it is while somebody types in the dashboard.

    python benchmarks/preflight.py [--tokens 150000] [--rounds 200]

The dashboard checks at every keystroke: a warm check should take less than 30 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from specdash.control.preflight import PreflightContext, check
from specdash.core.changes import Role
from support.tiny_models import TOKENS, write_variant


def main() -> None:
    """Print the figures as JSON, in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=150_000, help="size of the vocabulary")
    parser.add_argument("--rounds", type=int, default=200, help="warm checks")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_measure(Path(folder), args.tokens, args.rounds), indent=1))


def _measure(folder: Path, tokens: int, rounds: int) -> dict[str, object]:
    texts = [*TOKENS, *(f"▁word{number}" for number in range(tokens - len(TOKENS)))]
    model = write_variant(folder / "model.gguf", tokens=texts, width=32, heads=1)
    draft = write_variant(folder / "draft.gguf", tokens=[*texts[:-1], "▁other"], width=32, heads=1)
    held = socket.create_server(("127.0.0.1", 0))
    context = PreflightContext(
        folder / "backend.env",
        frozenset({"LLAMA_DRAFT_MAX"}),
        own_pids=frozenset({os.getpid()}),
        probe_engine=False,
    )
    values = {
        "LLAMA_MODEL": str(model),
        "LLAMA_DRAFT_MODEL": str(draft),
        "LLAMA_SPEC_TYPE": "draft-simple,ngram-mod",
        "LLAMA_PORT": str(held.getsockname()[1]),
    }
    found: dict[str, object] = {"tokens": tokens}
    times = []
    for number in range(rounds + 1):
        begin = time.perf_counter()
        check(Role.BACKEND, {**values, "LLAMA_DRAFT_MAX": str(1 + number % 16)}, context)
        times.append((time.perf_counter() - begin) * 1000)
    found["backend"] = _figures(times)
    proxy = {"PROXY_PORT": "14000", "PROXY_LOOP_WINDOW": "8"}
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        check(Role.PROXY, proxy, context)
        times.append((time.perf_counter() - begin) * 1000)
    found["proxy"] = _figures(times)
    held.close()
    return found


def _figures(times: list[float]) -> dict[str, float]:
    warm = sorted(times[1:])
    return {
        "first": round(times[0], 2),
        "median": round(statistics.median(warm), 2),
        "p99": round(warm[int(len(warm) * 0.99) - 1], 2),
    }


if __name__ == "__main__":
    main()
