"""Judges whether answers become empty once their prompt comes from the cache. Pure: the I/O is in `repro_run`.

Every call is made twice: with the cache off (the control) and with it on. An empty answer has no text, no reasoning and
no tool call. It counts as reproduced only where the control's answer to the same call is not empty.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specdash.bench.load.samples import request_body
from specdash.core.errors import ExitCode, InputError, RefusedError
from specdash.llama.blocking import BlockingClient
from specdash.llama.chat import ChatClient, ChatFault
from specdash.llama.server_answers import ParseError, error_message, parse_props
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


INSTANT_S = 0.05
"""An empty answer that came within this time did no prefill either."""


class ReproOutcome(StrEnum):
    """What became of a run."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    CONTROL_EMPTY = "control_empty"
    """Answers are empty without the cache too: another problem."""
    INCONCLUSIVE = "inconclusive"
    """Calls failed, or the cache was never used: nothing is shown either way."""
    UNREACHABLE = "unreachable"
    """The server was gone before the end."""


EXIT_CODES = {
    ReproOutcome.REPRODUCED: ExitCode.OK,
    ReproOutcome.NOT_REPRODUCED: ExitCode.FAILED,
    ReproOutcome.CONTROL_EMPTY: ExitCode.INCONCLUSIVE,
    ReproOutcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    ReproOutcome.UNREACHABLE: ExitCode.UNREACHABLE,
}


@dataclass(frozen=True, slots=True)
class ReproReply:
    """One answer, or why there is none. Counts that the server does not tell are None."""

    content_chars: int = 0
    """Without white space around it."""
    reasoning_chars: int = 0
    tool_calls: int = 0
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    """Until the first text, reasoning or tool call; None for an answer without any."""
    wall_s: float = 0.0
    finish: str | None = None
    error: str | None = None
    """What went wrong instead of an answer."""
    gone: bool = False
    """The error is that nothing answers any more."""

    @property
    def is_empty(self) -> bool:
        """Whether it ended well and says nothing at all."""
        return self.error is None and not (self.content_chars or self.reasoning_chars or self.tool_calls)

    @property
    def how_empty(self) -> str:
        """In words, what kind of nothing it is; empty for an answer that says something."""
        if not self.is_empty:
            return ""
        words = "no tokens" if self.completion_tokens == 0 else "nothing but white space or special tokens"
        if self.completion_tokens is None:
            words = "no text"
        return f"{words}, within {self.wall_s * 1000:.0f} ms" if self.wall_s < INSTANT_S else words


