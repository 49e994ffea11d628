"""Makes the calls of `specdash repro-empty` on a running server, streamed, each with the cache off and on."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from specdash.bench.repro_empty import Pair, Reply
from specdash.bench.repro_prompts import NONCE_LENGTH, TOOLS, Call, calls, messages
from specdash.core.errors import InputError, RefusedError, UnreachableError
from specdash.llama.bodies import ParseError, error_message, mapping, natural, one_line
from specdash.llama.props import parse_props

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

TURNS = 6
TOOL_CHARS = 5150
MAX_TOKENS = 64
LIMIT_S = 600.0
"""Longest silence of a call."""
_LOOK_S = 10.0
_CHARS_PER_TOKEN = 3.0
"""Where the server cannot be asked: rather too many tokens than too few."""
_MARGIN = 8
_TOLD_CHARS = 20
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask. `left_out` are the calls that do not fit, and why."""

    calls: tuple[Call, ...]
    tokens: tuple[int | None, ...]
    left_out: str = ""
    flat: bool = False
    """Tool calls and results go as text: the model's template knows no tools."""


@dataclass(slots=True)
class ChatServer:
    """An OpenAI-compatible server. Use as a context manager."""

    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    limit_s: float = LIMIT_S
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(self.limit_s, connect=_LOOK_S),
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def context(self) -> int | None:
        """Tokens that fit into a slot; None where the server does not tell. Raises `UnreachableError` when nobody
        answers, `InputError` for a refused key, `RefusedError` while it loads or for a router of which no model is
        named."""
        query = f"?model={self.model}&autoload=false" if self.model else ""
        answer = self._look("GET", f"/props{query}")
        if answer.status_code in (401, 403):
            raise InputError(f"{self.url} wants another API key; name one with --api-key-env or --api-key-file")
        if answer.status_code == 503:
            raise RefusedError(f"{self.url} is not ready: {error_message(answer.content) or 'HTTP 503'}")
        if answer.status_code == 400 and self.model:
            raise RefusedError(f"{self.url}: {error_message(answer.content)}; load the model {self.model} first")
        if answer.status_code != 200:
            return None
        try:
            props = parse_props(answer.content)
        except ParseError:
            return None
        if props.role == "router" and self.model is None:
            raise RefusedError(f"{self.url} is a router; name one of its models with --model")
        return props.n_ctx or None

    def prompt(self, told: list[dict[str, Any]], *, with_tools: bool) -> str | None:
        """The prompt that the model's chat template makes; None where the server does not tell."""
        body = {"messages": told, **({"tools": list(TOOLS)} if with_tools else {}), **self._named}
        answer = self._look("POST", "/apply-template", body)
        found = mapping(_json(answer)).get("prompt") if answer.status_code == 200 else None
        return found if isinstance(found, str) else None

    def count(self, text: str) -> int | None:
        """The text's tokens; None where the server does not tell."""
        answer = self._look("POST", "/tokenize", {"content": text, "add_special": True, **self._named})
        found = mapping(_json(answer)).get("tokens") if answer.status_code == 200 else None
        return len(found) if isinstance(found, list) else None

    def chat(self, told: list[dict[str, Any]], max_tokens: int, *, cached: bool, with_tools: bool) -> Reply:
        """One streamed answer. What goes wrong is part of the reply."""
        import httpx

        body = {
            "messages": told, "max_tokens": max_tokens, "temperature": 0, "seed": 1, "stream": True,
            "stream_options": {"include_usage": True}, "cache_prompt": cached, **self._named,
            **({"tools": list(TOOLS)} if with_tools else {}),
        }  # fmt: skip
        listener = _Listener(time.monotonic())
        try:
            with self._client.stream("POST", self.url + CHAT, json=body) as answer:
                if answer.status_code != 200:
                    said = error_message(answer.read())
                    return listener.failed(f"HTTP {answer.status_code}{': ' if said else ''}{said}")
                if "event-stream" in answer.headers.get("content-type", ""):
                    listener.listen(answer.iter_lines())
                else:
                    listener.take_whole(_json_of(answer.read()))
        except httpx.ConnectError:
            return listener.failed("nothing listens there any more", gone=True)
        except httpx.TimeoutException:
            return listener.failed(f"silent for {self.limit_s:.0f} s")
        except httpx.HTTPError as error:
            return listener.failed(f"broke off: {type(error).__name__}")
        return listener.reply()

    @property
    def _named(self) -> dict[str, str]:
        return {"model": self.model} if self.model else {}

    def _look(self, method: str, path: str, body: Any = None) -> httpx.Response:
        import httpx

        try:
            return self._client.request(method, self.url + path, json=body, timeout=_LOOK_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = "nothing listens there" if isinstance(error, httpx.ConnectError) else type(error).__name__
            raise UnreachableError(f"{self.url} does not answer ({why}); start it, or name another --url") from None


@dataclass(slots=True)
class _Listener:
    """Adds an answer up as it comes."""

    began: float
    first: float | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: set[int] = field(default_factory=set)
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    def listen(self, lines: Iterator[str]) -> None:
        for line in lines:
            name, _, data = line.partition(":")
            if name not in ("data", "error") or data.strip() in ("", "[DONE]"):
                continue
            event = mapping(_json_of(data.encode()))
            if name == "error" or "error" in event:
                said = event if name == "error" and "error" not in event else event.get("error")
                self.error = one_line(str(mapping(said).get("message") or said))
                return
            self.take(event, "delta")

    def take_whole(self, answer: Any) -> None:
        """An answer that was not streamed."""
        if not isinstance(answer, dict):
            self.error = "the answer is not JSON"
            return
        self.take(answer, "message")

    def take(self, event: dict[str, Any], key: str) -> None:
        self.usage = mapping(event.get("usage")) or self.usage
        self.timings = mapping(event.get("timings")) or self.timings
        choices = event.get("choices")
        choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
        said = mapping(choice.get(key))
        content = said.get("content")
        reasoning = said.get("reasoning_content") or said.get("reasoning")
        tools = said.get("tool_calls")
        if isinstance(content, str):
            self.content += content
        if isinstance(reasoning, str):
            self.reasoning += reasoning
        if isinstance(tools, list):
            self.tool_calls.update(natural(mapping(one).get("index")) or 0 for one in tools)
        if (content or reasoning or tools) and self.first is None:
            self.first = time.monotonic()
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self.finish = finish

    def failed(self, why: str, *, gone: bool = False) -> Reply:
        return replace(self.reply(), error=why, gone=gone)

    def reply(self) -> Reply:
        prompt = natural(self.usage.get("prompt_tokens"))
        cached = natural(mapping(self.usage.get("prompt_tokens_details")).get("cached_tokens"))
        read, held = natural(self.timings.get("prompt_n")), natural(self.timings.get("cache_n"))
        if prompt is None and read is not None:
            prompt = read + (held or 0)
        tokens = natural(self.usage.get("completion_tokens"))
        return Reply(
            content_chars=len(self.content.strip()),
            reasoning_chars=len(self.reasoning.strip()),
            tool_calls=len(self.tool_calls),
            completion_tokens=tokens if tokens is not None else natural(self.timings.get("predicted_n")),
            prompt_tokens=prompt,
            cached_tokens=cached if cached is not None else held,
            ttft_s=self.first - self.began if self.first is not None else None,
            wall_s=time.monotonic() - self.began,
            finish=self.finish,
            error=self.error,
        )


def make_plan(server: ChatServer, turns: int, tool_chars: int, max_tokens: int) -> Plan:
    """Which calls fit, and how to say them. Raises `InputError` when fewer than two fit, and what `context` raises."""
    context = server.context()
    every = calls(turns, tool_chars)
    flat = not _template_knows_tools(server, tool_chars)
    counted = tuple(_tokens(server, call, tool_chars, flat=flat) for call in every)
    if context is None:
        return Plan(every, counted, flat=flat)
    room = context - max_tokens - _MARGIN
    needed = [
        tokens if tokens is not None else int(call.chars / _CHARS_PER_TOKEN)
        for call, tokens in zip(every, counted, strict=True)
    ]
    fitting = sum(tokens <= room for tokens in needed)
    left_out = ""
    if fitting < len(every):
        which = f"call {fitting + 1}" if fitting == len(every) - 1 else f"calls {fitting + 1} to {len(every)}"
        fits = int(tool_chars * 0.9 * room / needed[-1])
        smaller = f"--tool-chars {fits}" if fits > 0 else "a smaller --max-tokens"
        left_out = (
            f"{which} left out: {needed[fitting]} tokens of prompt and {max_tokens} of answer do not fit into the "
            f"{context} of a slot; {smaller} or a larger LLAMA_CTX_SIZE makes room"
        )
    if fitting < 2:
        # One call alone has no cache to use.
        raise InputError(f"{server.url}: {left_out or 'fewer than two calls'}")
    return Plan(every[:fitting], counted[:fitting], left_out, flat)


def run(
    server: ChatServer, plan: Plan, tool_chars: int, max_tokens: int, on_pair: Callable[[Pair], None] = lambda _: None
) -> tuple[Pair, ...]:
    """Make the calls: first a warm-up that counts for nothing, then all with the cache off, then all with it on.

    Each call of the control begins with other words, so that no cache can help it, whatever the server makes of
    `cache_prompt`. `on_pair` gets every call as soon as it is made. Ctrl-C goes through, and what was made is with it.
    """
    pairs = [Pair(call.number, call.chars, tokens) for call, tokens in zip(plan.calls, plan.tokens, strict=True)]

    def ask(index: int, nonce: str, *, cached: bool) -> Reply:
        told = messages(plan.calls[index].turns, tool_chars, nonce, flat=plan.flat)
        return server.chat(told, max_tokens, cached=cached, with_tools=not plan.flat)

    warm_up = ask(0, _nonce(), cached=False)
    if warm_up.error is not None:
        pairs[0] = replace(pairs[0], off=warm_up)
        on_pair(pairs[0])
        return tuple(pairs)
    warm = _nonce()
    for side in ("off", "on"):
        for index, pair in enumerate(pairs):
            cached = side == "on"
            reply = ask(index, warm if cached else _nonce(), cached=cached)
            pairs[index] = replace(pair, on=reply) if cached else replace(pair, off=reply)
            on_pair(pairs[index])
            if reply.gone:
                return tuple(pairs)
    return tuple(pairs)


def _template_knows_tools(server: ChatServer, tool_chars: int) -> bool:
    """Whether a tool's result gets into the prompt; True where the server cannot be asked."""
    told = messages(1, tool_chars, _nonce())
    prompt = server.prompt(told, with_tools=True)
    if prompt is None:
        # Refused, or no such endpoint: if text alone is understood, it is the tools that are not.
        return server.prompt(messages(1, tool_chars, _nonce(), flat=True), with_tools=False) is None
    # Its first words: they need no escaping in whatever form the template gives it.
    return str(told[-1]["content"])[:_TOLD_CHARS] in prompt


def _tokens(server: ChatServer, call: Call, tool_chars: int, *, flat: bool) -> int | None:
    prompt = server.prompt(messages(call.turns, tool_chars, "0" * NONCE_LENGTH, flat=flat), with_tools=not flat)
    return server.count(prompt) if prompt is not None else None


def _nonce() -> str:
    return secrets.token_hex(NONCE_LENGTH // 2)


def _json(answer: httpx.Response) -> Any:
    return _json_of(answer.content)


def _json_of(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
