"""What the proxy costs: the upstream asked directly and through it, in one run on one machine.

    python benchmarks/proxy_cost.py [ROUNDS] [--old PYTHON] [--litellm COMMAND]

Prints JSON, each figure the median of the rounds: time to the first text with 1, 8 and 64 streams at once, events a
second with 8 streams as fast as they go, the proxy's memory after that, and after 500 clients and bodies of 30 MB.
PYTHON runs another version of specdash, COMMAND is `litellm` of its own environment: peers in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from specdash.backend.launch import free_port  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

QUESTION = "Write a quicksort in Python."
LARGE = "word " * 6_000_000
PACE_S = 0.01
START_S, STREAM_S = 90.0, 60.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream: seconds to its first text, and its events."""

    ttft_s: float
    events: int


@dataclass(frozen=True, slots=True)
class Load:
    """All streams of a load, and the seconds they took together. `failed` ones are in no figure."""

    streams: tuple[Stream, ...]
    failed: int
    wall_s: float

    def ttft_ms(self, share: float) -> float:
        """Quantile of the time to the first text, in milliseconds."""
        ordered = sorted(stream.ttft_s for stream in self.streams)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3


def request(url: str, path: str, tokens: int, text: str = QUESTION) -> bytes:
    """A whole HTTP request for a stream of `tokens` tokens, on a connection of its own."""
    message = {"model": "m", "max_tokens": tokens, "stream": True, "messages": [{"role": "user", "content": text}]}
    body = json.dumps(message).encode()
    head = [f"POST {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", "Content-Type: application/json"]
    head += ["anthropic-version: 2023-06-01", "Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def one(url: str, data: bytes) -> Stream | None:
    """Ask once; None where it did not come to its end."""
    address = urlsplit(url)
    try:
        async with asyncio.timeout(STREAM_S):
            started = time.perf_counter()
            reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
            with contextlib.closing(writer):
                writer.write(data)
                ttft, events, tail = None, 0, b""
                while piece := await reader.read(1 << 16):
                    seen = tail + piece
                    if ttft is None and b" tok0" in seen:
                        ttft = time.perf_counter() - started
                    events += seen.count(b"data: ") - tail.count(b"data: ")
                    tail = seen[-200:]
                    if ttft is not None and (b"message_stop" in tail or b"[DONE]" in tail):
                        return Stream(ttft, events)
    except (OSError, TimeoutError):
        pass
    return None


def load(url: str, path: str, *, streams: int, at_once: int, tokens: int) -> Load:
    """Run that many streams, some at once, after a few that do not count."""
    data = request(url, path, tokens)

    async def work(done: list[Stream | None], left: list[int]) -> None:
        while left:
            left.pop()
            done.append(await one(url, data))

    async def all_of() -> Load:
        await work([], [0] * 5)
        done: list[Stream | None] = []
        left, started = [0] * streams, time.perf_counter()
        await asyncio.gather(*(work(done, left) for _ in range(at_once)))
        good = tuple(stream for stream in done if stream is not None)
        return Load(good, len(done) - len(good), time.perf_counter() - started)

    return asyncio.run(all_of())


@contextlib.contextmanager
def started(command: list[str], port: int, folder: Path) -> Iterator[psutil.Process]:
    """A process that answers on `port`; ended afterwards."""
    with (folder / f"{port}.log").open("wb") as output:
        env = {**os.environ, "XDG_STATE_HOME": str(folder)}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
    try:
        deadline = time.monotonic() + START_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"did not start: {(folder / f'{port}.log').read_text()[-200:]}")
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait(5)


def answers(port: int) -> bool:
    """Whether a server listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@contextlib.contextmanager
def upstream(folder: Path, *pace: str) -> Iterator[str]:
    """The scripted upstream in a process of its own."""
    port = free_port("127.0.0.1")
    with started([sys.executable, str(HERE / "scripted_upstream.py"), str(port), *pace], port, folder):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def proxy(upstream_url: str, folder: Path, python: str = sys.executable) -> Iterator[tuple[str, psutil.Process]]:
    """The proxy in front of it."""
    port = free_port("127.0.0.1")
    file = folder / f"proxy-{port}.env"
    keys = {"LLAMA_CPP_BASE": f"{upstream_url}/v1", "PROXY_PORT": port, "PROXY_EVENTS_FILE": folder / "events.jsonl"}
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()), encoding="utf-8")
    with started([python, "-m", "specdash", "proxy", "run", "--env-file", str(file)], port, folder) as process:
        yield f"http://127.0.0.1:{port}", process


@contextlib.contextmanager
def litellm(upstream_url: str, folder: Path, command: str) -> Iterator[str]:
    """LiteLLM's proxy in front of it, as its own documentation configures a server that speaks OpenAI's protocol."""
    port = free_port("127.0.0.1")
    file = folder / f"litellm-{port}.yaml"
    model = {"model": "openai/m", "api_base": f"{upstream_url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "m", "litellm_params": model}],
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    file.write_text(json.dumps(config), encoding="utf-8")
    words = [command, "--config", str(file), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with started(words, port, folder):
        yield f"http://127.0.0.1:{port}"


def figures(name: str, url: str, path: str) -> dict[str, float]:
    """Of one way to the upstream."""
    found: dict[str, float] = {}
    failed = 0
    for at_once, streams in ((1, 300), (8, 300), (64, 300)):
        loaded = load(url, path, streams=streams, at_once=at_once, tokens=16)
        failed += loaded.failed
        found |= {f"{name}_ttft_{at_once}_p{share * 100:.0f}_ms": loaded.ttft_ms(share) for share in (0.5, 0.99)}
    fast = load(url, path, streams=64, at_once=8, tokens=1000)
    events = sum(stream.events for stream in fast.streams) / fast.wall_s
    return {**found, f"{name}_events_per_s": events, f"{name}_failed": failed + fast.failed}


def measured(folder: Path, old: str | None, litellm_command: str | None) -> dict[str, float]:
    """One round."""
    with upstream(folder) as url:
        found = figures("direct", url, "/v1/chat/completions")
        with proxy(url, folder) as (ours, process):
            found |= figures("proxy", ours, "/v1/messages")
            found["rss_mb"] = process.memory_info().rss / 1e6
        if old is not None:
            with proxy(url, folder, old) as (theirs, _):
                found |= figures("old", theirs, "/v1/messages")
        if litellm_command is not None:
            with litellm(url, folder, litellm_command) as theirs:
                found |= figures("litellm", theirs, "/v1/chat/completions")
    with upstream(folder, str(PACE_S)) as url, proxy(url, folder) as (ours, process):
        crowd = load(ours, "/v1/messages", streams=500, at_once=500, tokens=32)
        for _ in range(4):
            asyncio.run(one(ours, request(ours, "/v1/messages", 8, LARGE)))
        found |= {"crowd_rss_mb": process.memory_info().rss / 1e6, "crowd_failed": crowd.failed}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="?", default=2)
    parser.add_argument("--old", metavar="PYTHON")
    parser.add_argument("--litellm", metavar="COMMAND")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [measured(Path(folder), args.old, args.litellm) for _ in range(args.rounds)]
    print(
        json.dumps({name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}, indent=1)
    )


if __name__ == "__main__":
    main()
