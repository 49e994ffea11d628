"""A chat completions server as fast as Python allows: its streams are made beforehand, and only written.

    python benchmarks/scripted_upstream.py PORT [PACE]

Every answer has `max_tokens` tokens in llama.cpp's form, with `timings` on each where they are asked for. With PACE,
seconds, the tokens are spaced evenly in time, each in a write of its own, as a decoding server does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import cache, partial
from typing import Any

BURST = 32
"""Events a write, when they are not paced."""
TIMINGS = {
    "cache_n": 0, "prompt_n": 10, "prompt_ms": 1.0, "prompt_per_token_ms": 0.1, "prompt_per_second": 10000.0,
    "predicted_n": 100, "predicted_ms": 1000.0, "predicted_per_token_ms": 10.0, "predicted_per_second": 100.0,
    "draft_n": 40, "draft_n_accepted": 30,
}  # fmt: skip
FACTS: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "meta": {"n_ctx": 262144}}]},
    "/props": {"total_slots": 1, "model_alias": "m", "default_generation_settings": {"n_ctx": 262144}},
    "/slots": [{"id": 0, "n_ctx": 262144, "is_processing": False}],
    "/tokenize": {"tokens": [1, 2, 3]},
}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(text: bytes) -> bytes:
    """One event as a chunk of the HTTP body."""
    data = b"data: " + text + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


@cache
def events(tokens: int, timings: bool) -> tuple[bytes, ...]:
    """The whole answer, event by event."""

    def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"finish_reason": finish, "index": 0, "delta": delta}]
        value = {"choices": choices, "created": 1, "id": "chatcmpl-x", "model": "m", "object": "chat.completion.chunk"}
        return frame(json.dumps(value | {"system_fingerprint": "b0"} | more, separators=(",", ":")).encode())

    usage = {"completion_tokens": tokens, "prompt_tokens": 10, "total_tokens": 10 + tokens}
    more: dict[str, Any] = {"timings": TIMINGS} if timings else {}
    texts = [chunk({"content": f" tok{number}"}, **more) for number in range(tokens)]
    last = chunk(None, usage=usage, timings=TIMINGS)
    return (chunk({"role": "assistant", "content": None}), *texts, chunk({}, "stop"), last, frame(b"[DONE]"))


async def stream(writer: asyncio.StreamWriter, asked: dict[str, Any], pace: float) -> None:
    """Answer one request."""
    made = events(asked.get("max_tokens") or 256, bool(asked.get("timings_per_token")))
    writer.write(HEAD)
    loop = asyncio.get_running_loop()
    started = loop.time()
    size = 1 if pace else BURST
    for at in range(0, len(made), size):
        if pace:
            await asyncio.sleep(max(0.0, started + at * pace - loop.time()))
        writer.write(b"".join(made[at : at + size]))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def serve(pace: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            path = lines[0].split(" ")[1].partition("?")[0]
            if path.endswith("/chat/completions"):
                await stream(writer, json.loads(body), pace)
                continue
            status = "200 OK" if path in FACTS else "404 Not Found"
            data = json.dumps(FACTS.get(path, {"error": {"code": 404, "message": "no"}})).encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def main() -> None:
    """Serve until killed."""
    pace = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    server = await asyncio.start_server(partial(serve, pace), "127.0.0.1", int(sys.argv[1]), limit=1 << 26, backlog=512)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
