"""Where everything the proxy does is told: live requests, counters, events and the human log."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action, Guardrail, GuardrailEvent, Outcome, RequestEvent, to_json
from specdash.core.token_speed import DECODE, PREFILL, speed
from specdash.proxy.guardrails import Note
from specdash.proxy.telemetry import log_lines
from specdash.proxy.telemetry.active import ActiveRequest
from specdash.proxy.telemetry.events_file import RotatedFile, events_path
from specdash.proxy.telemetry.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.proxy.blocks import Usage
    from specdash.proxy.sessions import Session, SessionStore
    from specdash.proxy.settings import ProxySettings

CLIENT_LEFT_STATUS = 499
LONGEST_NAME = 100
MOST_NAMES = 50


class Telemetry:
    """Told by whoever serves requests; asked by /v1/context and /metrics. Nothing here fails a request.

    `counters` counts guardrail actions as `guardrail:action`, `tally` everything else, since the proxy's start.
    `started` is Unix time.
    """

    def __init__(
        self,
        settings: ProxySettings,
        sessions: SessionStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.started = wall()
        self.counters: Counter[str] = Counter()
        self.tally = Tally()
        self.file = RotatedFile(events_path(settings.events_file, env), settings.events_max_mib << 20, clock)
        self.log_lines_lost: Callable[[], int] = int
        """Lines of the human log that could not be written."""
        self._sessions = sessions
        self._clock = clock
        self._wall = wall
        self._active: dict[int, ActiveRequest] = {}

    @property
    def active(self) -> list[ActiveRequest]:
        """Requests under way, oldest first."""
        return list(self._active.values())

    def begin(
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
    ) -> ActiveRequest:
        """A request arrived and is understood; every one must be finished."""
        active = ActiveRequest(
            session,
            request_id=request_id,
            path=path,
            stream=stream,
            strict=strict,
            model=model[:LONGEST_NAME],
            messages=messages,
            tools=tools,
            clock=self._clock,
            started=self._wall(),
        )
        session.model = active.model
        self._sessions.enter(session)
        self._active[id(active)] = active
        log_lines.request(active)
        return active

    def note(self, active: ActiveRequest | None, session: Session, note: Note) -> None:
        """A guardrail did something."""
        mark = f"{note.guardrail}:{note.action}"
        self.counters[mark] += 1
        if active is not None and mark not in active.guardrails:
            active.guardrails.append(mark)
        request_id = active.request_id if active is not None else ""
        event = GuardrailEvent(
            self._wall(), session.id, note.guardrail, note.action, request_id, numbers_and_names(note.facts)
        )
        self.file.write(to_json(event))
        log_lines.note(event)

    def overflow(self, active: ActiveRequest, tokens: int, maximum: int) -> None:
        """The upstream refused a prompt of `tokens` because at most `maximum` fit."""
        active.session.overflows += 1
        facts = {"overflows": active.session.overflows, "prompt": tokens, "window": maximum}
        self.note(active, active.session, Note(Guardrail.CONTEXT_PRUNE, Action.DETECTED, facts))

    def finish(
        self,
        active: ActiveRequest,
        *,
        outcome: Outcome,
        status: int = 200,
        error_type: str | None = None,
        stop_reason: str | None = None,
        usage: Usage | None = None,
        prompt_estimated: bool = False,
        tool_calls: Sequence[str] = (),
    ) -> None:
        """The request ended; only the first call counts. Call `Session.turn_done` before it.

        `usage` is the whole turn's, retries included. Where the upstream calls that `active` saw come to more (one was
        cut short), those count. `prompt_estimated` says that an upstream did not tell the size of its prompt.
        """
        if active.ended:
            return
        active.end()
        self._active.pop(id(active), None)
        self._sessions.leave(active.session)
        event = self._event(active, outcome, status, error_type, stop_reason, usage, tool_calls, prompt_estimated)
        self.tally.add(event, active.totals())
        self.file.write(to_json(event))
        log_lines.response(event, active.text_chars)
        if outcome is Outcome.OK:
            log_lines.context(active.session)

    def reconfigure(self, settings: ProxySettings) -> None:
        """After SIGHUP: the events file may have been moved away. Where it is changes with a restart only."""
        self.file.max_bytes = settings.events_max_mib << 20
        self.file.reopen()

    def close(self) -> None:
        """Close the events file."""
        self.file.close()

    def _event(
        self,
        active: ActiveRequest,
        outcome: Outcome,
        status: int,
        error_type: str | None,
        stop_reason: str | None,
        usage: Usage | None,
        tool_calls: Sequence[str],
        prompt_estimated: bool,
    ) -> RequestEvent:
        totals = active.totals()
        if usage is None or _size(totals.usage) > _size(usage):
            usage, prompt_estimated = totals.usage, False
        known = _size(usage) > 0
        return RequestEvent(
            at=active.started,
            session=active.session.id,
            request_id=active.request_id,
            path=active.path,
            stream=active.stream,
            strict=active.strict,
            model=active.model,
            outcome=outcome,
            status=CLIENT_LEFT_STATUS if outcome is Outcome.CLIENT_LEFT else status,
            error_type=error_type,
            stop_reason=stop_reason,
            duration_s=round(max(0.0, self._clock() - active.started_clock), 4),
            held_s=_rounded(active.held_s, 4),
            ttft_s=_rounded(active.ttft_s, 4),
            prefill_s=_rounded(_seconds(totals.prefill_ms), 4),
            decode_s=_rounded(_seconds(totals.decode_ms), 4),
            prompt_tokens=usage.prompt or None,
            cached_tokens=usage.cached if usage.prompt and not prompt_estimated else None,
            completion_tokens=usage.completion if known else None,
            prefill_rate=_rounded(speed(totals.prefilled, totals.prefill_ms, PREFILL), 2),
            decode_rate=_rounded(speed(totals.decoded, totals.decode_ms, DECODE), 2),
            draft_tokens=totals.draft,
            accepted_tokens=totals.accepted,
            retries=active.retries,
            context_window=active.session.window,
            messages=active.messages,
            tools=active.tools,
            tool_calls=tuple(name[:LONGEST_NAME] for name in tool_calls[:MOST_NAMES]),
            guardrails=tuple(active.guardrails),
            prompt_estimated=prompt_estimated or None,
        )


def numbers_and_names(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` without anything that is neither, and names bounded: an event is no place for text."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, (bool, int, float)):
            found[name] = value
        elif isinstance(value, str):
            found[name] = value[:LONGEST_NAME]
        elif isinstance(value, (list, tuple, set, frozenset)):
            found[name] = [str(one)[:LONGEST_NAME] for one in list(value)[:MOST_NAMES]]
    return found


def _size(usage: Usage) -> int:
    return usage.prompt + usage.completion


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000.0


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
