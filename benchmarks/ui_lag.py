"""Event-loop lag of the dashboard while the log gains 5,000 lines a second: a heartbeat every 10 ms says how late it
is.

`python benchmarks/ui_lag.py [SECONDS] [LINES_PER_SECOND]` runs the dashboard in tmux at 120x36 and prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.log_soak import pour  # noqa: E402
from benchmarks.tmux import pane  # noqa: E402

BEAT_S = 0.01


def inner(seconds: float, log: Path, out: Path) -> None:
    """Run the whole program on the log and write the lags, in milliseconds."""
    from specdash.cli.watch import Collecting
    from specdash.core.config import resolve
    from specdash.core.target import Target
    from specdash.tui.app import Dashboard

    lags: list[float] = []

    async def beat(app: Dashboard) -> None:
        await asyncio.sleep(3.0)
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(BEAT_S)
            lags.append((time.perf_counter() - now - BEAT_S) * 1000)
        app.exit()

    class Measured(Dashboard):
        def on_mount(self) -> None:
            super().on_mount()
            self.run_worker(beat(self))

    collecting = Collecting(Target("http://127.0.0.1:9", log=str(log)), None, resolve({}, {}, None))
    Measured(collecting, on_ready=collecting.start).run()
    collecting.stop()
    out.write_text(json.dumps(lags), encoding="utf-8")


def main() -> None:
    """Measure and print."""
    numbers = [float(argument) for argument in sys.argv[1:]]
    seconds, rate = numbers[0] if numbers else 20.0, numbers[1] if len(numbers) > 1 else 5000.0
    with tempfile.TemporaryDirectory() as folder:
        out, log, stop = Path(folder) / "lags.json", Path(folder) / "server.log", threading.Event()
        log.touch()
        writer = threading.Thread(target=pour, args=(log, rate, stop), daemon=True)
        writer.start()
        command = [sys.executable, str(Path(__file__).resolve()), "--inner", str(seconds), str(log), str(out)]
        with pane(command) as running:
            running.wait_for("Acceptance")
            running.cpu_percent(3.0)
            cpu, rss = running.cpu_percent(seconds - 2), running.rss_mb()
            deadline = time.perf_counter() + 30
            while not out.exists() and time.perf_counter() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
        stop.set()
        writer.join()
        lags = sorted(json.loads(out.read_text(encoding="utf-8")))
    lag = {f"p{p}": round(lags[min(int(len(lags) * p / 100), len(lags) - 1)], 1) for p in (50, 95, 99)}
    found = {"lines_per_second": rate, "beats": len(lags), "lag_ms": {**lag, "max": round(lags[-1], 1)}}
    print(json.dumps({**found, "cpu_percent": round(cpu, 1), "rss_mb": round(rss, 1)}, indent=1))


if __name__ == "__main__":
    if "--inner" in sys.argv:
        inner(float(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
