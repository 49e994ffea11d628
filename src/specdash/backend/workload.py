"""The demo's traffic: real requests in phases that look different on a dashboard.

`python -m specdash.backend.workload --url URL` sends them until it is stopped, in a process of its own, so that what it
costs is not charged to the dashboard. With `--record FILE` every answer's `timings`, never its text, go to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST_DEADLINE_S = 60.0
_TASKS = (
    "read a configuration file and return its sections as a dict",
    "walk a directory tree and yield every path that matches a pattern",
    "parse a date string and return a datetime",
    "open a socket, send the request and return the response body",
    "format a table of rows with aligned columns",
    "merge two sorted lists into one",
    "compute the checksum of a file in blocks",
    "escape the special characters of a string",
    "retry a function call until it succeeds or the time is over",
    "convert a number of bytes to a readable text",
)
_NAMES = ("load", "scan", "parse_date", "fetch", "format_table", "merge", "checksum", "escape", "retry", "human_size")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: the user's turn, how many tokens may be generated, and the sampling temperature."""

    text: str
    max_tokens: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A kind of traffic: what is asked, by how many clients at once, for how long (seconds)."""

    name: str
    seconds: float
    clients: int
    prompt: Callable[[random.Random], Prompt]
    pause_s: float = 0.3


def _coding(rng: random.Random) -> Prompt:
    index = rng.randrange(len(_TASKS))
    return Prompt(f"Write the function def {_NAMES[index]}_{rng.randrange(100)}(self, name): {_TASKS[index]}", 192)


def _pattern(rng: random.Random) -> Prompt:
    stem = rng.choice(("ERROR", "FIELD", "OPTION", "STATE", "TOKEN"))
    start = rng.randrange(40)
    rows = "\n".join(f"{stem}_{start + i} = {start + i}" for i in range(24))
    return Prompt(f"Continue this list:\n{rows}\n", 256)


def _long_prefill(rng: random.Random) -> Prompt:
    source = _stdlib_text(rng.choice(("argparse.py", "asyncio/base_events.py", "typing.py", "subprocess.py")))
    start = rng.randrange(max(1, len(source) - 8000))
    return Prompt(f"Summarise this module:\n{source[start : start + 6000]}", 48)


def _stdlib_text(name: str) -> str:
    path = Path(sysconfig.get_paths()["stdlib"]) / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return "\n".join(f"def function_{i}(value):\n    return value + {i}" for i in range(400))


PHASES: tuple[Phase, ...] = (
    Phase("coding", 6.0, 1, _coding),
    Phase("pattern", 4.0, 1, _pattern),
    Phase("long prefill", 4.0, 1, _long_prefill),
    Phase("concurrent", 6.0, 4, _coding),
    Phase("idle", 3.0, 0, _coding),
)
"""One round; it repeats for as long as the demo runs."""


class Workload:
    """Sends the phases' requests to one server."""

    def __init__(self, url: str, *, seed: int = 1, record: IO[str] | None = None) -> None:
        self._url = url
        self._rng = random.Random(seed)  # noqa: S311
        self._record = record

    async def run(self) -> None:
        """Repeat the phases until cancelled."""
        import httpx

        async with httpx.AsyncClient(base_url=self._url, timeout=REQUEST_DEADLINE_S, trust_env=False) as client:
            while True:
                for phase in PHASES:
                    await self._phase(client, phase)

    async def _phase(self, client: Any, phase: Phase) -> None:
        until = time.monotonic() + phase.seconds
        if phase.clients == 0:
            await asyncio.sleep(phase.seconds)
            return
        await asyncio.gather(*(self._client(client, phase, until) for _ in range(phase.clients)))

    async def _client(self, client: Any, phase: Phase, until: float) -> None:
        while time.monotonic() < until:
            if not await self._request(client, phase.name, phase.prompt(self._rng)):
                await asyncio.sleep(0.5)
            await asyncio.sleep(phase.pause_s)

    async def _request(self, client: Any, phase: str, prompt: Prompt) -> bool:
        import httpx

        body = {
            "messages": [{"role": "user", "content": prompt.text}],
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
            "seed": self._rng.randrange(2**31),
        }
        try:
            response = await client.post("/v1/chat/completions", json=body)
            timings = response.json()["timings"]
        except (httpx.HTTPError, ValueError, KeyError):
            return False
        if self._record is not None:
            self._record.write(json.dumps({"phase": phase, "ended": time.time(), "timings": timings}) + "\n")
            self._record.flush()
        return True


def main() -> int:
    """Entry point of the workload process."""
    parser = argparse.ArgumentParser(prog="python -m specdash.backend.workload")
    parser.add_argument("--url", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    record = args.record.open("a", encoding="utf-8") if args.record is not None else None
    try:
        asyncio.run(Workload(args.url, seed=args.seed, record=record).run())
    except KeyboardInterrupt:
        return 0
    finally:
        if record is not None:
            record.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
