"""A chat server that takes its time, streams as llama-server does, and fails as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.listening import Listening, OwnedHandler

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = "/models/scripted.gguf"


@dataclass
class Answer:
    """One answer. Times are seconds, those of `timings` what the server claims."""

    prefill_s: float = 0.004
    decode_s: float = 0.02
    tokens: int = 32
    prompt_tokens: int = 100
    cached: int = 0
    drafted: int = 40
    accepted: int = 20
    claims: dict[str, Any] = field(default_factory=dict)
    """Over the true timings."""
    status: int = 200
    body: bytes | None = None
    """Sent instead, as it is."""
    cut: bool = False
    """The stream ends before the answer does."""
    error: bool = False
    """An error event in the middle of the stream."""
    empty: bool = False
    timings: bool = True
    hang: bool = False


@dataclass
class ChatServer(Listening):
    """Listens on 127.0.0.1 while it is entered. One request is served after the other, as with one slot."""

    answer: Callable[[int, dict[str, Any]], Answer] = field(default=lambda _number, _body: Answer())
    """By the number of the request, from 0 (the warm-up), and its body."""
    models: tuple[str, ...] = (MODEL,)
    key: str | None = None
    slots: int = 1
    bodies: list[dict[str, Any]] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    arrived: int = 0
    """Requests that came, served or not."""
    broken: int = 0
    """Clients that went away."""
    closing: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)
    count: threading.Lock = field(default_factory=threading.Lock)


class _Handler(OwnedHandler):
    owner: ChatServer

    def do_GET(self) -> None:  # noqa: N802 - the base class names it
        server, path = self.owner, self.path.partition("?")[0]
        if path == "/v1/models":
            self.say({"object": "list", "data": [{"id": name, "object": "model"} for name in server.models]})
        elif path == "/props":
            self.say({"model_path": server.models[0], "build_info": "b1-scripted", "total_slots": server.slots})
        elif path == "/slots":
            slot = {"n_ctx": 4096, "is_processing": False, "speculative": True}
            self.say([{"id": index, **slot} for index in range(server.slots)])
        else:
            self.say({"error": {"message": "File Not Found"}}, 404)

    def do_POST(self) -> None:  # noqa: N802 - the base class names it
        server = self.owner
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))))
        if server.key is not None and self.headers.get("Authorization") != f"Bearer {server.key}":
            self.say({"error": {"message": "Invalid API Key", "code": 401}}, 401)
            return
        with server.count:
            server.arrived += 1
        with server.turn:
            number = len(server.bodies)
            server.bodies.append(body)
            server.came.append(time.monotonic())
            try:
                self._answer(server.answer(number, body))
            except OSError:
                server.broken += 1
                self.close_connection = True

    def _answer(self, answer: Answer) -> None:
        if answer.hang:
            self.connection.settimeout(0.02)
            while not self.owner.closing.is_set():
                with contextlib.suppress(TimeoutError):
                    if not self.connection.recv(1):
                        raise ConnectionResetError
            return
        if answer.body is not None or answer.status != 200:
            self.send(answer.status, answer.body or b'{"error":{"message":"no","code":1}}', "application/json")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        time.sleep(answer.prefill_s)
        self._event({"choices": [{"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": None}}]})
        if not answer.empty:
            self._event(_delta("to"))
        began = time.monotonic()
        while (left := answer.decode_s - (time.monotonic() - began)) > 0:
            time.sleep(min(left, 0.01))
        if not answer.empty:
            self._event(_delta('ken "timings" finish_reason'))
        if answer.error:
            self._event({"error": {"message": "Compute error.", "code": 500}})
            return
        if answer.cut:
            return
        self._event({"choices": [{"index": 0, "finish_reason": "length", "delta": {}}]})
        self._event({"choices": [], **_figures(answer)})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


def _delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, "delta": {"content": text}}]}


def _figures(answer: Answer) -> dict[str, Any]:
    usage = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
    }
    if not answer.timings:
        return {"usage": usage}
    timings: dict[str, Any] = {
        "cache_n": answer.cached,
        "prompt_n": answer.prompt_tokens - answer.cached,
        "prompt_ms": answer.prefill_s * 1000,
        "predicted_n": answer.tokens,
        "predicted_ms": answer.decode_s * 1000,
    }
    if answer.drafted:
        timings |= {"draft_n": answer.drafted, "draft_n_accepted": answer.accepted}
    return {"usage": usage, "timings": timings | answer.claims}


ChatServer.handler = _Handler
