"""What a dashboard holds and costs over hours, in accelerated time: state, rules, pictures and recorder, no screen.

    python benchmarks/dashboard_soak.py [--hours N] [--sessions N] [--requests N] [--top N]

A busy server and its proxy are made up second by second (tests/support/busy_proxy.py), so that an hour takes minutes.
Prints a line of JSON for each tenth of it: memory, and CPU time as a share of a core at 1 Hz; with `--top` also which
lines of code hold most. What the screen itself costs is measured by `benchmarks/live.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from specdash.core.target import Target  # noqa: E402
from specdash.history.recorder import Recorder  # noqa: E402
from specdash.insight.charts import Metric  # noqa: E402
from specdash.insight.state import TargetState  # noqa: E402
from support.busy_proxy import BusyServer  # noqa: E402

TARGET = Target("http://127.0.0.1:8080", proxy_url="http://127.0.0.1:4000")
COLUMNS = 60


def rss_mb() -> float:
    """Resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def soak(server: BusyServer, hours: float, directory: Path, *, top: int) -> None:
    """Run it, and print."""
    wall, mono = [server.wall], [server.at]
    env = {"XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "HOME": str(directory)}
    recorder = Recorder(TARGET, env=env, clock=lambda: mono[0], wall=lambda: wall[0])
    state = TargetState(TARGET, observer=recorder, wall_offset=lambda: wall[0] - mono[0])
    seconds = round(hours * 3600)
    spent: dict[str, float] = dict.fromkeys(("state and rules", "recorder", "picture", "charts"), 0.0)
    for number, readings in enumerate(server.seconds(seconds), 1):
        marks = [time.process_time()]
        for reading in readings:
            state.apply(reading)
        marks.append(time.process_time())
        for reading in readings:
            recorder.on_reading(reading)
        recorder._guarded(recorder._work)  # noqa: SLF001 - its thread keeps the time of the machine
        marks.append(time.process_time())
        state.picture(server.at + 1, server.wall + 1, 300.0)
        marks.append(time.process_time())
        for metric in Metric:
            state.columns(metric, server.at + 1, 300.0, COLUMNS)
        marks.append(time.process_time())
        for name, begin, end in zip(spent, marks, marks[1:], strict=False):
            spent[name] += end - begin
        wall[0], mono[0] = server.wall + 1, server.at + 1
        if number % max(1, seconds // 10) == 0:
            told = {name: round(100 * value / (seconds // 10), 2) for name, value in spent.items()}
            print(
                json.dumps(
                    {
                        "hours": round(number / 3600, 2),
                        "rss_mb": round(rss_mb(), 1),
                        "percent_of_a_core": told,
                        "trouble": recorder.trouble,
                    }
                ),
                flush=True,
            )
            spent = dict.fromkeys(spent, 0.0)
    if top:
        for line in tracemalloc.take_snapshot().statistics("lineno")[:top]:
            print(f"{line.size / 1e6:7.2f} MB {line.count:8d}  {line.traceback}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--requests", type=int, default=5, help="that end in a second")
    parser.add_argument("--top", type=int, default=0, help="lines of code that hold most (slower)")
    args = parser.parse_args()
    if args.top:
        tracemalloc.start()
    os.nice(5)
    with tempfile.TemporaryDirectory() as directory:
        soak(BusyServer(args.sessions, args.requests), args.hours, Path(directory), top=args.top)


if __name__ == "__main__":
    main()
