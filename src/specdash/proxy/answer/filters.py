"""What an answer passes on its way to the client, one generator each, and what it ends with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.proxy.answer.assembler import AnswerAssembler
from specdash.proxy.answer.blocks import END, Arguments, End, MessageBuilder, Text, Thinking, ToolStart
from specdash.proxy.guardrails.written import Openings, written_at_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping

    from specdash.proxy.answer.blocks import Piece, ToolCall
    from specdash.proxy.answer.turn import PreparedRequest
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.translate.parse import Tool

    Pieces = AsyncGenerator[Piece, None]


class Attempt(Struct):
    """One call of the upstream: its answer, and what the filters found in it and kept back.

    `limit` is the number of calls that the client takes, None for any. `draft` is what passed the filters where the
    client does not get it at once.
    """

    answer: AnswerAssembler = field(default_factory=AnswerAssembler)
    limit: int | None = None
    is_cut: bool = False
    """The rest is not wanted."""
    stop_text: str | None = None
    """The stop sequence that ended the text."""
    stopped: int = 0
    """Characters of the answer's text from there on."""
    has_repeated: bool = False
    """The text was cut because it repeated itself."""
    hidden: list[str] = field(default_factory=list)
    """Reasoning that the client does not get."""
    held: list[str] = field(default_factory=list)
    """Text that may be a written tool call, to its end."""
    draft: MessageBuilder = field(default_factory=MessageBuilder)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that count: those past the client's limit do not, nor need they be whole."""
        return self.answer.tool_calls()[: self.limit]

    @property
    def text(self) -> str:
        """The visible text, up to its stop sequence."""
        return self.answer.text()[: self.answer.text_chars - self.stopped]

    def split(self, start: int) -> tuple[str, str]:
        """What is held before `start`, an offset in the text, and from there on."""
        held = "".join(self.held)
        at = max(0, start - self.answer.text_chars + self.stopped + len(held))
        return held[:at], held[at:]


def filtered(
    source: Pieces, attempt: Attempt, prepared: PreparedRequest, settings: ProxySettings, *, thinking: bool
) -> Pieces:
    """The pieces for the client.

    The order matters: what ends the text (repetition, stop sequences) sees it as the model wrote it; what holds
    written calls sees what the client would see.
    """
    request, tools = prepared.request, prepared.tools
    choice = request.tool_choice
    is_refused = choice.kind == "none" and not choice.is_ours and bool(tools)
    attempt.limit = 0 if is_refused else None if choice.parallel else 1
    names = {tool.name: tool for tool in tools} if tools and settings.malformed_tool_guardrail else None
    if settings.repetition_cut:
        source = until_repeated(source, attempt)
    if not thinking:
        source = without_thinking(source, attempt)
    if prepared.prefill:
        source = without_echo(source, prepared.prefill)
    if request.stop_sequences:
        source = until_stop(source, attempt, request.stop_sequences)
    if names is not None and not is_refused:
        source = with_held_calls(source, attempt, names)
    if names is not None or attempt.limit is not None:
        source = with_allowed_calls(source, attempt, names)
    return source


UNIT_MAX = 500
"""Longest repeated unit, in characters."""
ENOUGH = 10_240
"""Least length of a run of one unit, in characters."""
_BLOCK = 256


async def until_repeated(source: Pieces, attempt: Attempt) -> Pieces:
    """End an answer whose visible text or reasoning only repeats one unit over `ENOUGH` characters; calls may.

    They are looked at every 256 characters, however the text is cut into fragments.
    """
    text = ""
    async for piece in source:
        yield piece
        if attempt.is_cut or not (piece.__class__ is Text or piece.__class__ is Thinking):
            continue
        text += piece.text
        while len(text) >= ENOUGH and not attempt.is_cut:
            run = text[:ENOUGH]
            before = run.rfind(run[-UNIT_MAX:], ENOUGH - 2 * UNIT_MAX, ENOUGH - 1)
            period = ENOUGH - UNIT_MAX - before
            attempt.is_cut = attempt.has_repeated = before >= 0 and run[period:] == run[:-period]
            text = text[_BLOCK:]
        if attempt.is_cut:
            yield END


async def without_thinking(source: Pieces, attempt: Attempt) -> Pieces:
    """Keep reasoning from a client that did not ask for it."""
    async for piece in source:
        if piece.__class__ is Thinking:
            attempt.hidden.append(piece.text)
        else:
            yield piece


