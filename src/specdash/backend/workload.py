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

from specdash.llama.client import Transport
from specdash.llama.server_answers import ParseError, load_object
from specdash.system.data import dataclass
from specdash.system.http import EventLines, HttpReply

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST_DEADLINE_S = 60.0
_NAMES = (
    "name", "value", "path", "line", "header", "key", "item", "socket", "token", "field", "option", "record", "message",
    "index", "group", "event",
)  # fmt: skip
_VERBS = ("read", "write", "parse", "get", "set", "find")


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One request: the user's turn, how many tokens may be generated, and the sampling temperature."""

    text: str
    max_tokens: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class TrafficPhase:
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
        async with contextlib.aclosing(Transport(self._url, None)) as client:
            while True:
                for phase in self._phases:
                    await self._phase(client, phase)

    async def _phase(self, client: Transport, phase: TrafficPhase) -> None:
        until = time.monotonic() + phase.seconds
        if phase.clients == 0:
            await asyncio.sleep(phase.seconds)
            return
        await asyncio.gather(*(self._client(client, phase, until) for _ in range(phase.clients)))

    async def _client(self, client: Transport, phase: TrafficPhase, until: float) -> None:
        while time.monotonic() < until:
            if not await self._request(client, phase.name, phase.prompt(self._rng)):
                await asyncio.sleep(0.5)
            await asyncio.sleep(phase.pause_s)

    async def _request(self, client: Transport, phase: str, prompt: DemoPrompt) -> bool:
        body = {
            "messages": [{"role": "user", "content": prompt.text}],
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
            "seed": self._rng.randrange(2**31),
        }
        try:
            answer = await client.post("/v1/chat/completions", body, REQUEST_DEADLINE_S)
            timings = load_object(answer.body)["timings"] if isinstance(answer, HttpReply) else None
        except (ParseError, KeyError):
            return False
        if timings is None:
            return False
        if self._record is not None:
            self._record.write(json.dumps({"phase": phase, "ended": time.time(), "timings": timings}) + "\n")
            self._record.flush()
        return True


# The agents keep a growing history each, call the tools that the model asks for (what comes back is canned), and begin
# anew when the context is nearly full. One of them repeats the same call with the same result, as stuck agents do, so
# that the loop breaker has something to break.

PAUSE_S = 9.0
"""Between the turns of an agent: they shall not fill the server that the other traffic is watched on."""
MAX_TOKENS, STUCK_MAX_TOKENS = 64, 4
START_DEADLINE_S = 30.0
CONTEXT_SHARE = 0.7
"""Share of the context window at which an agent begins a new session."""
STUCK_TURNS = 14
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "read_file",
        "description": "Read a file of the project",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
    {
        "name": "run_tests",
        "description": "Run the tests of a module",
        "input_schema": {"type": "object", "properties": {"module": {"type": "string"}}, "required": ["module"]},
    },
)
_FILES = ("config.py", "server.py", "cache.py", "tokens.py", "stream.py", "paths.py")
_LINES = "".join(f"    def step_{at}(self, value):\n        return value + {at}\n" for at in range(12))


class Agent:
    """One session after another through a proxy."""

    def __init__(self, name: str, *, window: int, stuck: bool, seed: int) -> None:
        self._window = window
        self._name = name
        self._stuck = stuck
        self._rng = random.Random(seed)  # noqa: S311
        self._number = 0

    async def run(self, client: Transport) -> None:
        """Work until cancelled."""
        while True:
            self._number += 1
            messages: list[dict[str, Any]] = [{"role": "user", "content": self._task()}]
            for turn in range(STUCK_TURNS if self._stuck else 1000):
                share = await self._turn(client, messages, turn)
                await asyncio.sleep(PAUSE_S * self._rng.uniform(0.5, 1.5))
                if share is None or share > CONTEXT_SHARE:
                    break

    def _task(self) -> str:
        return f"Read the file {self._rng.choice(_FILES)}"

    async def _turn(self, client: Transport, messages: list[dict[str, Any]], turn: int) -> float | None:
        body = {
            "model": "claude-demo",
            "max_tokens": STUCK_MAX_TOKENS if self._stuck else MAX_TOKENS,
            "temperature": 0.0,
            "stream": True,
            "messages": messages,
            "tools": TOOLS,
        }
        headers = {"x-claude-code-session-id": f"{self._name}-{self._number}"}
        try:
            answer = await client.post("/v1/messages", body, REQUEST_DEADLINE_S, headers)
            content, used = _content(answer.body if isinstance(answer, HttpReply) else b"")
        except (ValueError, KeyError):
            return None
        if self._stuck:
            # A stuck model asks for the same again, whatever it was told.
            content = [_call(turn, "read_file", {"path": "config.py"})]
        calls = [block for block in content if block["type"] == "tool_use"]
        messages.append({"role": "assistant", "content": content or [{"type": "text", "text": "Done."}]})
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": self._result(turn)} for call in calls]
        messages.append({"role": "user", "content": results or self._task()})
        return used / self._window

    def _result(self, turn: int) -> str:
        if self._stuck:
            return "FileNotFoundError: config.py"
        return f"class Module{turn}:\n{_LINES[: self._rng.randrange(100, 400)]}"


def _call(turn: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{turn}", "name": name, "input": arguments}


def _content(stream: bytes) -> tuple[list[dict[str, Any]], int]:
    blocks: list[dict[str, Any]] = []
    pieces: list[str] = []
    used = 0
    for event in map(json.loads, EventLines().feed(stream)):
        kind = event["type"]
        if kind == "content_block_start":
            blocks.append(event["content_block"])
            pieces = []
        elif kind == "content_block_delta":
            delta = event["delta"]
            pieces.append(str(delta.get("text") or delta.get("partial_json") or ""))
        elif kind == "content_block_stop":
            _complete(blocks[-1], "".join(pieces))
        elif kind == "message_delta":
            usage = event["usage"]
            used = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"]
        elif kind == "error":
            raise ValueError(event["error"]["type"])
    if not used:
        raise ValueError("no whole message")
    return [block for block in blocks if block.get("text") != ""], used


def _complete(block: dict[str, Any], text: str) -> None:
    if block["type"] == "tool_use":
        block["input"] = json.loads(text or "{}")
    else:
        block["text"] = text


async def work_as_agents(url: str) -> None:
    """Run all agents once the proxy answers, until cancelled."""
    async with contextlib.aclosing(Transport(url, None)) as client:
        window = await _window_when_ready(client)
        agents = [
            Agent("refactor", window=window, stuck=False, seed=1),
            Agent("review", window=window, stuck=False, seed=2),
            Agent("stuck", window=window, stuck=True, seed=3),
        ]
        await asyncio.gather(*(agent.run(client) for agent in agents))


async def _window_when_ready(client: Transport) -> int:
    async with asyncio.timeout(START_DEADLINE_S):
        while True:
            answer = await client.get("/health", REQUEST_DEADLINE_S)
            with contextlib.suppress(ParseError):
                if isinstance(answer, HttpReply) and (window := load_object(answer.body).get("context_window")):
                    return int(window)
            await asyncio.sleep(0.2)


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
