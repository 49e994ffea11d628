"""What is done about an answer that is not good: bounded retries, and the best use of what there is when they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action, Guardrail
from specdash.proxy.attempt import call_upstream
from specdash.proxy.builder import MessageBuilder
from specdash.proxy.errors import ApiError
from specdash.proxy.guardrails import malformed, pseudo_calls, retry
from specdash.proxy.guardrails.reasoning import fallback_text
from specdash.proxy.json_text import object_of
from specdash.proxy.shown import OnlyCalls
from specdash.proxy.verdict import Kind

if TYPE_CHECKING:
    from specdash.proxy.answer import Answer
    from specdash.proxy.blocks import ToolCall
    from specdash.proxy.chain import Chain
    from specdash.proxy.generation import Generation
    from specdash.proxy.shown import Shown
    from specdash.proxy.verdict import Verdict

NOTHING = "(The model ended its turn without an answer.)"
"""Shown instead of an empty answer: clients keep the message, and no API takes it back without content."""
NEW_CALLS = 1 << 20
"""First number of calls that the upstream's own answer does not have."""
_LEFT_OUT = "(A call of {tool} is left out here: its arguments were not a JSON object.)"
GUARDRAIL_OF: dict[Kind, Guardrail] = {
    Kind.EMPTY: Guardrail.EMPTY_RESPONSE,
    Kind.MALFORMED: Guardrail.MALFORMED_TOOL,
    Kind.UNEXPECTED_END: Guardrail.UNEXPECTED_END,
}


async def mend(
    turn: Generation,
    verdict: Verdict,
    answer: Answer,
    chain: Chain,
    held: str,
    shown: Shown,
) -> Answer:
    """Complete what `shown` has of a bad answer, and return the answer that counts for the stop reason.

    `held` is the text that `chain` kept back.
    """
    guardrail = GUARDRAIL_OF[verdict.kind]
    _tell_detected(turn, guardrail, verdict)
    if shown.calls:
        _complete_calls(turn, answer, chain.calls_of(answer), shown)
        return answer
    attempts = _retries(turn, verdict.kind)
    for attempt in range(1, attempts + 1):
        turn.note(guardrail, Action.RETRIED, attempt=attempt, attempts=attempts)
        found = await _retry(turn, verdict, answer, attempt, thinking_shown=shown.has_thinking)
        if found is None:
            continue
        again, builder = found
        if shown.has_text and not builder.tool_calls():
            # Words beside those that the client has would leave out what is held.
            continue
        builder.replay(OnlyCalls(shown) if shown.has_text else shown)
        turn.note(guardrail, Action.RECOVERED, attempt=attempt, attempts=attempts, calls=len(shown.calls))
        if verdict.kind is Kind.MALFORMED:
            turn.session.malformed_streak = 0
        return again
    turn.note(guardrail, Action.EXHAUSTED)
    _make_do(turn, verdict, chain.calls_of(answer), held, shown)
    if not shown.has_text and not shown.calls:
        _fall_back_on_reasoning(turn, chain.thinking.held, shown)
    return answer


def _tell_detected(turn: Generation, guardrail: Guardrail, verdict: Verdict) -> None:
    session = turn.session
    facts: dict[str, Any] = {}
    if verdict.kind is Kind.MALFORMED:
        session.malformed_streak += 1
        session.malformed_total += 1
        facts["streak"] = session.malformed_streak
        if verdict.fault is not None:
            facts["kind"] = verdict.fault.kind
            facts["tool"] = verdict.fault.tool or ""
    elif verdict.kind is Kind.UNEXPECTED_END:
        session.unexpected_ends += 1
    turn.note(guardrail, Action.DETECTED, **facts)


def _retries(turn: Generation, kind: Kind) -> int:
    if kind is Kind.MALFORMED:
        return turn.settings.malformed_tool_retry_max
    return turn.settings.empty_response_retry_max if kind is Kind.EMPTY else 1


