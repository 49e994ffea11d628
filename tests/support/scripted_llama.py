"""An upstream with a model of its own, whose tokens, drafts and faults are as a test says.

What it generates is an automaton: each token has one successor. After a tied token (`is_tied`) another one is as
likely, up to 0.02 nats; a server with `flips` takes that one, as another batch shape would.
"""

import json
from dataclasses import dataclass
from typing import Any

from support.fault_upstream import CHAT, FaultUpstream
from support.scripted_server import Call
from support.upstream_script import Script, error, gives, says, stops, with_

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
    """Of the chat completions, instead of words."""
    fails_from: int | None = None
    """From this request on, all fail with HTTP 500."""
    hangs_from: int | None = None
    restarts_at: int | None = None
    """Before this request it becomes another instance."""
    model: str = "scripted.gguf"
    knows_tools: bool = True
    """Its chat template, that is."""
    tells: bool = True
    """Whether chat completions come with usage and timings."""


class ScriptedLlama(FaultUpstream):
    """`requests` counts completions of either kind, `predicted` tokens as /metrics does."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.requests = self.task = self.predicted = 0
        self.began = 1000
        self.cached: set[str] = set()
        super().__init__(slots=self.behaviour.slots, models=(self.behaviour.model,))

    def answer_for(self, call: Call) -> Script:
        """Each answer says when the process began."""
        completes = call.path in {CHAT, "/completion"}
        script = self._completion(call) if completes else self._fact(call.path, call.body)
        return with_(script, headers=(f"Process-Start-Time-Unix: {self.began}",))

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

    def _fact(self, path: str, body: Any) -> Script:
        name = "llamacpp:tokens_predicted_total"
        if path == "/metrics":
            return Script(body=f"# TYPE {name} counter\n{name} {self.predicted}\n".encode(), content_type="text/plain")
        if path == "/tokenize":
            return gives({"tokens": [ord(letter) % VOCABULARY for letter in body["content"]]})
        if path == "/detokenize":
            return gives({"content": "".join(f" t{token}" for token in body["tokens"])})
        if path == "/apply-template":
            with_tools = body.get("tools") or any(message["role"] == "tool" for message in body["messages"])
            if with_tools and not self.behaviour.knows_tools:
                return error(500, "no tools", "server_error")
            return gives({"prompt": "".join(str(message["content"]) for message in body["messages"])})
        return super()._fact(path, body)

    def _props(self) -> Any:
        return {**super()._props(), "modalities": {"vision": False}}

    def _slots(self) -> Any:
        slot: dict[str, Any] = {"n_ctx": self.behaviour.n_ctx, "is_processing": False}
        if self.behaviour.speculative is not None:
            slot["speculative"] = self.behaviour.speculative
        if self.task:
            slot["id_task"] = self.task
        return [{"id": index, **slot} for index in range(self.slots)]

    def _completion(self, call: Call) -> Script:
        behaviour = self.behaviour
        self.requests += 1
        if self.requests == behaviour.restarts_at:
            self.task, self.predicted, self.began = 0, 0, self.began + 777
            self.cached.clear()
        self.task += 1
        if behaviour.fails_from is not None and self.requests >= behaviour.fails_from:
            return error(500, "Compute error.", "server_error")
        if behaviour.hangs_from is not None and self.requests >= behaviour.hangs_from:
            return Script(hangs=True)
        return self._chat(call.body) if call.path == CHAT else gives(self._tokens(call.body))

    def _drafts(self, tokens: int) -> dict[str, Any]:
        """The timings that tell of drafts, for an answer of so many tokens."""
        behaviour = self.behaviour
        self.predicted += tokens
        if not behaviour.speculative or not behaviour.drafted:
            return {"draft_n": None, "draft_n_accepted": None}
        return {"draft_n": behaviour.drafted * tokens // 64, "draft_n_accepted": behaviour.accepted * tokens // 64}

    def _tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, count = body["prompt"], body["n_predict"]
        tokens = self.generated(prompt, count)
        timings = {"cache_n": 0, "prompt_n": 20, "predicted_n": count, "predicted_ms": 1.0, **self._drafts(count)}
        told = {"tokens": tokens, "timings": timings}
        if body.get("n_probs"):
            last = prompt[-1]
            gap = TIE_GAP if is_tied(last) else 8.0
            worth = {successor(last): -0.7, alternative(last): -0.7 - gap}
            if self.behaviour.own_mind:
                tokens = [(successor(last) + 50) % VOCABULARY]
                worth[tokens[0]] = -0.01
            likely = [{"id": token, "logprob": logprob} for token, logprob in worth.items()]
            told["completion_probabilities"] = [{"id": tokens[0], "top_logprobs": likely}]
        return told

    def _chat(self, body: dict[str, Any]) -> Script:
        prompt, count, tells = json.dumps(body["messages"]), body["max_tokens"], self.behaviour.tells
        cached = len(prompt) - 1 if prompt in self.cached else 0
        self.cached.add(prompt)
        text = self.behaviour.text
        if text is None:
            text = " ".join(WORDS[index % len(WORDS)] for index in range(count))
        return Script(
            (*says(text), *stops("length")),
            usage=tells,
            timings=tells,
            tokens=count,
            prompt_tokens=len(prompt),
            cached_tokens=cached,
            claims={"predicted_ms": 1.0, **self._drafts(count)},
        )
