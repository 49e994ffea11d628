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
from collections import deque
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.tmux import pane  # noqa: E402

from tui.fake_state import LOG_LINES, FakeState  # noqa: E402

BEAT_S = 0.01


class StormState(FakeState):
    """A state whose log a thread fills."""

    def __init__(self, lines_per_second: float) -> None:
        super().__init__("storm", moving=True)
        self._recent: deque[str] = deque(maxlen=10_000)
        self._newest = 0
        self._lock = threading.Lock()
        self._rate = lines_per_second
        threading.Thread(target=self._produce, daemon=True).start()

    def _produce(self) -> None:
        start = time.monotonic()
        while True:
            time.sleep(0.02)
            due = int((time.monotonic() - start) * self._rate) - self._newest
            batch = [f"{LOG_LINES[(self._newest + i) % len(LOG_LINES)]} #{self._newest + i}" for i in range(due)]
            with self._lock:
                self._recent.extend(batch)
                self._newest += due

    def log_lines(self, after: int = 0, limit: int = 1000) -> tuple[int, tuple[str, ...]]:
        """The last lines."""
        with self._lock:
            wanted = min(self._newest - after, limit, len(self._recent))
            return self._newest, tuple(self._recent)[-wanted:] if wanted > 0 else ()


def inner(seconds: float, rate: float, out: Path) -> None:
    """Run the dashboard and write the lags, in milliseconds."""
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
        def on_ready(self) -> None:
            self.run_worker(beat(self))

    Measured(StormState(rate)).run()
    out.write_text(json.dumps(lags), encoding="utf-8")


def main() -> None:
    """Measure and print."""
    numbers = [float(argument) for argument in sys.argv[1:]]
    seconds, rate = numbers[0] if numbers else 20.0, numbers[1] if len(numbers) > 1 else 5000.0
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lags.json"
        with pane(
            [sys.executable, str(Path(__file__).resolve()), "--inner", str(seconds), str(rate), str(out)]
        ) as running:
            running.wait_for("Acceptance")
            running.cpu_percent(3.0)
            cpu, rss = running.cpu_percent(seconds - 2), running.rss_mb()
            deadline = time.perf_counter() + 30
            while not out.exists() and time.perf_counter() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
        lags = sorted(json.loads(out.read_text(encoding="utf-8")))
    at = {f"p{p}": round(lags[min(int(len(lags) * p / 100), len(lags) - 1)], 1) for p in (50, 95, 99)}
    print(
        json.dumps(
            {
                "lines_per_second": rate,
                "beats": len(lags),
                "lag_ms": {**at, "max": round(lags[-1], 1)},
                "cpu_percent": round(cpu, 1),
                "rss_mb": round(rss, 1),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    if "--inner" in sys.argv:
        inner(float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
