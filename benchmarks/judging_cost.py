"""What judging the alert rules costs: CPU of `TargetState._judge`, with all rules, on a server at work.

`python benchmarks/judging_cost.py [SECONDS]` prints JSON. It watches a real server under load at 1 Hz for a while, then
measures the state as it then is: after an hour of past, with alerts in the book and a timeline. The bound is 0.3 % of a
core at one judgement a second; `picture_ms` is what every judgement and every paint needs anyway.

`python benchmarks/judging_cost.py busy` is of a server that is made up, the same in every run and at its busiest: two
requests a second behind the proxy, 40 sessions, baselines. It is what two versions are compared by, in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from specdash.core.readings import Props, Reading, Source  # noqa: E402
from specdash.core.records import Baseline  # noqa: E402
from specdash.core.target import Target  # noqa: E402
from specdash.insight import derive  # noqa: E402
from specdash.insight.rules.catalogue import shipped  # noqa: E402
from specdash.insight.rules.scene import PictureHistory, RuleScene  # noqa: E402
from specdash.insight.state import JUDGED_WINDOW_S, TargetState  # noqa: E402
from support.busy_proxy import BusyServer  # noqa: E402
from support.faults import DRAFTING, BreakableServer, watched  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.insight.rules.catalogue import Rule

BOUND_PERCENT = 0.3
ROUNDS = 300
PAST_S = 3600
BUSY_S = 60
OFFSET = BusyServer.wall - BusyServer.at


def cpu_ms(call: Callable[[], object]) -> float:
    """Median CPU milliseconds of one call."""
    took = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        call()
        took.append((time.process_time_ns() - began) / 1e6)
    return statistics.median(took)


def age(state: TargetState) -> None:
    """Give the state an hour of past that looks like its last moment."""
    last = state.alerts.past.last
    assert last is not None
    past = PictureHistory()
    for back in range(PAST_S, 0, -1):
        totals = {name: max(0.0, value - back) for name, value in last.totals.items()}
        live = {name: max(0, count - back) for name, count in last.live.items()}
        accepted = last.exact_accepted - back if last.exact_accepted is not None else None
        older = replace(last, at=last.at - back, wall=last.wall - back, totals=totals, live=live)
        past.add(replace(older, exact_accepted=accepted))
    past.add(last)
    state.alerts.past = past


def _judged(rule: Rule, scene: RuleScene) -> None:
    list(rule.judge(scene, rule.spec.limits))


def figures(state: TargetState) -> dict[str, float]:
    """Milliseconds of a judgement and of its parts."""
    past, wall = state.alerts.past, time.time()
    assert past.last is not None
    now = past.last.at
    picture = derive.picture(state, now, wall, JUDGED_WINDOW_S)
    scene = RuleScene(picture, past, state.experiments.samples)
    each = {rule.spec.id: cpu_ms(partial(_judged, rule, scene)) for rule in shipped()}
    dearest = sorted(each.items(), key=lambda pair: -pair[1])[:6]
    return {
        "judgement_ms": round(cpu_ms(lambda: state._judge(now)), 3),  # noqa: SLF001 - what `apply` does at every look
        "picture_ms": round(cpu_ms(lambda: derive.picture(state, now, wall, JUDGED_WINDOW_S)), 3),
        "rules_ms": round(sum(each.values()), 3),
        **{f"rule {name} ms": round(took, 3) for name, took in dearest},
    }


def busy() -> dict[str, float]:
    """Mean CPU milliseconds a second of a server at its busiest: of judging it and of the screen's picture."""
    server = BusyServer(sessions=40, requests=2)
    state = TargetState(Target("http://127.0.0.1:8080", proxy_url="http://127.0.0.1:4000"), wall_offset=lambda: OFFSET)
    baselines = tuple(
        Baseline(server.wall, "model.gguf", "b1-x", context, count, 300 / count, 297 / count, 303 / count, 24)
        for context in (64, 1024, 8192)
        for count in (1, 8)
    )
    state.take_unjudged(Reading.known(Source.PROPS, server.at, Props(model_path="/model.gguf", build_info="b1-x")))
    state.take_unjudged(Reading.known(Source.BASELINES, server.at, baselines))
    spent = {"readings and judgement": 0, "picture": 0}
    for number, readings in enumerate(server.seconds(PAST_S // 6 + BUSY_S)):
        began = time.process_time_ns()
        for reading in readings:
            state.apply(reading)
        judged = time.process_time_ns()
        state.picture(server.at + 0.9, server.wall + 0.9, 300.0)
        if number >= PAST_S // 6:
            spent["readings and judgement"] += judged - began
            spent["picture"] += time.process_time_ns() - judged
    return {name: round(nanoseconds / 1e6 / BUSY_S, 2) for name, nanoseconds in spent.items()}


def main() -> None:
    """Measure and print; exit 1 past the bound."""
    if sys.argv[1:] == ["busy"]:
        json.dump(busy(), sys.stdout, indent=1)
        print()
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with (
        tempfile.TemporaryDirectory() as folder,
        BreakableServer(Path(folder), *DRAFTING, LLAMA_TRACE="1") as server,
        watched(server.target, interval_s=1.0) as seen,
        server.working(clients=2),
    ):
        seen.until_live()
        time.sleep(seconds)
        state = seen.state
    # The hub has stopped: the state is ours alone.
    age(state)
    told = figures(state)
    told["percent_of_a_core_at_1_Hz"] = round(told["judgement_ms"] / 10.0, 3)
    json.dump(told, sys.stdout, indent=1)
    print()
    sys.exit(told["percent_of_a_core_at_1_Hz"] > BOUND_PERCENT)


if __name__ == "__main__":
    main()
