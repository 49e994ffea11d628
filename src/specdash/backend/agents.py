"""The demo's agents: clients that work through the proxy as coding agents do, in streamed turns with tools.

`python -m specdash.backend.agents --url PROXY` runs them until it is stopped. They keep a growing history each, call
the tools the model asks for (what comes back is canned), and begin anew when the context is nearly full. One of them
repeats the same call with the same result, as stuck agents do, so that the loop breaker has something to break.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
from typing import TYPE_CHECKING, Any

from specdash.llama.client import HttpAnswer, Transport
from specdash.llama.server_answers import ParseError, load_object
from specdash.system.http import events

if TYPE_CHECKING:
    from specdash.core.readings import Failure

REQUEST_DEADLINE_S = 60.0
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
        file = self._rng.choice(_FILES)
        return f"Read the file {file}"

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
            content, used = _content(answer.body if isinstance(answer, HttpAnswer) else b"")
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
    for event in map(json.loads, events([stream])):
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


async def work(url: str) -> None:
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
            window = _object(answer).get("context_window")
            if window:
                return int(window)
            await asyncio.sleep(0.2)


def _object(answer: HttpAnswer | Failure) -> dict[str, Any]:
    try:
        return load_object(answer.body) if isinstance(answer, HttpAnswer) else {}
    except ParseError:
        return {}


def main() -> int:
    """Entry point of the agents' process."""
    parser = argparse.ArgumentParser(prog="python -m specdash.backend.agents")
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    try:
        asyncio.run(work(args.url))
    except (KeyboardInterrupt, TimeoutError):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
