"""Many servers are watched by one loop, and none of them costs the others anything."""

from collections import Counter
from pathlib import Path
from typing import Any

from specdash.collect.fleet import FleetHub
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.target import Target
from support.fault_server import FaultServer, drips, free_port, hangs, says
from support.scripted_server import Behaviour
from support.waiting import until

ANSWERS = Path(__file__).parents[1] / "data" / "http"
ROUTES: dict[str, Behaviour] = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, (ANSWERS / "props.json").read_bytes()),
    "/metrics": says(200, (ANSWERS / "metrics_busy.txt").read_bytes()),
    "/slots": says(200, (ANSWERS / "slots_busy_1.json").read_bytes()),
}
KEPT_OPEN = ("/health", "/props", "/metrics", "/slots")


class Sink:
    """What was read of one server."""

    def __init__(self) -> None:
        self.values: Counter[Source] = Counter()
        self.failures: set[tuple[Source, FailureKind]] = set()

    def take(self, reading: Reading[Any]) -> None:
        if reading.failure is None:
            self.values[reading.source] += 1
        else:
            self.failures.add((reading.source, reading.failure.kind))


def fails(_: Reading[Any]) -> None:
    raise RuntimeError("a bug")


def test_a_server_that_never_answers_drips_or_is_gone_or_a_sink_that_fails_costs_the_others_nothing() -> None:
    mute = FaultServer(dict.fromkeys(KEPT_OPEN, hangs()))
    dripping = FaultServer(dict.fromkeys(KEPT_OPEN, drips(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")))
    with mute, dripping, FaultServer(ROUTES) as first, FaultServer(ROUTES) as second:
        urls = [mute.url, dripping.url, f"http://127.0.0.1:{free_port()}", first.url, second.url]
        sinks = [Sink() for _ in urls]
        watched = [(Target(url), sink.take) for url, sink in zip(urls, sinks, strict=True)]
        with FleetHub([*watched, (Target(first.url), fails)], interval_s=0.25):
            bad = [FailureKind.TIMEOUT, FailureKind.TIMEOUT, FailureKind.REFUSED]
            until(lambda: all((Source.HEALTH, kind) in sink.failures for kind, sink in zip(bad, sinks, strict=False)))
            # By then each of the good ones has been asked again and again.
            assert all(sink.values[Source.METRICS] >= 3 and sink.values[Source.SLOTS] >= 3 for sink in sinks[3:])
            assert not any(kind is not FailureKind.UNAVAILABLE for sink in sinks[3:] for _, kind in sink.failures)
        assert not any(sink.values[Source.HEALTH] for sink in sinks[:3])


def test_each_server_gets_its_own_key_and_no_other() -> None:
    servers = [FaultServer(ROUTES) for _ in range(3)]
    keys = ("sk-canary-a", "sk-canary-b", None)
    targets = [Target(server.url, api_key=key) for server, key in zip(servers, keys, strict=True)]
    with servers[0], servers[1], servers[2]:
        with FleetHub([(target, Sink().take) for target in targets], interval_s=0.25):
            until(lambda: all(server.count("/slots") >= 2 for server in servers))
        for server, key in zip(servers, keys, strict=True):
            heads = "".join(call.head for call in server.calls)
            assert {canary for canary in keys if canary is not None and canary in heads} == ({key} if key else set())


def test_the_log_of_a_server_is_read_where_it_is_known(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("0.00.000.001 I srv: something\n")
    with FaultServer(ROUTES) as server:
        sink = Sink()
        with FleetHub([(Target(server.url, log=str(log)), sink.take)], interval_s=0.25):
            until(lambda: sink.values[Source.LOG])
