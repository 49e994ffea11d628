"""What watching many servers costs: `specdash fleet` in tmux (120x36, 1 Hz) on 1, 10, 50 and 200 simulated servers.

`python benchmarks/fleet.py [SECONDS] [COUNT ...]` prints JSON. The servers are a process of their own
(`fleet_servers.py`), all at work; one that accepts and never answers is among them, and one where nothing listens.
CPU is percent of one core of the whole program, screen included. Lag is measured in a process without the screen: how
old the newest /metrics of a server was, looked at once a second, the median and the worst; 1000 ms is no lag.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.tmux import pane  # noqa: E402

COUNTS = (1, 10, 50, 200)
SETTLE_S = 12.0
LAG = """
import json, sys, time
from specdash.cli.servers.fleet import Fleet
from specdash.cli.options import every_target, resolved_settings
from specdash.core.readings import Source
from specdash.insight.rules.catalogue import shipped
targets = [target for target in every_target(resolved_settings(None)) if target.name.startswith("sim")]
with Fleet(targets, shipped(), 1.0, 300.0) as fleet:
    time.sleep(6)
    ages = []
    for _ in range(int(sys.argv[1])):
        time.sleep(1.0 - time.monotonic() % 1.0)
        now = time.monotonic()
        ages += [now - state.latest[Source.METRICS].at for state in fleet.states]
        fleet.rows(())
print(json.dumps(sorted(ages)))
"""


def measured(count: int, seconds: float) -> dict[str, Any]:
    """The cost of so many servers."""
    command = [sys.executable, str(HERE / "fleet_servers.py"), str(count)]
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as mute,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers,
    ):
        assert servers.stdout is not None
        assert servers.stdin is not None
        places = {f"sim{number:03d}": port for number, port in enumerate(json.loads(servers.stdout.readline()), 1)}
        places |= {"mute": mute.getsockname()[1], "gone": 1}
        text = "".join(
            f'[[target]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\n' for name, port in places.items()
        )
        config = Path(folder) / "specdash" / "config.toml"
        config.parent.mkdir()
        config.write_text(text, encoding="utf-8")
        home = {"XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
        program = ["env", *(f"{name}={value}" for name, value in home.items()), "TERM=xterm-256color"]
        try:
            with pane([*program, sys.executable, "-m", "specdash", "fleet"]) as screen:
                painted = screen.wait_for("sim001")
                time.sleep(SETTLE_S)
                cpu, memory = screen.cpu_percent(seconds), screen.rss_mb()
            lag = subprocess.run(
                [sys.executable, "-c", LAG, str(round(seconds))],
                env=os.environ | home, capture_output=True, text=True, check=True, timeout=seconds + 60,
            )  # fmt: skip
        finally:
            servers.stdin.close()
    ages = json.loads(lag.stdout)
    return {
        "cpu_percent": round(cpu, 1),
        "rss_mb": round(memory, 1),
        "first_rows_s": round(painted, 2),
        "metrics_age_median_ms": round(1000 * statistics.median(ages)),
        "metrics_age_worst_ms": round(1000 * ages[-1]),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    counts = [int(word) for word in sys.argv[2:]] or COUNTS
    print(json.dumps({str(count): measured(count, seconds) for count in counts}, indent=1))


if __name__ == "__main__":
    main()
