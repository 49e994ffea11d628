"""An upstream that speaks llama.cpp's HTTP and does what a test's script says, faults included.

A chat completion takes the next `Script` of `scripts`, or what `decide` returns for its body, or `otherwise`; `calls`
records what came, and when the other side went away.

Formats are those of llama.cpp b11549: `prompt_progress` and `timings` on the chunks, a usage chunk, `[DONE]`.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from support.scripted_server import DEADLINE_S, Behaviour, Call, ThreadedServer
from support.upstream_script import Script, answers, error, gives, loading, unauthorised

CHAT = "/v1/chat/completions"
HELLO = answers("Hello")


class FaultUpstream(ThreadedServer):
    """Settings and scripts may change at any time. `routes` are answered instead of what is usual there."""

    def __init__(
        self,
        otherwise: Behaviour = HELLO,
        scripts: Sequence[Script] = (),
        port: int = 0,
        *,
        n_ctx: int = 65536,
        slots: int = 4,
        models: tuple[str, ...] = ("scripted",),
        key: str | None = None,
    ) -> None:
        self.n_ctx, self.slots, self.models, self.key = n_ctx, slots, models, key
        self.scripts = list(scripts)
        self.decide: Callable[[Any], Script | None] | None = None
        self.tokens: Callable[[Any], int] = lambda body: len(json.dumps(body.get("messages", ""))) // 4
        self.is_loading = False
        self.stale_after: int | None = None
        """Connections that had this many requests are closed without a byte when another comes."""
        super().__init__(otherwise, port=port)

    @property
    def chats(self) -> list[Call]:
        """The chat completions that came, in order."""
        return self.asked(CHAT)

    @property
    def bodies(self) -> list[Any]:
        """Theirs."""
        return [call.body for call in self.chats]

    def wait_chats(self, count: int, timeout: float = DEADLINE_S) -> list[Call]:
        """The chat completions, once there are at least `count`."""
        return self.wait_asked(CHAT, count, timeout)

    def forget(self) -> None:
        """Start over: no request seen, no script waiting, every setting as at first."""
        self.calls.clear()
        self.scripts.clear()
        self.routes.clear()
        self.otherwise, self.decide = HELLO, None
        self.is_loading, self.stale_after = False, None

    def answer_for(self, call: Call) -> Behaviour:
        """What the script says."""
        if call.path == CHAT and self.stale_after is not None and call.ordinal >= self.stale_after:
            return Script(drops=True)
        if call.path in self.routes:
            return self.routes[call.path]
        if self.is_loading:
            return loading()
        if self.key is not None and call.headers.get("authorization") != f"Bearer {self.key}":
            return unauthorised()
        if call.path != CHAT:
            return self._fact(call.path, call.body)
        decided = self.decide(call.body) if self.decide is not None else None
        if decided is not None:
            return decided
        return self.scripts.pop(0) if self.scripts else self.otherwise

    def _fact(self, path: str, body: Any) -> Script:
        facts: dict[str, Callable[[], Any]] = {
            "/health": lambda: {"status": "ok"},
            "/props": self._props,
            "/slots": self._slots,
            "/v1/models": self._models,
            "/tokenize": lambda: {"tokens": list(range(len(str(body.get("content", ""))) // 4))},
            "/apply-template": lambda: {"prompt": json.dumps(body.get("messages", ""))},
            CHAT + "/input_tokens": lambda: {"input_tokens": self.tokens(body), "object": "response.input_tokens"},
        }
        if path not in facts:
            return error(404, "File Not Found", "not_found_error")
        return gives(facts[path]())

    def _props(self) -> Any:
        name = self.models[0]
        return {
            "default_generation_settings": {"params": {}, "n_ctx": self.n_ctx},
            "total_slots": self.slots,
            "model_alias": name,
            "model_path": name if name.endswith(".gguf") else f"/models/{name}.gguf",
            "modalities": {"vision": True, "video": False, "audio": False},
            "build_info": "b11549-scripted",
        }

    def _slots(self) -> Any:
        slot = {"n_ctx": self.n_ctx, "speculative": True, "is_processing": False}
        return [{"id": index, **slot} for index in range(self.slots)]

    def _models(self) -> Any:
        meta = {"n_ctx": self.n_ctx, "n_ctx_train": self.n_ctx, "n_vocab": 1024}
        rows = [{"id": name, "object": "model", "owned_by": "llamacpp", "meta": meta} for name in self.models]
        return {"object": "list", "data": rows}