@dataclass(frozen=True, slots=True)
class CallPair:
    """One call on both sides; a side that was not asked is None."""

    number: int
    chars: int
    tokens: int | None = None
    """Of its prompt, where the server counts them."""
    off: ReproReply | None = None
    on: ReproReply | None = None

    @property
    def reproduces(self) -> bool:
        """Empty with the cache, and not without it."""
        whole = self.off is not None and self.off.error is None and not self.off.is_empty
        return whole and self.on is not None and self.on.is_empty


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run shows. `sentence` begins with the outcome in capitals."""

    outcome: ReproOutcome
    sentence: str

    @property
    def exit_code(self) -> ExitCode:
        """What the command ends with."""
        return EXIT_CODES[self.outcome]


def judge(pairs: tuple[CallPair, ...]) -> Judgement:
    """What the calls show together."""
    asked = [pair for pair in pairs if pair.on is not None]
    shown = [pair for pair in asked if pair.reproduces]
    if shown:
        kind = shown[0].on.how_empty if shown[0].on is not None else ""
        return Judgement(
            ReproOutcome.REPRODUCED,
            f"REPRODUCED: {_calls(shown)} empty with the cache on ({kind}), and not with it off",
        )
    for pair in pairs:
        for side, repro_reply in (("off", pair.off), ("on", pair.on)):
            if repro_reply is not None and repro_reply.gone:
                words = (
                    f"UNREACHABLE: the server was gone at call {pair.number} with the cache {side}: {repro_reply.error}"
                )
                return Judgement(ReproOutcome.UNREACHABLE, words)
    control = [pair for pair in pairs if pair.off is not None and pair.off.is_empty]
    if control:
        return Judgement(
            ReproOutcome.CONTROL_EMPTY,
            f"CONTROL EMPTY: {_calls(control)} empty with the cache off too, so this is another problem than the cache",
        )
    return _without_empties(pairs, asked)


def _without_empties(pairs: tuple[CallPair, ...], asked: list[CallPair]) -> Judgement:
    failed = [pair for pair in pairs if _error(pair.off) or _error(pair.on)]
    if failed:
        side = "off" if _error(failed[0].off) else "on"
        said = _error(failed[0].off) or _error(failed[0].on)
        words = f"INCONCLUSIVE: call {failed[0].number} failed with the cache {side}: {said}"
        return Judgement(ReproOutcome.INCONCLUSIVE, words)
    if any(pair.reproduces is False and pair.on is not None and pair.on.is_empty for pair in asked):
        return Judgement(
            ReproOutcome.INCONCLUSIVE, "INCONCLUSIVE: empty answers with the cache on, and no control for them"
        )
    if len(asked) < 2 or any(pair.on is None or pair.off is None for pair in pairs):
        return Judgement(ReproOutcome.INCONCLUSIVE, "INCONCLUSIVE: not all calls were made")
    cached = [pair.on.cached_tokens for pair in asked[1:] if pair.on is not None]
    if all(count == 0 for count in cached):
        words = "INCONCLUSIVE: the cache was never used: no call found any of its prompt cached"
        return Judgement(ReproOutcome.INCONCLUSIVE, words)
    used = ""
    if None not in cached:
        used = f"; up to {max(count or 0 for count in cached)} tokens came from the cache"
    words = f"DID NOT REPRODUCE: none of {len(asked)} answers with the cache on is empty{used}"
    return Judgement(ReproOutcome.NOT_REPRODUCED, words)


def _error(reply: ReproReply | None) -> str:
    return reply.error or "" if reply is not None else ""


def _calls(pairs: list[CallPair]) -> str:
    numbers = [str(pair.number) for pair in pairs]
    if len(numbers) == 1:
        return f"call {numbers[0]} is"
    return f"calls {', '.join(numbers[:-1])} and {numbers[-1]} are"


# A synthetic agent's conversation whose prefix grows with every tool result, as UAP's reproducer has it.
#
# Call N sends the exact prefix of call N+1: the user's task, then per turn an assistant's tool call and the linter's
# long answer. The text is made of the turn's number alone, so that every run and both sides send the same.

NONCE_LENGTH = 12
_TASK = "Fix what the linter finds."
_PROBLEMS = (
    ("W0612", "Unused variable 'tmp_{n}'", "unused-variable"),
    ("C0116", "Missing function or method docstring", "missing-function-docstring"),
    ("R0913", "Too many arguments ({n}/5)", "too-many-arguments"),
    ("E1101", "Instance of 'Node{n}' has no 'parent' member", "no-member"),
    ("W0611", "Unused import part_{n}", "unused-import"),
    ("C0301", "Line too long ({n}/100)", "line-too-long"),
)
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "run_linter",
            "description": "Run pylint on one file and return its report.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "file to check"}},
                "required": ["path"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class PrefixCall:
    """One call: its number from 1, the turns before it, and the length of all its texts."""

    number: int
    turns: int
    chars: int


def calls(count: int, tool_chars: int) -> tuple[PrefixCall, ...]:
    """The calls of a run, the prefix growing by one tool result each."""
    nonce = "0" * NONCE_LENGTH
    return tuple(
        PrefixCall(number + 1, number, sum(len(_text(message)) for message in messages(number, tool_chars, nonce)))
        for number in range(count)
    )


def messages(turns: int, tool_chars: int, nonce: str, *, flat: bool = False) -> list[dict[str, Any]]:
    """The messages of a call. What differs between conversations, the `nonce`, stands at the very beginning, so that
    no cache can mix them up. `flat` writes tool calls and results as text, for templates that know no tools."""
    told: list[dict[str, Any]] = [
        {"role": "system", "content": f"[{nonce}] You are a precise coding assistant. Use the tools, then answer."},
        {"role": "user", "content": _TASK},
    ]
    for turn in range(turns):
        path, result = f"src/app/module_{turn}.py", tool_result(turn, tool_chars)
        arguments = json.dumps({"path": path})
        if flat:
            told.append({"role": "assistant", "content": f"<tool_call name=run_linter>{arguments}</tool_call>"})
            told.append({"role": "user", "content": f"<tool_response>{result}</tool_response>"})
            continue
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "run_linter", "arguments": arguments}}
        told.append({"role": "assistant", "content": "", "tool_calls": [call]})
        told.append({"role": "tool", "tool_call_id": f"call_{turn}", "name": "run_linter", "content": result})
    return told


def tool_result(turn: int, chars: int) -> str:
    """The linter's report of one turn, of just that many characters."""
    lines, length, number = [f"************* Module app.module_{turn}"], 0, 0
    while length < chars:
        code, words, name = _PROBLEMS[(number + turn) % len(_PROBLEMS)]
        line = f"src/app/module_{turn}.py:{7 * number + turn + 1}:{number % 40}: {code}: "
        lines.append(line + f"{words.format(n=number + 6)} ({name})")
        length += len(lines[-1])
        number += 1
    return "\n".join(lines)[:chars]


def _text(message: dict[str, Any]) -> str:
    return str(message.get("content") or "")


# Makes the calls of `specdash repro-empty` on a running server, streamed, each with the cache off and on.


TURNS = 6
TOOL_CHARS = 5150
MAX_TOKENS = 64
LIMIT_S = 600.0
"""Longest silence of a call."""
_CHARS_PER_TOKEN = 3.0
"""Where the server cannot be asked: rather too many tokens than too few."""
_MARGIN = 8
_TOLD_CHARS = 20


