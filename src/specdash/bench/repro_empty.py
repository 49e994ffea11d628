"""Do answers become empty once their prompt comes from the cache? The calls of a made-up session, and what they show.

Every call is made twice: with the cache off (the control) and with it on. An empty answer has no text, no reasoning and
no tool call. It counts as reproduced only where the control's answer to the same call is not empty.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import time
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.bench.load.samples import request_body
from specdash.bench.replay.replay_run import ServerQuestions
from specdash.bench.replay.replay_run import flat as as_text
from specdash.core.errors import ExitCode, InputError, RefusedError
from specdash.llama import chat
from specdash.llama.client import ANSWER_S
from specdash.llama.server_answers import ParseError, error_message, parse_props

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.bench.load.samples import EngineAddress


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


class ReproReply(Struct, frozen=True):
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


class CallPair(Struct, frozen=True):
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


class Judgement(Struct, frozen=True):
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
        for side, reply in (("off", pair.off), ("on", pair.on)):
            if reply is not None and reply.gone:
                where = f"call {pair.number} with the cache {side}: {reply.error}"
                return Judgement(ReproOutcome.UNREACHABLE, f"UNREACHABLE: the server was gone at {where}")
    control = [pair for pair in pairs if pair.off is not None and pair.off.is_empty]
    if control:
        return Judgement(
            ReproOutcome.CONTROL_EMPTY,
            f"CONTROL EMPTY: {_calls(control)} empty with the cache off too, so this is another problem than the cache",
        )
    return _without_empties(pairs, asked)


def _without_empties(pairs: tuple[CallPair, ...], asked: list[CallPair]) -> Judgement:
    failed = [pair for pair in pairs if _error(pair.off) or _error(pair.on)]
    cached = [pair.on.cached_tokens for pair in asked[1:] if pair.on is not None]
    why = ""
    if failed:
        side = "off" if _error(failed[0].off) else "on"
        why = f"call {failed[0].number} failed with the cache {side}: {_error(failed[0].off) or _error(failed[0].on)}"
    elif any(pair.on is not None and pair.on.is_empty for pair in asked):
        why = "empty answers with the cache on, and no control for them"
    elif len(asked) < 2 or any(pair.on is None or pair.off is None for pair in pairs):
        why = "not all calls were made"
    elif all(count == 0 for count in cached):
        why = "the cache was never used: no call found any of its prompt cached"
    if why:
        return Judgement(ReproOutcome.INCONCLUSIVE, f"INCONCLUSIVE: {why}")
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
_NO_NONCE = "0" * NONCE_LENGTH
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


class PrefixCall(Struct, frozen=True):
    """One call: its number from 1, the turns before it, and the length of all its texts."""

    number: int
    turns: int
    chars: int


def calls(count: int, tool_chars: int) -> tuple[PrefixCall, ...]:
    """The calls of a run, the prefix growing by one tool result each."""
    whole = messages(count - 1, tool_chars, _NO_NONCE)
    lengths = list(accumulate(len(message["content"]) for message in whole))
    return tuple(PrefixCall(turns + 1, turns, lengths[2 * turns + 1]) for turns in range(count))


def messages(turns: int, tool_chars: int, nonce: str) -> list[dict[str, Any]]:
    """The messages of a call. What differs between conversations, the `nonce`, stands at the very beginning, so that
    no cache can mix them up."""
    conversation: list[dict[str, Any]] = [
        {"role": "system", "content": f"[{nonce}] You are a precise coding assistant. Use the tools, then answer."},
        {"role": "user", "content": _TASK},
    ]
    for turn in range(turns):
        arguments = json.dumps({"path": f"src/app/module_{turn}.py"})
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "run_linter", "arguments": arguments}}
        conversation.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result = tool_result(turn, tool_chars)
        conversation.append({"role": "tool", "tool_call_id": f"call_{turn}", "name": "run_linter", "content": result})
    return conversation


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


# Makes the calls of `specdash repro-empty` on a running server, streamed, each with the cache off and on.


TURNS = 6
TOOL_CHARS = 5150
MAX_TOKENS = 64
LIMIT_S = 600.0
"""Longest silence of a call."""
_CHARS_PER_TOKEN = 3.0
"""Where the server cannot be asked: rather too many tokens than too few."""
_MARGIN = 8


class ReproPlan(Struct, frozen=True):
    """What to ask. `left_out` are the calls that do not fit, and why."""

    calls: tuple[PrefixCall, ...]
    tokens: tuple[int | None, ...]
    left_out: str = ""
    flat: bool = False
    """Tool calls and results go as text: the model's template knows no tools."""


