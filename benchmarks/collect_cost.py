"""What collecting costs: CPU and memory of a whole hub on a real server, idle, at work, and under a log storm.

`python benchmarks/collect_cost.py [SECONDS]` prints JSON. CPU is percent of one core of the collecting process alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.asking import complete  # noqa: E402
from support.fault_server import free_port  # noqa: E402
from support.small_server import small_server  # noqa: E402

STORM_LINE = (
    b"0.12.345.678 W find_slot: non-consecutive token position 4711 after 4710 for sequence 0 with 512 new tokens\n"
)
STORM_LINES_PER_S = 5000

COLLECTOR = """
import json, sys, time, threading, resource
from specdash.collect.hub import Hub
from specdash.core.target import Target
counts, at = {}, {}
def sink(reading):
    counts[str(reading.source)] = counts.get(str(reading.source), 0) + 1
    at.setdefault(str(reading.source), []).append(reading.at)
with Hub(Target(sys.argv[1], log=sys.argv[2]), [sink]):
    time.sleep(2)
    at.clear(); cpu, started = time.process_time(), time.monotonic()
    time.sleep(float(sys.argv[3]))
    cpu, elapsed = time.process_time() - cpu, time.monotonic() - started
late = [b - a - 1.0 for a, b in zip(at["health"], at["health"][1:])]
print(json.dumps({"cpu_percent": round(100 * cpu / elapsed, 3), "health_latest_beat_ms": round(1000 * max(late), 1),
    "max_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1), "readings": counts}))
"""

QUESTIONS = """
import asyncio, json, sys, time
started = time.perf_counter()
{setup}
async def main():
    {open}
    await {ask}
    first = time.perf_counter() - started
    cpu = time.process_time()
    for _ in range(90): await {ask}
    per_question = (time.process_time() - cpu) / 90
    await client.aclose()
    print(json.dumps({{"import_and_first_ms": round(first * 1000, 1), "cpu_ms_each": round(per_question * 1000, 3)}}))
asyncio.run(main())
"""

CLIENTS = {
    "specdash": {
        "setup": "from specdash.llama.client import LlamaClient\nfrom specdash.core.target import Target",
        "open": "client = LlamaClient(Target(sys.argv[1]))",
        "ask": "client.get('/metrics')",
    },
    "httpx": {
        "setup": "import httpx",
        "open": "client = httpx.AsyncClient(trust_env=False)",
        "ask": "client.get(sys.argv[1] + '/metrics')",
    },
}


def run(code: str, *arguments: str) -> Any:
    """The JSON that a fresh interpreter prints."""
    command = [sys.executable, "-c", code, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)


def working(port: int, stop: threading.Event) -> None:
    """Keep one request running."""
    while not stop.is_set():
        complete(f"http://127.0.0.1:{port}", "import os\n\ndef walk(path):\n", 400, cache_prompt=False)


def storming(log: Path, stop: threading.Event) -> None:
    """Append find_slot warnings at a steady rate."""
    with log.open("ab") as file:
        while not stop.wait(0.05):
            file.write(STORM_LINE * (STORM_LINES_PER_S // 20))
            file.flush()


def measured(url: str, log: Path, seconds: str, *load: threading.Thread) -> Any:
    """The collector's costs while the loads run."""
    for thread in load:
        thread.start()
    return run(COLLECTOR, url, str(log), seconds)


def main() -> None:
    """Measure and print."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else "20"
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        port, log, stop = free_port(), Path(folder) / "server.log", threading.Event()
        url = f"http://127.0.0.1:{port}"
        with small_server(port, log):
            for name, parts in CLIENTS.items():
                samples = [run(QUESTIONS.format(**parts), url) for _ in range(5)]
                results[f"client {name}"] = min(samples, key=lambda sample: sample["import_and_first_ms"])
            results["hub idle"] = measured(url, log, seconds)
            worker = threading.Thread(target=working, args=(port, stop), daemon=True)
            results["hub at work"] = measured(url, log, seconds, worker)
            storm = threading.Thread(target=storming, args=(log, stop), daemon=True)
            results["hub under a storm of 5000 lines/s"] = measured(url, log, seconds, storm)
            stop.set()
            worker.join(60)
            storm.join(5)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
