"""Getting one good answer: the first upstream call, its verdict, and what the client finally gets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action, Guardrail, Outcome
from specdash.proxy.attempt import call_upstream
from specdash.proxy.blocks import Usage
from specdash.proxy.builder import MessageBuilder
from specdash.proxy.chain import Chain
from specdash.proxy.deadline import Deadline
from specdash.proxy.errors import ApiError, PromptTooLongError
from specdash.proxy.filters import stop_reason_of
from specdash.proxy.guardrails import Note
from specdash.proxy.mending import NOTHING, mend
from specdash.proxy.shown import Shown, WithoutCalls
from specdash.proxy.verdict import Kind, judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specdash.proxy.answer import Answer
    from specdash.proxy.app import Proxy
    from specdash.proxy.blocks import BlockSink
    from specdash.proxy.client_stream import ClientStream
    from specdash.proxy.pipeline import Prepared
    from specdash.proxy.sessions import Session
    from specdash.proxy.sse import SseWriter
    from specdash.proxy.telemetry.active import ActiveRequest
    from specdash.proxy.verdict import Verdict


class Generation:
    """One turn's answer. Use `stream` or `message` once, then `done` or `failed` once."""

    def __init__(
        self,
        proxy: Proxy,
        session: Session,
        prepared: Prepared,
        active: ActiveRequest,
        *,
        client_model: str,
        strict: bool,
    ) -> None:
        self.proxy = proxy
        self.settings = proxy.settings
        self.deadline = Deadline(self.settings.generation_timeout)
        self.session = session
        self.prepared = prepared
        self.active = active
        self.usage = Usage()
        self._prompt_estimated = False
        self._model = client_model
        self._strict = strict
        self._message_id: str | None = None
        self._stop_reason = "end_turn"
        self._stop_text: str | None = None
        self._calls: list[str] = []
        self._current: Answer | None = None
        self._ended = False

    @property
    def fullness(self) -> float:
        """Share of the context window the prompt is thought to take; 0 when the window is unknown."""
        window = self.proxy.window.tokens
        return self._estimate / window if window else 0.0

    async def message(self) -> dict[str, Any]:
        """The whole answer as a Messages object."""
        builder = MessageBuilder()
        await self._answer(builder, None)
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": builder.content(),
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_text,
            "usage": self.usage.anthropic(),
        }

    async def stream(self, writer: SseWriter, client: ClientStream) -> None:
        """The same answer as events: as they come, or, on the strict path, once they are checked."""
        if self._strict:
            builder = MessageBuilder()
            await self._answer(builder, None)
            self.begin(writer)
            builder.replay(writer)
            self.note(Guardrail.STRICT_STREAM, Action.APPLIED, forced=self.settings.force_non_stream)
        else:

            async def on_data(answer: Answer) -> None:
                if not writer.started:
                    if answer.id is None:
                        return
                    self.begin(writer)
                await client.flush()
                if writer.has_content and self.active.ttft_s is None:
                    self.active.first_content()
                    # The client gets the processor for its first token, before what was read together with it.
                    os.sched_yield()

            await self._answer(writer, on_data, lambda: self.begin(writer))
            self.begin(writer)
        writer.finish(self._stop_reason, self._stop_text, self.usage)
        if writer.has_content:
            self.active.first_content()

    def attempt_begins(self, answer: Answer) -> None:
        """Another upstream call is being made; `answer` is what it will fill."""
        self._current = answer

    def begin(self, writer: SseWriter) -> None:
        """Write message_start unless it is written, with the prompt's real size where it is known by now."""
        if writer.started:
            return
        if self._current is not None:
            self._identify(self._current)
            self.active.update(self._current)
        prompt = self.usage.prompt or self.active.prompt_tokens or self._estimate
        cached = self.usage.cached or self.active.cached_tokens or 0
        writer.start(self.message_id, self._model, Usage(prompt=prompt, cached=min(cached, prompt)))

    def note(self, guardrail: Guardrail, action: Action, **facts: Any) -> None:
        """Tell what a guardrail did."""
        self.proxy.telemetry.note(self.active, self.session, Note(guardrail, action, facts))

    def chain(self, sink: BlockSink, *, thinking: bool) -> Chain:
        """New filters in front of `sink`."""
        one = self.prepared
        return Chain(one.request, one.tools, self.settings, sink, prefill=one.prefill, thinking=thinking)

    def judge(self, answer: Answer, chain: Chain) -> Verdict:
        """What is wrong with a complete answer."""
        return judge(self.prepared.request, self.prepared.tools, answer, chain, self.settings)

    def count(self, answer: Answer) -> None:
        """Add one upstream call's tokens; a prompt whose size nobody told counts as it was estimated."""
        usage = answer.usage
        if not usage.prompt:
            usage.prompt = self._estimate
            self._prompt_estimated = True
        self.usage.add(usage)

    def done(self) -> None:
        """The client has the answer."""
        # The last call alone: how full the context is has nothing to do with what its retries cost.
        self.session.turn_done(self.active.call_usage(), self.prepared.estimate, self.proxy.window.tokens)
        self._finish(Outcome.OK, 200, None)

    def failed(self, outcome: Outcome, status: int, error_type: str | None, error: ApiError | None = None) -> None:
        """The turn ended without a complete answer. Only the first of `done` and `failed` counts."""
        if isinstance(error, PromptTooLongError) and not self._ended:
            self.proxy.telemetry.overflow(self.active, error.tokens, error.maximum)
        self._finish(outcome, status, error_type)

    @property
    def message_id(self) -> str:
        """The upstream's id for the message, or our own when it has to be told before the upstream has said one."""
        if self._message_id is None:
            self._message_id = f"msg_{self.active.request_id.removeprefix('req_')}"
        return self._message_id

    @property
    def _estimate(self) -> int:
        return max(1, round(self.prepared.estimate * self.session.scale))

    def _identify(self, answer: Answer) -> None:
        if answer.id and self._message_id is None:
            self._message_id = answer.message_id

    async def _answer(
        self,
        sink: BlockSink,
        on_data: Callable[[Answer], Awaitable[None]] | None,
        begin: Callable[[], None] | None = None,
    ) -> None:
        """Bring the final answer into `sink`: at once with `on_data`, else only after it is judged."""
        shown = Shown(sink, begin)
        draft = None if on_data is not None else MessageBuilder()
        chain = self.chain(draft or shown, thinking=self.prepared.request.wants_thinking)
        answer = await call_upstream(self, self.prepared.body, chain, on_data)
        self._identify(answer)
        self.count(answer)
        verdict = self.judge(answer, chain)
        held = chain.drop() if verdict.kind is Kind.MALFORMED else chain.release()
        if draft is not None:
            draft.replay(WithoutCalls(shown) if verdict.kind is Kind.MALFORMED else shown)
        if chain.repeated:
            self.note(Guardrail.REPETITION_CUT, Action.APPLIED, chars=answer.text_chars + answer.thinking_chars)
        used = answer
        if verdict.kind is not Kind.OK:
            used = await mend(self, verdict, answer, chain, held, shown)
        elif shown.calls:
            self.session.malformed_streak = 0
        if not (shown.calls or shown.has_text or shown.has_thinking or chain.stop_text):
            shown.text(NOTHING)
        self._calls = shown.calls
        self._stop_text = chain.stop_text or answer.stop_text
        finish = "length" if chain.repeated else used.finish_reason
        self._stop_reason = stop_reason_of(finish, bool(shown.calls), self._stop_text)

    def _finish(self, outcome: Outcome, status: int, error_type: str | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.proxy.telemetry.finish(
            self.active,
            outcome=outcome,
            status=status,
            error_type=error_type,
            stop_reason=self._stop_reason if outcome is Outcome.OK else None,
            usage=self.usage if self.usage.prompt or self.usage.completion else None,
            prompt_estimated=self._prompt_estimated,
            tool_calls=tuple(self._calls),
        )
