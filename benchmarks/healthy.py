"""No rule fires in a healthy demo: its server, proxy, traffic and agents, watched as the dashboard does.

The traffic is without the phase in which drafts do not pay.

`python benchmarks/healthy.py [--minutes M] [--spec-type T] [--engine E]` prints JSON and exits 1 when any alert was
raised, a notice included. Alerts that are over count: what a rule saw for a moment is in `raised`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from specdash.backend.demo import DRAFT_TYPE, parse_spec_types  # noqa: E402
from specdash.backend.workload import PAYING  # noqa: E402
from specdash.cli.demo import (  # noqa: E402
    demo_environment,
    private_directory,
    start_backend,
    start_proxy,
    start_traffic,
)
from specdash.collect.hub import Hub  # noqa: E402
from specdash.control.services.supervisor import Supervisor  # noqa: E402
from specdash.insight.rules.catalogue import shipped  # noqa: E402
from specdash.insight.state import TargetState  # noqa: E402

if TYPE_CHECKING:
    from specdash.core.records import Alert


def main() -> int:
    """Watch, print, and say whether all was quiet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--spec-type", default=DRAFT_TYPE)
    parser.add_argument("--engine", default="auto")
    args = parser.parse_args()
    with private_directory() as directory, Supervisor() as supervisor:
        target = start_backend(supervisor, directory, parse_spec_types(args.spec_type), args.engine)
        target = start_proxy(supervisor, directory, target)
        state = TargetState(target)
        judged: set[str] = set()
        longest = 0.0
        with Hub(target, [state.apply], on_target=state.retarget, env=demo_environment(directory)):
            start_traffic(supervisor, target, None, PAYING)
            ends = time.monotonic() + args.minutes * 60.0
            while (left := ends - time.monotonic()) > 0:
                began = time.monotonic()
                time.sleep(min(1.0, left))
                # A machine that was too busy to run us at all makes a test of nothing.
                longest = max(longest, time.monotonic() - began - 1.0)
                judged |= _judged(state)
            picture = state.picture(time.monotonic(), time.time(), 60.0)
    raised = [*picture.alerts.active, *picture.alerts.past]
    told = {
        "minutes": args.minutes,
        "raised": [_told(alert) for alert in raised],
        "rules": len(shipped()),
        "never_judged": sorted({rule.spec.id for rule in shipped()} - judged),
        "state": str(picture.backend.state),
        "requests": picture.backend.requests_finished,
        "proxy_requests": picture.proxy.live.requests if picture.proxy.live is not None else None,
        "longest_stall_s": round(longest, 2),
        "load_1m": round(os.getloadavg()[0], 1),
    }
    json.dump(told, sys.stdout, indent=1)
    print()
    return 1 if raised else 0


def _judged(state: TargetState) -> set[str]:
    alerts = state.picture(time.monotonic(), time.time(), 60.0).alerts
    return {rule.spec.id for rule in shipped()} - {rule for rule, _ in alerts.unjudged}


def _told(alert: Alert) -> dict[str, object]:
    values = asdict(alert)
    return {name: values[name] for name in ("rule", "subject", "severity", "summary", "since", "ended", "evidence")}


if __name__ == "__main__":
    sys.exit(main())
