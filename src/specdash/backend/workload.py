"""The demo's traffic: real requests in phases that look different on a dashboard, and agents that work through a proxy.

`python -m specdash.backend.workload --url URL` sends the requests until it is stopped, in a process of its own, so that
what they cost is not charged to the dashboard. With `--record FILE` every answer's `timings`, never its text, go to a
file. With `--agents` it is clients of the proxy at URL that work as coding agents do, in streamed turns with tools.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import sysconfig
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

from specdash.llama.client import question
from specdash.llama.server_answers import ParseError, load_object
from specdash.system.http import Http, HttpReply

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST_DEADLINE_S = 60.0
_NAMES = (
    "name", "value", "path", "line", "header", "key", "item", "socket", "token", "field", "option", "record", "message",
    "index", "group", "event",
)  # fmt: skip
_VERBS = ("read", "write", "parse", "get", "set", "find")


class DemoPrompt(Struct, frozen=True):
    """One request: the user's turn, how many tokens may be generated, and the sampling temperature."""

    text: str
    max_tokens: int
    temperature: float = 0.0


class TrafficPhase(Struct, frozen=True):
    """A kind of traffic: what is asked, by how many clients at once, for how long (seconds)."""

    name: str
    seconds: float
    clients: int
    prompt: Callable[[random.Random], DemoPrompt]
    pause_s: float = 0.1


def _coding(rng: random.Random) -> DemoPrompt:
    return DemoPrompt(f"Write the function `def {rng.choice(_VERBS)}_{rng.choice(_NAMES)}(self, name)`.", 96)


def _pattern(rng: random.Random) -> DemoPrompt:
    name, start, count = rng.choice(_NAMES), rng.randrange(21), rng.randrange(40, 61)
    texts = (
        f"Write a JSON list of {name} records.",
        f"Count from {start} to {start + count}.",
        f"Write numbered assignments for {name}.",
        f"Repeat {name} {count} times.",
    )
    return DemoPrompt(rng.choice(texts), 96)


def _hot(rng: random.Random) -> DemoPrompt:
    return DemoPrompt(f"Explain what a {rng.choice(_NAMES)} is.", 96, temperature=1.3)


def _long_prefill(rng: random.Random) -> DemoPrompt:
    source = _stdlib_text(rng.choice(("argparse.py", "asyncio/base_events.py", "typing.py", "subprocess.py")))
    start = rng.randrange(max(1, len(source) - 8000))
    return DemoPrompt(f"Summarise this module:\n{source[start : start + 6000]}", 48)


def _stdlib_text(name: str) -> str:
    path = Path(sysconfig.get_paths()["stdlib"]) / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return "\n".join(f"def function_{i}(value):\n    return value + {i}" for i in range(400))


PHASES: tuple[TrafficPhase, ...] = (
    TrafficPhase("pattern", 28.0, 1, _pattern),
    TrafficPhase("coding", 16.0, 1, _coding),
    TrafficPhase("long prefill", 6.0, 1, _long_prefill),
    TrafficPhase("hot", 40.0, 4, _hot),
    TrafficPhase("idle", 4.0, 0, _coding),
)
"""One round; it repeats for as long as the demo runs. All but `hot` pay: text that is predictable, for one client at a
time. There the temperature is high, so that few drafts hold, and four clients leave no idle arithmetic to verify them
with."""
PAYING = tuple(phase.name for phase in PHASES if phase.prompt is not _hot)


