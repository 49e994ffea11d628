"""What a fleet read from a Prometheus costs: `python benchmarks/prometheus_fleet.py [SERVERS]`.

A server answers as Prometheus does, with what `specdash export` tells of so many servers at work, and with 30 days of
as many in 120 points; the peer is that answer fetched and parsed as JSON alone. Then, where it is installed, a real
Prometheus with 30 days of a few servers, scraped each minute, is asked for all of them and for one.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from specdash.cli.servers.fleet import PrometheusFleet
from specdash.collect.prometheus import MOST_BYTES, newest, ranges
from specdash.export.from_prometheus import (
    FIGURES,
    QUERY,
    READ,
    histories_of,
    history_range,
    query_of,
    rows_of_samples,
)
from specdash.export.prometheus import to_prometheus
from specdash.insight.fleet import FleetRow
from specdash.system.http import ask
from support.fault_server import FaultServer, says
from support.prometheus import running_prometheus
from tui.fake_state import FakeState

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
MONTH_S = 30 * 86400
POINTS = 120
REAL = 5
"""Servers of which the real Prometheus has a month: 2 million samples."""
WANTED = {f"specdash_{name}" for name in READ}


def answer(servers: int) -> bytes:
    """Prometheus's answer to the query."""
    picture = FakeState("busy").picture(0.0, 1.0, 300.0)
    result = []
    for number in range(servers):
        own = replace(picture, backend=replace(picture.backend, url=f"http://gpu{number}:8080"))
        for family in text_string_to_metric_families(to_prometheus(own)):
            for sample in family.samples:
                if sample.name in WANTED:
                    labels = {**sample.labels, "__name__": sample.name, "instance": "gw:9840", "job": "specdash"}
                    result.append({"metric": labels, "value": [1.0, str(sample.value)]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def long_answer(servers: int) -> bytes:
    """Prometheus's answer to the query for 30 days."""
    asked = history_range(0, MONTH_S, POINTS, 60.0)
    values = [[at, "0.7312345678901234"] for at in asked.times]
    result = [
        {"metric": {"server": f"http://gpu{number}:8080", "instance": "gw:9840", "series": name}, "values": values}
        for number in range(servers)
        for name in FIGURES
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def month(servers: int, now: int) -> str:
    """Thirty days of so many servers, a scrape a minute, as OpenMetrics."""
    gauges = ("up", "decode_tokens_per_second", "prefill_tokens_per_second", "requests_deferred", "alert_active")
    kinds = dict.fromkeys((*gauges, "gpu_utilisation_ratio"), "gauge")
    kinds |= dict.fromkeys(("draft_tokens", "accepted_tokens"), "counter")
    lines: list[str] = []
    for name, kind in kinds.items():
        lines.append(f"# TYPE specdash_{name} {kind}")
        for number in range(servers):
            own = f'server="http://gpu{number}:8080",instance="gpu{number}:9538",severity="notice"'
            series = f"specdash_{name}{'_total' * (kind == 'counter')}{{{own}}}"
            lines += [f"{series} {at % 977} {at}" for at in range(now - MONTH_S, now, 60)]
    return "\n".join([*lines, "# EOF", ""])


def measure(name: str, look: Callable[[], object], about: str) -> None:
    """Print CPU and elapsed milliseconds of one look."""
    look()
    cpu, wall = time.thread_time(), time.monotonic()
    for _ in range(ROUNDS):
        look()
    used, took = (time.thread_time() - cpu) / ROUNDS, (time.monotonic() - wall) / ROUNDS
    print(f"{name}: {about}, {used * 1e3:.0f} ms CPU, {took * 1e3:.0f} ms")


def main() -> int:
    """Print what one look costs, and what the peer's does."""
    servers = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    body, long_body = answer(servers), long_answer(servers)
    asked = history_range(0, MONTH_S, POINTS, 60.0)
    newest_path, range_path = "/api/v1/query", "/api/v1/query_range"
    with FaultServer({newest_path: says(200, body), range_path: says(200, long_body)}) as server:
        url = server.url

        def history() -> object:
            found = ranges(url, query_of(asked), asked.since, asked.until, asked.step_s, None)
            return histories_of(found, asked)

        about, long_about = (f"{servers} servers, {len(each) / 1e6:.1f} MB" for each in (body, long_body))
        measure("rows", lambda: rows_of_samples(newest(url, QUERY, None)), about)
        measure("peer: the answer as JSON", lambda: ask(url, newest_path, most_bytes=MOST_BYTES).json, about)
        measure("30 days", history, long_about)
        measure("peer: the answer as JSON", lambda: ask(url, range_path, most_bytes=MOST_BYTES).json, long_about)
    if shutil.which("prometheus") is None:
        return 0
    now = int(time.time()) // 60 * 60
    with (
        tempfile.TemporaryDirectory() as directory,
        running_prometheus(Path(directory), samples=month(REAL, now)) as url,
    ):
        fleet = PrometheusFleet(url, None, 5.0)
        row = FleetRow("gpu0", "http://gpu0:8080", None, "live", exporter="gpu0:9538")
        for span_s in (3600, 86400, MONTH_S):
            about = f"{span_s / 3600:g} h of it in at most {POINTS} points"
            measure("a real Prometheus, one server", partial(fleet.history, row, span_s, POINTS), about)
        real = history_range(now - MONTH_S, now, POINTS, 60.0)
        measure("a real Prometheus, 30 days", partial(fleet.histories, real), f"{REAL} servers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
