"""The answer of one turn: what is wrong with it, if anything, and what is done about that: bounded retries, and the
best use of what there is when they fail. A healthy answer passes every guardrail.
"""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.answer.blocks import END, PAUSE, Arguments, Text, ToolStart
from specdash.proxy.answer.filters import Attempt, filtered
from specdash.proxy.gate import RetryPolicy, admitted
from specdash.proxy.guardrails.calls import ToolUseFault, call_fault
from specdash.proxy.guardrails.unexpected_end import ADDED_ID, has_been_added_to, is_unexpected_end
from specdash.proxy.guardrails.written import Written, echoed_rules, written_at_end
from specdash.proxy.http.responses import ApiError, object_of
from specdash.proxy.upstream.upstream import UpstreamBrokenError, stream_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.proxy.answer.blocks import Piece, ToolCall
    from specdash.proxy.answer.filters import Pieces
    from specdash.proxy.answer.turn import Turn
    from specdash.proxy.settings import ProxySettings

_NEW_CALLS = 1 << 20
"""First number of calls that the upstream's own answer does not have."""
_LEFT_OUT = "(A call of {tool} is left out here: its arguments were not a JSON object.)"
_NOT_READ = "(A tool call is left out here: it could not be read.)"


# One call of the upstream: its bytes as pieces.


async def _pieces(turn: Turn, body: dict[str, Any], attempt: Attempt) -> Pieces:
    """The answer to `body`, until it ends or no more of it is wanted. Raises `ApiError`.

    Waits first while the proxy is held; a call that breaks because the upstream is being restarted, before its
    answer began, is made again: see `RetryPolicy`.
    """
    patience = RetryPolicy(turn.proxy.gate)
    while True:
        await admitted(turn.proxy, turn.active)
        answer = turn.active.answer = attempt.answer = AnswerAssembler()
        turn.active.sent()
        try:
            async with turn.proxy.upstream.open(msgspec.json.encode(body)) as reply:
                if reply.status != 200:
                    raise await reply.error()
                decoder = ChatDecoder()
                while not decoder.done and (data := await reply.read()):
                    for chunk in decoder.feed(data):
                        for piece in answer.chunk(chunk):
                            yield piece
                            if attempt.is_cut:
                                return
                    yield PAUSE
                    if answer.error is not None:
                        raise stream_error(answer.error)
                if answer.finish_reason is None and not (decoder.done and answer.started):
                    raise UpstreamBrokenError(502, "the upstream ended its answer before it was complete")
        except ApiError as error:
            if answer.started or not await patience.again(error):
                raise
            continue
        yield END
        return


async def _attempted(turn: Turn, body: dict[str, Any], attempt: Attempt, *, thinking: bool) -> Pieces:
    """Ask the upstream once; what passes the filters, as it comes."""
    async with aclosing(_pieces(turn, body, attempt)) as source:
        async for piece in filtered(source, attempt, turn.prepared, turn.settings, thinking=thinking):
            yield piece


# The answer of a turn.


async def answered(turn: Turn, *, live: bool) -> Pieces:
    """The pieces for the client: as they come where the answer is `live`, with pauses, else once they are judged."""
    first = turn.attempt
    thinking = turn.prepared.request.wants_thinking
    async with aclosing(_attempted(turn, turn.prepared.body, first, thinking=thinking)) as pieces:
        async for piece in pieces:
            if live:
                yield piece
            else:
                first.draft.add(piece)
    guardrail, written = _judged(turn, first)
    for piece in () if live else first.draft.pieces():
        # No client can take the calls of a malformed answer back.
        if not (written and written.fault and isinstance(piece, ToolStart | Arguments)):
            yield piece
    if first.has_repeated:
        chars = first.answer.text_chars + first.answer.thinking_chars
        turn.note(Guardrail.REPETITION_CUT, GuardrailAction.APPLIED, chars=chars)
    if guardrail is not None:
        async for piece in _repaired(turn, guardrail, written or Written(0), first):
            yield piece
        return
    for piece in _made_real(turn, written, first):
        yield piece
    if turn.given.calls:
        turn.session.malformed_streak = 0


