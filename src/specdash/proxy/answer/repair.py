"""What is wrong with an answer, if anything, and what is done about it: bounded retries, and the best use of what there
is when they fail. A healthy answer passes, whatever guardrails are on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.answer.assembler import AnswerAssembler, ChatDecoder
from specdash.proxy.answer.blocks import MessageBuilder
from specdash.proxy.guardrails.malformed import (
    UNREADABLE,
    ToolUseFault,
    call_fault,
    empty_retry,
    fallback_text,
    inspect,
    malformed_retry,
    recover,
    required_retry,
)
from specdash.proxy.guardrails.unexpected_end import ADDED_ID, has_been_added_to, is_unexpected_end
from specdash.proxy.http.responses import ApiError, object_of
from specdash.proxy.upstream.upstream import UpstreamBrokenError, api_error
from specdash.proxy.upstream.window import RetryPolicy
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specdash.proxy.answer.blocks import ToolCall
    from specdash.proxy.answer.filters import Chain, VisibleContent
    from specdash.proxy.answer.turn import Turn
    from specdash.proxy.upstream.upstream import UpstreamReply


# One call of the upstream: its bytes through the decoder, the answer and the filters, as they come.

_LARGEST_ANSWER = 64 << 20
_STATUS_OF_TYPE = {
    "exceed_context_size_error": 400,
    "invalid_request_error": 400,
    "not_supported_error": 400,
    "unavailable_error": 503,
    "authentication_error": 401,
}


async def call_upstream(
    turn: Turn, body: dict[str, Any], chain: Chain, on_data: Callable[[AnswerAssembler], Awaitable[None]] | None = None
) -> AnswerAssembler:
    """Send `body` and feed the answer through `chain` until it ends, or until the chain wants no more of it.

    `on_data` is awaited after every read. Waits first while the proxy is held; a call that breaks because the upstream
    is being restarted, before it said anything, is made again: see `RetryPolicy`. Raises `ApiError`.
    """
    gate = turn.proxy.gate
    patience = RetryPolicy(gate)
    while True:
        if gate.held:
            turn.active.held()
            with turn.deadline.paused():
                await gate.wait(turn.settings.hold_limit)
        answer = AnswerAssembler(chain.head, fallback_id=turn.request_id)
        turn.attempt_begins(answer)
        turn.active.sent()
        try:
            # Written for each call anew: kept for the next, which hardly ever comes, it would lie there through this.
            async with await turn.proxy.upstream.open(orjson.dumps(body)) as reply:
                if reply.status != 200:
                    raise await reply.error()
                if reply.content_type == "application/json":
                    _take_whole(answer, await reply.body(_LARGEST_ANSWER))
                else:
                    await _take_stream(turn, reply, chain, answer, on_data)
        except ApiError as error:
            if answer.started or not await patience.again(error):
                raise
            continue
        chain.end()
        turn.active.update(answer)
        return answer


async def _take_stream(
    turn: Turn,
    reply: UpstreamReply,
    chain: Chain,
    answer: AnswerAssembler,
    on_data: Callable[[AnswerAssembler], Awaitable[None]] | None,
) -> None:
    decoder = ChatDecoder(answer.chunk)
    chain.on_cut = decoder.stop
    while data := await reply.read():
        decoder.feed(data)
        turn.active.update(answer)
        if answer.error is not None:
            raise stream_error(*answer.error)
        if on_data is not None:
            await on_data(answer)
        if chain.cut_short:
            reply.abort()
            answer.end()
            return
        if decoder.done:
            await reply.read_to_the_end()
            break
    else:
        decoder.close()
        if answer.error is not None:
            raise stream_error(*answer.error)
        if answer.finish_reason is None:
            raise _cut_off()
    if answer.finish_reason is None and not answer.started:
        raise _cut_off()
    answer.end()


def _cut_off() -> UpstreamBrokenError:
    return UpstreamBrokenError(502, "the upstream ended its answer before it was complete")


def stream_error(kind: str, message: str) -> ApiError:
    """The error that an upstream reported inside its stream."""
    body = orjson.dumps({"error": {"type": kind, "message": message}})
    return api_error(_STATUS_OF_TYPE.get(kind, 500), body)


def _take_whole(answer: AnswerAssembler, data: bytes) -> None:
    try:
        completion = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ApiError(500, "the upstream's answer is not JSON") from None
    if isinstance(completion, dict):
        answer.whole(completion)
    if answer.error is not None:
        raise stream_error(*answer.error)
    if not answer.started and answer.finish_reason is None:
        raise ApiError(500, "the upstream's answer is not a chat completion")
    answer.end()


NOTHING = "(The model ended its turn without an answer.)"
"""Shown instead of an empty answer: clients keep the message, and no API takes it back without content."""
NEW_CALLS = 1 << 20
"""First number of calls that the upstream's own answer does not have."""
MISSING_CALL = "missing_call"
"""Fault of an answer without a call where `tool_choice` demands one."""
_LEFT_OUT = "(A call of {tool} is left out here: its arguments were not a JSON object.)"


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """What is wrong with an answer: the guardrail that found it, and for a malformed tool call what is malformed.

    EMPTY_RESPONSE: the model stopped without a word or a call. MALFORMED_TOOL: a tool call that no client can take, or
    that arrived as text. UNEXPECTED_END: the model announced a tool call and stopped without it.
    """

    guardrail: Guardrail
    fault: ToolUseFault | None = None

    @property
    def is_malformed(self) -> bool:
        """A tool call is wrong, or missing."""
        return self.guardrail is Guardrail.MALFORMED_TOOL


