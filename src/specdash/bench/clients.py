"""Clients that keep a proxy busy without pause, and remember every request that did not end as it should."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from specdash.bench.messages import ask

if TYPE_CHECKING:
    import httpx

WAYS = ("messages, streamed", "messages, whole", "chat, streamed", "chat, whole")
_MODEL = "claude-specdash-storm"
_TIMEOUT_S = 600.0
_PROMPT = "Write a function that adds two numbers, then a test of it."


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """One request as its client saw it. `at` is Unix time of its start, durations are seconds; `error` is one line."""

    way: str
    at: float
    duration_s: float
    error: str | None


class Clients:
    """`count` threads that ask one request after the other, in all the ways there are. Use as a context manager."""

    def __init__(self, url: str, count: int, *, max_tokens: int = 32) -> None:
        self._url = url
        self._max_tokens = max_tokens
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._live, args=(number,), name=f"client {number}") for number in range(count)
        ]
        self.seen: list[RequestSeen] = []
        """Every request that ended; appended to by the clients."""

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let running requests end, then stop."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    @property
    def errors(self) -> list[RequestSeen]:
        """The requests that failed."""
        return [one for one in self.seen if one.error is not None]

    def _live(self, number: int) -> None:
        import httpx

        with httpx.Client(base_url=self._url, timeout=_TIMEOUT_S, trust_env=False) as client:
            turn = number
            while not self._ended.is_set():
                way = WAYS[turn % len(WAYS)]
                turn += 1
                at, started = time.time(), time.perf_counter()
                error = self._ask(client, way, number)
                self.seen.append(RequestSeen(way, at, time.perf_counter() - started, error))

    def _ask(self, client: httpx.Client, way: str, number: int) -> str | None:
        import httpx

        body: dict[str, Any] = {
            "model": _MODEL,
            "max_tokens": self._max_tokens,
            "messages": [{"role": "user", "content": f"{_PROMPT} ({number})"}],
        }
        if way == WAYS[0]:
            return ask(client, body, {}).error
        try:
            if way == WAYS[1]:
                return _fault(client.post("/v1/messages", json=body), "stop_reason")
            if way == WAYS[3]:
                return _fault(client.post("/v1/chat/completions", json=body), "choices")
            return _streamed_chat(client, body)
        except httpx.HTTPError as problem:
            return f"{type(problem).__name__}: {problem}"


def _fault(answer: httpx.Response, wanted: str) -> str | None:
    try:
        told = answer.json()
    except ValueError:
        told = None
    if answer.status_code == 200 and isinstance(told, dict) and told.get(wanted):
        return None
    return f"HTTP {answer.status_code}: {answer.text[:200]}"


def _streamed_chat(client: httpx.Client, body: dict[str, Any]) -> str | None:
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            answer.read()
            return f"HTTP {answer.status_code}: {answer.text[:200]}"
        last = finished = ""
        for line in answer.iter_lines():
            if line.startswith(('data: {"error"', "error:")):
                return line[:200]
            finished = line if '"finish_reason":"' in line.replace(" ", "") else finished
            last = line or last
    return None if last == "data: [DONE]" and finished else f"the stream ended with {last[:80]!r}"
