"""What the proxy costs: the upstream asked directly and through it, in one run on one machine.

    python benchmarks/proxy_cost.py [--rounds N] [--json]

Figures, each the median of the rounds: time to the first text of one stream at a time; events a second with 8 streams
at once, as fast as they go; memory after that; how long the last of 64 paced streams (512 tokens, 100 a second) takes;
the time to the refusal of a body that is not JSON; and the memory of ours after 500 clients and bodies of 30 MB.
Ours asks the upstream for `timings` on every token, as it does with llama.cpp, and is measured once more without them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.messages_load import Endpoint, Load, load, quantile  # noqa: E402
from specdash.backend.launch import free_port  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIRECT = "direct"
OURS = "specdash"
BARE = "specdash, no timings"
ONE_STREAM = {"streams": 300, "concurrency": 1, "tokens": 16}
FAST = {"streams": 64, "concurrency": 8, "tokens": 1000}
PACED = {"streams": 64, "concurrency": 64, "tokens": 512}
CROWD = {"streams": 500, "concurrency": 500, "tokens": 32}
LARGE_BODIES = 4
LARGE_WORDS = 6_000_000
PACE_S = 0.01
BAD_BODIES = 100
START_S = 90.0


@dataclass(slots=True)
class Figures:
    """One way to the upstream; None where it does not apply."""

    name: str
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    events_per_s: float | None = None
    rss_mb: float | None = None
    paced_p50_s: float | None = None
    paced_last_s: float | None = None
    together_ttft_p50_ms: float | None = None
    """Of the paced streams, which all begin at the same instant."""
    bad_body_p99_ms: float | None = None
    crowd_mb: float | None = None
    """Resident after 500 clients at once and bodies of 30 MB, and at most until then."""
    peak_mb: float | None = None
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy that answers."""

    url: str
    pid: int

    def rss_mb(self) -> float:
        """Resident memory of the process and its children, in MB."""
        process = psutil.Process(self.pid)
        return sum(child.memory_info().rss for child in (process, *process.children(recursive=True))) / 1e6


