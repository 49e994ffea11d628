"""The order of the guardrails on the way in: from a client's request and its session to the body sent upstream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action, Guardrail
from specdash.proxy.guardrails import Note, contamination, estimate, loops, narrowing, prune, supplement, tokens
from specdash.proxy.translate import chat_body, prefill_of

if TYPE_CHECKING:
    from specdash.proxy.messages import MessagesRequest, Tool
    from specdash.proxy.sessions import Session
    from specdash.proxy.settings import ProxySettings


@dataclass(slots=True)
class Prepared:
    """A request that is ready to be sent.

    `request` is what the guardrails made of it, `body` the chat completions body, `estimate` the uncalibrated estimate
    of its prompt in tokens, `tools` all tools the client offered: a call to a tool that narrowing left out is valid.
    """

    request: MessagesRequest
    body: dict[str, Any]
    estimate: int
    prefill: str
    tools: tuple[Tool, ...]
    notes: list[Note] = field(default_factory=list)


def prepare(
    request: MessagesRequest, session: Session, settings: ProxySettings, *, window: int | None, model: str
) -> Prepared:
    """Run every request guardrail, in order; what they remember goes into `session`.

    The loop breaker judges the client's whole history; pruning comes after all that changes the prompt's size but for
    the breaker's own note. `window` is the context window in tokens, None when unknown.
    """
    tools = request.tools
    notes: list[Note] = []
    state = loops.loop_state(request.messages, settings)
    session.loop = state
    request, session.cut, note = contamination.cut_back(request, session.malformed_streak, session.cut, settings)
    if note is not None:
        session.malformed_streak = 0
        session.contamination_resets += 1
        notes.append(note)
    request, session.chosen_tools, note = narrowing.narrow(request, session.chosen_tools, settings)
    _keep(notes, note)
    request, note = supplement.supplemented(request, settings)
    _keep(notes, note)
    if window:
        request, note = prune.prune(request, window, settings, session.scale)
        if note is not None:
            # Every later request of the same history is pruned at the same place: that is no other cut.
            pruned = (note.facts["removed"], note.facts["shortened"])
            session.prunes += pruned != session.pruned
            session.pruned = pruned
            notes.append(note)
    request, loop_notes = _break_loop(request, session, state, settings, window)
    notes += loop_notes
    thinking_off = bool(request.tools) and settings.disable_thinking_on_tool_turns
    if thinking_off:
        notes.append(Note(Guardrail.THINKING_OFF, Action.APPLIED))
    prompt = estimate.request_tokens(request)
    limit, note = tokens.max_tokens(request, round(prompt * session.scale), window, settings)
    _keep(notes, note)
    body = chat_body(request, model, max_tokens=limit, thinking_off=thinking_off)
    return Prepared(request, body, prompt, prefill_of(request), tools, notes)


def _break_loop(
    request: MessagesRequest, session: Session, state: loops.LoopState, settings: ProxySettings, window: int | None
) -> tuple[MessagesRequest, tuple[Note, ...]]:
    forced = request.tool_choice.kind in {"any", "tool"} and bool(request.tools)
    session.note_forced(forced, len(request.messages))
    utilisation = session.utilisation(window)
    request, notes = loops.break_loop(
        request,
        state,
        settings,
        forced=session.forced_streak,
        utilisation=utilisation,
        pause_s=session.pause_s(state.repeats),
    )
    session.loop_warnings += bool(notes)
    if any(note.action is Action.RELEASED for note in notes):
        session.forced_streak = 0
    return request, notes


def _keep(notes: list[Note], note: Note | None) -> None:
    if note is not None:
        notes.append(note)
