"""`make bench`: runs every benchmark in turn, each in a process of its own; docs/performance.md keeps what they print.

python -m benchmarks [NAME …]
"""

from __future__ import annotations

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
    "parse_log": (),
    "proxy_cost": (),
    "swap": (),
}
"""Each with its arguments. history and deaths take longer and are run by themselves."""

LIMIT_S = 600.0
TOO_LONG = 124
"""The exit code of a benchmark that took longer, as of timeout(1)."""


def main() -> int:
    """Run them; the exit code is that of the worst."""
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    worst = 0
    for name in names:
        print(f"== {name}", flush=True)
        # An interrupt lets it end its servers and terminals.
        command = ["timeout", "--signal=INT", "--kill-after=30", str(LIMIT_S), sys.executable, str(HERE / f"{name}.py")]
        code = subprocess.run([*command, *BENCHMARKS[name]], check=False).returncode
        if code == TOO_LONG:
            print(f"{name}: ended after {LIMIT_S:.0f} s", file=sys.stderr)
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