@contextlib.contextmanager
def running(upstream: str, folder: Path) -> Iterator[Running]:
    """The proxy in front of `upstream`; ended afterwards."""
    port = free_port("127.0.0.1")
    env_file = folder / f"proxy-{port}.env"
    env_file.write_text(
        f"LLAMA_CPP_BASE={upstream}/v1\nPROXY_PORT={port}\nPROXY_EVENTS_FILE={folder}/events.jsonl\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "specdash", "proxy", "run", "--env-file", str(env_file)]
    with started(command, {"XDG_STATE_HOME": str(folder)}, folder / f"proxy-{port}.log", port) as process:
        yield Running(f"http://127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str], log: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens on `port`; ended afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **env})
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(f"did not start: {' '.join(tail)[:200]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def upstream(folder: Path, *options: str) -> Iterator[str]:
    """The scripted upstream in a process of its own."""
    port = free_port("127.0.0.1")
    command = [sys.executable, str(HERE / "scripted_upstream.py"), str(port), *options]
    with started(command, {}, folder / f"upstream-{port}.log", port):
        yield f"http://127.0.0.1:{port}"


def measured(name: str, folder: Path) -> Figures:
    """One round for one way."""
    figures = Figures(name)
    options = ("--bare",) if name == BARE else ()
    with upstream(folder, *options) as url, _way(name, url, folder) as (endpoint, rss):
        item, fast = load(endpoint, **ONE_STREAM), load(endpoint, **FAST)
        figures.rss_mb = rss()
        figures.bad_body_p99_ms = None if name == DIRECT else bad_body_ms(endpoint)
        figures.ttft_p50_ms, figures.ttft_p99_ms = item.ttft_ms(0.5), item.ttft_ms(0.99)
        figures.events_per_s = fast.events_per_s
    with upstream(folder, "--pace", str(PACE_S), *options) as url, _way(name, url, folder) as (endpoint, _):
        paced = load(endpoint, **PACED)
        figures.paced_p50_s, figures.paced_last_s = paced.total_s(0.5), paced.total_s(1.0)
        figures.together_ttft_p50_ms = paced.ttft_ms(0.5)
    if name == OURS:
        figures.crowd_mb, figures.peak_mb = memory(folder)
    figures.failed = _failed(item, fast, paced)
    return figures


def memory(folder: Path) -> tuple[float, float]:
    """Megabytes of ours after a crowd of clients and large bodies, and the most it ever had."""
    words = "word " * LARGE_WORDS
    message = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": words}]}
    body = json.dumps(message).encode()
    with upstream(folder, "--pace", str(PACE_S)) as url, running(url, folder) as proxy:
        load(Endpoint(OURS, proxy.url), **CROWD)
        address = urlsplit(proxy.url)
        for _ in range(LARGE_BODIES):
            connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/messages", body, {"content-type": "application/json"})
                connection.getresponse().read()
        lines = Path(f"/proc/{proxy.pid}/status").read_text(encoding="utf-8").splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return proxy.rss_mb(), peak * 1024 / 1e6


@contextlib.contextmanager
def _way(name: str, url: str, folder: Path) -> Iterator[tuple[Endpoint, Callable[[], float | None]]]:
    if name == DIRECT:
        yield Endpoint(name, url, openai=True), lambda: None
        return
    with running(url, folder) as proxy:
        yield Endpoint(name, proxy.url), proxy.rss_mb


def bad_body_ms(endpoint: Endpoint) -> float:
    """99th percentile of the time to the answer to a body that is not JSON."""
    address = urlsplit(endpoint.url)
    found = []
    for _ in range(BAD_BODIES):
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
        begun = time.perf_counter()
        with contextlib.closing(connection):
            connection.request("POST", "/v1/messages", b"{bad", {"content-type": "application/json"})
            connection.getresponse().read()
        found.append((time.perf_counter() - begun) * 1e3)
    return quantile(found, 0.99)


def _failed(*loads: Load) -> int:
    return sum(item.failed for item in loads)


def median(rounds: list[Figures]) -> Figures:
    """The middle of each figure."""
    found = rounds[0]
    for name in (
        "ttft_p50_ms",
        "ttft_p99_ms",
        "events_per_s",
        "rss_mb",
        "paced_p50_s",
        "paced_last_s",
        "together_ttft_p50_ms",
        "bad_body_p99_ms",
        "crowd_mb",
        "peak_mb",
    ):
        values = [value for figures in rounds if (value := getattr(figures, name)) is not None]
        setattr(found, name, statistics.median(values) if values else None)
    found.failed = sum(figures.failed for figures in rounds)
    return found


COLUMNS = (
    "TTFT p50",
    "p99",
    "added p50",
    "added p99",
    "events/s",
    "RSS MB",
    "64 paced s",
    "slower %",
    "bad p99",
    "crowd MB",
    "peak MB",
    "failed",
)


def shown(rows: list[Figures]) -> str:
    """A table, times in ms unless said; what a proxy adds is its figure less the direct one."""
    base = rows[0]
    lines = [f"{'':<22}" + "".join(f"{name:>11}" for name in COLUMNS)]
    for row in rows:
        slower = None
        if row.paced_last_s and base.paced_last_s:
            slower = (row.paced_last_s / base.paced_last_s - 1) * 100
        cells = (
            _number(row.ttft_p50_ms, 2),
            _number(row.ttft_p99_ms, 2),
            _number(_less(row.ttft_p50_ms, base.ttft_p50_ms), 2),
            _number(_less(row.ttft_p99_ms, base.ttft_p99_ms), 2),
            _number(row.events_per_s, 0),
            _number(row.rss_mb, 0),
            _number(row.paced_last_s, 3),
            _number(slower, 1),
            _number(row.bad_body_p99_ms, 1),
            _number(row.crowd_mb, 0),
            _number(row.peak_mb, 0),
            str(row.failed),
        )
        lines.append(f"{row.name:<22}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def _less(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _number(value: float | None, digits: int) -> str:
    return "--" if value is None else f"{value:,.{digits}f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = [DIRECT, OURS, BARE]
    rounds: dict[str, list[Figures]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for name in names:
                rounds[name].append(measured(name, Path(folder)))
    rows = [median(rounds[name]) for name in names]
    print(json.dumps([asdict(row) for row in rows], indent=1) if args.json else shown(rows))


if __name__ == "__main__":
    main()
