"""What the dashboard, recording, holds after so many lines of a traced log: RSS and CPU over time, in tmux at 120x36.

    python benchmarks/log_soak.py [MINUTES] [LINES_PER_SECOND]

The lines are those of a real server with every step traced, time stamps and task numbers going on, and a find_slot
storm between them. At 5,000 lines a second, 20 minutes are what a busy server writes in a day. Prints a line of JSON
for each twentieth; 2 minutes by default.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.tmux import pane  # noqa: E402
from support.fault_server import FaultServer, says  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = HERE.parent / "tests" / "data" / "logs" / "live_slowmamba_draft75.log"
SERVER = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, '{"total_slots":1}'),
    "/metrics": says(200, "llamacpp:n_decode_total 5\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"),
    "/slots": says(200, '[{"id":0,"is_processing":true,"id_task":1}]'),
}
_STAMP = re.compile(r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3})")
_TASK = re.compile(r"(task |id_task = )(\d+)")
STORM_EVERY = 10
"""So many lines of the log for one of the storm."""


def lines() -> Iterator[str]:
    """The log again and again, as one server that goes on would write it."""
    text = LOG.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(number for number, line in enumerate(text) if _TASK.search(line))
    text = [line for line in text[first:] if _STAMP.match(line)]
    micros = [_micros(line) for line in text]
    tasks = max(int(number) for line in text for _, number in _TASK.findall(line)) + 1
    span, turn = micros[-1] - micros[0] + 1000, 0
    while True:
        for number, line in enumerate(text):
            at, task = micros[number] + turn * span, turn * tasks
            stamp = f"{at // 60_000_000}.{at // 1_000_000 % 60:02d}.{at // 1000 % 1000:03d}.{at % 1000:03d}"
            yield stamp + _TASK.sub(lambda known: f"{known[1]}{int(known[2]) + task}", line[_STAMP.match(line).end() :])  # type: ignore[union-attr]  # noqa: B023
            if number % STORM_EVERY == 0:
                yield (
                    f"{stamp} W find_slot: non-consecutive token position {number} after {number - 1} for sequence 0 "
                    f"with {number % 500} new tokens\n"
                )
        turn += 1


def _micros(line: str) -> int:
    found = _STAMP.match(line)
    assert found is not None  # lines without were left out
    minutes, seconds, millis, micros = map(int, found.groups())
    return ((minutes * 60 + seconds) * 1000 + millis) * 1000 + micros


def pour(path: Path, lines_per_second: float, stop: threading.Event) -> None:
    """Append to the log until told to stop."""
    source, start, written = lines(), time.monotonic(), 0
    with path.open("ab", buffering=0) as log:
        while not stop.wait(0.05):
            due = int((time.monotonic() - start) * lines_per_second) - written
            log.write("".join(next(source) for _ in range(due)).encode())
            written += due


def main() -> None:
    """Measure and print."""
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
                told = {
                    "minutes": round(number * minutes / 20, 2),
                    "rss_mb": round(running.rss_mb(), 1),
                    "cpu_percent": round(cpu, 1),
                    "log_mb": round(log.stat().st_size / 1e6),
                    "load": round(os.getloadavg()[0], 1),
                }
                print(json.dumps(told), flush=True)
            stop.set()
            writer.join()


if __name__ == "__main__":
    main()