def _judged(turn: Turn, attempt: Attempt) -> tuple[Guardrail | None, Written | None]:
    """The guardrail that finds something wrong with a complete answer, and what stands at the end of its text.

    EMPTY_RESPONSE: the model stopped without a word or a call. MALFORMED_TOOL: a tool call that no client can take, or
    that arrived as text. UNEXPECTED_END: the model announced a tool call and stopped without it.
    """
    if attempt.has_repeated:
        return None, None
    request, tools, settings = turn.prepared.request, turn.prepared.tools, turn.settings
    answer, calls = attempt.answer, attempt.calls
    text = attempt.text
    is_stopped, is_truncated = attempt.stop_text is not None, answer.finish_reason == "length"
    if settings.malformed_tool_guardrail and tools:
        offered = {tool.name: tool for tool in tools}
        for at, call in enumerate(() if is_stopped else calls, 1):
            if fault := call_fault(call, offered, is_cut=is_truncated and at == len(calls)):
                return Guardrail.MALFORMED_TOOL, Written(0, fault=fault)
        if not calls and attempt.limit != 0:
            written = written_at_end(text, offered, is_truncated=is_truncated) if attempt.held else echoed_rules(text)
            if written is not None and (written.calls or not is_stopped):
                is_empty = not (written.calls or written.text.strip() or text[: written.start].strip() or is_truncated)
                found = Guardrail.MALFORMED_TOOL if written.fault else Guardrail.EMPTY_RESPONSE if is_empty else None
                return found, written
        if request.tool_choice.kind in {"any", "tool"} and not calls and not is_truncated and not is_stopped:
            missing = ToolUseFault("missing_call", request.tool_choice.name)
            return Guardrail.MALFORMED_TOOL, Written(len(text), fault=missing)
    if is_stopped:
        return None, None
    if not is_truncated and not calls and not text.strip():
        return Guardrail.EMPTY_RESPONSE, None
    if (
        settings.guardrail_retry
        and is_unexpected_end(request, text, calls, answer.finish_reason)
        and not has_been_added_to(turn.request.messages, text)
    ):
        return Guardrail.UNEXPECTED_END, Written(len(text))
    return None, None


def _made_real(turn: Turn, written: Written | None, attempt: Attempt) -> Iterator[Piece]:
    """What was held of a good answer; calls that it wrote as text as real ones, and what stands before them."""
    if written is None:
        yield from map(Text, attempt.held)
        return
    before, _ = attempt.split(written.start)
    yield from (Text(text) for text in (before, written.text) if text.strip())
    if calls := written.calls[: attempt.limit]:
        yield from _added(calls)
        turn.session.malformed_total += 1
        facts = {"streak": turn.session.malformed_streak, "kind": "unparsed_call", "tool": calls[0].name}
        turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, **facts)
        turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED, calls=len(calls))


def _added(calls: Iterable[ToolCall]) -> Iterator[Piece]:
    """Complete calls; in place of one that is no JSON object, a sentence that says so."""
    for index, call in enumerate(calls, _NEW_CALLS):
        arguments = call.arguments if call.arguments.strip() else "{}"
        if object_of(arguments) is None:
            yield Text(_LEFT_OUT.format(tool=call.name))
        else:
            yield ToolStart(index, call.id, call.name)
            yield Arguments(index, arguments)


async def _repaired(turn: Turn, fault: Guardrail, bad: Written, first: Attempt) -> Pieces:
    """What completes a bad answer: the better one of another attempt, else the best use of this one."""
    shown, session = turn.given, turn.session
    before, held = first.split(bad.start)
    facts: dict[str, Any] = {}
    if bad.fault is not None:
        session.malformed_streak += 1
        session.malformed_total += 1
        facts = {"streak": session.malformed_streak, "kind": bad.fault.kind, "tool": bad.fault.tool or ""}
    session.unexpected_ends += fault is Guardrail.UNEXPECTED_END
    turn.note(fault, GuardrailAction.DETECTED, **facts)
    yield Text(before)
    if shown.calls:
        for piece in _completed(turn, first):
            yield piece
        return
    attempts = turn.settings.malformed_tool_retry_max if bad.fault else 1
    for number in range(1, attempts + 1):
        turn.note(fault, GuardrailAction.RETRIED, attempt=number, attempts=attempts)
        again = await _retried(turn, fault, first, number)
        # Words beside those that the client has would leave out what is held.
        if again is None or (shown.has_text and not again.draft.calls):
            continue
        turn.attempt = again
        has_words = shown.has_text
        for piece in again.draft.pieces():
            if isinstance(piece, ToolStart) and fault is Guardrail.UNEXPECTED_END:
                yield ToolStart(piece.index, ADDED_ID + piece.id.removeprefix("toolu_"), piece.name)
            elif isinstance(piece, ToolStart | Arguments) or not has_words:
                yield piece
        turn.note(fault, GuardrailAction.RECOVERED, attempt=number, attempts=attempts, calls=len(shown.calls))
        if bad.fault:
            session.malformed_streak = 0
        return
    turn.note(fault, GuardrailAction.EXHAUSTED)
    for piece in _made_do(turn, bad, first, held):
        yield piece