def judge(turn: Turn, answer: AnswerAssembler, chain: Chain) -> GuardrailResult | None:
    """Judge a complete answer, whose suspicious text `chain` holds; None for a good one."""
    if chain.stop_text is not None or chain.repeated:
        return None
    request, tools, settings = turn.prepared.request, turn.prepared.tools, turn.settings
    calls = chain.calls_of(answer)
    text = answer.text()
    truncated = answer.finish_reason == "length"
    if settings.malformed_tool_guardrail and tools:
        rules = settings.agentic_supplement_mode != "off"
        # What the gate has let through holds no call: only what it holds need be judged in its context.
        doubtful = text if rules or chain.held else ""
        fault = inspect(doubtful, calls, tools, truncated=truncated, rules=rules)
        if fault is None and request.tool_choice.kind in {"any", "tool"} and not calls and not truncated:
            wanted = request.tool_choice.name
            fault = ToolUseFault(MISSING_CALL, wanted, "tool_choice demands a call, and none came")
        if fault is not None:
            return GuardrailResult(Guardrail.MALFORMED_TOOL, fault)
    if not truncated and not calls and not text.strip():
        return GuardrailResult(Guardrail.EMPTY_RESPONSE)
    if (
        settings.guardrail_retry
        and is_unexpected_end(request, text, calls, answer.finish_reason)
        and not has_been_added_to(turn.request.messages, text)
    ):
        return GuardrailResult(Guardrail.UNEXPECTED_END)
    return None


async def repair(
    turn: Turn, bad: GuardrailResult, answer: AnswerAssembler, chain: Chain, held: str, shown: VisibleContent
) -> AnswerAssembler:
    """Complete what `shown` has of a bad answer, and return the answer that counts for the stop reason.

    `held` is the text that `chain` kept back.
    """
    guardrail, session = bad.guardrail, turn.session
    facts: dict[str, Any] = {}
    if bad.is_malformed:
        session.malformed_streak += 1
        session.malformed_total += 1
        facts["streak"] = session.malformed_streak
        if bad.fault is not None:
            facts |= {"kind": bad.fault.kind, "tool": bad.fault.tool or ""}
    elif guardrail is Guardrail.UNEXPECTED_END:
        session.unexpected_ends += 1
    turn.note(guardrail, GuardrailAction.DETECTED, **facts)
    called = chain.calls_of(answer)
    if shown.calls:
        _complete_calls(turn, answer, called, shown)
        return answer
    attempts = {
        Guardrail.MALFORMED_TOOL: turn.settings.malformed_tool_retry_max,
        Guardrail.EMPTY_RESPONSE: turn.settings.empty_response_retry_max,
    }.get(guardrail, 1)
    for attempt in range(1, attempts + 1):
        turn.note(guardrail, GuardrailAction.RETRIED, attempt=attempt, attempts=attempts)
        found = await _retry(turn, bad, answer, attempt, thinking_shown=shown.has_thinking)
        if found is None:
            continue
        again, builder = found
        if shown.has_text and not builder.tool_calls():
            # Words beside those that the client has would leave out what is held.
            continue
        builder.replay(shown, prose=not shown.has_text)
        turn.note(guardrail, GuardrailAction.RECOVERED, attempt=attempt, attempts=attempts, calls=len(shown.calls))
        if bad.is_malformed:
            session.malformed_streak = 0
        return again
    turn.note(guardrail, GuardrailAction.EXHAUSTED)
    if bad.is_malformed:
        _make_do(turn, called, held, shown)
    if not shown.has_text and not shown.calls and (thinking := chain.thinking.held):
        text = fallback_text(thinking, turn.settings)
        if text:
            shown.text(text)
            turn.note(Guardrail.REASONING_FALLBACK, GuardrailAction.APPLIED, chars=len(text))
    return answer


