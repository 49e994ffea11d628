"""From a key press to the changed screen, and bytes a second to the terminal, of the dashboard at 200x50 on a server at
work.

    python benchmarks/keys.py [PRESSES]

A bare pseudo-terminal reads what the program writes. Keys switch the window, which draws every panel; what comes
within the second before them is the screen's own. The peer is a bare Textual app that draws one word, in the same
run. Prints JSON: milliseconds from the press to the first byte, and the bytes a second while no key is pressed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from specdash.backend.demo import DRAFT_TYPE  # noqa: E402
from specdash.cli.demo import TRAFFIC, private_directory, start_backend, start_traffic  # noqa: E402
from specdash.control.keeper import Keeper  # noqa: E402
from support.pseudo_terminal import PseudoTerminal  # noqa: E402

BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self): yield Static("READY")
    def on_key(self, event): self.query_one(Static).update("READY " + event.key)
Bare().run()
"""
SIZE = (200, 50)
SETTLE_S, COUNTED_S, LATE_S = 15.0, 20.0, 3.0
QUIET_S = 0.02
"""What is written within this before a press was not written because of it."""


def presses(terminal: PseudoTerminal, keys: bytes, count: int) -> list[float]:
    """Milliseconds from each press to what is written next, at a moment at which nothing else is."""
    took = []
    for number in range(count):
        before = -1
        while len(terminal.written) != before:
            before = len(terminal.written)
            terminal.read(QUIET_S)
        pressed = time.perf_counter()
        terminal.press(keys[number % len(keys) :][:1])
        while len(terminal.written) == before and time.perf_counter() - pressed < LATE_S:
            terminal.read(0.001)
        took.append((time.perf_counter() - pressed) * 1000)
        terminal.read(0.13 + 0.07 * (number % 3))
    return took


def figures(took: list[float]) -> dict[str, float]:
    """Median, p95 and the longest, in milliseconds."""
    ordered = sorted(took)
    p95 = ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
    return {"p50_ms": round(statistics.median(took), 1), "p95_ms": round(p95, 1), "max_ms": round(ordered[-1], 1)}


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with PseudoTerminal([sys.executable, "-c", BARE], size=SIZE) as terminal:
        terminal.wait_for("READY")
        terminal.read(2.0)
        found: dict[str, object] = {"bare": figures(presses(terminal, b"ab", count))}
    with private_directory() as directory, Keeper() as keeper, tempfile.TemporaryDirectory() as home:
        target = start_backend(keeper, directory, (DRAFT_TYPE,), "auto")
        start_traffic(keeper, target, None)
        command = [sys.executable, "-m", "specdash", "--url", target.url, "--log", str(target.log)]
        with PseudoTerminal(command, env={"HOME": home}, size=SIZE) as terminal:
            terminal.wait_for("LIVE")
            terminal.read(SETTLE_S)
            before = len(terminal.written)
            terminal.read(COUNTED_S)
            found["bytes_per_second_live"] = round((len(terminal.written) - before) / COUNTED_S)
            found["specdash"] = figures(presses(terminal, b"w", count))
        keeper.stop(TRAFFIC)
    found["load"] = round(os.getloadavg()[0], 1)
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
