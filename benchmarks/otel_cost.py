"""What it costs the proxy to tell an OpenTelemetry collector of each request: off, on, and with a collector in trouble.

    python benchmarks/otel_cost.py [--rounds N] [--streams N]

Four proxies in front of one scripted upstream, one for each way. Streams of 16 tokens go through them one at a time, in
short blocks that take turns, so that whatever else the machine does meets all of them. CPU is a proxy's whole process,
its sending threads included.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.messages_load import Endpoint, load  # noqa: E402
from benchmarks.proxy_cost import upstream  # noqa: E402
from benchmarks.proxy_peers import started  # noqa: E402
from specdash.backend.launch import free_port  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

OFF, ON, DOWN, SILENT = "off", "on", "on, collector down", "on, collector never answers"
WAYS = (OFF, ON, DOWN, SILENT)
TOKENS = 16


@dataclass(slots=True)
class Cost:
    """One way. Each block has a median and a 99th percentile of its own; CPU is seconds."""

    endpoint: Endpoint
    process: psutil.Process
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    requests: int = 0
    failed: int = 0

    def run(self, streams: int) -> None:
        """One block."""
        found = load(self.endpoint, streams=streams, concurrency=1, tokens=TOKENS)
        self.p50_ms.append(found.ttft_ms(0.5))
        self.p99_ms.append(found.ttft_ms(0.99))
        self.failed += found.failed
        # Some go before those that are asked for.
        self.requests += streams + 5

    def cpu(self) -> float:
        """Seconds so far."""
        times = self.process.cpu_times()
        return times.user + times.system


def measured(rounds: int, streams: int, folder: Path) -> dict[str, Cost]:
    """All ways."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(upstream(folder))
        costs = {}
        for way in WAYS:
            collector = stack.enter_context(_collector(way, folder))
            at, pid = stack.enter_context(_proxy(way, url, collector, folder))
            costs[way] = Cost(Endpoint(way, at), psutil.Process(pid))
            load(costs[way].endpoint, streams=50, concurrency=1, tokens=TOKENS)
        before = {way: cost.cpu() for way, cost in costs.items()}
        for number in range(rounds):
            for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                costs[way].run(streams)
        # What is still to be sent belongs to these requests.
        time.sleep(3.0)
        for way, cost in costs.items():
            cost.cpu_s = cost.cpu() - before[way]
        print(
            "RSS MB: " + ", ".join(f"{way} {cost.process.memory_info().rss / 1e6:.1f}" for way, cost in costs.items())
        )
        return costs


@contextlib.contextmanager
def _collector(way: str, folder: Path) -> Iterator[str]:
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    if way in {OFF, DOWN}:
        yield url
        return
    command = [sys.executable, __file__, "--sink", str(port), *(["--silent"] if way == SILENT else [])]
    with started(command, {}, folder / f"sink-{port}.log", port):
        yield url


@contextlib.contextmanager
def _proxy(way: str, url: str, collector: str, folder: Path) -> Iterator[tuple[str, int]]:
    port = free_port("127.0.0.1")
    env_file = folder / f"proxy-{port}.env"
    lines = [f"LLAMA_CPP_BASE={url}/v1", f"PROXY_PORT={port}", f"PROXY_EVENTS_FILE={folder}/events.jsonl"]
    # Exports are as frequent as somebody in a hurry sets them; the defaults are every 5 s and every 60 s.
    hurried = ["OTEL_BSP_SCHEDULE_DELAY=1000", "OTEL_METRIC_EXPORT_INTERVAL=1000"]
    lines += [] if way == OFF else ["PROXY_OTEL=on", f"OTEL_EXPORTER_OTLP_ENDPOINT={collector}", *hurried]
    env_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "specdash", "proxy", "run", "--env-file", str(env_file)]
    with started(command, {"XDG_STATE_HOME": str(folder)}, folder / f"proxy-{port}.log", port) as process:
        yield f"http://127.0.0.1:{port}", process.pid


def serve_sink(port: int, *, silent: bool) -> None:
    """Take everything that is sent and answer 200, or nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            while silent:
                time.sleep(60)
            self._answer()

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--sink", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--silent", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sink is not None:
        serve_sink(args.sink, silent=args.silent)
        return
    with tempfile.TemporaryDirectory() as folder:
        costs = measured(args.rounds, args.streams, Path(folder))
    print(f"{'':<30}{'TTFT p50':>10}{'p99 ms':>10}{'added p50':>12}{'CPU ms':>10}{'failed':>8}")
    for way, cost in costs.items():
        added = statistics.median(on - off for on, off in zip(cost.p50_ms, costs[OFF].p50_ms, strict=True))
        figures = f"{statistics.median(cost.p50_ms):>10.2f}{statistics.median(cost.p99_ms):>10.2f}{added:>12.2f}"
        print(f"{way:<30}{figures}{cost.cpu_s / cost.requests * 1e3:>10.2f}{cost.failed:>8}")


if __name__ == "__main__":
    main()
