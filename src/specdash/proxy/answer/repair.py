"""The answer of one turn: what is wrong with it, if anything, and what is done about that: bounded retries, and the
best use of what there is when they fail. A healthy answer passes every guardrail.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import orjson

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.answer.blocks import END, PAUSE, Arguments, Pause, Text, Thinking, ToolStart
from specdash.proxy.answer.filters import Attempt, filtered
from specdash.proxy.guardrails.malformed import (
    UNREADABLE,
    call_fault,
    empty_retry,
    fallback_text,
    malformed_retry,
    required_retry,
)
from specdash.proxy.guardrails.unexpected_end import ADDED_ID, has_been_added_to, is_unexpected_end
from specdash.proxy.guardrails.written import IN_TEXT, ToolUseFault, echoed_rules, written_at_end
from specdash.proxy.http.responses import ApiError, object_of
from specdash.proxy.upstream.upstream import UpstreamBrokenError, stream_error
from specdash.proxy.upstream.window import RetryPolicy
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from specdash.proxy.answer.blocks import BlockOrder, Piece, ToolCall
    from specdash.proxy.answer.turn import Turn
    from specdash.proxy.guardrails.written import Written
    from specdash.proxy.upstream.upstream import UpstreamReply

    Flush = Callable[[AnswerAssembler], Awaitable[None]]

_LARGEST_ANSWER = 64 << 20
NOTHING = "(The model ended its turn without an answer.)"
"""Shown instead of an empty answer: clients keep the message, and no API takes it back without content."""
NEW_CALLS = 1 << 20
"""First number of calls that the upstream's own answer does not have."""
_LEFT_OUT = "(A call of {tool} is left out here: its arguments were not a JSON object.)"
_NOT_READ = "(A tool call is left out here: it could not be read.)"


