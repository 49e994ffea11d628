"""A server that answers as llama-server does, with tokens, drafts and faults as a test says.

What it generates is an automaton: each token has one successor. After a tied token (`is_tied`) another one is as
likely, up to 0.02 nats; a server with `flips` takes that one, as another batch shape would.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any

from support.listening import Listening, OwnedHandler

VOCABULARY = 500
TIE_GAP = 0.02
WORDS = tuple("bread is baked from flour water salt and yeast in a hot oven until it is brown".split())  # noqa: SIM905


def successor(token: int) -> int:
    """What follows a token."""
    return (token * 7 + 3) % VOCABULARY


def alternative(token: int) -> int:
    """What may follow as well, where it is tied."""
    return (successor(token) + 1) % VOCABULARY


def is_tied(token: int) -> bool:
    """Whether both are nearly as likely."""
    return token % 11 == 5


@dataclass
class Behaviour:
    """What the server does. Numbers of requests count completions of either kind, from 1."""

    speculative: bool | None = True
    slots: int = 2
    n_ctx: int = 8192
    drafted: int = 90
    """Draft tokens per 64 generated ones."""
    accepted: int = 60
    flips: bool = False
    wrong_at: int | None = None
    """Index of a generated token that is neither the successor nor likely."""
    own_mind: bool = False
    """It takes that wrong token for the likely one."""
    text: str | None = None
    """Instead of words; of the chat completions."""
    cached_accepted: int | None = None
    """Of 64, where the prompt was cached."""
    fails_from: int | None = None
    """From this request on, all fail with HTTP 500."""
    hangs_from: int | None = None
    restarts_at: int | None = None
    """Before this request it becomes another instance."""
    model: str = "scripted.gguf"
    metrics: bool = True
    knows_tools: bool = True
    """Its chat template, that is."""
    tells: bool = True
    """Whether chat completions come with usage and timings."""


@dataclass
class ScriptedLlama(Listening):
    """Listens on 127.0.0.1 while it is entered."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    requests: int = 0
    task: int = 0
    predicted: int = 0
    started: int = 1000
    seen: set[str] = field(default_factory=set)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def began(self) -> int:
        """Count a completion; its number."""
        with self.lock:
            self.requests += 1
            if self.requests == self.behaviour.restarts_at:
                self.task, self.predicted, self.started = 0, 0, self.started + 777
                self.seen.clear()
            self.task += 1
            return self.requests

    def timings(self, tokens: int, *, prompt: int = 20, cached: int = 0) -> dict[str, Any]:
        """Figures of one answer of so many tokens."""
        behaviour, found = (
            self.behaviour,
            {"cache_n": cached, "prompt_n": prompt - cached, "predicted_n": tokens, "predicted_ms": 1.0},
        )
        if behaviour.speculative and behaviour.drafted:
            accepted = (
                behaviour.cached_accepted if cached and behaviour.cached_accepted is not None else behaviour.accepted
            )
            found["draft_n"] = behaviour.drafted * tokens // 64
            found["draft_n_accepted"] = accepted * tokens // 64
        with self.lock:
            self.predicted += tokens
        return found

    def generated(self, prompt: list[int], count: int) -> list[int]:
        """The tokens after a prompt."""
        text = list(prompt)
        for index in range(count):
            token = text[-1]
            taken = alternative(token) if self.behaviour.flips and is_tied(token) and count > 1 else successor(token)
            if index == self.behaviour.wrong_at and count > 1:
                taken = (successor(token) + 50) % VOCABULARY
            text.append(taken)
        return text[len(prompt) :]


