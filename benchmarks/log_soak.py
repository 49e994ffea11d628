"""What the dashboard, recording, holds after so many lines of a traced log: RSS and CPU over time, in tmux at 120x36.

    python benchmarks/log_soak.py [MINUTES] [LINES_PER_SECOND]
    python benchmarks/log_soak.py --hours HOURS [LINES_PER_SECOND]

With `--hours` nothing waits and there is no screen: tail, parser, state with its rules, and recorder are given
simulated hours as quickly as they take them, in this process, at so much CPU time a simulated second.

The lines are those of a real server with every step traced, time stamps and task numbers going on, and a find_slot
storm between them. At 5,000 lines a second, 20 minutes are what a busy server writes in a day. Prints a line of JSON
for each twentieth; 2 minutes by default.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.tmux import pane  # noqa: E402
from specdash.collect.logs import PERIOD_S, LogCollector  # noqa: E402
from specdash.core.target import Target  # noqa: E402
from specdash.history.recorder import Recorder  # noqa: E402
from specdash.insight.state import TargetState  # noqa: E402
from support.fault_server import FaultServer, says  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.core.readings import Reading

LOG = HERE.parent / "tests" / "data" / "logs" / "live_slowmamba_draft75.log"
SERVER = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, '{"total_slots":1}'),
    "/metrics": says(200, "llamacpp:n_decode_total 5\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"),
    "/slots": says(200, '[{"id":0,"is_processing":true,"id_task":1}]'),
}
_STAMP = re.compile(r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3})")
_TASK = re.compile(r"(?<=task |sk = )(\d+)")  # what a look-behind may find is of one width
START = 1_790_000_000.0
TARGET = Target("http://127.0.0.1:8080", proxy_url="http://127.0.0.1:4000")
LOOKS_PER_SECOND = round(1 / PERIOD_S)
STORM_EVERY = 10
"""So many lines of the log for one of the storm."""


def lines() -> Iterator[str]:
    """The log again and again, as one server that goes on would write it."""
    found = [(_STAMP.match(line), line) for line in LOG.read_text(encoding="utf-8").splitlines(keepends=True)]
    text = [(stamp, line) for stamp, line in found if stamp]
    first = next(number for number, (_, line) in enumerate(text) if _TASK.search(line))
    parts = []
    for stamp, line in text[first:]:
        minutes, seconds, millis, micros = map(int, stamp.groups())
        # Between the numbers of tasks, every other part: a substitution in each of millions of lines is slow.
        parts.append((((minutes * 60 + seconds) * 1000 + millis) * 1000 + micros, _TASK.split(line[stamp.end() :])))
    tasks = max(int(number) for _, line in parts for number in line[1::2]) + 1
    span, turn = parts[-1][0] - parts[0][0] + 1000, 0
    while True:
        for number, (micros, pieces) in enumerate(parts):
            at = micros + turn * span
            stamp_text = f"{at // 60_000_000}.{at // 1_000_000 % 60:02d}.{at // 1000 % 1000:03d}.{at % 1000:03d}"
            own = [str(int(part) + turn * tasks) if place % 2 else part for place, part in enumerate(pieces)]
            yield stamp_text + "".join(own)
            if number % STORM_EVERY == 0:
                storm = f"non-consecutive token position {number} after {number - 1} for sequence 0 with {number % 500}"
                yield f"{stamp_text} W find_slot: {storm} new tokens\n"
        turn += 1


def pour(path: Path, lines_per_second: float, stop: threading.Event) -> None:
    """Append to the log until told to stop."""
    source, start, written = lines(), time.monotonic(), 0
    with path.open("ab", buffering=0) as log:
        while not stop.wait(0.05):
            due = int((time.monotonic() - start) * lines_per_second) - written
            log.write("".join(next(source) for _ in range(due)).encode())
            written += due


def accelerated(hours: float, lines_per_second: float, folder: Path) -> None:
    """Run it, and print what it holds and costs for each twentieth."""
    now, log_file, source = [0.0], folder / "server.log", lines()
    log_file.touch()
    env = {"XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
    recorder = Recorder(TARGET, env=env, clock=lambda: now[0], wall=lambda: START + now[0])
    state = TargetState(TARGET, observer=recorder, wall_offset=lambda: START)
    read: list[Reading[Any]] = []
    collector = LogCollector(str(log_file), read.append, clock=lambda: now[0], wall=lambda: START + now[0])
    part, spent = max(1, round(hours * 3600) // 20), 0.0
    with log_file.open("ab", buffering=0) as log:
        for second in range(1, round(hours * 3600) + 1):
            for _ in range(LOOKS_PER_SECOND):
                log.write("".join(islice(source, round(lines_per_second / LOOKS_PER_SECOND))).encode())
                now[0] += 1 / LOOKS_PER_SECOND
                begin = time.process_time()
                collector.step()
                for reading in read:
                    state.apply(reading)
                    recorder.on_reading(reading)
                read.clear()
                spent += time.process_time() - begin
            begin = time.process_time()
            recorder._guarded(recorder._work)  # noqa: SLF001 - its thread keeps the time of the machine
            spent += time.process_time() - begin
            if second % part == 0:
                record = sum(path.stat().st_size for path in folder.rglob("history*")) / 1e6
                memory = psutil.Process().memory_info().rss / 2**20
                figures = {"hours": second / 3600, "rss_mb": memory, "ms_of_cpu_a_second": 1000 * spent / part}
                rounded = {name: round(value, 2) for name, value in {**figures, "record_mb": record}.items()}
                print(json.dumps({**rounded, "trouble": recorder.trouble}), flush=True)
                spent = 0.0
    collector.close()


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--hours"]:
        with tempfile.TemporaryDirectory() as folder:
            accelerated(float(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 5000.0, Path(folder))
        return
    numbers = [float(argument) for argument in sys.argv[1:]]
    minutes, rate = numbers[0] if numbers else 2.0, numbers[1] if len(numbers) > 1 else 5000.0
    with tempfile.TemporaryDirectory() as folder, FaultServer(SERVER) as server:
        log, stop = Path(folder) / "server.log", threading.Event()
        log.touch()
        writer = threading.Thread(target=pour, args=(log, rate, stop), daemon=True)
        command = ["env", f"HOME={folder}", f"XDG_STATE_HOME={folder}/state", sys.executable, "-m", "specdash"]
        with pane([*command, "--url", server.url, "--log", str(log)]) as running:
            running.wait_for("LIVE")
            writer.start()
            for number in range(1, 21):
                cpu = running.cpu_percent(minutes * 3)
                size = {"rss_mb": round(running.rss_mb(), 1), "log_mb": round(log.stat().st_size / 1e6)}
                print(json.dumps({"minutes": round(number * minutes / 20, 2), **size, "cpu_percent": round(cpu, 1)}))
            stop.set()
            writer.join()


if __name__ == "__main__":
    main()
