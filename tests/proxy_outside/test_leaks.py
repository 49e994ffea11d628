"""Thousands of requests with clients that leave at random: nothing leaks."""

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import OPENAI_TOOLS, TOOLS, chat, turn
from support.upstream_script import Pause, Script, answers, calls, error, says, stops, tool_turn

REQUESTS = 4000
AT_ONCE = 24
MAX_SESSIONS = 512
SLACK_BYTES = 6e6
"""Between the middle and the end: what an allocator may keep, far below one kilobyte a request."""
SLACK_DESCRIPTORS = 8
SCRIPTS = (
    answers("Hello ", "there"),
    Script((*says("Hello "), Pause(0.02), *says("there"), *stops())),
    tool_turn("read_file", {"path": "a"}),
    Script((*calls("read_file", {"limit": "x"}), *stops("tool_calls"))),
    error(500, "Compute error.", "server_error"),
    Script(drops=True),
)


def request(number: int, rng: random.Random) -> bytes:
    """One request of the mix."""
    stream = rng.random() < 0.6
    path, body = "/v1/messages", turn(f"turn {number}", stream=stream)
    if rng.random() < 0.3:
        body["tools"] = TOOLS
    if rng.random() < 0.15:
        path, body = "/v1/chat/completions", chat(f"turn {number}", stream=stream, tools=OPENAI_TOOLS)
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    lines += ["Connection: close", f"x-claude-code-session-id: s{rng.randrange(5000)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def one(port: int, number: int, rng: random.Random) -> None:
    """Ask, read, and perhaps leave before the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(number, rng))
        await writer.drain()
        leaves = rng.random() < 0.3
        if leaves:
            await asyncio.sleep(rng.random() * 0.03)
            return
        while await reader.read(65536):
            pass
    except ConnectionError:
        return
    finally:
        if rng.random() < 0.3:
            writer.transport.abort()
        writer.close()


async def drive(port: int, first: int, count: int) -> None:
    """Send them, some at once."""
    numbers = iter(range(first, first + count))

    async def worker(seed: int) -> None:
        rng = random.Random(seed)
        for number in numbers:
            async with asyncio.timeout(30):
                await one(port, number, rng)

    await asyncio.gather(*(worker(first + seed) for seed in range(AT_ONCE)))


def gauge(proxy: ProxyProcess, word: str) -> float:
    """The one metric whose name has this word in it."""
    text = proxy.request("GET", "/metrics").body.decode()
    found = [line for line in text.splitlines() if not line.startswith("#") and word in line.partition("{")[0]]
    assert found, f"no metric with {word!r} in its name: {text[:2000]}"
    return sum(float(line.rpartition(" ")[2]) for line in found)


def settled(proxy: ProxyProcess, upstream: FaultUpstream) -> tuple[int, int]:
    """Descriptors and memory once nothing runs. Connections kept for the next requests, at most as many as were at
    once, are no leak: how many it takes depends on how busy the machine is."""
    proxy.wait_idle()
    time.sleep(0.5)
    kept = proxy.connections_to(urlsplit(upstream.url).port or 0)
    assert kept <= AT_ONCE
    return proxy.descriptors() - kept, proxy.rss()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_thousands_of_requests_leave_nothing_behind(upstream: FaultUpstream, tmp_path: Path) -> None:
    rng = random.Random(1)

    def decide(_: Any) -> Script:
        del upstream.calls[:-100]
        return rng.choice(SCRIPTS)

    upstream.decide = decide
    values = {"PROXY_LOG_LEVEL": "ERROR"}
    with running_proxy(upstream.url, tmp_path, values) as proxy:
        asyncio.run(drive(proxy.port, 0, 500))
        warm_descriptors, _ = settled(proxy, upstream)
        asyncio.run(drive(proxy.port, 500, REQUESTS // 2 - 500))
        _, middle_rss = settled(proxy, upstream)
        asyncio.run(drive(proxy.port, REQUESTS // 2, REQUESTS // 2))
        descriptors, rss = settled(proxy, upstream)
        status = proxy.context()["status"]
        assert descriptors <= warm_descriptors + SLACK_DESCRIPTORS
        assert rss - middle_rss < SLACK_BYTES
        assert status["active"] == []
        assert status["waiting"] == 0
        assert status["session_count"] <= MAX_SESSIONS
        assert all(session["active"] == 0 for session in status["sessions"])
        assert gauge(proxy, "active_requests") == 0
        # A request whose client left before its body was read whole need not be counted.
        assert REQUESTS * 0.8 <= status["requests"] <= REQUESTS
        assert status["clients_left"] > 100
        assert proxy.stop() == 0
        assert "Traceback" not in proxy.stderr
        assert "was never retrieved" not in proxy.stderr
        assert "was destroyed but it is pending" not in proxy.stderr


def test_no_turn_leaves_a_connection_or_a_task(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    """The short form of the same, on every script."""
    upstream.decide = lambda _: SCRIPTS[len(upstream.chats) % len(SCRIPTS)]
    asyncio.run(drive(proxy.port, 0, 150))
    before, _ = settled(proxy, upstream)
    asyncio.run(drive(proxy.port, 150, 150))
    after, _ = settled(proxy, upstream)
    assert after <= before + SLACK_DESCRIPTORS
    assert proxy.context()["status"]["active"] == []