class _Handler(OwnedHandler):
    owner: ScriptedLlama

    def do_GET(self) -> None:  # noqa: N802 - the base class names it
        behaviour, path = self.owner.behaviour, self.path.partition("?")[0]
        if path == "/health":
            self.say({"status": "ok"})
        elif path == "/props":
            self.say(
                {
                    "model_path": f"/models/{behaviour.model}",
                    "build_info": "b1-scripted",
                    "total_slots": behaviour.slots,
                }
            )
        elif path == "/v1/models":
            self.say({"object": "list", "data": [{"id": behaviour.model}]})
        elif path == "/slots":
            slots = [
                {"id": index, "n_ctx": behaviour.n_ctx, "is_processing": False} for index in range(behaviour.slots)
            ]
            for slot in slots:
                if behaviour.speculative is not None:
                    slot["speculative"] = behaviour.speculative
                if self.owner.task:
                    slot["id_task"] = self.owner.task
            self.say(slots)
        elif path == "/metrics" and behaviour.metrics:
            name = "llamacpp:tokens_predicted_total"
            lines = f"# TYPE {name} counter\n{name} {self.owner.predicted}\n"
            self.send(200, lines.encode(), "text/plain; version=0.0.4")
        else:
            self.say({"error": {"message": "File Not Found"}}, 404)

    def do_POST(self) -> None:  # noqa: N802 - the base class names it
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))) or b"{}")
        path = self.path.partition("?")[0]
        if path == "/tokenize":
            self.say({"tokens": [ord(letter) % VOCABULARY for letter in body["content"]]})
        elif path == "/detokenize":
            self.say({"content": "".join(f" t{token}" for token in body["tokens"])})
        elif path == "/apply-template" and not self._understands(body):
            self.say({"error": {"message": "no tools", "code": 500}}, 500)
        elif path == "/apply-template":
            self.say({"prompt": "".join(str(message["content"]) for message in body["messages"])})
        else:
            self._complete(path, body)

    def _understands(self, body: dict[str, Any]) -> bool:
        roles = {message["role"] for message in body["messages"]}
        return self.owner.behaviour.knows_tools or not (body.get("tools") or "tool" in roles)

    def _complete(self, path: str, body: dict[str, Any]) -> None:
        server, behaviour = self.owner, self.owner.behaviour
        server.bodies.append(body)
        number = server.began()
        if behaviour.fails_from is not None and number >= behaviour.fails_from:
            self.say({"error": {"message": "Compute error.", "code": 500}}, 500)
        elif behaviour.hangs_from is not None and number >= behaviour.hangs_from:
            server.closing.wait(30)
            self.close_connection = True
        elif path == "/completion":
            self.say(self._tokens(body))
        else:
            self._chat(body)

    def _tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, count = body["prompt"], body["n_predict"]
        tokens = self.owner.generated(prompt, count)
        told = {"tokens": tokens, "timings": self.owner.timings(count)}
        if body.get("n_probs"):
            last = prompt[-1]
            gap = TIE_GAP if is_tied(last) else 8.0
            worth = {successor(last): -0.7, alternative(last): -0.7 - gap}
            if self.owner.behaviour.own_mind:
                tokens = [(successor(last) + 50) % VOCABULARY]
                worth[tokens[0]] = -0.01
            likely = [{"id": token, "logprob": logprob} for token, logprob in worth.items()]
            told["completion_probabilities"] = [{"id": tokens[0], "top_logprobs": likely}]
        return told

    def _chat(self, body: dict[str, Any]) -> None:
        server, prompt = self.owner, json.dumps(body["messages"])
        cached = len(prompt) - 1 if prompt in server.seen else 0
        server.seen.add(prompt)
        count = body["max_tokens"]
        words = server.behaviour.text
        text = words if words is not None else " ".join(WORDS[index % len(WORDS)] for index in range(count))
        figures: dict[str, Any] = {
            "model": server.behaviour.model,
            "system_fingerprint": "b1-scripted",
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": count},
            "timings": server.timings(count, prompt=len(prompt), cached=cached),
        }
        if not server.behaviour.tells:
            figures = {}
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": text}}
            self.say({"choices": [choice], **figures})
            return
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "finish_reason": None, "delta": {"content": text}}]},
            {"choices": [{"index": 0, "finish_reason": "length", "delta": {}}]},
            *([{"choices": [], **figures}] if figures else []),
        ]
        lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send(200, lines.encode(), "text/event-stream")

    def headers_of_all(self) -> dict[str, str]:
        return {"Process-Start-Time-Unix": str(self.owner.started)}


ScriptedLlama.handler = _Handler
