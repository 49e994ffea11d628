"""Many servers are watched by one loop, and none of them costs the others anything (tests/cli/test_fleet.py)."""

from pathlib import Path
from typing import Any

from collect.seen import Seen, routes
from specdash.collect.fleet import FleetHub
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.target import Target
from support.fault_server import FaultServer, free_port, hangs
from support.waiting import until

ROUTES = routes(busy=True)


def fails(_: Reading[Any]) -> None:
    raise RuntimeError("a bug")


def test_a_server_that_never_answers_or_is_gone_or_a_sink_that_fails_costs_the_others_nothing(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("0.00.000.001 I srv: something\n")
    with FaultServer(dict.fromkeys(ROUTES, hangs())) as mute, FaultServer(ROUTES) as first, FaultServer(ROUTES) as last:
        targets = [
            Target(mute.url),
            Target(f"http://127.0.0.1:{free_port()}"),
            Target(first.url, api_key="sk-canary", log=str(log)),
            Target(last.url),
        ]
        sinks = [Seen() for _ in targets]
        watched = [(target, sink.take) for target, sink in zip(targets, sinks, strict=True)]
        with FleetHub([*watched, (Target(last.url), fails)], interval_s=0.25):
            bad = [FailureKind.TIMEOUT, FailureKind.REFUSED]
            until(lambda: [sink.kind(Source.HEALTH) for sink in sinks[:2]] == bad)
            # By then each of the good ones has been asked again and again.
            for sink in sinks[2:]:
                assert min(len(sink.values(source)) for source in (Source.METRICS, Source.SLOTS)) >= 3
                kinds = {reading.failure.kind for reading in sink.readings if reading.failure is not None}
                assert kinds <= {FailureKind.UNAVAILABLE}
            assert sinks[2].values(Source.LOG)
        assert not sinks[0].values(Source.HEALTH)
        assert all("Bearer sk-canary" in call.head for call in first.calls)
        assert not any("sk-canary" in call.head for call in (*mute.calls, *last.calls))