async def _retry(
    turn: Generation, verdict: Verdict, answer: Answer, attempt: int, *, thinking_shown: bool
) -> tuple[Answer, MessageBuilder] | None:
    """Ask again; None when what came is no better."""
    body = turn.prepared.body
    if verdict.kind is Kind.MALFORMED:
        body = retry.malformed_retry(body, turn.settings, attempt)
    elif verdict.kind is Kind.UNEXPECTED_END:
        body = retry.required_retry(body)
    else:
        body = retry.empty_retry(body, reasoning_only=answer.thinking_chars > 0)
    builder = MessageBuilder()
    thinking = turn.prepared.request.wants_thinking and not thinking_shown
    chain = turn.chain(builder, thinking=thinking)
    turn.active.next_attempt()
    try:
        again = await call_upstream(turn, body, chain)
    except ApiError as error:
        if error.status in {529, 504}:
            raise
        return None
    turn.count(again)
    outcome = turn.judge(again, chain)
    if outcome.kind is Kind.OK or (outcome.kind is Kind.UNEXPECTED_END and verdict.kind is Kind.MALFORMED):
        chain.release()
        wants_call = verdict.kind is Kind.UNEXPECTED_END
        return None if wants_call and not builder.tool_calls() else (again, builder)
    if outcome.kind is Kind.MALFORMED and verdict.kind is Kind.MALFORMED:
        turn.session.malformed_streak += 1
    return None


def _complete_calls(turn: Generation, answer: Answer, called: list[ToolCall], shown: Shown) -> None:
    """Give the client the calls it lacks of an answer whose first calls it has.

    Raises `ApiError` when it has one whose arguments are no JSON object: no client can take that, and none of it can be
    called back.
    """
    offered = {tool.name: tool for tool in turn.prepared.tools}
    for call in called:
        cut = answer.finish_reason == "length" and call is called[-1]
        fault = malformed.call_fault(call, offered, cut=cut)
        if fault is not None and fault.kind in malformed.UNREADABLE and call.id in shown.call_ids:
            turn.note(Guardrail.MALFORMED_TOOL, Action.EXHAUSTED)
            raise ApiError(502, f"the model's call of {call.name} is broken: its arguments are not a JSON object")
    _emit(called, shown)


def _make_do(turn: Generation, verdict: Verdict, called: list[ToolCall], held: str, shown: Shown) -> None:
    """Release what was held: as calls where it holds good ones, else as it came. A client refuses a call it does not
    know or whose input does not fit, with an error that the model can read and mend.
    """
    if verdict.kind is not Kind.MALFORMED:
        return
    recovered = pseudo_calls.recover(held, turn.prepared.tools, turn.message_id) if held else None
    if recovered is not None:
        text, calls = recovered
        if text.strip():
            shown.text(text)
        _emit(calls, shown)
        turn.note(Guardrail.MALFORMED_TOOL, Action.RECOVERED, calls=len(calls))
    elif held:
        shown.text(held)
    _emit(called, shown)


def _emit(calls: list[ToolCall], sink: Shown) -> None:
    """Give on the calls that the client lacks; in place of one that is no JSON object, a sentence that says so."""
    begun = len(sink.calls)
    for index, call in enumerate((one for one in calls if one.id not in sink.call_ids), begun):
        arguments = call.arguments if call.arguments.strip() else "{}"
        if object_of(arguments) is None:
            sink.text(_LEFT_OUT.format(tool=call.name))
        else:
            sink.tool(NEW_CALLS + index, call.id, call.name)
            sink.arguments(NEW_CALLS + index, arguments)


def _fall_back_on_reasoning(turn: Generation, thinking: str, shown: Shown) -> None:
    text = fallback_text(thinking, turn.settings) if thinking else ""
    if text:
        shown.text(text)
        turn.note(Guardrail.REASONING_FALLBACK, Action.APPLIED, chars=len(text))