async def without_echo(source: Pieces, prefill: str) -> Pieces:
    """Take the prefill off the start of the text when the upstream repeats it, as llama.cpp does.

    An echo may lack some of the white space at the end of the prefill, where a chat template trims it.
    """
    held, decided = "", not prefill.strip()
    async for piece in source:
        if decided or not isinstance(piece, (Text, ToolStart, End)):
            yield piece
            continue
        if isinstance(piece, Text):
            held += piece.text
            if len(held) < len(prefill) and prefill.startswith(held):
                continue
        decided = True
        same = next((at for at, (a, b) in enumerate(zip(held, prefill, strict=False)) if a != b), -1)
        same = same if same >= 0 else min(len(held), len(prefill))
        if rest := held[same:] if same >= len(prefill.rstrip()) else held:
            yield Text(rest)
        if not isinstance(piece, Text):
            yield piece


async def until_stop(source: Pieces, attempt: Attempt, stops: Iterable[str]) -> Pieces:
    """Pass an answer up to the stop that begins earliest in its text (the shortest of those), and nothing after.

    Only text that may still become a stop is held back. Reasoning and arguments are not searched, and a stop does not
    reach across them.
    """
    ordered = sorted(stops, key=len)
    whole = re.compile("|".join(map(re.escape, ordered)))
    held = ""
    async for piece in source:
        if isinstance(piece, Text):
            held += piece.text
            begun = range(max(0, len(held) - len(ordered[-1]) + 1), len(held))
            settled = next((at for at in begun if any(stop.startswith(held[at:]) for stop in ordered)), len(held))
        elif held and isinstance(piece, (Thinking, ToolStart, End)):
            settled = len(held)
        else:
            yield piece
            continue
        stop = whole.search(held)
        # A longer stop that begins before may still come.
        if stop is not None and stop.start() <= settled:
            attempt.is_cut, attempt.stop_text, attempt.stopped = True, stop[0], len(held) - stop.start()
            if stop.start():
                yield Text(held[: stop.start()])
            yield END
            held = ""
            continue
        if settled:
            yield Text(held[:settled])
        held = held[settled:]
        if not isinstance(piece, Text):
            yield piece


async def with_held_calls(source: Pieces, attempt: Attempt, offered: Mapping[str, Tool]) -> Pieces:
    """Hold text back from where a written call may begin; what is held to the end stays in `attempt.held`.

    Beside a real call, the upstream's parser has done its work: markup of calls is dropped there, and blanks behind it.
    """
    openings, text = Openings(offered), ""
    has_calls = is_blank = False
    held, waiting = attempt.held, 0
    async for piece in source:
        if piece.__class__ is Text:
            openings.feed(piece.text)
            text += piece.text
            held.append(piece.text)
            waiting += len(piece.text)
            is_blank = is_blank and not text[: len(text) - openings.held].strip()
            # Fragments go on as they came.
            while held and waiting - len(held[0]) >= openings.held and not is_blank:
                waiting -= len(held[0])
                yield Text(held.pop(0))
            continue
        if piece.__class__ is ToolStart or (piece.__class__ is End and has_calls):
            written = written_at_end(text, offered) if held else None
            left = "".join(held) if written is None else "".join(held)[: max(0, written.start - len(text) + waiting)]
            if left and not (is_blank and left.isspace()):
                yield Text(left)
            held.clear()
            openings, text, waiting = Openings(offered), "", 0
            has_calls = is_blank = True
        yield piece


async def with_allowed_calls(source: Pieces, attempt: Attempt, names: Collection[str] | None) -> Pieces:
    """Pass the tool calls that a client can take: at most `attempt.limit`, and only of tools it offered."""
    passed: set[int] = set()
    async for piece in source:
        if piece.__class__ is ToolStart:
            if names is not None and piece.name not in names:
                continue
            if attempt.limit is not None and len(passed) >= attempt.limit:
                attempt.is_cut = True
                continue
            passed.add(piece.index)
        elif piece.__class__ is Arguments and piece.index not in passed:
            continue
        yield piece


def stop_reason_of(finish_reason: str | None, has_calls: bool, stop_text: str | None) -> str:
    """The Messages API's `stop_reason` of an upstream's finish reason.

    A client runs calls only on `tool_use`, so calls outrank a stop sequence; an answer cut by its token limit says so
    even with calls, for the last may be incomplete. A stream without a finish reason counts as ended.
    """
    if finish_reason == "length" and stop_text is None:
        return "max_tokens"
    if finish_reason == "content_filter":
        return "refusal"
    if has_calls:
        return "tool_use"
    return "stop_sequence" if stop_text is not None else "end_turn"
