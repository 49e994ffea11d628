"""What the screen costs: first paint against a bare Textual app, CPU and memory in tmux at 120x36 and 1 Hz.

`python benchmarks/ui_cost.py [SECONDS]` prints JSON. The state is the tests' fake one, so this is the screen's own
share.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.tmux import pane  # noqa: E402

BARE = "from textual.app import App\nfrom textual.widgets import Static\n"
BARE += "class Bare(App):\n  def compose(self): yield Static('READY')\nBare().run()"


def dashboard(*, moving: bool) -> None:
    """The program that is measured."""
    from specdash.tui.app import Dashboard
    from tui.fake_state import FakeState

    if moving:
        Dashboard(FakeState(moving=True)).run()
        return
    # A server that nobody uses: every picture says the same, only the clock moves.
    Dashboard(FakeState("idle"), clock=lambda: 10_000.0).run()


def first_paint(command: list[str], mark: str, times: int = 7) -> float:
    """Median seconds until the mark is on the screen."""
    samples = []
    for _ in range(times):
        with pane(command) as running:
            samples.append(running.wait_for(mark))
    return statistics.median(samples)


def cost(command: list[str], seconds: float) -> dict[str, float]:
    """CPU and memory after a settling time."""
    with pane(command) as running:
        running.wait_for("Acceptance")
        running.cpu_percent(4.0)
        cpu = running.cpu_percent(seconds)
        return {"cpu_percent": round(cpu, 2), "rss_mb": round(running.rss_mb(), 1)}


def main() -> None:
    """Measure everything and print it."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    own = [sys.executable, str(Path(__file__).resolve())]
    bare = first_paint([sys.executable, "-c", BARE], "READY")
    ours = first_paint([*own, "--moving"], "Acceptance")
    print(
        json.dumps(
            {
                "first_paint_s": {"bare_textual": round(bare, 3), "dashboard": round(ours, 3)},
                "bare_textual": cost_of_bare(seconds),
                "moving": cost([*own, "--moving"], seconds),
                "still": cost([*own, "--still"], seconds),
            },
            indent=2,
        )
    )


def cost_of_bare(seconds: float) -> dict[str, float]:
    """The floor."""
    with pane([sys.executable, "-c", BARE]) as running:
        running.wait_for("READY")
        return {"cpu_percent": round(running.cpu_percent(seconds), 2), "rss_mb": round(running.rss_mb(), 1)}


if __name__ == "__main__":
    if "--moving" in sys.argv:
        dashboard(moving=True)
    elif "--still" in sys.argv:
        dashboard(moving=False)
    else:
        main()
