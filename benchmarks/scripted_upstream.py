"""A chat completions server as fast as Python allows: its answers are made beforehand, and only written.

    python benchmarks/scripted_upstream.py PORT [--pace SECONDS] [--bare]

Answers in llama.cpp's form with `max_tokens` tokens. With `--pace` the tokens are spaced evenly in time, each in a
write of its own, as a decoding server does. A request for `timings_per_token` gets them, unless `--bare` was given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from functools import cache
from typing import Any

BURST = 32
"""Events a write, when they are not paced."""
TIMINGS = {
    "cache_n": 0,
    "prompt_n": 10,
    "prompt_ms": 1.0,
    "prompt_per_token_ms": 0.1,
    "prompt_per_second": 10000.0,
    "predicted_n": 100,
    "predicted_ms": 1000.0,
    "predicted_per_token_ms": 10.0,
    "predicted_per_second": 100.0,
    "draft_n": 40,
    "draft_n_accepted": 30,
}
FACTS: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "meta": {"n_ctx": 262144}}]},
    "/props": {"total_slots": 1, "model_alias": "m", "default_generation_settings": {"n_ctx": 262144}},
    "/slots": [{"id": 0, "n_ctx": 262144, "is_processing": False}],
    "/tokenize": {"tokens": [1, 2, 3]},
}
DEFAULT_TOKENS = 256
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(value: Any) -> bytes:
    """One event as a chunk of the HTTP body."""
    text = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    data = b"data: " + text + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(delta: dict[str, Any], finish: str | None, timings: bool) -> dict[str, Any]:
    """One chat completion chunk."""
    value = {"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], "created": 1, "id": "chatcmpl-x"}
    value |= {"model": "m", "system_fingerprint": "b0", "object": "chat.completion.chunk"}
    return {**value, "timings": TIMINGS} if timings else value


@cache
def events(tokens: int, timings: bool) -> tuple[bytes, ...]:
    """The whole answer, event by event."""
    usage = {"completion_tokens": tokens, "prompt_tokens": 10, "total_tokens": 10 + tokens}
    last = {**chunk({}, None, timings=True), "choices": [], "usage": usage}
    return (
        frame(chunk({"role": "assistant", "content": None}, None, timings=False)),
        *(frame(chunk({"content": f" tok{number}"}, None, timings)) for number in range(tokens)),
        frame(chunk({}, "stop", timings=False)),
        frame(last),
        frame(b"[DONE]"),
    )


async def stream(writer: asyncio.StreamWriter, asked: dict[str, Any], pace: float, *, bare: bool) -> None:
    """Answer one streamed request."""
    tokens = asked.get("max_tokens") or DEFAULT_TOKENS
    made = events(tokens, bool(asked.get("timings_per_token")) and not bare)
    writer.write(HEAD)
    if pace:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number, data in enumerate(made):
            await asyncio.sleep(max(0.0, started + number * pace - loop.time()))
            writer.write(data)
    else:
        for at in range(0, len(made), BURST):
            writer.write(b"".join(made[at : at + BURST]))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def whole(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request without streaming."""
    tokens = asked.get("max_tokens") or DEFAULT_TOKENS
    message = {"role": "assistant", "content": "".join(f" tok{number}" for number in range(tokens))}
    usage = {"completion_tokens": tokens, "prompt_tokens": 10, "total_tokens": 10 + tokens}
    choice = {"finish_reason": "stop", "index": 0, "message": message}
    return {"id": "chatcmpl-x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
            "usage": usage, "timings": TIMINGS}  # fmt: skip


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: float, *, bare: bool) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            path = lines[0].split(" ")[1].partition("?")[0]
            asked = json.loads(body) if path.endswith("/chat/completions") else {}
            if asked.get("stream"):
                await stream(writer, asked, pace, bare=bare)
                continue
            answer = whole(asked) if asked else FACTS.get(path, {"error": {"code": 404, "message": "no"}})
            data = json.dumps(answer).encode()
            status = "200 OK" if asked or path in FACTS else "404 Not Found"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            )
            writer.write(data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--bare", action="store_true")
    args = parser.parse_args()
    server = await asyncio.start_server(
        lambda r, w: serve(r, w, args.pace, bare=args.bare), "127.0.0.1", args.port, limit=1 << 26, backlog=512
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
