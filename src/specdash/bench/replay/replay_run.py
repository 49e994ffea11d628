"""Replays a session on a running server: a warm-up that counts for nothing, every call cold, then every call warm.

Cold means `cache_prompt: false` and a beginning of its own for each call, so that no cache can help, whichever prompts
the server holds. Warm means the cache on and one beginning for the whole session, in order, as the agent sent it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.bench.load.drive import sample_of
from specdash.bench.load.samples import CACHED, NO_TIMINGS, Job, WorkloadPrompt, flags_of, marked, request_body
from specdash.bench.replay.replay import COLD, SIDES, WARM, CallResult, CountedBy, Replay, ReplayRow
from specdash.bench.replay.transcript import joined
from specdash.core.errors import InputError, SpecdashError, UnreachableError
from specdash.llama import chat
from specdash.llama.chat import ChatFault
from specdash.llama.server_answers import mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.bench.load.samples import EngineAddress
    from specdash.bench.replay.transcript import Transcript, TranscriptCall, TranscriptTurn
    from specdash.llama.chat import ChatAnswer

    Message = dict[str, Any]

MAX_TOKENS = 64
SYSTEM = "You are a precise coding assistant. Use the tools, then answer."
"""Stands where the transcript has no system prompt; Claude Code does not write down its own."""
WARM_UP_TOKENS = 32
_WARM_UP = "A lighthouse is a tower with a lamp that shows ships where the coast is. "
_WARM_UP_CHARS = 20_000
_MARGIN = 16
_MOST_BYTES_A_TOKEN = 64
"""More than any usual token has: what is longer than the context by so much needs no counting."""
_GIVE_UP = 5
_QUOTE = 16
"""Characters in a row that are a quotation and no coincidence."""


_ANSWER_S = 60.0
"""A prefix of megabytes is tokenised."""
_MARK = "specdash-probe-7261"
_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": _MARK},
)


class ReplayOptions(Struct, frozen=True):
    """How to replay. `silence_s` bounds each wait for data."""

    max_tokens: int = MAX_TOKENS
    sides: tuple[str, ...] = SIDES
    silence_s: float = 600.0
    system: str | None = None
    """The system prompt, where the transcript has none."""


class ReplayStep(Struct, frozen=True):
    """One call that was made."""

    side: str
    row: ReplayRow
    done: int
    """Characters of the prefixes of all calls made so far."""
    total: int


@dataclasses.dataclass(slots=True)
class Replayer:
    """Replays one transcript on one place. After Ctrl-C, `result` holds what was measured by then."""

    place: EngineAddress
    transcript: Transcript
    options: ReplayOptions
    context: int | None = None
    """Tokens of a slot, where they are known."""
    on_step: Callable[[ReplayStep], None] = lambda _: None
    notes: list[str] = dataclasses.field(default_factory=list)
    flat: bool = False
    _looks: ServerQuestions = dataclasses.field(init=False)
    _rows: dict[int, ReplayRow] = dataclasses.field(default_factory=dict)
    _left_out: list[int] = dataclasses.field(default_factory=list)
    _began: float = dataclasses.field(default_factory=time.monotonic)
    _started_at: float = dataclasses.field(default_factory=time.time)
    _run: str = dataclasses.field(default_factory=lambda: secrets.token_hex(6))
    _keep_text: bool = False

    def __post_init__(self) -> None:
        self._looks = ServerQuestions(self.place)

    def run(self) -> None:
        """Make all calls.

        Raises `InputError` when none fits, `UnreachableError` when no one answers, `SpecdashError` when the first
        request fails.
        """
        self.flat = not self._looks.takes_tools(self.transcript.tools)
        calls = self._fitting()
        self._warm_up(calls[0])
        self._began, self._started_at = time.monotonic(), time.time()
        total, done = sum(call.chars + 1 for call in calls) * len(self.options.sides), 0
        for side in self.options.sides:
            failures = 0
            for call in calls:
                answer = self._answer(call, side)
                row = self._rows[call.number]
                row = replace(row, cold=answer) if side == COLD else replace(row, warm=answer)
                self._rows[call.number] = row
                done += call.chars + 1
                self.on_step(ReplayStep(side, row, done, total))
                failures = failures + 1 if answer.sample.failed else 0
                if failures >= _GIVE_UP or answer.sample.fault == ChatFault.UNREACHABLE:
                    self.notes.append(f"{side}: given up after {failures} failures in a row: {answer.sample.error}")
                    break

    def result(self, *, interrupted: bool = False) -> Replay:
        """What was measured so far."""
        rows = tuple(self._rows[number] for number in sorted(self._rows))
        made = Replay(
            rows, self.options.sides, self.options.max_tokens, self._started_at, time.monotonic() - self._began,
            tuple(self._left_out), self.context, self.flat, len(self.transcript.tools), interrupted=interrupted,
        )  # fmt: skip
        return replace(made, notes=(*self.notes, *_notes(made)))

    def _fitting(self) -> list[TranscriptCall]:
        """The calls that fit into the context. What continues a prefix that is too long is too long itself."""
        too_long: dict[TranscriptTurn, bool] = {}
        found: list[TranscriptCall] = []
        room = None if self.context is None else self.context - self.options.max_tokens - _MARGIN
        for call in self.transcript.calls:
            if room is not None and self._exceeds(call, room, too_long):
                self._left_out.append(call.number)
                continue
            found.append(call)
            self._rows[call.number] = ReplayRow(call.number, call.line, call.chars, len(call.last.path()))
        if not found:
            first = self.transcript.calls[0]
            raise InputError(
                f"not one of {len(self.transcript.calls)} calls fits into the {self.context} tokens of a slot with "
                f"{self.options.max_tokens} tokens of answer (the first prefix has {first.chars:,} characters); "
                "enlarge LLAMA_CTX_SIZE, or take fewer slots"
            )
        return found

    def _exceeds(self, call: TranscriptCall, room: int, too_long: dict[TranscriptTurn, bool]) -> bool:
        path: list[TranscriptTurn] = []
        for turn in call.last.up():
            if turn in too_long:
                if too_long[turn]:
                    too_long.update(dict.fromkeys(path, True))
                    return True
                break
            path.append(turn)
        exceeds = self._tokens(call, room) > room
        too_long.update(dict.fromkeys(path, False))
        too_long[call.last] = exceeds
        return exceeds

    def _tokens(self, call: TranscriptCall, room: int) -> int:
        """Of the call's prompt; a bound where that is enough to tell, or no more is known."""
        if call.chars > room * _MOST_BYTES_A_TOKEN:
            return call.chars // _MOST_BYTES_A_TOKEN
        body = self._body(call, WARM)
        prompt = self._looks.prompt(body["messages"], body.get("tools", ()))
        tokens = self._looks.count(prompt) if prompt is not None else None
        return tokens if tokens is not None else 0

    def _body(self, call: TranscriptCall, side: str) -> dict[str, Any]:
        messages = call.messages()
        if not messages or messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": self.options.system or SYSTEM}, *messages]
        if self.flat:
            messages = flat(messages)
        name = f"{self._run}/{WARM if side == WARM else call.number}"
        tools = () if self.flat else self.transcript.tools_of(call)
        place, tokens = self.place, self.options.max_tokens
        return request_body(marked(messages, name), tokens, tools=tools, model=place.model, cached=side == WARM)

    def _warm_up(self, first: TranscriptCall) -> None:
        """One request of a text of its own, about as long as the first."""
        words = _WARM_UP * max(1, min(first.chars, _WARM_UP_CHARS) // len(_WARM_UP))
        messages: list[Message] = [{"role": "user", "content": f"{words}Say that in other words."}]
        conversation = marked(messages, f"{self._run}/warm-up")
        heard = self._ask(request_body(conversation, WARM_UP_TOKENS, model=self.place.model, cached=False))
        if heard.fault is None:
            self._keep_text = heard.predicted_tokens is None
            return
        if heard.fault == ChatFault.UNREACHABLE:
            raise UnreachableError(f"{self.place.url}: {heard.error}; start the server, or name another --url")
        raise SpecdashError(f"the first request failed, so nothing was measured: {self.place.url}: {heard.error}")

    def _answer(self, call: TranscriptCall, side: str) -> CallResult:
        body = self._body(call, side)
        heard = self._ask(body)
        heard.error = unquoted(heard.error, body["messages"])
        job = Job(call.number, WorkloadPrompt(f"call {call.number}", "replay", ()), SIDES.index(side))
        sample = sample_of(heard, job, heard.sent_s)
        flags = flags_of(sample, wanted=None, alone=True, cache=side == WARM)
        tokens, counted_by = self._counted(heard)
        return CallResult(replace(sample, flags=flags), tokens, counted_by)

    def _counted(self, heard: ChatAnswer) -> tuple[int | None, CountedBy | None]:
        if heard.fault is not None:
            return None, None
        if heard.predicted_tokens is not None:
            return heard.predicted_tokens, CountedBy.TIMINGS if heard.timings else CountedBy.USAGE
        answer = heard.text + heard.reasoning + heard.called
        counted = self._looks.count(answer) if answer else None
        if counted is not None:
            return counted, CountedBy.TOKENIZE
        return heard.chunks, CountedBy.CHUNKS

    def _ask(self, body: dict[str, Any]) -> ChatAnswer:
        silence_s, limit_s = self.options.silence_s, max(1800.0, self.options.silence_s)
        server = self.place.client(_ANSWER_S)
        return chat.ask(server, body, silence_s=silence_s, limit_s=limit_s, keep_text=self._keep_text)


def unquoted(error: str, messages: list[Message]) -> str:
    """The server's words, unless they quote the session: a report holds no text of it."""
    if len(error) <= _QUOTE:
        return error
    everything = json.dumps(messages, ensure_ascii=False)
    plain = everything.replace('\\"', '"').replace("\\n", " ")
    pieces = (error[at : at + _QUOTE] for at in range(len(error) - _QUOTE + 1))
    if any(piece in everything or piece in plain for piece in pieces):
        return f"{error.partition(':')[0][:_QUOTE]}: the server's words quote the session and are left out"
    return error


def _notes(made: Replay) -> list[str]:
    found = []
    if made.flat:
        found.append("the model's chat template knows no tools: tool calls and results went as text")
    if made.left_out:
        which = f"call {made.left_out[0]}" if len(made.left_out) == 1 else f"{len(made.left_out)} calls"
        found.append(f"{which} left out: the prefix does not fit into the {made.context} tokens of a slot")
    cached = sum(row.cold is not None and CACHED in row.cold.sample.flags for row in made.rows)
    if cached:
        found.append(f"{cached} cold calls were answered from a cache all the same; they are not compared")
    warm = [row.warm for row in made.rows if row.warm is not None and not row.warm.sample.failed]
    if len(warm) > 1 and all(call_result.sample.cached_tokens == 0 for call_result in warm):
        found.append("the cache was never used: no warm call had a cached token")
    odd = Counter(
        flag
        for row in made.rows
        for call_result in (row.cold, row.warm)
        if call_result
        for flag in call_result.sample.flags
    )
    counts = ", ".join(f"{count} {flag}" for flag, count in odd.most_common() if flag not in (CACHED, NO_TIMINGS))
    if counts:
        found.append(f"odd answers: {counts} (docs/measuring.md)")
    by = made.counted_by()
    if CountedBy.CHUNKS in by:
        found.append("this server does not tell how many tokens it made: events were counted, one may bring several")
    elif CountedBy.TOKENIZE in by:
        found.append("this server does not tell how many tokens it made: the answers were tokenised again")
    suspects = len(made.suspects)
    if suspects:
        found.append(f"EMPTY with the cache only: {suspects} calls; `specdash repro-empty` looks into that")
    if sum(row.cold is not None and row.cold.is_empty for row in made.rows):
        found.append("where an answer is EMPTY without the cache too, the model itself ends at once")
    return found


class ServerQuestions(Struct, frozen=True):
    """Questions to one place. None where the server does not tell."""

    place: EngineAddress

    def takes_tools(self, tools: Sequence[Message]) -> bool:
        """Whether a tool's result gets into the prompt; True where the server cannot be asked."""
        prompt = self.prompt(list(_PROBE), tools)
        if prompt is not None:
            return _MARK in prompt
        return self.prompt(flat(list(_PROBE)), ()) is None

    def takes_images(self) -> bool:
        try:
            props = self.place.client(_ANSWER_S).get("/props").json
        except OSError:
            return False
        return mapping(mapping(props).get("modalities")).get("vision") is True

    def prompt(self, messages: list[Message], tools: Sequence[Message]) -> str | None:
        """What the model's chat template makes of messages."""
        with contextlib.suppress(SpecdashError):
            return self.place.client(_ANSWER_S).prompt(messages, tools)
        return None

    def count(self, prompt: str) -> int | None:
        with contextlib.suppress(SpecdashError):
            return len(self.place.client(_ANSWER_S).tokens(prompt))
        return None


def flat(messages: list[Message]) -> list[Message]:
    """Tool calls and results as text, for templates that know no tools."""
    found: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            found.append({"role": "user", "content": _wrapped(message["content"])})
        elif message.get("tool_calls"):
            calls = [
                f"<tool_call name={tool_call['function']['name']}>{tool_call['function']['arguments']}</tool_call>"
                for tool_call in message["tool_calls"]
            ]
            text = message["content"] if isinstance(message["content"], str) else ""
            found.append({"role": "assistant", "content": "\n".join([*([text] if text else []), *calls])})
        else:
            found.append(message)
    return joined(found)


def _wrapped(content: Any) -> Any:
    begin, end = "<tool_response>", "</tool_response>"
    if isinstance(content, str):
        return begin + content + end
    return [{"type": "text", "text": begin}, *content, {"type": "text", "text": end}]
