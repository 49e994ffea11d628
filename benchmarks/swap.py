"""What a swap of the engine costs: downtime as a client sees it, against the engine's own time to start.

`python benchmarks/swap.py [SWAPS]` prints JSON. `specdash backend run` serves the bundled model; a client
connects and asks /health every 5 ms. For each swap the env file is changed and SIGUSR1 sent; downtime is the time from
the last good answer to the first good one after it. Before each swap the same engine is started by itself, with the
same command on another port, and asked in the same way: its own time from the start of its process to healthy, and from
SIGTERM to its end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from specdash.backend.demo import DRAFT_TYPE, env_text  # noqa: E402
from specdash.backend.launch import free_port, plan_from_file  # noqa: E402
from specdash.core.records import RunRecord  # noqa: E402

ENGINES = ("llama-server", "xllamacpp")
POLL_S = 0.005
LIMIT_S = 30.0
BETWEEN_S = 0.1
REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def healthy(port: int) -> bool:
    """One connection, one answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.sendall(REQUEST)
            return client.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def until_healthy(port: int) -> float:
    """The moment of the first good answer."""
    deadline = time.perf_counter() + LIMIT_S
    while not healthy(port):
        if time.perf_counter() > deadline:
            raise TimeoutError("the engine does not get healthy")
        time.sleep(POLL_S)
    return time.perf_counter()


class Client:
    """Asks every 5 ms, and remembers the longest time between two good answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.gap_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        last = time.perf_counter()
        while not self._over.is_set():
            if healthy(self.port):
                now = time.perf_counter()
                self.gap_s, last = max(self.gap_s, now - last), now
            time.sleep(POLL_S)

    def close(self) -> float:
        """The longest time without a good answer."""
        self._over.set()
        self._thread.join()
        return self.gap_s


@dataclass
class Figures:
    """Seconds, one of each a swap."""

    downtime: list[float] = field(default_factory=list)
    own_start: list[float] = field(default_factory=list)
    own_stop: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        """Medians in milliseconds, and the worst."""
        beyond = [down - own for down, own in zip(self.downtime, self.own_start, strict=True)]
        columns = {
            "downtime": self.downtime,
            "own_start": self.own_start,
            "own_stop": self.own_stop,
            "overhead": beyond,
        }
        medians = {f"{name}_ms": statistics.median(values) for name, values in columns.items()}
        worst = {f"{name}_max_ms": max(columns[name]) for name in ("downtime", "overhead")}
        return {name: round(seconds * 1000, 1) for name, seconds in {**medians, **worst}.items()}


def alone(env_file: Path, figures: Figures) -> None:
    """Start and stop the engine without anything around it."""
    plan = plan_from_file(str(env_file))
    started = time.perf_counter()
    with subprocess.Popen(
        plan.argv, env=plan.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        figures.own_start.append(until_healthy(plan.settings.port) - started)
        asked = time.perf_counter()
        process.terminate()
        process.wait(LIMIT_S)
        figures.own_stop.append(time.perf_counter() - asked)


def measure(engine: str, swaps: int, directory: Path) -> Figures:
    """Swap that often."""
    figures = Figures()
    directory.mkdir()
    file, other = directory / "backend.env", directory / "alone.env"
    port = free_port("127.0.0.1")
    text = env_text(port=port, log=directory / "server.log", spec_types=(DRAFT_TYPE,), engine=engine)
    other.write_text(text.replace(f'"{port}"', f'"{free_port("127.0.0.1")}"'), encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    runner = subprocess.Popen(
        [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(file)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "XDG_STATE_HOME": str(directory)},
    )
    records = directory / "specdash" / "run"
    try:
        pid = wait_record(records, None)
        until_healthy(port)
        for swap in range(swaps):
            alone(other, figures)
            client = Client(port)
            time.sleep(BETWEEN_S)
            file.write_text(text + f"# {swap}\nLLAMA_DRAFT_MAX={4 + swap % 4}\n", encoding="utf-8")
            runner.send_signal(signal.SIGUSR1)
            pid = wait_record(records, pid)
            until_healthy(port)
            time.sleep(BETWEEN_S)
            figures.downtime.append(client.close())
    finally:
        runner.terminate()
        runner.wait(LIMIT_S)
    return figures


def wait_record(directory: Path, old: int | None) -> int:
    """The pid of the engine that has taken the place of `old`."""
    deadline = time.perf_counter() + LIMIT_S
    while time.perf_counter() < deadline:
        for path in directory.glob("*.json"):
            try:
                record = RunRecord.from_json(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue
            if record is not None and record.pid != old:
                return record.pid
        time.sleep(POLL_S)
    raise TimeoutError("no run record")


def main() -> None:
    """Print the figures."""
    swaps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as directory:
        rows = {engine: measure(engine, swaps, Path(directory) / engine).row() for engine in ENGINES}
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
