"""How long it takes to open a record and to see a moment of it, in fresh processes.

    python benchmarks/replay_seek.py [--record FILE] [--days N] [--seconds N] [--moments N]

Without `--record`, a real demo is recorded for N seconds and made into a record of N days (`benchmarks/history.py`).
Measured per moment: opening the record and the first picture of it; a seek to another moment, a step of 10 s, going
deeper (in the background in the dashboard), and the bare start of Python with the imports. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHILD = """
import json, sys, time
began = time.perf_counter()
from pathlib import Path
from specdash.history.replay import open_session
from specdash.export.snapshot import to_json
from specdash.insight.rules.catalogue import shipped
imported = time.perf_counter()
at, other = float(sys.argv[2]), float(sys.argv[3])
session = open_session(Path(sys.argv[1]), None, at=at)
to_json(session.picture(window_s=300.0))
opened = time.perf_counter()
session.seek(other)
to_json(session.picture(window_s=300.0))
sought = time.perf_counter()
session.step(10.0)
stepped = time.perf_counter()
session.deepen()
deep = time.perf_counter()
print(json.dumps({"imports": imported - began, "open": opened - imported, "seek": sought - opened,
    "step": stepped - sought, "deepen": deep - stepped}))
"""


def moments(path: Path, count: int) -> list[tuple[float, float]]:
    """Pairs of moments in the record, anywhere in it."""
    from specdash.history.store import Store

    with Store(path) as store:
        span = store.span(store.targets()[0])
    assert span is not None
    drawn = random.Random(5)
    return [(drawn.uniform(*span), drawn.uniform(*span)) for _ in range(count)]


def measure(path: Path, count: int) -> dict[str, Any]:
    """Milliseconds: median and worst of each part."""
    found: dict[str, list[float]] = {}
    for pair in moments(path, count):
        command = [sys.executable, "-c", CHILD, str(path), *map(repr, pair)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        for name, seconds in json.loads(done.stdout).items():
            found.setdefault(name, []).append(1000.0 * seconds)
    return {
        name: {"median_ms": round(statistics.median(values), 1), "worst_ms": round(max(values), 1)}
        for name, values in found.items()
    }


def main() -> None:
    """Make the record if need be, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="a record that there is")
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--moments", type=int, default=12)
    args = parser.parse_args()
    if args.record is not None:
        print(json.dumps(measure(args.record, args.moments), indent=1))
        return
    from benchmarks.history import record_demo, write_days

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.db"
        seen, _ = record_demo(args.seconds)
        write_days(seen, path, args.days)
        print(json.dumps({"days": args.days, **measure(path, args.moments)}, indent=1))


if __name__ == "__main__":
    main()
