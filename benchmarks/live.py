"""The whole program against a real llama.cpp server: first paint, CPU and memory in tmux at 120x36, commands.

`python benchmarks/live.py [SECONDS]` prints JSON. The peer for first paint and idle cost is a bare Textual app, in the
same run; what the server and its traffic cost is not counted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.tmux import pane  # noqa: E402
from specdash.backend.demo import DRAFT_TYPE  # noqa: E402
from specdash.cli.demo import TRAFFIC, private_directory, start_backend, start_traffic  # noqa: E402
from specdash.control.keeper import Keeper  # noqa: E402

BARE = "from textual.app import App\nfrom textual.widgets import Static\n"
BARE += "class Bare(App):\n  def compose(self): yield Static('READY')\nBare().run()"
SIZE = (120, 36)
RUNS = 7
SETTLE_S = 25.0
"""Until the charts have something to draw and start-up is over."""


def first_paint(command: list[str], mark: str) -> float:
    """Median seconds from the start of the program until `mark` is on the screen."""
    seen = []
    for _ in range(RUNS):
        with pane(command, *SIZE) as screen:
            seen.append(screen.wait_for(mark))
    return statistics.median(seen)


def cost(command: list[str], mark: str, settle_s: float, seconds: float) -> dict[str, float]:
    """CPU percent of one core, and memory, of the program alone."""
    with pane(command, *SIZE) as screen:
        screen.wait_for(mark)
        time.sleep(settle_s)
        cpu = screen.cpu_percent(seconds)
        return {"cpu_percent": round(cpu, 2), "rss_mb": round(screen.rss_mb(), 1)}


def command_seconds(command: list[str]) -> float:
    """Median wall time of one command, interpreter start included."""
    seen = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        seen.append(time.perf_counter() - started)
    return statistics.median(seen)


def main() -> None:
    """Print the figures."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    bare = [sys.executable, "-c", BARE]
    with private_directory() as directory, Keeper() as keeper:
        target = start_backend(keeper, directory, (DRAFT_TYPE,), "auto")
        specdash = [sys.executable, "-m", "specdash"]
        named = [*specdash, "--url", target.url, "--log", str(target.log)]
        figures: dict[str, object] = {
            "first_paint_bare_s": round(first_paint(bare, "READY"), 3),
            "first_paint_specdash_s": round(first_paint(named, "Acceptance"), 3),
            "first_live_specdash_s": round(first_paint(named, "LIVE"), 3),
            "bare": cost(bare, "READY", 2.0, seconds),
            "idle_server": cost(named, "LIVE", SETTLE_S, seconds),
        }
        program = str(Path(sys.executable).with_name("specdash"))
        for name, command in {
            "interpreter_s": [sys.executable, "-c", "pass"],
            "version_s": [program, "--version"],
            "status_s": [program, "status", "--url", target.url],
            "snapshot_s": [program, "snapshot", "--json", "--url", target.url],
        }.items():
            figures[name] = round(command_seconds(command), 3)
        start_traffic(keeper, target, None)
        figures["busy_server"] = cost(named, "LIVE", SETTLE_S, seconds)
        keeper.stop(TRAFFIC)
    json.dump(figures, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
