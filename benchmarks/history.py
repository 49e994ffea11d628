"""What the record weighs, what it costs to write, and how quickly a week of it is opened and searched.

    python benchmarks/history.py [--seconds N] [--days N] [--readings FILE]

1. A real demo (llama.cpp, its proxy, agents and chat traffic, `LLAMA_TRACE=1`) is recorded for N seconds, as the
   dashboard does: bytes a day, and CPU time of the recorder's thread.
2. An hour made of those readings goes through the writer second by second: bytes a day with tiers and pages.
3. A record of N days is made of those blocks, each at its own time, then opened and searched by fresh processes.

Prints JSON. `--readings` keeps what was seen in a file, or takes it from there.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.backend import demo as demo_models
from specdash.cli import demo
from specdash.collect.hub import Hub
from specdash.control.keeper import Keeper
from specdash.core.records import EventKind, TimelineEvent
from specdash.core.sources import SOURCES, encode
from specdash.history import block
from specdash.history.recorder import Recorder
from specdash.history.store import Store, file_bytes, target_name
from specdash.history.writer import BLOCK_S, Batch, Bounds, Writer, to_keep
from specdash.insight.state import TargetState

if TYPE_CHECKING:
    from specdash.core.readings import Reading
    from specdash.core.target import Target

DAY_S = 86400.0
START = 1_790_000_000.0
UNBOUNDED = Bounds(3650.0, 10**12)
SEEKS = 12

SEEK = """
import json, random, sys, time
from pathlib import Path
started = time.perf_counter()
from specdash.history.store import Store
from specdash.history.replay import ReplaySession
from specdash.core.target import Target
imported = time.perf_counter()
session = ReplaySession(Store(Path(sys.argv[1])), Target(sys.argv[2]))
shown = time.perf_counter()
first, last = session.span
random.seed(int(sys.argv[3]))
took, cpu = [], []
for _ in range(4):
    wall = random.uniform(first + 3600, last)
    before, spent = time.perf_counter(), time.process_time()
    session.seek(wall)
    session.picture()
    took.append(1000 * (time.perf_counter() - before))
    cpu.append(1000 * (time.process_time() - spent))
print(json.dumps({"import_ms": [1000 * (imported - started)], "open_and_first_picture_ms": [1000 * (shown - imported)],
    "seek_ms": took, "seek_cpu_ms": cpu}))