class DemoTraffic:
    """Sends the phases' requests to one server."""

    def __init__(self, url: str, *, phases: tuple[str, ...] = (), seed: int = 1, record: IO[str] | None = None) -> None:
        """`phases` names those of a round; empty: all."""
        self._url = url
        self._phases = [phase for phase in PHASES if not phases or phase.name in phases]
        self._rng = random.Random(seed)  # noqa: S311
        self._record = record

    async def run(self) -> None:
        """Repeat the phases until cancelled."""
        async with contextlib.aclosing(Http(self._url)) as client:
            while True:
                for phase in self._phases:
                    await self._phase(client, phase)

    async def _phase(self, client: Http, phase: TrafficPhase) -> None:
        until = time.monotonic() + phase.seconds
        if phase.clients == 0:
            await asyncio.sleep(phase.seconds)
            return
        await asyncio.gather(*(self._client(client, phase, until) for _ in range(phase.clients)))

    async def _client(self, client: Http, phase: TrafficPhase, until: float) -> None:
        while time.monotonic() < until:
            if not await self._request(client, phase.name, phase.prompt(self._rng)):
                await asyncio.sleep(0.5)
            await asyncio.sleep(phase.pause_s)

    async def _request(self, client: Http, phase: str, prompt: DemoPrompt) -> bool:
        body = {
            "messages": [{"role": "user", "content": prompt.text}],
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
            "seed": self._rng.randrange(2**31),
        }
        try:
            answer = await question(client, "/v1/chat/completions", REQUEST_DEADLINE_S, body=body)
            timings = load_object(answer.body)["timings"] if isinstance(answer, HttpReply) else None
        except (ParseError, KeyError):
            return False
        if timings is None:
            return False
        if self._record is not None:
            self._record.write(json.dumps({"phase": phase, "ended": time.time(), "timings": timings}) + "\n")
            self._record.flush()
        return True


# The agents keep a growing history each, in which the calls and their results are canned, and begin again after some
# turns. One of them repeats the same call with the same result, as stuck agents do, so that the loop breaker has
# something to break.

PAUSE_S = 9.0
"""Between the turns of an agent: they shall not fill the server that the other traffic is watched on."""
MAX_TOKENS, STUCK_MAX_TOKENS = 64, 4
START_DEADLINE_S = 30.0
TURNS = 14
"""Of a session: its history then fills most of the demo's context."""
TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "name": name,
        "description": f"{name} of the project",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
    for name in ("read_file", "run_tests")
)
_FILES = ("config.py", "server.py", "cache.py", "tokens.py", "stream.py", "paths.py")
_LINES = "".join(f"    def step_{at}(self, value):\n        return value + {at}\n" for at in range(12))


async def _work(client: Http, name: str, rng: random.Random, *, stuck: bool) -> None:
    """One session after another through a proxy, until cancelled."""
    number = 0
    while True:
        number += 1
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Read the file {rng.choice(_FILES)}"}]
        for turn in range(TURNS):
            body = {
                "model": "claude-demo",
                "max_tokens": STUCK_MAX_TOKENS if stuck else MAX_TOKENS,
                "temperature": 0.0,
                "stream": True,
                "messages": messages,
                "tools": TOOLS,
            }
            headers = {"x-claude-code-session-id": f"{name}-{number}"}
            await question(client, "/v1/messages", REQUEST_DEADLINE_S, body=body, headers=headers)
            path = "config.py" if stuck else rng.choice(_FILES)
            call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "read_file", "input": {"path": path}}
            result = f"class Module{turn}:\n{_LINES[: rng.randrange(100, 400)]}"
            if stuck:
                result = "FileNotFoundError: config.py"
            messages.append({"role": "assistant", "content": [call]})
            answer = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
            messages.append({"role": "user", "content": [answer]})
            await asyncio.sleep(PAUSE_S * rng.uniform(0.5, 1.5))


async def work_as_agents(url: str) -> None:
    """Run all agents once the proxy answers, until cancelled."""
    async with contextlib.aclosing(Http(url)) as client:
        async with asyncio.timeout(START_DEADLINE_S):
            while True:
                if isinstance(await question(client, "/health", REQUEST_DEADLINE_S), HttpReply):
                    break
                await asyncio.sleep(0.2)
        names = ("refactor", "review", "stuck")
        await asyncio.gather(*(
            _work(client, name, random.Random(name), stuck=name == "stuck") for name in names  # noqa: S311
        ))  # fmt: skip


def main() -> int:
    """Entry point of the workload process."""
    parser = argparse.ArgumentParser(prog="python -m specdash.backend.workload")
    parser.add_argument("--url", required=True)
    parser.add_argument("--phase", choices=[phase.name for phase in PHASES], action="append", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--agents", action="store_true")
    args = parser.parse_args()
    record = args.record.open("a", encoding="utf-8") if args.record is not None else None
    traffic = DemoTraffic(args.url, phases=tuple(args.phase), seed=args.seed, record=record)
    try:
        asyncio.run(work_as_agents(args.url) if args.agents else traffic.run())
    except (KeyboardInterrupt, TimeoutError):
        return 0
    finally:
        if record is not None:
            record.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
