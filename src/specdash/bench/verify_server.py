"""A llama-server as `specdash verify` uses it: greedy answers as token ids, and what it thinks of a place in a text."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from specdash.backend.local_http import Reply, ask
from specdash.bench.verify import Answer, Weights
from specdash.core.errors import InputError, RefusedError, SpecdashError, UnreachableError
from specdash.llama.bodies import ParseError, error_message, integer, mapping, natural
from specdash.llama.props import parse_props
from specdash.llama.slots import parse_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.observations import Slots

ANSWER_S = 10.0
SILENCE_S = 600.0
"""An answer may take so long: it comes whole."""
LIKELY = 128
"""How many of the likely tokens are looked at for the two in question."""
SEED = 1
GREEDY: Mapping[str, Any] = {
    "temperature": 0.0, "top_k": 1, "seed": SEED, "ignore_eos": True, "stream": False, "return_tokens": True,
    "samplers": ["top_k", "temperature"],
}  # fmt: skip
"""The same for everybody; without the end of text, so that all answers are as long as was asked."""


@dataclass(slots=True)
class Server:
    """One running server. Use as a context manager; `close` makes a waiting request fail."""

    url: str
    key: str | None = field(default=None, repr=False)
    name: str = "the server"
    limit_s: float = SILENCE_S
    slots: Slots = field(init=False)
    model: str = field(init=False)
    build: str = field(init=False)
    _client: Any = field(init=False, repr=False)
    _pieces: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `UnreachableError` when nobody answers, `SpecdashError` when it is no llama-server of today."""
        import httpx

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._client = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(self.limit_s, connect=ANSWER_S),
            trust_env=False,
            # Reading the system's certificates takes longer than an answer, and nobody asks for them.
            verify=not self.url.startswith("http://"),
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        try:
            props = parse_props(self._look("/props").body)
            if props.role == "router":
                raise RefusedError(f"{self.url} is a router; name one of its models' own servers")
            self.slots = parse_slots(self._look("/slots").body)
        except ParseError as error:
            raise SpecdashError(f"{self.url}: {error}; is this llama-server?") from None
        self.model = props.model_path or props.model_alias or ""
        self.build = props.build_info or ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; the server stops what it was asked for."""
        self._client.close()

    @property
    def speculates(self) -> bool | None:
        """Whether its slots draft; None where it does not tell."""
        told = self.slots.drafting
        return all(told) if told is not None else None

    @property
    def slot_context(self) -> int | None:
        """Tokens that fit into one slot, where it tells."""
        return self.slots.least_context

    def tokenised(self, text: str) -> tuple[int, ...]:
        """The text as this server's tokens, with what stands at the beginning of any text."""
        told = self._look("/tokenize", {"content": text, "add_special": True, "parse_special": True}).json
        found = mapping(told).get("tokens")
        if not isinstance(found, list) or not found or not all(isinstance(one, int) for one in found):
            raise SpecdashError(f"{self.url}/tokenize gave no tokens; is this llama-server?")
        return tuple(found)

    def templated(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt that the model's chat template makes of messages and tools."""
        offered = {"tools": list(tools)} if tools else {}
        told = self._look("/apply-template", {"messages": list(messages), **offered}).json
        found = mapping(told).get("prompt")
        if not isinstance(found, str) or not found:
            raise SpecdashError(f"{self.url}/apply-template gave no prompt")
        return found

    def text(self, tokens: Sequence[int]) -> str:
        """What the tokens say."""
        told = self._look("/detokenize", {"tokens": list(tokens)}).json
        found = mapping(told).get("content")
        return found if isinstance(found, str) else ""

    def answer(self, prompt: Sequence[int], tokens: int, *, cached: bool = False) -> Answer:
        """The greedy answer of just so many tokens. Raises `SpecdashError` saying what went wrong."""
        told = self._complete(prompt, tokens, cached=cached)
        found = told.get("tokens")
        if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
            raise SpecdashError(f"{self.url}: its answers have no token ids; a newer llama.cpp gives them")
        timings = mapping(told.get("timings"))
        return Answer(
            tuple(found),
            natural(timings.get("draft_n")) or 0,
            natural(timings.get("draft_n_accepted")) or 0,
            natural(timings.get("cache_n")) or 0,
        )

    def weights(self, text: Sequence[int], expected: int, got: int) -> Weights:
        """What it thinks of two tokens after the text, which it reads anew as one prompt. Draftless by nature."""
        told = self._complete(text, 1, n_probs=LIKELY)
        places = told.get("completion_probabilities")
        place = mapping(places[0]) if isinstance(places, list) and places else {}
        likely = place.get("top_logprobs")
        if not isinstance(likely, list):
            raise SpecdashError(f"{self.url}: its answers have no probabilities; a newer llama.cpp gives them")
        found = {integer(mapping(one).get("id")): _logprob(mapping(one).get("logprob")) for one in likely}
        return Weights(found.get(expected), found.get(got), integer(place.get("id")))

    def _complete(self, prompt: Sequence[int], tokens: int, *, cached: bool = False, **more: Any) -> dict[str, Any]:
        import httpx

        body = {**GREEDY, "prompt": list(prompt), "n_predict": tokens, "cache_prompt": cached, **more}
        try:
            reply = self._client.post("/completion", json=body)
        except httpx.TimeoutException:
            raise SpecdashError(f"{self.name} did not answer within {self.limit_s:.0f} s") from None
        except (httpx.HTTPError, RuntimeError) as error:
            raise SpecdashError(f"{self.name} broke off: {type(error).__name__} {error}".rstrip()) from None
        if reply.status_code != 200:
            raise SpecdashError(f"{self.name} answered HTTP {reply.status_code}: {error_message(reply.content)}")
        try:
            told = json.loads(reply.content)
        except ValueError:
            told = None
        return mapping(told)

    def _look(self, path: str, body: Any = None) -> Reply:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            reply = ask(self.url, path, headers=headers, body=body, timeout=ANSWER_S)
        except OSError as error:
            raise UnreachableError(f"{self.url} does not answer ({error}); start it, or name another") from None
        if reply.status == 200:
            return reply
        if reply.status in (401, 403):
            raise InputError(f"{self.url}{path} wants another API key; name one with --api-key-env or --api-key-file")
        if reply.status == 503:
            raise UnreachableError(f"{self.url} is not ready: {error_message(reply.body)}")
        if path == "/slots":
            raise RefusedError(
                f"{self.url}{path} answers HTTP {reply.status}, so nobody can tell whether it speculates; start it "
                "without --no-slots"
            )
        raise SpecdashError(f"{self.url}{path} answers HTTP {reply.status}: {error_message(reply.body)}")


def _logprob(value: object) -> float | None:
    """None also for what cannot be a log probability, such as that of a NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 0.01:
        return None
    return float(value)


def together(server: Server, prompts: Sequence[Sequence[int]], tokens: int, at_once: int) -> list[Answer]:
    """The answers to all prompts, `at_once` of them at a time. Ctrl-C ends it: the server's connections are closed.

    Threads of the daemon kind: nobody waits for an answer that nobody wants any more.
    """
    results: list[Answer | BaseException | None] = [None] * len(prompts)
    waiting = list(range(len(prompts)))[::-1]
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                number = waiting.pop()
            try:
                results[number] = server.answer(prompts[number], tokens)
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
                results[number] = error
                return

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(at_once, len(prompts)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except BaseException:
        server.close()
        raise
    failed = [one for one in results if isinstance(one, BaseException)]
    if failed:
        raise failed[0]
    return [one for one in results if isinstance(one, Answer)]