class Shown:
    """What the client was given: pieces go to `order`, and are remembered. `begin` is called before the first."""

    def __init__(self, order: BlockOrder, begin: Callable[[], None] | None = None) -> None:
        self.has_text = False
        """Visible text; blanks alone do not count."""
        self.has_thinking = False
        self.calls: list[ToolStart] = []
        self._order = order
        self._begin = begin

    def add(self, piece: Piece) -> None:
        """The next piece."""
        if self._begin is not None:
            self._begin()
            self._begin = None
        if isinstance(piece, Text):
            self.has_text = self.has_text or (bool(piece.text) and not piece.text.isspace())
        elif isinstance(piece, Thinking):
            self.has_thinking = True
        elif isinstance(piece, ToolStart):
            self.calls.append(piece)
        self._order.add(piece)

    def add_all(self, pieces: Iterable[Piece]) -> None:
        """The next pieces."""
        for piece in pieces:
            self.add(piece)

    def add_calls(self, calls: Iterable[ToolCall]) -> None:
        """The calls that the client lacks; in place of one that is no JSON object, a sentence that says so."""
        given = {call.id for call in self.calls}
        for index, call in enumerate((call for call in calls if call.id not in given), NEW_CALLS + len(given)):
            arguments = call.arguments if call.arguments.strip() else "{}"
            if object_of(arguments) is None:
                self.add(Text(_LEFT_OUT.format(tool=call.name)))
            else:
                self.add_all((ToolStart(index, call.id, call.name), Arguments(index, arguments)))


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an answer: the guardrail that found it, and for a malformed tool call what is malformed.

    EMPTY_RESPONSE: the model stopped without a word or a call. MALFORMED_TOOL: a tool call that no client can take, or
    that arrived as text. UNEXPECTED_END: the model announced a tool call and stopped without it.
    """

    guardrail: Guardrail
    tool_use: ToolUseFault | None = None
    held_from: int = 0
    """Where in the text held back the malformed part begins."""


# One call of the upstream: its bytes as pieces.


async def _pieces(turn: Turn, body: dict[str, Any], attempt: Attempt) -> AsyncIterator[Piece]:
    """The answer to `body`, until it ends or no more of it is wanted. Raises `ApiError`.

    Waits first while the proxy is held; a call that breaks because the upstream is being restarted, before its
    answer began, is made again: see `RetryPolicy`.
    """
    gate = turn.proxy.gate
    patience = RetryPolicy(gate)
    while True:
        if gate.held:
            turn.active.held()
            with turn.deadline.paused():
                await gate.wait(turn.settings.hold_limit)
        answer = attempt.answer = AnswerAssembler(fallback_id=turn.request_id)
        turn.attempt_begins(answer)
        turn.active.sent()
        try:
            async with await turn.proxy.upstream.open(orjson.dumps(body)) as reply:
                if reply.status != 200:
                    raise await reply.error()
                is_whole = reply.content_type == "application/json"
                async for piece in (_whole if is_whole else _streamed)(reply, attempt):
                    yield piece
                    if attempt.is_cut:
                        reply.abort()
                        return
        except ApiError as error:
            if answer.started or not await patience.again(error):
                raise
            continue
        yield END
        return


async def _streamed(reply: UpstreamReply, attempt: Attempt) -> AsyncIterator[Piece]:
    answer, decoder = attempt.answer, ChatDecoder()
    while not decoder.done and (data := await reply.read()):
        for chunk in decoder.feed(data):
            for piece in answer.chunk(chunk):
                yield piece
            if answer.error is not None:
                raise stream_error(answer.error)
        yield PAUSE
    is_done = decoder.done
    if is_done:
        await reply.read_to_the_end()
    else:
        for chunk in decoder.close():
            for piece in answer.chunk(chunk):
                yield piece
    if answer.error is not None:
        raise stream_error(answer.error)
    if answer.finish_reason is None and not (is_done and answer.started):
        raise UpstreamBrokenError(502, "the upstream ended its answer before it was complete")


async def _whole(reply: UpstreamReply, attempt: Attempt) -> AsyncIterator[Piece]:
    answer = attempt.answer
    try:
        completion = orjson.loads(await reply.body(_LARGEST_ANSWER))
    except orjson.JSONDecodeError:
        raise ApiError(500, "the upstream's answer is not JSON") from None
    for piece in answer.chunk(completion) if isinstance(completion, dict) else ():
        yield piece
    if answer.error is not None:
        raise stream_error(answer.error)
    if not answer.started and answer.finish_reason is None:
        raise ApiError(500, "the upstream's answer is not a chat completion")


async def _attempted(
    turn: Turn, body: dict[str, Any], shown: Shown | None, flush: Flush | None, *, thinking: bool
) -> Attempt:
    """Ask the upstream once; what passes the filters goes to `shown` as it comes, else into the attempt's draft."""
    prepared = turn.prepared
    attempt = Attempt(AnswerAssembler(fallback_id=turn.request_id))
    async with aclosing(_pieces(turn, body, attempt)) as source:  # type: ignore[type-var]  # it is a generator
        pieces = filtered(
            source,
            attempt,
            prepared.request,
            prepared.tools,
            turn.settings,
            prefill=prepared.prefill,
            thinking=thinking,
        )
        async for piece in pieces:
            if not isinstance(piece, Pause):
                (attempt.draft if shown is None else shown).add(piece)
                continue
            turn.active.update(attempt.answer)
            if flush is not None:
                await flush(attempt.answer)
    turn.active.update(attempt.answer)
    return attempt


# The answer of a turn.


async def answered(turn: Turn, shown: Shown, flush: Flush | None) -> Attempt:
    """Bring the turn's answer into `shown`: as it comes, with `flush` after each read, or else once it is judged.

    Returns the attempt that counts for the stop reason.
    """
    wants_thinking = turn.prepared.request.wants_thinking
    first = await _attempted(turn, turn.prepared.body, shown if flush else None, flush, thinking=wants_thinking)
    turn.count(first.answer)
    verdict = judge(turn, first)
    is_malformed = isinstance(verdict, Fault) and verdict.guardrail is Guardrail.MALFORMED_TOOL
    for piece in first.draft.pieces():
        if not (is_malformed and isinstance(piece, ToolStart | Arguments)):
            shown.add(piece)
    if first.has_repeated:
        chars = first.answer.text_chars + first.answer.thinking_chars
        turn.note(Guardrail.REPETITION_CUT, GuardrailAction.APPLIED, chars=chars)
    if isinstance(verdict, Fault):
        return await _repaired(turn, verdict, first, shown)
    if verdict is None:
        shown.add_all(first.held)
    else:
        _made_real(turn, verdict, first, shown)
    if shown.calls:
        turn.session.malformed_streak = 0
    return first


