"""What watching many servers costs: `specdash fleet` in tmux (120x36, 1 Hz) on 1, 10, 50 and 200 simulated servers.

`python benchmarks/fleet.py [SECONDS] [COUNT ...]` prints JSON. The servers are a process of their own, all at work:
each answers /props, /metrics and /slots with what a real one answered (tests/data/http), its counters going on. One
that accepts and never answers is among them, and one where nothing listens. CPU is percent of one core of the whole
program, screen included. Lag is measured in a process without the screen: how old the newest /metrics of a server was,
looked at once a second, the median and the worst; 1000 ms is no lag.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.tmux import pane  # noqa: E402

COUNTS = (1, 10, 50, 200)
SETTLE_S = 12.0
LAG = """
import json, sys, time
from specdash.cli.servers.fleet import Fleet
from specdash.cli.options import every_target, resolved_settings
from specdash.core.readings import Source
from specdash.insight.rules.catalogue import shipped
targets = [target for target in every_target(resolved_settings(None)) if target.name.startswith("sim")]
with Fleet(targets, shipped(), 1.0, 300.0) as fleet:
    time.sleep(6)
    ages = []
    for _ in range(int(sys.argv[1])):
        time.sleep(1.0 - time.monotonic() % 1.0)
        now = time.monotonic()
        ages += [now - state.latest[Source.METRICS].at for state in fleet.states]
        fleet.rows(())
print(json.dumps(sorted(ages)))
"""


ANSWERS = HERE.parent / "tests" / "data" / "http"
TOTAL = re.compile(r"^(llamacpp:\w+_total(?:\{[^}]*\})?) ([0-9.e+]+)$", re.MULTILINE)
GROWS_S = 10.0
"""A total grows in this time by what it was recorded at."""


class Server(asyncio.Protocol):
    """One connection."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer one question."""
        assert self._transport is not None
        path = data.split(b" ", 2)[1].split(b"?")[0].decode()
        past, kind, body = time.monotonic() - self._began, "application/json", '{"status":"ok"}'
        if path == "/metrics":
            text = re.sub(r"(requests_processing) 0", r"\1 1", (ANSWERS / "metrics_after_1.txt").read_text())
            grown = 1.0 + past / GROWS_S
            kind, body = "text/plain", TOTAL.sub(lambda match: f"{match[1]} {float(match[2]) * grown:.6g}", text)
        elif path == "/slots":
            body = (ANSWERS / f"slots_busy_{1 + int(past) % 2}.json").read_text()
        elif path == "/props":
            body = (ANSWERS / "props.json").read_text()
        head = f"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: {kind}\r\n"
        self._transport.write(f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode())


async def serve(count: int) -> None:
    """Print the ports, and serve until the standard input ends."""
    loop = asyncio.get_running_loop()
    made = partial(Server, time.monotonic())
    servers = [await loop.create_server(made, "127.0.0.1", 0) for _ in range(count)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def measured(count: int, seconds: float) -> dict[str, Any]:
    """The cost of so many servers."""
    command = [sys.executable, __file__, "--serve", str(count)]
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as mute,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers,
    ):
        assert servers.stdout is not None
        assert servers.stdin is not None
        places = {f"sim{number:03d}": port for number, port in enumerate(json.loads(servers.stdout.readline()), 1)}
        places |= {"mute": mute.getsockname()[1], "gone": 1}
        text = "".join(
            f'[[target]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\n' for name, port in places.items()
        )
        config = Path(folder) / "specdash" / "config.toml"
        config.parent.mkdir()
        config.write_text(text, encoding="utf-8")
        home = {"XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
        program = ["env", *(f"{name}={value}" for name, value in home.items()), "TERM=xterm-256color"]
        try:
            with pane([*program, sys.executable, "-m", "specdash", "fleet"]) as screen:
                painted = screen.wait_for("sim001")
                time.sleep(SETTLE_S)
                cpu, memory = screen.cpu_percent(seconds), screen.rss_mb()
            lag = subprocess.run(
                [sys.executable, "-c", LAG, str(round(seconds))],
                env=os.environ | home, capture_output=True, text=True, check=True, timeout=seconds + 60,
            )  # fmt: skip
        finally:
            servers.stdin.close()
    ages = json.loads(lag.stdout)
    return {
        "cpu_percent": round(cpu, 1),
        "rss_mb": round(memory, 1),
        "first_rows_s": round(painted, 2),
        "metrics_age_median_ms": round(1000 * statistics.median(ages)),
        "metrics_age_worst_ms": round(1000 * ages[-1]),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    counts = [int(word) for word in sys.argv[2:]] or COUNTS
    print(json.dumps({str(count): measured(count, seconds) for count in counts}, indent=1))


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(serve(int(sys.argv[2])))
    else:
        main()
