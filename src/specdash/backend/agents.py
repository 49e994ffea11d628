"""The demo's agents: clients that work through the proxy as coding agents do, in streamed turns with tools.

`python -m specdash.backend.agents --url PROXY` runs them until it is stopped. They keep a growing history each, call
the tools the model asks for (what comes back is canned), and begin anew when the context is nearly full. One of them
repeats the same call with the same result, as stuck agents do, so that the loop breaker has something to break.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from typing import Any

REQUEST_DEADLINE_S = 60.0
PAUSE_S = 1.5
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
    """One session after another through the proxy at `url`."""

    def __init__(self, url: str, name: str, *, window: int, stuck: bool, seed: int) -> None:
        self._url = url
        self._window = window
        self._name = name
        self._stuck = stuck
        self._rng = random.Random(seed)  # noqa: S311
        self._number = 0

    async def run(self, client: Any) -> None:
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

    async def _turn(self, client: Any, messages: list[dict[str, Any]], turn: int) -> float | None:
        """One exchange; returns the share of the context it used, None when it failed."""
        import httpx

        body = {
            "model": "claude-demo",
            "max_tokens": 192,
            "temperature": 0.0 if self._stuck else 0.6,
            "stream": True,
            "messages": messages,
            "tools": TOOLS,
        }
        headers = {"x-claude-code-session-id": f"{self._name}-{self._number}"}
        try:
            async with client.stream("POST", f"{self._url}/v1/messages", json=body, headers=headers) as response:
                content, used = await _content(response)
        except (httpx.HTTPError, ValueError, KeyError):
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
        return f"class Module{turn}:\n{_LINES[: self._rng.randrange(200, len(_LINES))]}"


def _call(turn: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{turn}", "name": name, "input": arguments}


async def _content(response: Any) -> tuple[list[dict[str, Any]], int]:
    """The blocks of a streamed message, and the tokens its turn used."""
    blocks: list[dict[str, Any]] = []
    pieces: list[str] = []
    used = 0
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        event = json.loads(line[5:])
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
    return [block for block in blocks if block.get("text") != ""], used


def _complete(block: dict[str, Any], text: str) -> None:
    if block["type"] == "tool_use":
        block["input"] = json.loads(text or "{}")
    else:
        block["text"] = text


async def work(url: str) -> None:
    """Run all agents once the proxy answers, until cancelled."""
    import httpx

    async with httpx.AsyncClient(timeout=REQUEST_DEADLINE_S, trust_env=False) as client:
        window = await _window_when_ready(client, url)
        agents = [
            Agent(url, "refactor", window=window, stuck=False, seed=1),
            Agent(url, "review", window=window, stuck=False, seed=2),
            Agent(url, "stuck", window=window, stuck=True, seed=3),
        ]
        await asyncio.gather(*(agent.run(client) for agent in agents))


async def _window_when_ready(client: Any, url: str) -> int:
    import httpx

    async with asyncio.timeout(START_DEADLINE_S):
        while True:
            try:
                window = (await client.get(f"{url}/health")).json().get("context_window")
            except (httpx.HTTPError, ValueError):
                window = None
            if window:
                return int(window)
            await asyncio.sleep(0.2)


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