"""


@dataclass(slots=True)
class Seen:
    """What a recorder gets: readings with their Unix time, points likewise."""

    target: Target
    readings: list[Reading[Any]] = field(default_factory=list)
    points: list[tuple[float, str, float]] = field(default_factory=list)


def record_demo(seconds: float) -> tuple[Seen, dict[str, Any]]:
    """Record a demo at work."""
    with demo.private_directory() as directory, Keeper() as keeper:
        target = demo.start_backend(keeper, directory, (demo_models.DRAFT_TYPE,), "auto")
        target = demo.start_proxy(keeper, directory, target)
        demo.start_traffic(keeper, target, None)
        seen = Seen(target)
        env = demo.demo_environment(directory)
        recorder = Recorder(target, env=env)
        offset = time.time() - time.monotonic()
        keep = recorder.on_point

        def on_point(metric: Any, at: float, value: float | None) -> None:
            if value is not None:
                seen.points.append((at + offset, metric.value, value))
            keep(metric, at, value)

        recorder.on_point = on_point  # type: ignore[method-assign]
        state = TargetState(target, observer=recorder)

        def sink(reading: Reading[Any]) -> None:
            seen.readings.append(replace(reading, at=reading.at + offset))

        recorder.start()
        with Hub(target, [state.apply, recorder.on_reading, sink], env=env):
            time.sleep(10.0)
            cpu, began = _cpu_s(recorder), time.monotonic()
            time.sleep(seconds)
            elapsed = time.monotonic() - began
            cpu = _cpu_s(recorder) - cpu
        recorder.close()
        with Store(recorder.path) as store:
            (stats,) = store.stats().targets
        assert stats.first is not None
        assert stats.last is not None
        span = stats.last - stats.first
        return seen, {
            "seconds": round(elapsed, 1),
            "recorder_thread_percent_of_a_core": round(100 * cpu / elapsed, 3),
            "readings_per_s": round(stats.readings / span, 1),
            "block_mb_per_day": round(stats.block_bytes / span * DAY_S / 1e6, 2),
            "lost": recorder.lost,
        }


def _cpu_s(recorder: Recorder) -> float:
    path = Path(f"/proc/self/task/{recorder._thread.native_id}/schedstat")  # noqa: SLF001 - a benchmark may look
    return int(path.read_text().split()[0]) / 1e9


def write_hour(seen: Seen, path: Path) -> dict[str, Any]:
    """An hour through the writer, second by second, of the readings that were seen, over and over."""
    seconds = _by_second(seen)
    writer = Writer(path, target_name(seen.target), UNBOUNDED)
    writer.begin(TimelineEvent(START, EventKind.RECORDER, "recording began", ref="began"), set())
    cpu = time.process_time()
    for number in range(3600):
        readings, points = seconds[number % len(seconds)]
        at = START + number
        shift = at - int(readings[0].at) if readings else 0.0
        kept = [to_keep(replace(reading, at=reading.at + shift)) for reading in readings]
        writer.write(
            Batch(
                sorted(kept, key=lambda reading: reading.at),
                [(when + shift, name, value) for when, name, value in points],
            )
        )
    cpu = time.process_time() - cpu
    writer.end(TimelineEvent(START + 3600, EventKind.RECORDER, "recording ended", ref="ended"))
    writer.close()
    with Store(path) as store:
        (stats,) = store.stats().targets
    connection = sqlite3.connect(path)
    connection.execute("VACUUM")
    connection.close()
    return {
        "file_mb_per_day": round(file_bytes(path) * 24 / 1e6, 2),
        "blocks_mb_per_day": round(stats.block_bytes * 24 / 1e6, 2),
        "tiers_mb_per_day": round(sum(stats.tier_bytes.values()) * 24 / 1e6, 2),
        "cpu_percent_of_a_core_at_1_hz": round(100 * cpu / 3600, 3),
    }


def _by_second(seen: Seen) -> list[tuple[list[Reading[Any]], list[tuple[float, str, float]]]]:
    first = int(seen.readings[0].at) + 10
    last = int(seen.readings[-1].at)
    found: list[tuple[list[Reading[Any]], list[tuple[float, str, float]]]] = [([], []) for _ in range(last - first)]
    for reading in seen.readings:
        if first <= reading.at < last:
            found[int(reading.at) - first][0].append(reading)
    for point in seen.points:
        if first <= point[0] < last:
            found[int(point[0]) - first][1].append(point)
    return found


def write_days(seen: Seen, path: Path, days: int) -> dict[str, Any]:
    """A record of so many days: the blocks that were seen, each with its own time in it."""
    seconds = _by_second(seen)
    blocks = []
    for start in range(0, len(seconds) - int(BLOCK_S) + 1, int(BLOCK_S)):
        readings = [reading for second, _ in seconds[start : start + int(BLOCK_S)] for reading in second]
        kept = [reading for reading in map(to_keep, readings) if not SOURCES[reading.source].is_still]
        blocks.append((kept[0].at, kept[-1].at, [encode(reading) for reading in kept]))
    writer = Writer(path, target_name(seen.target), UNBOUNDED)
    writer.begin(TimelineEvent(START, EventKind.RECORDER, "recording began", ref="began"), set())
    connection = writer._connection  # noqa: SLF001 - seven days second by second would take an hour
    points = [point for _, own in seconds for point in own]
    span = len(seconds)
    with writer._transaction():  # noqa: SLF001
        for number in range(int(days * DAY_S / BLOCK_S)):
            first, last, rows = blocks[number % len(blocks)]
            shift = START + number * BLOCK_S - int(first)
            moved = [{**row, "at": round(row["at"] + shift, 4)} for row in rows]
            connection.execute(
                "INSERT INTO blocks (target, era, first, last, readings, data) VALUES (1, 1, ?, ?, ?, ?)",
                (first + shift, last + shift, len(rows), block.pack({"carried": [], "readings": moved})),
            )
        for number in range(0, int(days * DAY_S), span):
            shift = START + number - int(seen.readings[0].at)
            if number % (span * 40) == 0:
                writer._store_cells([(at + shift, name, value) for at, name, value in points])  # noqa: SLF001
    writer.close()
    return {"days": days, "file_mb": round(file_bytes(path) / 1e6, 1)}


def search(path: Path, target: str) -> dict[str, Any]:
    """Fresh processes that open the record and seek in it."""
    runs = []
    for number in range(SEEKS):
        done = subprocess.run(
            [sys.executable, "-c", SEEK, str(path), target, str(number)],
            capture_output=True, text=True, check=True, timeout=120, env=os.environ,
        )  # fmt: skip
        runs.append(json.loads(done.stdout))
    found = {name: [entry for run in runs for entry in run[name]] for name in runs[0]}
    return {
        name: {"median": round(statistics.median(values), 1), "worst": round(max(values), 1)}
        for name, values in found.items()
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--readings", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.readings is not None and args.readings.exists():
        seen = pickle.loads(args.readings.read_bytes())  # noqa: S301 - our own file
    else:
        seen, found["recorded demo"] = record_demo(args.seconds)
        if args.readings is not None:
            args.readings.write_bytes(pickle.dumps(seen))
    with tempfile.TemporaryDirectory() as directory:
        found["an hour, second by second"] = write_hour(seen, Path(directory) / "hour.db")
        path = Path(directory) / "week.db"
        found["a long record"] = write_days(seen, path, args.days)
        found["search"] = search(path, target_name(seen.target))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
