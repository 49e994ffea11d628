"""Speed and memory of `specdash parse-log`, on a storm and on ordinary logs, beside what one would use instead.

    python benchmarks/parse_log.py [--lines N]

Every row is a process of its own, interpreter start included: wall and CPU seconds, lines per second of wall time, and
the peak of its memory (never below this program's own, about 17 MiB). The peer is a plain Python loop with one compiled
regex per kind of line, as a script for the purpose would be written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGS = Path(__file__).parents[1] / "tests" / "data" / "logs"
STORM_LINES = 1_200_000
JOURNAL = b"May 22 01:30:52 corrm-pc start_llama_server.sh[37450]: "

PLAIN_LOOP = r"""
import re, sys
from collections import Counter
kinds = {
    "find_slot": re.compile(r"find_slot: non-consecutive token position (\d+) after (\d+) for sequence (\d+)"),
    "prompt": re.compile(r"prompt eval time =\s*([\d.]+) ms /\s*(\d+) tokens"),
    "decode": re.compile(r"\beval time =\s*([\d.]+) ms /\s*(\d+) tokens"),
    "acceptance": re.compile(r"draft acceptance(?: rate)? =\s*([\d.]+) \(\s*(\d+) accepted /\s*(\d+) generated\)"),
    "step": re.compile(r"accepted\s+(\d+)/\s*(\d+) draft tokens"),
    "released": re.compile(r"id\s+(\d+) \| task (-?\d+) \| stop processing"),
    "checkpoint": re.compile(r"(created|restored|erased|erasing).* context checkpoint"),
}
counts = Counter()
with open(sys.argv[1], errors="replace") as log:
    for line in log:
        for kind, pattern in kinds.items():
            if pattern.search(line):
                counts[kind] += 1
                break
print(dict(counts))
"""


def storm(lines: int) -> Iterator[bytes]:
    """Lines such as one incident printed by the million."""
    line = JOURNAL + b"%d.%02d.%03d.%03d W find_slot: non-consecutive token position %d after %d"
    line += b" for sequence 0 with %d new tokens\n"
    for i in range(lines):
        clock = (i // 60_000, i // 1000 % 60, i % 1000, i * 7 % 1000)
        yield line % (*clock, i * 31 % 90_000, i * 17 % 90_000, i % 512)


def repeated(names: list[str], lines: int) -> Iterator[bytes]:
    """Real logs, one after the other, again and again."""
    texts = [(LOGS / f"{name}.log").read_bytes().rstrip(b"\n") + b"\n" for name in names]
    written = 0
    while written < lines:
        for text in texts:
            yield text
            written += text.count(b"\n")


ORDINARY = {
    "all real logs": sorted(path.stem for path in LOGS.glob("*.log")),
    "verbosity 3, requests only": ["http_misc"],
    "verbosity 4": ["llama_draft75_lv4", "mamba_draft75_lv4", "qwen35_mtp_np2_lv4"],
    "every step traced": ["live_slowmamba_draft75"],
    "JSON lines": ["jsonl_draft75_lv4"],
}


def write(path: Path, parts: Iterator[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(parts)
    return path


def measured(log: Path, name: str, tool: str, command: list[str]) -> dict[str, Any]:
    """Run the command to its end."""
    with log.open("rb") as file:
        lines = sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))
    start = time.perf_counter()
    output = (os.POSIX_SPAWN_OPEN, 1, f"{log}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    child = os.posix_spawn(command[0], command, os.environ, file_actions=[output])
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{tool} failed on {name}")
    size = log.stat().st_size / 1e6
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "log": name, "tool": tool, "lines": lines, "megabytes": round(size, 1), "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2), "lines_per_second": round(lines / wall), "peak_mib": round(usage.ru_maxrss / 1024, 1),
    }  # fmt: skip


def measure(folder: Path, lines: int) -> Iterator[dict[str, Any]]:
    """All rows."""
    logs = [("find_slot storm", write(folder / "storm.log", storm(STORM_LINES)))]
    for name, parts in ORDINARY.items():
        logs.append((name, write(folder / f"{name.replace(' ', '_')}.log", repeated(parts, lines))))
    loop = write(folder / "plain_loop.py", iter([PLAIN_LOOP.encode()]))
    for name, log in logs:
        yield measured(log, name, "specdash parse-log", [sys.executable, "-m", "specdash", "parse-log", str(log)])
        yield measured(log, name, "plain Python loop", [sys.executable, str(loop), str(log)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=500_000, help="lines of each ordinary log (default 500000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(list(measure(Path(folder), args.lines)), indent=1))


if __name__ == "__main__":
    main()
