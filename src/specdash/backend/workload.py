"""The demo's traffic: real requests in phases that look different on a dashboard, and agents that work through a proxy.

`python -m specdash.backend.workload --url URL` sends the requests until it is stopped, in a process of its own, so that
what they cost is not charged to the dashboard. With `--record FILE` every answer's `timings`, never its text, go to a
file. With `--agents` it is clients of the proxy at URL that work as coding agents do, in streamed turns with tools.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from specdash.llama.client import question
from specdash.llama.server_answers import mapping
from specdash.system.http import Http, HttpReply

REQUEST_DEADLINE_S = 60.0
_NAMES = ("name", "value", "path", "line", "header", "key", "item", "socket", "token", "field", "option", "record")
_CODE = "\n".join(f"def function_{at}(value):\n    return value + {at}\n" for at in range(160))


class TrafficPhase(Struct, frozen=True):
    """A kind of traffic: what is asked (what is in braces is drawn), by how many clients at once, for how long."""

    name: str
    seconds: float
    texts: tuple[str, ...] = ()
    clients: int = 1
    temperature: float = 0.0


PHASES = (
    TrafficPhase("pattern", 28.0, ("Write a JSON list of {name} records.", "Count from {start} to {end}.",
                                   "Write numbered assignments for {name}.", "Repeat {name} {count} times.")),
    TrafficPhase("coding", 16.0, ("Write the function `def read_{name}(self, name)`.",)),
    TrafficPhase("long prefill", 6.0, ("Summarise this module:\n{code}",)),
    TrafficPhase("hot", 40.0, ("Explain what a {name} is.",), 4, 1.3),
    TrafficPhase("idle", 4.0, (), 0),
)  # fmt: skip
"""One round; it repeats for as long as the demo runs. All but `hot` pay: text that is predictable, for one client at a
time. There the temperature is high, so that few drafts hold, and four clients leave no idle arithmetic to verify them
with."""
PAYING = tuple(phase.name for phase in PHASES if phase.name != "hot")


async def send_requests(url: str, names: tuple[str, ...], record: IO[str] | None) -> None:
    """Repeat the phases of these names, or all, until cancelled."""
    rng, path = random.Random(1), "/v1/chat/completions"  # noqa: S311
    async with contextlib.aclosing(Http(url)) as client:

        async def ask(phase: TrafficPhase, until: float) -> None:
            while time.monotonic() < until:
                start, count, code = rng.randrange(21), rng.randrange(40, 61), _CODE[rng.randrange(2000) :][:4500]
                drawn = {"name": rng.choice(_NAMES), "start": start, "end": start + count, "count": count, "code": code}
                turn = {"role": "user", "content": rng.choice(phase.texts).format_map(drawn)}
                body = {"messages": [turn], "max_tokens": 96, "temperature": phase.temperature}
                answer = await question(client, path, REQUEST_DEADLINE_S, body=body)
                timings = mapping(answer.json).get("timings") if isinstance(answer, HttpReply) else None
                if timings is not None and record is not None:
                    record.write(json.dumps({"phase": phase.name, "ended": time.time(), "timings": timings}) + "\n")
                    record.flush()
                await asyncio.sleep(0.1 if timings is not None else 0.6)

        for phase in itertools.cycle([phase for phase in PHASES if not names or phase.name in names]):
            until = time.monotonic() + phase.seconds
            await asyncio.gather(*(ask(phase, until) for _ in range(phase.clients)))
            await asyncio.sleep(0.0 if phase.clients else phase.seconds)


PAUSE_S = 9.0
"""Between the turns of an agent: they shall not fill the server that the other traffic is watched on."""
TURNS = 14
"""Of a session: its history then fills most of the demo's context."""
_PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = tuple(
    {"name": name, "description": f"{name} of the project", "input_schema": _PATH}
    for name in ("read_file", "run_tests")
)
_FILES = ("config.py", "server.py", "cache.py", "tokens.py", "stream.py", "paths.py")


async def work_as_agents(url: str) -> None:
    """Run all agents until cancelled. Each keeps a growing history, in which calls and results are canned, and begins
    again after some turns; `stuck` repeats one call with one result."""
    async with contextlib.aclosing(Http(url)) as client:

        async def work(name: str) -> None:
            stuck, rng = name == "stuck", random.Random(name)  # noqa: S311
            for number in itertools.count():
                messages: list[dict[str, Any]] = [{"role": "user", "content": f"Read the file {rng.choice(_FILES)}"}]
                for turn in range(TURNS):
                    body = {"model": "claude-demo", "max_tokens": 4 if stuck else 64, "temperature": 0.0,
                            "stream": True, "messages": messages, "tools": TOOLS}  # fmt: skip
                    headers = {"x-claude-code-session-id": f"{name}-{number}"}
                    await question(client, "/v1/messages", REQUEST_DEADLINE_S, body=body, headers=headers)
                    path = _FILES[0] if stuck else rng.choice(_FILES)
                    call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "read_file", "input": {"path": path}}
                    result = "FileNotFoundError: config.py" if stuck else _CODE[: rng.randrange(100, 400)]
                    answer = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
                    messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]
                    await asyncio.sleep(PAUSE_S * rng.uniform(0.5, 1.5))

        await asyncio.gather(*map(work, ("refactor", "review", "stuck")))


def main() -> int:
    """Entry point of the workload process."""
    parser = argparse.ArgumentParser(prog="python -m specdash.backend.workload")
    parser.add_argument("--url", required=True)
    parser.add_argument("--phase", choices=[phase.name for phase in PHASES], action="append", default=[])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--agents", action="store_true")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        record = stack.enter_context(args.record.open("a", encoding="utf-8")) if args.record is not None else None
        asyncio.run(work_as_agents(args.url) if args.agents else send_requests(args.url, tuple(args.phase), record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
