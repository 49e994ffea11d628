"""POST /v1/messages: a request read, its turn run, and the answer sent, whole or as events; and its tokens counted."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from specdash.core.proxy_events import Guardrail, GuardrailAction, RequestEvent, RequestOutcome
from specdash.proxy.answer.blocks import PAUSE, MessageBuilder, SseWriter, Text, Usage, message_head
from specdash.proxy.answer.filters import Attempt, stop_reason_of
from specdash.proxy.answer.repair import answered
from specdash.proxy.gate import RetryPolicy, admitted
from specdash.proxy.guardrails import GuardrailNote, loops
from specdash.proxy.guardrails.history import cut_back, max_tokens, prune, request_tokens
from specdash.proxy.guardrails.tools import narrow, supplemented
from specdash.proxy.http.responses import (
    ApiError,
    EventStream,
    PromptTooLongError,
    client_host,
    json_response,
    object_of,
    read_body,
    unless_gone,
)
from specdash.proxy.sessions import session_id
from specdash.proxy.telemetry import LONGEST_NAME
from specdash.proxy.translate.parse import parse_messages
from specdash.proxy.translate.translate import chat_body, prefill_of
from specdash.proxy.upstream.upstream import api_error
from specdash.proxy.upstream.window import use_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.proxy.answer.blocks import BlockOrder
    from specdash.proxy.answer.filters import Pieces
    from specdash.proxy.http.app import Proxy
    from specdash.proxy.sessions import ProxySession
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.telemetry import ActiveRequest
    from specdash.proxy.translate.parse import MessagesRequest, Tool


NOTHING = "(The model ended its turn without an answer.)"
"""Shown instead of an empty answer: clients keep the message, and no API takes it back without content."""


# The order of the guardrails on the way in: from a client's request and its session to the body sent upstream.


class PreparedRequest(Struct):
    """A request that is ready to be sent.

    `request` is what the guardrails made of it, `body` the chat completions body, `estimate` the uncalibrated estimate
    of its prompt in tokens, `tools` all tools the client offered: a call to a tool that narrowing left out is valid.
    """

    request: MessagesRequest
    body: dict[str, Any]
    estimate: int
    prefill: str
    tools: tuple[Tool, ...]
    notes: list[GuardrailNote] = field(default_factory=list)


def prepare(
    request: MessagesRequest, session: ProxySession, settings: ProxySettings, *, window: int | None, model: str
) -> PreparedRequest:
    """Run every request guardrail, in order; what they remember goes into `session`.

    The loop breaker judges the client's whole history; pruning comes after all that changes the prompt's size but for
    the breaker's own note. `window` is the context window in tokens, None when unknown.
    """
    tools = request.tools
    notes: list[GuardrailNote | None] = []
    state = session.loop = loops.loop_state(request.messages, settings)
    request, session.cut, note = cut_back(request, session.malformed_streak, session.cut, settings)
    if note is not None:
        session.malformed_streak = 0
        session.contamination_resets += 1
    notes.append(note)
    request, session.chosen_tools, note = narrow(request, session.chosen_tools, settings)
    notes.append(note)
    request, note = supplemented(request, settings)
    notes.append(note)
    if window:
        request, note = prune(request, window, settings, session.scale)
        if note is not None:
            # Every later request of the same history is pruned at the same place: that is the same cut.
            session.prunes += note.facts["removed"] != session.pruned
            session.pruned = note.facts["removed"]
        notes.append(note)
    session.note_forced(request.tool_choice.kind in {"any", "tool"} and bool(request.tools), len(request.messages))
    use = session.utilisation(window)
    request, loop_notes = loops.break_loop(request, state, settings, forced=session.forced_streak, utilisation=use)
    session.loop_warnings += bool(loop_notes)
    if any(note.action is GuardrailAction.RELEASED for note in loop_notes):
        session.forced_streak = 0
    notes += loop_notes
    thinking_off = bool(request.tools) and settings.disable_thinking_on_tool_turns
    if thinking_off:
        notes.append(GuardrailNote(Guardrail.THINKING_OFF, GuardrailAction.APPLIED))
    limit, note = max_tokens(request, settings)
    notes.append(note)
    body = chat_body(request, model, max_tokens=limit, thinking_off=thinking_off)
    return PreparedRequest(
        request, body, request_tokens(request), prefill_of(request), tools, [note for note in notes if note]
    )


class Turn:
    """A turn from its arrival on. Use `admitted`, `stream` or `message` once, then `ended`."""

    prepared: PreparedRequest
    """What goes upstream, under the settings of the moment in which it was admitted."""

    def __init__(self, proxy: Proxy, request: MessagesRequest, session: ProxySession, active: ActiveRequest) -> None:
        self.proxy = proxy
        self.session = session
        self.active = active
        self.settings = proxy.settings
        self.request_id = active.event.request_id
        self.request = request
        self._size = 0
        """Of the prompt as it is sent, in estimated tokens; 0 before that is known."""
        self.message_id = f"msg_{self.request_id.removeprefix('req_')}"
        self._stop_reason = "end_turn"
        self._stop_text: str | None = None
        self.shown = MessageBuilder()
        """The answer, where it is collected before the client gets it."""
        self.given: BlockOrder = self.shown
        """What is the client's for good."""
        self.attempt = Attempt()
        """The call of the upstream that counts for the stop reason."""

    async def admitted(self) -> None:
        """Prepare the request once it may be sent: how much the upstream takes may be another after a hold.

        Raises `ApiError` 529 when a hold outlasts its wait.
        """
        proxy, request = self.proxy, self.request
        await admitted(proxy, self.active)
        model = await use_model(request.model, proxy.window)
        self.settings = proxy.settings
        self.prepared = prepare(request, self.session, self.settings, window=proxy.window.tokens, model=model)
        self._size = self.prepared.estimate
        proxy.telemetry.sends(self.active, self.prepared.body)
        for note in self.prepared.notes:
            proxy.telemetry.note(self.active, self.session, note)

    async def message(self) -> dict[str, Any]:
        """The whole answer as a Messages object."""
        async for piece in self._pieces(live=False):
            self.shown.add(piece)
        head = message_head(self.message_id, self.request.model, self.usage)
        ends = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_text}
        return {**head, "content": self.shown.content(), **ends}

    async def stream(self, writer: SseWriter, flush: Callable[[], Awaitable[None]]) -> None:
        """The same answer as events: as they come, or, on the strict path, once they are checked."""
        if self.active.event.strict:
            await self.message()
            self.begin(writer)
            for piece in self.shown.pieces():
                writer.add(piece)
            self.note(Guardrail.STRICT_STREAM, GuardrailAction.APPLIED)
        else:
            self.given = writer
            async with contextlib.aclosing(self._pieces(live=True)) as pieces:
                async for piece in pieces:
                    if piece is not PAUSE:
                        self.begin(writer)
                        writer.add(piece)
                    elif writer.started or self.attempt.answer.has_begun:
                        self.begin(writer)
                        await flush()
                        if writer.index >= 0:
                            self.active.first_content()
        self.begin(writer)
        writer.finish(self._stop_reason, self._stop_text, self.usage)
        if writer.index >= 0:
            self.active.first_content()

    def begin(self, writer: SseWriter) -> None:
        """Write message_start unless it is written, with the prompt's real size where it is known by now."""
        if writer.started:
            return
        usage = self.usage
        writer.start(self.message_id, self.request.model, Usage(usage.prompt, usage.cached))

    def note(self, guardrail: Guardrail, action: GuardrailAction, **facts: Any) -> None:
        """Record what a guardrail did."""
        self.proxy.telemetry.note(self.active, self.session, GuardrailNote(guardrail, action, facts))

    def ended(self, outcome: RequestOutcome, error: ApiError | None = None) -> None:
        """The client has the answer, or the turn ended without a complete one. Only the first call counts."""
        active, is_done = self.active, outcome is RequestOutcome.OK
        if active.ended:
            return
        if isinstance(error, PromptTooLongError):
            self.session.overflows += 1
            facts = {"overflows": self.session.overflows, "prompt": error.tokens, "window": error.maximum}
            self.note(Guardrail.CONTEXT_PRUNE, GuardrailAction.DETECTED, **facts)
        if is_done:
            # The last call alone: how full the context is has nothing to do with what its retries cost.
            self.session.turn_done(active.call_cost().usage, self.prepared.estimate, self.proxy.window.tokens)
        self.proxy.telemetry.finish(
            active,
            outcome=outcome,
            error=error,
            stop_reason=self._stop_reason if is_done else None,
            estimate=self._estimate if is_done else 0,
            tool_calls=[call.name for call in self.given.calls.values()],
        )

    @property
    def usage(self) -> Usage:
        """Of all upstream calls so far; a prompt whose size is not known counts as it is estimated."""
        used = self.active.cost().usage
        return used if used.prompt else used + Usage(prompt=self._estimate)

    @property
    def _estimate(self) -> int:
        return max(1, round((self._size or request_tokens(self.request)) * self.session.scale))

    async def _pieces(self, *, live: bool) -> Pieces:
        """What the client gets; afterwards the stop reason is known."""
        async with contextlib.aclosing(answered(self, live=live)) as pieces:
            async for piece in pieces:
                yield piece
        given, attempt = self.given, self.attempt
        if not (given.calls or given.has_text or given.has_thinking or attempt.stop_text):
            yield Text(NOTHING)
        finish = "length" if attempt.has_repeated else attempt.answer.finish_reason
        self._stop_reason = stop_reason_of(finish, bool(given.calls), attempt.stop_text)
        self._stop_text = attempt.stop_text if self._stop_reason == "stop_sequence" else None