@dataclasses.dataclass(slots=True)
class ReproRun:
    """The calls of one run on the server at `place`; `limit_s` bounds each silence."""

    place: EngineAddress
    turns: int
    tool_chars: int
    max_tokens: int
    limit_s: float = LIMIT_S

    def plan(self) -> ReproPlan:
        """Which calls fit, and how to say them. Raises `InputError` when fewer than two fit or for a refused key,
        `UnreachableError` when no one answers, `RefusedError` while it loads or for a router of which no model is
        named."""
        context = self._context()
        looks = ServerQuestions(self.place)
        flat = not looks.takes_tools(TOOLS)
        every, counted = calls(self.turns, self.tool_chars), []
        for call in every:
            prompt = looks.prompt(self._messages(call, _NO_NONCE, flat=flat), () if flat else TOOLS)
            counted.append(looks.count(prompt) if prompt is not None else None)
        if context is None:
            return ReproPlan(every, tuple(counted), flat=flat)
        room = context - self.max_tokens - _MARGIN
        needed = [
            tokens if tokens is not None else int(call.chars / _CHARS_PER_TOKEN)
            for call, tokens in zip(every, counted, strict=True)
        ]
        fitting = sum(tokens <= room for tokens in needed)
        left_out = ""
        if fitting < len(every):
            which = f"call {fitting + 1}" if fitting == len(every) - 1 else f"calls {fitting + 1} to {len(every)}"
            fits = int(self.tool_chars * 0.9 * room / needed[-1])
            smaller = f"--tool-chars {fits}" if fits > 0 else "a smaller --max-tokens"
            left_out = (
                f"{which} left out: {needed[fitting]} tokens of prompt and {self.max_tokens} of answer do not fit into "
                f"the {context} of a slot; {smaller} or a larger LLAMA_CTX_SIZE makes room"
            )
        if fitting < 2:
            # One call alone has no cache to use.
            raise InputError(f"{self.place.url}: {left_out or 'fewer than two calls'}")
        return ReproPlan(every[:fitting], tuple(counted[:fitting]), left_out, flat)

    def calls(self, plan: ReproPlan) -> Iterator[CallPair]:
        """Make the calls, each as soon as it is made: first a warm-up that counts for nothing unless it fails, then all
        with the cache off, then all with it on.

        Each call of the control begins with other words, so that no cache can help it, however the server treats
        `cache_prompt`.
        """
        counted = zip(plan.calls, plan.tokens, strict=True)
        pairs = [CallPair(call.number, call.chars, tokens) for call, tokens in counted]
        warm_up = self._asked(plan, 0, _nonce(), cached=False)
        if warm_up.error is not None:
            yield replace(pairs[0], off=warm_up)
            return
        warm = _nonce()
        for cached in (False, True):
            for index, pair in enumerate(pairs):
                reply = self._asked(plan, index, warm if cached else _nonce(), cached=cached)
                pairs[index] = replace(pair, on=reply) if cached else replace(pair, off=reply)
                yield pairs[index]
                if reply.gone:
                    return

    def _context(self) -> int | None:
        """Tokens that fit into a slot; None where the server does not tell."""
        client, url, model = self.place.client(ANSWER_S), self.place.url, self.place.model
        try:
            answer = client.get("/props")
        except OSError as error:
            raise client.unreachable(error) from None
        client.check_key(answer)
        if answer.status == 503:
            raise RefusedError(f"{url} is not ready: {error_message(answer.body) or 'HTTP 503'}")
        if answer.status == 400 and model:
            raise RefusedError(f"{url}: {error_message(answer.body)}; load the model {model} first")
        try:
            props = parse_props(answer.body) if answer.status == 200 else None
        except ParseError:
            props = None
        if props is not None and props.role == "router" and model is None:
            raise RefusedError(f"{url} is a router; name one of its models with --model")
        return (props.n_ctx or None) if props is not None else None

    def _messages(self, call: PrefixCall, nonce: str, *, flat: bool) -> list[dict[str, Any]]:
        conversation = messages(call.turns, self.tool_chars, nonce)
        return as_text(conversation) if flat else conversation

    def _asked(self, plan: ReproPlan, index: int, nonce: str, *, cached: bool) -> ReproReply:
        """One streamed answer. What goes wrong is part of the reply."""
        conversation = self._messages(plan.calls[index], nonce, flat=plan.flat)
        tools = () if plan.flat else TOOLS
        body = request_body(conversation, self.max_tokens, tools=tools, model=self.place.model, cached=cached)
        server, silence_s = self.place.client(ANSWER_S), self.limit_s
        answer = chat.ask(server, body, silence_s=silence_s, limit_s=math.inf, keep_text=True)
        gone = answer.fault is chat.ChatFault.UNREACHABLE
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


def _nonce() -> str:
    return secrets.token_hex(NONCE_LENGTH // 2)
