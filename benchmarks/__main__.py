"""`make bench`: runs every benchmark in turn, each in a process of its own, prints what it prints: what
docs/performance.md keeps.

    python -m benchmarks [NAME …]

None may take longer than `LIMIT_S`. The exit code is the worst of theirs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "live": (),
    "ui_lag": (),
    "keys": (),
    "log_soak": ("8",),
    "fleet": (),
    "parse_log": ("--json",),
    "status_start": (),
    "proxy_cost": ("--json", "--rounds", "2"),
    "swap": (),
}
"""Each with its arguments."""

LIMIT_S, ENDING_S = 600.0, 30.0
TOO_LONG = 124
"""The exit code of a benchmark that took longer, as of timeout(1)."""


def run(name: str) -> tuple[int, str]:
    """One benchmark; its exit code and what it printed."""
    command = [sys.executable, str(HERE / f"{name}.py"), *BENCHMARKS[name]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            # Its servers and terminals end with it when it is interrupted, and not when it is killed.
            process.send_signal(signal.SIGINT)
        else:
            return process.returncode, printed
        try:
            printed = process.communicate(timeout=ENDING_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            printed = process.communicate()[0]
    print(f"{name}: ended after {LIMIT_S:.0f} s", file=sys.stderr)
    return TOO_LONG, printed


def main() -> int:
    """Run them; the exit code is that of the worst."""
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    worst, loads = 0, []
    for name in names:
        print(f"== {name}", flush=True)
        code, output = run(name)
        worst = max(worst, code)
        loads.append(os.getloadavg()[0])
        print(output, end="", flush=True)
    print(f"\nLoad average {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores.")
    return worst


if __name__ == "__main__":
    sys.exit(main())
