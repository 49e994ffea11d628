"""`make bench`: runs every benchmark in turn, each in a process of its own, and prints what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = (
    "live",
    "ui_cost",
    "ui_lag",
    "collect_cost",
    "parse_log",
    "proxy_cost",
    "swap",
    "start_check",
    "preflight",
    "alert_latency",
    "judging_cost",
    "incident",
)


def main() -> int:
    """Run them; the exit code is that of the worst."""
    worst = 0
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