@dataclass(frozen=True, slots=True)
class ReproPlan:
    """What to ask. `left_out` are the calls that do not fit, and why."""

    calls: tuple[PrefixCall, ...]
    tokens: tuple[int | None, ...]
    left_out: str = ""
    flat: bool = False
    """Tool calls and results go as text: the model's template knows no tools."""


@dataclass(slots=True)
class ChatServer:
    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    limit_s: float = LIMIT_S
    _client: BlockingClient = field(init=False, repr=False)
    _chat: ChatClient = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._client = BlockingClient(self.url, self.key, self.model)
        self._chat = ChatClient(self.url, self.key, silence_s=self.limit_s, limit_s=math.inf, keep_text=True)

    def context(self) -> int | None:
        """Tokens that fit into a slot; None where the server does not tell. Raises `UnreachableError` when nobody
        answers, `InputError` for a refused key, `RefusedError` while it loads or for a router of which no model is
        named."""
        try:
            answer = self._client.get("/props")
        except OSError as error:
            raise self._client.unreachable(error) from None
        self._client.check_key(answer)
        if answer.status == 503:
            raise RefusedError(f"{self.url} is not ready: {error_message(answer.body) or 'HTTP 503'}")
        if answer.status == 400 and self.model:
            raise RefusedError(f"{self.url}: {error_message(answer.body)}; load the model {self.model} first")
        if answer.status != 200:
            return None
        try:
            props = parse_props(answer.body)
        except ParseError:
            return None
        if props.role == "router" and self.model is None:
            raise RefusedError(f"{self.url} is a router; name one of its models with --model")
        return props.n_ctx or None

    def prompt(self, told: list[dict[str, Any]], *, with_tools: bool) -> str | None:
        """The prompt that the model's chat template makes; None where the server does not tell."""
        try:
            return self._client.prompt(told, TOOLS if with_tools else ())
        except OSError as error:
            raise self._client.unreachable(error) from None

    def count(self, text: str) -> int | None:
        """The text's tokens; None where the server does not tell."""
        try:
            found = self._client.tokens(text)
        except OSError as error:
            raise self._client.unreachable(error) from None
        return len(found) if found is not None else None

    def chat(self, told: list[dict[str, Any]], max_tokens: int, *, cached: bool, with_tools: bool) -> ReproReply:
        """One streamed answer. What goes wrong is part of the reply."""
        tools = TOOLS if with_tools else ()
        body = request_body(told, max_tokens, tools=tools, model=self.model, cached=cached)
        answer = self._chat.ask(body)
        gone = answer.fault is ChatFault.UNREACHABLE
        return ReproReply(
            content_chars=len(answer.text.strip()),
            reasoning_chars=len(answer.reasoning.strip()),
            tool_calls=len(answer.calls),
            completion_tokens=answer.predicted_tokens,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            ttft_s=answer.first_s - answer.sent_s if answer.first_s is not None else None,
            wall_s=time.monotonic() - answer.sent_s,
            finish=answer.finish,
            error="nothing listens there any more" if gone else answer.error or None,
            gone=gone,
        )


def make_plan(server: ChatServer, turns: int, tool_chars: int, max_tokens: int) -> ReproPlan:
    """Which calls fit, and how to say them. Raises `InputError` when fewer than two fit, and what `context` raises."""
    context = server.context()
    every = calls(turns, tool_chars)
    flat = not _template_knows_tools(server, tool_chars)
    counted = tuple(_tokens(server, call, tool_chars, flat=flat) for call in every)
    if context is None:
        return ReproPlan(every, counted, flat=flat)
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
    return ReproPlan(every[:fitting], counted[:fitting], left_out, flat)


def run(
    server: ChatServer,
    plan: ReproPlan,
    tool_chars: int,
    max_tokens: int,
    on_pair: Callable[[CallPair], None] = lambda _: None,
) -> tuple[CallPair, ...]:
    """Make the calls: first a warm-up that counts for nothing, then all with the cache off, then all with it on.

    Each call of the control begins with other words, so that no cache can help it, whatever the server makes of
    `cache_prompt`. `on_pair` gets every call as soon as it is made. Ctrl-C goes through, and what was made is with it.
    """
    pairs = [CallPair(call.number, call.chars, tokens) for call, tokens in zip(plan.calls, plan.tokens, strict=True)]

    def ask(index: int, nonce: str, *, cached: bool) -> ReproReply:
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


def _tokens(server: ChatServer, call: PrefixCall, tool_chars: int, *, flat: bool) -> int | None:
    prompt = server.prompt(messages(call.turns, tool_chars, "0" * NONCE_LENGTH, flat=flat), with_tools=not flat)
    return server.count(prompt) if prompt is not None else None


def _nonce() -> str:
    return secrets.token_hex(NONCE_LENGTH // 2)