def judge(turn: Turn, attempt: Attempt) -> Fault | Written | None:
    """Judge a complete answer: a fault, calls that it wrote as text, or None for a good one."""
    if attempt.stop_text is not None or attempt.has_repeated:
        return None
    request, tools, settings = turn.prepared.request, turn.prepared.tools, turn.settings
    answer, calls = attempt.answer, attempt.calls
    text = answer.text()
    is_truncated = answer.finish_reason == "length"
    if settings.malformed_tool_guardrail and tools:
        offered = {tool.name: tool for tool in tools}
        faults = (
            call_fault(call, offered, is_cut=is_truncated and at == len(calls)) for at, call in enumerate(calls, 1)
        )
        if (fault := next(filter(None, faults), None)) is not None:
            return Fault(Guardrail.MALFORMED_TOOL, fault)
        written = None if calls or attempt.limit == 0 else _written(turn, attempt, text, is_truncated=is_truncated)
        if written is not None:
            if written.fault is not None:
                return Fault(Guardrail.MALFORMED_TOOL, written.fault, written.start)
            return written
        if request.tool_choice.kind in {"any", "tool"} and not calls and not is_truncated:
            missing = ToolUseFault(
                "missing_call", request.tool_choice.name, "tool_choice demands a call, and none came"
            )
            return Fault(Guardrail.MALFORMED_TOOL, missing, len(attempt.held_text))
    if not is_truncated and not calls and not text.strip():
        return Fault(Guardrail.EMPTY_RESPONSE)
    if (
        settings.guardrail_retry
        and is_unexpected_end(request, text, calls, answer.finish_reason)
        and not has_been_added_to(turn.request.messages, text)
    ):
        return Fault(Guardrail.UNEXPECTED_END)
    return None


def _written(turn: Turn, attempt: Attempt, text: str, *, is_truncated: bool) -> Written | None:
    """What is written at the end of an answer, its place counted from the start of what is held."""
    held = attempt.held_text
    if not held:
        return echoed_rules(text)
    offered = {tool.name: tool for tool in turn.prepared.tools}
    found = written_at_end(text, offered, is_truncated=is_truncated, seed=turn.message_id)
    return found.moved(len(held) - len(text)) if found is not None else None


def _made_real(turn: Turn, written: Written, attempt: Attempt, shown: Shown) -> None:
    """Give the calls that an answer wrote as text as real ones, and what stands before them."""
    before, _ = attempt.split(written.start)
    lead = "".join(piece.text for piece in before if isinstance(piece, Text))
    shown.add_all(piece for piece in before if lead.strip() or not isinstance(piece, Text))
    if written.text.strip():
        shown.add(Text(written.text))
    calls = written.calls[: attempt.limit]
    if calls:
        shown.add_calls(calls)
        turn.session.malformed_total += 1
        facts = {"streak": turn.session.malformed_streak, "kind": "unparsed_call", "tool": calls[0].name}
        turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, **facts)
        turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED, calls=len(calls))


async def _repaired(turn: Turn, bad: Fault, first: Attempt, shown: Shown) -> Attempt:
    """Complete what `shown` has of a bad answer, and return the attempt that counts."""
    guardrail, session, settings = bad.guardrail, turn.session, turn.settings
    is_malformed = guardrail is Guardrail.MALFORMED_TOOL
    facts: dict[str, Any] = {}
    if is_malformed:
        session.malformed_streak += 1
        session.malformed_total += 1
        facts["streak"] = session.malformed_streak
        if bad.tool_use is not None:
            facts |= {"kind": bad.tool_use.kind, "tool": bad.tool_use.tool or ""}
    elif guardrail is Guardrail.UNEXPECTED_END:
        session.unexpected_ends += 1
    turn.note(guardrail, GuardrailAction.DETECTED, **facts)
    before, held = first.split(bad.held_from) if is_malformed else (first.held, "")
    shown.add_all(before)
    if shown.calls:
        _complete_calls(turn, first, shown)
        return first
    attempts = settings.malformed_tool_retry_max if is_malformed else 1
    for number in range(1, attempts + 1):
        turn.note(guardrail, GuardrailAction.RETRIED, attempt=number, attempts=attempts)
        again = await _retried(turn, bad, first, number, shown)
        if again is None or (shown.has_text and not again.draft.has_calls):
            # Words beside those that the client has would leave out what is held.
            continue
        is_prose_shown = shown.has_text
        for piece in again.draft.pieces():
            if isinstance(piece, ToolStart | Arguments) or not is_prose_shown:
                shown.add(piece)
        calls = len(shown.calls)
        turn.note(guardrail, GuardrailAction.RECOVERED, attempt=number, attempts=attempts, calls=calls)
        if is_malformed:
            session.malformed_streak = 0
        return again
    turn.note(guardrail, GuardrailAction.EXHAUSTED)
    _make_do(turn, bad, first, shown, held)
    return first


