"""Many simulated llama-servers in one process: each answers /health, /props, /metrics and /slots with what a real one
answered (tests/data/http), its counters going on and its tokens being decoded.

`python benchmarks/fleet_servers.py COUNT [idle]` prints the ports as JSON, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from functools import partial
from pathlib import Path

ANSWERS = Path(__file__).parents[1] / "tests" / "data" / "http"
TOTAL = re.compile(r"^(llamacpp:\w+_total(?:\{[^}]*\})?) ([0-9.e+]+)$", re.MULTILINE)
GROWS_S = 10.0
"""So long takes a total to grow by what it was recorded at."""


class Recorded:
    """What a server answers at a moment."""

    def __init__(self, *, idle: bool) -> None:
        self.idle = idle
        self.props = (ANSWERS / "props.json").read_bytes()
        self.metrics = (ANSWERS / "metrics_after_1.txt").read_text()
        if not idle:
            self.metrics = re.sub(r"(requests_processing) 0", r"\1 1", self.metrics)
        names = ("slots_after",) if idle else ("slots_busy_1", "slots_busy_2")
        self.slots = [json.dumps(json.loads((ANSWERS / f"{name}.json").read_text())).encode() for name in names]
        self.began = time.monotonic()

    def body(self, path: str) -> tuple[bytes, str]:
        """The body of an answer, and its type."""
        past = 0.0 if self.idle else time.monotonic() - self.began
        if path == "/metrics":
            grown = 1.0 + past / GROWS_S
            text = TOTAL.sub(lambda match: f"{match[1]} {float(match[2]) * grown:.6g}", self.metrics)
            return text.encode(), "text/plain"
        if path == "/slots":
            return self.slots[int(past) % len(self.slots)], "application/json"
        return (self.props if path == "/props" else b'{"status":"ok"}'), "application/json"


class Server(asyncio.Protocol):
    """One connection."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer one question."""
        assert self._transport is not None
        path = data.split(b" ", 2)[1].split(b"?")[0].decode()
        body, media_type = self._recorded.body(path)
        head = (
            f"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)


async def main() -> None:
    """Serve."""
    idle = "idle" in sys.argv
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(partial(Server, Recorded(idle=idle)), "127.0.0.1", 0) for _ in range(int(sys.argv[1]))
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
