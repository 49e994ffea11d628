"""One request under way: its phase, its live numbers, and their sums over retries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Phase
from specdash.core.proxy_status import ActiveView
from specdash.core.token_speed import DECODE, PREFILL, speed
from specdash.proxy.blocks import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.proxy.answer import Answer
    from specdash.proxy.sessions import Session


@dataclass(slots=True)
class Totals:
    """Sums over the upstream calls of one request; None is unknown.

    `prefilled` and `decoded` are tokens whose milliseconds are in `prefill_ms` and `decode_ms`; tokens from the cache
    are no part of `prefilled`.
    """

    usage: Usage = field(default_factory=Usage)
    draft: int | None = None
    accepted: int | None = None
    prefilled: int | None = None
    prefill_ms: float | None = None
    decoded: int | None = None
    decode_ms: float | None = None

    def add(self, answer: Answer) -> None:
        """Count one upstream call too."""
        self.usage.add(answer.usage)
        self.draft = _sum(self.draft, answer.draft)
        self.accepted = _sum(self.accepted, answer.accepted)
        if answer.prefill_ms:
            self.prefilled = _sum(self.prefilled, fresh_tokens(answer))
            self.prefill_ms = (self.prefill_ms or 0.0) + answer.prefill_ms
        if answer.decode_ms:
            self.decoded = _sum(self.decoded, answer.predicted)
            self.decode_ms = (self.decode_ms or 0.0) + answer.decode_ms

    def copy(self) -> Totals:
        """The same sums, to add to."""
        usage = Usage(self.usage.prompt, self.usage.cached, self.usage.completion)
        return Totals(usage, self.draft, self.accepted, self.prefilled, self.prefill_ms, self.decoded, self.decode_ms)


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else (one or 0) + other


def fresh_tokens(answer: Answer) -> int | None:
    """Prompt tokens processed so far that were not in the cache."""
    done = answer.prompt_done
    return None if done is None else max(0, done - (answer.cached or 0))


class ActiveRequest:
    """A request between its arrival and its end. `started` is Unix time; token numbers are the current attempt's.

    Whoever serves the request calls `held`, `sent`, `update`, `first_content` and `next_attempt` as they happen. An
    answer's numbers are read when somebody looks, not when they arrive.
    """

    __slots__ = (
        "_answer", "_clock", "_held_at", "_past", "attempt", "ended", "guardrails", "held_s", "messages",
        "model", "path", "request_id", "session", "started", "started_clock", "stream", "strict", "tools", "ttft_s",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        *,
        request_id: str,
        path: str,
        stream: bool,
        strict: bool,
        model: str,
        messages: int | None,
        tools: int,
        clock: Callable[[], float],
        started: float,
    ) -> None:
        self.session = session
        self.request_id = request_id
        self.path = path
        self.stream = stream
        self.strict = strict
        self.model = model
        self.messages = messages
        self.tools = tools
        self.started = started
        self.started_clock = clock()
        self.attempt = 1
        self.held_s: float | None = None
        self.ttft_s: float | None = None
        self.guardrails: list[str] = []
        self.ended = False
        self._clock = clock
        self._held_at: float | None = None
        self._past = Totals()
        self._answer: Answer | None = None

    def held(self) -> None:
        """The request waits because the proxy is held."""
        if self._held_at is None:
            self._held_at = self._clock()

    def sent(self) -> None:
        """The request goes to the upstream now."""
        if self._held_at is not None:
            self.held_s = (self.held_s or 0.0) + self._clock() - self._held_at
            self._held_at = None

    def update(self, answer: Answer) -> None:
        """More of the answer is there. Called for every read of the upstream's bytes."""
        self._answer = answer

    def first_content(self) -> None:
        """Content was sent to the client; only the first call counts."""
        if self.ttft_s is None:
            self.ttft_s = self._clock() - self.started_clock

    def next_attempt(self) -> None:
        """The upstream will be asked once more: what the last call cost goes into the totals."""
        self._past = self.totals()
        self._answer = None
        self.attempt += 1

    def end(self) -> None:
        """Nothing more will happen."""
        self.sent()
        self.ended = True

    @property
    def retries(self) -> int:
        """Upstream calls after the first."""
        return self.attempt - 1

    @property
    def phase(self) -> Phase:
        """Where the request is now."""
        if self.ended:
            return Phase.DONE
        if self._held_at is not None:
            return Phase.HELD
        answer = self._answer
        if answer is None:
            return Phase.WAITING
        if answer.started:
            return Phase.DECODE
        return Phase.WAITING if answer.prompt_done is None else Phase.PREFILL

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, cached ones included."""
        return self._answer.prompt_total if self._answer is not None else None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were in the cache."""
        return self._answer.cached if self._answer is not None else None

    @property
    def text_chars(self) -> int | None:
        """Characters of visible text that the model wrote."""
        return self._answer.text_chars if self._answer is not None else None

    def call_usage(self) -> Usage:
        """Tokens of the latest upstream call alone, as far as known."""
        return self._answer.usage if self._answer is not None else Usage()

    def totals(self) -> Totals:
        """Everything so far, retries included."""
        found = self._past.copy()
        if self._answer is not None:
            found.add(self._answer)
        return found

    def view(self) -> ActiveView:
        """As the dashboard sees it."""
        base = ActiveView(
            request_id=self.request_id,
            session=self.session.id,
            started=self.started,
            phase=self.phase,
            path=self.path,
            model=self.model,
            stream=self.stream,
            strict=self.strict,
            tools=self.tools,
            attempt=self.attempt,
            ttft_s=self.ttft_s,
            guardrails=tuple(self.guardrails),
        )
        return base if self._answer is None else _with_numbers(base, self._answer)


def _with_numbers(view: ActiveView, answer: Answer) -> ActiveView:
    return replace(
        view,
        prompt_tokens=answer.prompt_total,
        prompt_done=answer.prompt_done,
        cached_tokens=answer.cached,
        completion_tokens=answer.predicted,
        prefill_rate=speed(fresh_tokens(answer), answer.prefill_ms, PREFILL),
        decode_rate=speed(answer.predicted, answer.decode_ms, DECODE),
        draft_tokens=answer.draft,
        accepted_tokens=answer.accepted,
    )
