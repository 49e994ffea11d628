"""What is done about an answer that is not good: bounded retries, and the best use of what there is when they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action, Guardrail
from specdash.proxy.attempt import call_upstream
from specdash.proxy.builder import MessageBuilder
from specdash.proxy.errors import ApiError
from specdash.proxy.guardrails import pseudo_calls, retry
from specdash.proxy.guardrails.reasoning import fallback_text
from specdash.proxy.json_text import object_of
from specdash.proxy.shown import OnlyCalls
from specdash.proxy.verdict import MISSING_CALL, Kind

if TYPE_CHECKING:
    from specdash.proxy.answer import Answer
    from specdash.proxy.blocks import BlockSink, ToolCall
    from specdash.proxy.chain import Chain
    from specdash.proxy.generation import Generation
    from specdash.proxy.shown import Shown
    from specdash.proxy.verdict import Verdict

APOLOGY = "I could not produce a valid tool call in this turn. Please continue, and I will try again."
"""Shown when every retry was malformed and nothing usable is left."""
_UNUSABLE = frozenset({"template_debris", "bad_json", "empty_name"})
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
        return answer
    attempts = _retries(turn, verdict.kind)
    for attempt in range(1, attempts + 1):
        turn.note(guardrail, Action.RETRIED, attempt=attempt, attempts=attempts)
        found = await _retry(turn, verdict, answer, attempt, thinking_shown=shown.has_thinking)
        if found is None:
            continue
        again, builder = found
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


def _make_do(turn: Generation, verdict: Verdict, called: list[ToolCall], held: str, shown: Shown) -> None:
    if verdict.kind is not Kind.MALFORMED or verdict.fault is None:
        return
    recovered = pseudo_calls.recover(held, turn.prepared.tools, turn.message_id) if held else None
    if recovered is not None:
        text, calls = recovered
        if text.strip():
            shown.text(text)
        _emit(calls, shown)
        turn.note(Guardrail.MALFORMED_TOOL, Action.RECOVERED, calls=len(calls))
        return
    usable = all(object_of(one.arguments) is not None for one in called)
    if called and usable and verdict.fault.kind not in _UNUSABLE:
        # The client refuses such a call with a tool error that the model can read and mend.
        _emit(called, shown)
    elif not shown.has_text and verdict.fault.kind != MISSING_CALL:
        shown.text(APOLOGY)


def _emit(calls: list[ToolCall], sink: BlockSink) -> None:
    for index, call in enumerate(calls):
        sink.tool(index, call.id, call.name)
        sink.arguments(index, call.arguments)


def _fall_back_on_reasoning(turn: Generation, thinking: str, shown: Shown) -> None:
    text = fallback_text(thinking, turn.settings) if thinking else ""
    if text:
        shown.text(text)
        turn.note(Guardrail.REASONING_FALLBACK, Action.APPLIED, chars=len(text))