async def handle_messages(request: Request) -> Response:
    """Serve one request. Raises `ApiError` while nothing was sent; afterwards errors are events of the stream."""
    proxy: Proxy = request.state.proxy
    settings, writer = proxy.settings, SseWriter()
    parsed = parse_messages(await read_body(request, settings.max_body_mib << 20))
    turns = [{"role": message.role, "content": message.content} for message in parsed.messages]
    user = parsed.metadata.get("user_id")
    session = proxy.sessions.get(session_id(request.headers, user, turns, client_host(request)))
    event = RequestEvent(
        time.time(), session.id, request.state.request_id, stream=parsed.stream,
        strict=parsed.stream and settings.malformed_tool_stream_strict and bool(parsed.tools),
        model=parsed.model[:LONGEST_NAME], messages=len(parsed.messages), tools=len(parsed.tools),
    )  # fmt: skip
    turn = Turn(proxy, parsed, session, proxy.telemetry.begin(session, event))

    async def produce(stream: EventStream) -> Response | None:
        async def flush() -> None:
            await stream.write(writer.take())

        answer = None
        await turn.admitted()
        limit_s = turn.settings.generation_timeout
        try:
            async with asyncio.timeout(limit_s or None) as limit:
                if parsed.stream:
                    await turn.stream(writer, flush)
                else:
                    answer = json_response(await turn.message())
        except TimeoutError:
            if not limit.expired():
                raise
            raise ApiError(504, f"the turn took longer than PROXY_GENERATION_TIMEOUT={limit_s:g} s") from None
        if answer is None:
            await stream.write(writer.take(), is_last=True)
        turn.ended(RequestOutcome.OK)
        return answer

    def idle() -> bytes:
        if not writer.finished:
            turn.begin(writer)
            writer.ping()
        return writer.take()

    def failure(error: ApiError) -> bytes:
        writer.error(error.envelope(turn.request_id))
        return writer.take()

    return EventStream(
        produce,
        commit_s=settings.commit_delay if parsed.stream else math.inf,
        ping_s=settings.ping_interval,
        idle=idle,
        failure=failure,
        ended=turn.ended,
    )


# POST /v1/messages/count_tokens: exact, by the upstream's own template and tokenizer.

COUNT_PATH = "/v1/chat/completions/input_tokens"
"""llama.cpp counts there what it would read of a chat completion."""


async def handle_count(request: Request) -> Response:
    """Serve one request."""
    proxy: Proxy = request.state.proxy
    parsed = parse_messages(await read_body(request, proxy.settings.max_body_mib << 20), counts=True)
    return json_response({"input_tokens": await unless_gone(request.receive, _count(proxy, parsed))})


async def _count(proxy: Proxy, request: MessagesRequest) -> int:
    patience = RetryPolicy(proxy.gate)
    while True:
        await admitted(proxy)
        body = msgspec.json.encode(chat_body(request, await use_model(request.model, proxy.window)))
        try:
            status, answer = await proxy.upstream.exchange(COUNT_PATH, body, proxy.settings.read_timeout)
            if status == 200:
                break
            raise api_error(status, answer)
        except ApiError as error:
            if not await patience.again(error):
                raise
    tokens = (object_of(answer) or {}).get("input_tokens")
    if isinstance(tokens, int) and tokens >= 0:
        return tokens
    raise ApiError(502, "the upstream does not say how many tokens the request has", retry=False)
