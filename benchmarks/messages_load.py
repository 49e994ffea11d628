"""Loads a Messages or a chat completions endpoint with streams, and times them as a client sees them."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is loaded: its root URL, and whether it speaks chat completions instead of Messages."""

    name: str
    url: str
    openai: bool = False

    def request(self, tokens: int) -> bytes:
        """A whole HTTP request for a stream of `tokens` tokens, on a connection of its own."""
        body = json.dumps({
            "model": "m",
            "max_tokens": tokens,
            "stream": True,
            "messages": [{"role": "user", "content": "Write a quicksort in Python."}],
        }).encode()  # fmt: skip
        path = "/v1/chat/completions" if self.openai else "/v1/messages"
        head = [f"POST {path} HTTP/1.1", f"Host: {urlsplit(self.url).netloc}", "Content-Type: application/json"]
        head += ["x-api-key: none", "Authorization: Bearer none", "anthropic-version: 2023-06-01", "Connection: close"]
        head += [f"Content-Length: {len(body)}"]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream: seconds to its first text and to its end, and its events."""

    ttft_s: float
    total_s: float
    events: int


@dataclass(frozen=True, slots=True)
class Load:
    """All streams of a load. `failed` ones are in none of the figures."""

    streams: tuple[Stream, ...]
    failed: int
    wall_s: float

    @property
    def events_per_s(self) -> float:
        """SSE events a second over all streams."""
        return sum(stream.events for stream in self.streams) / self.wall_s

    def ttft_ms(self, share: float) -> float:
        """Quantile of the time to the first text, in milliseconds."""
        return quantile([stream.ttft_s for stream in self.streams], share) * 1e3

    def total_s(self, share: float) -> float:
        """Quantile of the time to the end."""
        return quantile([stream.total_s for stream in self.streams], share)


def quantile(values: list[float], share: float) -> float:
    """Nearest rank; NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def load(endpoint: Endpoint, *, streams: int, concurrency: int, tokens: int) -> Load:
    """Run that many streams, some at once, after a few that do not count."""
    return asyncio.run(_load(endpoint, streams, concurrency, tokens))


async def _load(endpoint: Endpoint, streams: int, concurrency: int, tokens: int) -> Load:
    done: list[Stream | None] = []
    request = endpoint.request(tokens)

    async def work(left: list[int]) -> None:
        while left:
            left.pop()
            done.append(await _one(endpoint, request))

    await work([0] * 5)
    done.clear()
    left = [0] * streams
    started = time.perf_counter()
    await asyncio.gather(*(work(left) for _ in range(concurrency)))
    wall = time.perf_counter() - started
    good = tuple(stream for stream in done if stream is not None)
    return Load(good, len(done) - len(good), wall)


async def _one(endpoint: Endpoint, request: bytes) -> Stream | None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _read(endpoint, request)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None


async def _read(endpoint: Endpoint, request: bytes) -> Stream | None:
    address = urlsplit(endpoint.url)
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return None
        ttft: float | None = None
        events, tail = 0, b""
        while data := await reader.read(1 << 16):
            seen = tail + data
            if ttft is None and b" tok0" in seen:
                ttft = time.perf_counter() - started
            events += seen.count(b"data: ") - tail.count(b"data: ")
            tail = seen[-200:]
            if b"message_stop" in tail or b"[DONE]" in tail:
                break
        else:
            return None
        return None if ttft is None else Stream(ttft, time.perf_counter() - started, events)
    finally:
        writer.close()