def _made_do(turn: Turn, bad: Written, first: Attempt, held: str) -> Iterator[Piece]:
    """The best use of a bad answer. A client refuses a call that it does not know or whose input does not fit, with an
    error that the model can read and mend.
    """
    if bad.fault is not None:
        # In the strict mode a call that cannot be read is never shown, not even as text.
        if not (turn.active.event.strict or turn.settings.malformed_tool_stream_strict):
            yield Text(held)
        elif bad.fault.kind == "unparsed_call":
            yield Text(_NOT_READ)
        yield from _added(first.calls)
    shown = turn.given
    if not (shown.has_text or shown.calls) and (text := fallback_text("".join(first.hidden), turn.settings)):
        yield Text(text)
        turn.note(Guardrail.REASONING_FALLBACK, GuardrailAction.APPLIED, chars=len(text))


async def _retried(turn: Turn, fault: Guardrail, first: Attempt, number: int) -> Attempt | None:
    """Ask again; None when the answer is not better. What is good of it is the draft."""
    body = retry_body(turn.prepared.body, fault, turn.settings, number, has_thought=first.answer.thinking_chars > 0)
    turn.active.next_attempt()
    again = Attempt()
    thinking = turn.prepared.request.wants_thinking and not turn.given.has_thinking
    try:
        async for piece in _attempted(turn, body, again, thinking=thinking):
            again.draft.add(piece)
    except ApiError as error:
        if error.status in {529, 504}:
            raise
        return None
    found, written = _judged(turn, again)
    if found is not None:
        if fault is not Guardrail.MALFORMED_TOOL or found is not Guardrail.UNEXPECTED_END:
            turn.session.malformed_streak += fault is found is Guardrail.MALFORMED_TOOL
            return None
        written = None
    for piece in _made_real(turn, written, again):
        again.draft.add(piece)
    return None if fault is Guardrail.UNEXPECTED_END and not again.draft.calls else again


def _completed(turn: Turn, attempt: Attempt) -> Iterator[Piece]:
    """The calls that the client lacks of an answer whose first calls it has.

    Raises `ApiError` when it has one whose arguments are no JSON object: no client can take that, and none of it can be
    called back.
    """
    given = {call.id for call in turn.given.calls.values()}
    for call in attempt.calls:
        is_cut = attempt.answer.finish_reason == "length" and call is attempt.calls[-1]
        if call.id in given and not is_cut and object_of(call.arguments.strip() or "{}") is None:
            turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.EXHAUSTED)
            raise ApiError(502, f"the model's call of {call.name} is broken: its arguments are not a JSON object")
    yield from _added(call for call in attempt.calls if call.id not in given)


LATER_TEMPERATURE = 0.5
"""Least temperature where the same sampling has already failed: it would only fail again."""


def retry_body(
    chat: dict[str, Any], fault: Guardrail, settings: ProxySettings, number: int, *, has_thought: bool
) -> dict[str, Any]:
    """The upstream body of a second try; its messages stay as they are, so that the upstream's prompt cache holds.

    A turn that showed nothing is tried without thinking when it did nothing else, and never greedily. Others must call
    a tool; a malformed one, soberly and short.
    """
    body = dict(chat)
    if fault is Guardrail.EMPTY_RESPONSE:
        if has_thought:
            body["chat_template_kwargs"] = {**body.get("chat_template_kwargs", {}), "enable_thinking": False}
        if "temperature" in body:
            body["temperature"] = max(body["temperature"], LATER_TEMPERATURE)
        return body
    if body.get("tools") and body["tool_choice"] != "none":
        body["tool_choice"] = "required"
    if fault is Guardrail.MALFORMED_TOOL:
        temperature = settings.malformed_tool_retry_temperature
        body["temperature"] = temperature if number == 1 else max(temperature, LATER_TEMPERATURE)
        if cap := settings.malformed_tool_retry_max_tokens:
            body["max_tokens"] = min(body["max_tokens"], cap)
    return body


# What a turn of nothing but reasoning shows instead of nothing.

_TAGS = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)


def fallback_text(thinking: str, settings: ProxySettings) -> str:
    """The text for a turn whose only content is `thinking`; "" when it shall show nothing.

    `sanitized` is one line without think tags, cut at `stream_reasoning_max_chars`; `visible` is the reasoning itself.
    """
    if settings.stream_reasoning_fallback == "visible":
        return thinking
    if settings.stream_reasoning_fallback != "sanitized":
        return ""
    line = " ".join(_TAGS.sub(" ", thinking).split())
    longest = settings.stream_reasoning_max_chars
    return line if len(line) <= longest else line[:longest] + "..."