def _make_do(turn: Turn, bad: Fault, first: Attempt, shown: Shown, held: str) -> None:
    """The best use of a bad answer. A client refuses a call that it does not know or whose input does not fit, with an
    error that the model can read and mend.
    """
    if bad.guardrail is Guardrail.MALFORMED_TOOL:
        if not turn.shows_no_fragment:
            shown.add(Text(held))
        elif bad.tool_use is not None and bad.tool_use.kind in IN_TEXT:
            shown.add(Text(_NOT_READ))
        shown.add_calls(first.calls)
    if not shown.has_text and not shown.calls and first.hidden:
        text = fallback_text("".join(first.hidden), turn.settings)
        if text:
            shown.add(Text(text))
            turn.note(Guardrail.REASONING_FALLBACK, GuardrailAction.APPLIED, chars=len(text))


async def _retried(turn: Turn, bad: Fault, first: Attempt, number: int, shown: Shown) -> Attempt | None:
    """Ask again; None when what came is no better. What is good of it is the draft."""
    body = turn.prepared.body
    is_malformed, wants_call = (bad.guardrail is kind for kind in (Guardrail.MALFORMED_TOOL, Guardrail.UNEXPECTED_END))
    if is_malformed:
        body = malformed_retry(body, turn.settings, number)
    elif wants_call:
        body = required_retry(body)
    else:
        body = empty_retry(body, reasoning_only=first.answer.thinking_chars > 0)
    turn.active.next_attempt()
    thinking = turn.prepared.request.wants_thinking and not shown.has_thinking
    try:
        again = await _attempted(turn, body, None, None, thinking=thinking)
    except ApiError as error:
        if error.status in {529, 504}:
            raise
        return None
    turn.count(again.answer)
    verdict = judge(turn, again)
    if isinstance(verdict, Fault):
        if not is_malformed or verdict.guardrail is not Guardrail.UNEXPECTED_END:
            turn.session.malformed_streak += is_malformed and verdict.guardrail is Guardrail.MALFORMED_TOOL
            return None
        verdict = None
    kept = Shown(again.draft)
    if verdict is None:
        kept.add_all(again.held)
    else:
        _made_real(turn, verdict, again, kept)
    if wants_call:
        if not again.draft.has_calls:
            return None
        for block in again.draft.blocks:
            block.call_id = block.call_id and ADDED_ID + block.call_id.removeprefix("toolu_")
    return again


def _complete_calls(turn: Turn, attempt: Attempt, shown: Shown) -> None:
    """Give the client the calls it lacks of an answer whose first calls it has.

    Raises `ApiError` when it has one whose arguments are no JSON object: no client can take that, and none of it can be
    called back.
    """
    offered = {tool.name: tool for tool in turn.prepared.tools}
    given = {call.id for call in shown.calls}
    for call in attempt.calls:
        is_cut = attempt.answer.finish_reason == "length" and call is attempt.calls[-1]
        fault = call_fault(call, offered, is_cut=is_cut)
        if fault is not None and fault.kind in UNREADABLE and call.id in given:
            turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.EXHAUSTED)
            raise ApiError(502, f"the model's call of {call.name} is broken: its arguments are not a JSON object")
    shown.add_calls(attempt.calls)
