"""How long it takes from a fault of a real llama-server until its alert is in the picture, at 1 Hz.

`python benchmarks/alert_latency.py [RUNS]` prints JSON: seconds by fault and by what the server was doing, over RUNS
faults at random moments of the polling cycle. The bound is 3 s. `remote` is a server whose process cannot be seen.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from specdash.collect.hub import Hub  # noqa: E402
from specdash.insight.state import TargetState  # noqa: E402
from support.faults import DRAFTING, BreakableServer, Watched  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUND_S = 3.0
PATIENCE_S = 15.0
_RULES = {
    "kill -9": ("backend_down",),
    "kill -STOP": ("server_hung",),
    # Between the end of the server and the thief's beginning it may be seen down.
    "port theft": ("port_taken", "backend_down"),
}


@contextlib.contextmanager
def watching(server: BreakableServer, *, remote: bool) -> Iterator[Watched]:
    """Watch at 1 Hz; a remote server's process and log are out of sight."""
    target = replace(server.target, log=None, pid=None) if remote else server.target
    state = TargetState(target)
    with Hub(target, [state.apply], interval_s=1.0, gpu=False, host=not remote):
        yield Watched(state, host=not remote)


def until_alert(watched: Watched, rules: tuple[str, ...]) -> float:
    """Seconds from now until an alert of the rules is in the picture."""
    began = time.monotonic()
    while all(watched.alert(rule) is None for rule in rules):
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"no {rules[0]} within {PATIENCE_S:g} s: {watched.said()}")
        time.sleep(0.005)
    return time.monotonic() - began


def one_fault(server: BreakableServer, fault: str, *, busy: bool, remote: bool) -> float:
    """Seconds from one fault until its alert."""
    with watching(server, remote=remote) as watched, contextlib.ExitStack() as stack:
        if busy:
            stack.enter_context(server.working(tokens=2000))
        watched.until_live()
        time.sleep(5.0 + random.random())
        if fault == "kill -STOP":
            stack.enter_context(server.stopped())
        elif fault == "port theft":
            stack.enter_context(server.port_stolen())
        else:
            server.kill()
        took = until_alert(watched, _RULES[fault])
    if server.process.poll() is not None:
        server.start()
    return took


def main() -> None:
    """Measure and print; exit 1 past the bound."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, BreakableServer(Path(folder), *DRAFTING) as server:
        for fault in _RULES:
            for busy in (False, True):
                for remote in (False, True):
                    took = [one_fault(server, fault, busy=busy, remote=remote) for _ in range(runs)]
                    name = f"{fault}, {'busy' if busy else 'idle'}{', remote' if remote else ''}"
                    figures[name] = {"median_s": round(statistics.median(took), 2), "worst_s": round(max(took), 2)}
    json.dump(figures, sys.stdout, indent=1)
    print()
    sys.exit(any(figure["worst_s"] >= BOUND_S for figure in figures.values()))


if __name__ == "__main__":
    main()