async def _retry(
    turn: Turn, bad: GuardrailResult, answer: AnswerAssembler, attempt: int, *, thinking_shown: bool
) -> tuple[AnswerAssembler, MessageBuilder] | None:
    """Ask again; None when what came is no better."""
    body = turn.prepared.body
    wants_call = bad.guardrail is Guardrail.UNEXPECTED_END
    if bad.is_malformed:
        body = malformed_retry(body, turn.settings, attempt)
    elif wants_call:
        body = required_retry(body)
    else:
        body = empty_retry(body, reasoning_only=answer.thinking_chars > 0)
    builder = MessageBuilder()
    chain = turn.chain(builder, thinking=turn.prepared.request.wants_thinking and not thinking_shown)
    turn.active.next_attempt()
    try:
        again = await call_upstream(turn, body, chain)
    except ApiError as error:
        if error.status in {529, 504}:
            raise
        return None
    turn.count(again)
    still_bad = judge(turn, again, chain)
    if still_bad is None or (still_bad.guardrail is Guardrail.UNEXPECTED_END and bad.is_malformed):
        chain.release()
        if wants_call:
            if not builder.tool_calls():
                return None
            for block in builder.blocks:
                block.call_id = block.call_id and ADDED_ID + block.call_id.removeprefix("toolu_")
        return again, builder
    if still_bad.is_malformed and bad.is_malformed:
        turn.session.malformed_streak += 1
    return None


def _complete_calls(turn: Turn, answer: AnswerAssembler, called: list[ToolCall], shown: VisibleContent) -> None:
    """Give the client the calls it lacks of an answer whose first calls it has.

    Raises `ApiError` when it has one whose arguments are no JSON object: no client can take that, and none of it can be
    called back.
    """
    offered = {tool.name: tool for tool in turn.prepared.tools}
    for call in called:
        cut = answer.finish_reason == "length" and call is called[-1]
        fault = call_fault(call, offered, cut=cut)
        if fault is not None and fault.kind in UNREADABLE and call.id in shown.call_ids:
            turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.EXHAUSTED)
            raise ApiError(502, f"the model's call of {call.name} is broken: its arguments are not a JSON object")
    _emit(called, shown)


def _make_do(turn: Turn, called: list[ToolCall], held: str, shown: VisibleContent) -> None:
    """Release what was held: as calls where it holds good ones, else as it came. A client refuses a call it does not
    know or whose input does not fit, with an error that the model can read and mend.
    """
    recovered = recover(held, turn.prepared.tools, turn.message_id) if held else None
    if recovered is not None:
        text, calls = recovered
        if text.strip():
            shown.text(text)
        _emit(calls, shown)
        turn.note(Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED, calls=len(calls))
    elif held:
        shown.text(held)
    _emit(called, shown)


def _emit(calls: list[ToolCall], sink: VisibleContent) -> None:
    """Give on the calls that the client lacks; in place of one that is no JSON object, a sentence that says so."""
    begun = len(sink.calls)
    for index, call in enumerate((call for call in calls if call.id not in sink.call_ids), begun):
        arguments = call.arguments if call.arguments.strip() else "{}"
        if object_of(arguments) is None:
            sink.text(_LEFT_OUT.format(tool=call.name))
        else:
            sink.tool(NEW_CALLS + index, call.id, call.name)
            sink.arguments(NEW_CALLS + index, arguments)
