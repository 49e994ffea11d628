"""Where everything that the proxy does is recorded: live requests, counters, events and the human log."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec.structs
import prometheus_client

from specdash.core.paths import state_dir
from specdash.core.proxy_events import (
    ActiveView,
    GuardrailEvent,
    PromptChange,
    RequestOutcome,
    RequestPhase,
    to_json,
    warning_level,
)
from specdash.core.proxy_lines import context_text, line_text, note_text
from specdash.core.structs import json_of
from specdash.proxy.answer.assembler import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.core.proxy_events import RequestEvent
    from specdash.proxy.answer.assembler import AnswerAssembler
    from specdash.proxy.guardrails import GuardrailNote
    from specdash.proxy.http.responses import ApiError
    from specdash.proxy.sessions import ProxySession
    from specdash.proxy.settings import ProxySettings


LARGEST_FILE = 16 << 20
_LOG = logging.getLogger("specdash.proxy")


def events_path(setting: str | None, env: Mapping[str, str] = os.environ) -> Path | None:
    """Where events go: the file named, the default place when unset, None for `off`."""
    if setting is None:
        return state_dir(env) / "proxy-events.jsonl"
    return None if setting.strip().lower() in {"off", "none", "0", "false", "no"} else Path(setting).expanduser()


class EventsFile:
    """Appends lines to `path`, or drops them when it is None; opened for each, so that a file may be moved away.

    A regular file is moved aside when it is full, over the former one. `lost` counts lines that could not be written;
    trouble with the disk fails no request.
    """

    def __init__(self, path: Path | None, max_bytes: int = LARGEST_FILE) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.lost = 0

    def write(self, line: str) -> None:
        """Append one line; a failure is counted, and the first one logged."""
        if (path := self.path) is None:
            return
        data = (line + "\n").encode("utf-8", "backslashreplace")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if path.is_file() and (size := path.stat().st_size) and size + len(data) > self.max_bytes:
                path.replace(path.with_name(f"{path.name}.1"))
            with open(path, "ab", 0, opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(data)
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                reason = os.strerror(error.errno) if error.errno else error
                _LOG.warning("Events file %s cannot be written: %s; lines are lost until it can", path, reason)


# What changed in a prompt since the one it goes on from: its system prompt, its tools, or a message in the middle.
#
# Prompts are kept as hashes that are salted for this process: nothing of their text, and nothing to compare with
# another day's.

MOST_OF_SESSION = 4
"""Prompts that are remembered of a session."""


def prompt_change(kept: list[tuple[int, ...]], body: Mapping[str, Any]) -> PromptChange | None:
    """What a chat completions body changed of the one of the prompts `kept` that it goes on from, and whose place it
    takes; None for a new conversation.

    A prompt is kept as hashes of its pieces in the order in which a template prints them: system prompt, tools,
    messages.
    """
    messages, tools = body.get("messages"), body.get("tools")
    listed = messages if isinstance(messages, list) else []
    systems = (message for message in listed if isinstance(message, dict) and message.get("role") == "system")
    system = next(systems, None)
    rest = (message for message in listed if message is not system)
    texts = [msgspec.json.encode(piece) for piece in (system, tools, *rest)]
    now, sizes = tuple(map(hash, texts)), tuple(map(len, texts))
    before = max(kept, key=lambda prompt: len({*prompt[2:]} & {*now[2:]}), default=None)
    if before is not None and 2 * len({*before[2:]} & {*now[2:]}) < max(1, len({*before[2:]})):
        before = None
    kept[:] = [*(prompt for prompt in kept if prompt is not before), now][-MOST_OF_SESSION:]
    if before is None:
        return None
    total = sum(sizes) or 1
    pairs = enumerate(zip(now, before, strict=False))
    same = next((at for at, (mine, its) in pairs if mine != its), min(len(now), len(before)))
    # Where the former prompt ends, this one goes on: that is no change.
    what = ""
    if same < len(before):
        names = ("system", "tools", *(f"message {number}" for number in range(1, len(now) - 1)))
        what = names[same] if same < len(now) else "messages left out"
    size_of = dict(zip(now, sizes, strict=True))
    known = sum(size_of[piece] * count for piece, count in (Counter(now) & Counter(before)).items())
    return PromptChange(what, round(sum(sizes[:same]) / total, 4), round(known / total, 4))


# One request under way: its phase, its live numbers, and their sums over retries.


class ActiveRequest:
    """A request between its arrival and its end; `event` holds what was known of it at its arrival.

    `held`, `sent`, `first_content` and `next_attempt` are called as they happen; `answer` is that of the current
    attempt, whose numbers are read when they are asked for.
    """

    def __init__(self, session: ProxySession, event: RequestEvent, clock: Callable[[], float]) -> None:
        self.session = session
        self.event = event
        self.arrived = clock()
        self.attempt = 1
        self.answer: AnswerAssembler | None = None
        self.held_s: float | None = None
        self.ttft_s: float | None = None
        self.guardrails: list[str] = []
        self.ended = False
        self._clock = clock
        self._held_at: float | None = None
        self._past: list[Cost] = []

    def held(self) -> None:
        """The request waits because the proxy is held."""
        if self._held_at is None:
            self._held_at = self._clock()

    def sent(self) -> None:
        """The request goes to the upstream now."""
        if self._held_at is not None:
            self.held_s = (self.held_s or 0.0) + self._clock() - self._held_at
            self._held_at = None

    def first_content(self) -> None:
        """Content was sent to the client; only the first call counts."""
        if self.ttft_s is None:
            self.ttft_s = self._clock() - self.arrived

    def next_attempt(self) -> None:
        """The upstream will be asked once more: what the last call cost goes into the cost."""
        self._past.append(self.call_cost())
        self.answer = None
        self.attempt += 1

    @property
    def phase(self) -> RequestPhase:
        """Where the request is now."""
        if self.ended:
            return RequestPhase.DONE
        if self._held_at is not None:
            return RequestPhase.HELD
        if self.answer is not None and self.answer.started:
            return RequestPhase.DECODE
        return RequestPhase.WAITING if self.call_cost().prompt_done is None else RequestPhase.PREFILL

    def call_cost(self) -> Cost:
        """What the latest upstream call has cost so far."""
        return self.answer.cost() if self.answer is not None else Cost()

    def cost(self) -> Cost:
        """Everything so far, retries included."""
        return Cost.total([*self._past, self.call_cost()])

    def view(self) -> ActiveView:
        """As the dashboard sees it."""
        event, cost = self.event, self.call_cost()
        return ActiveView(
            **json_of(event, "request_id session path model"),
            **json_of(self, "phase attempt ttft_s"),
            **json_of(cost, "prompt_done prefill_rate decode_rate"),
            started=event.at,
            prompt_tokens=cost.prompt,
            cached_tokens=cost.cached,
            completion_tokens=cost.predicted,
            draft_tokens=cost.draft,
            accepted_tokens=cost.accepted,
            stream=bool(event.stream),
            strict=bool(event.strict),
            tools=event.tools or 0,
            guardrails=tuple(self.guardrails),
        )


# Sums since the proxy's start, for metrics. Labels are few and known: endpoints, outcomes, error types, guardrails.

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the buckets, in seconds."""
SUMS = (
    ("retries", "retries", "Upstream calls beyond the first of a request."),
    ("held_seconds", "held_s", "Time requests waited because the proxy was held."),
    ("prompt_tokens", "prompt_tokens", "Prompt tokens, cached ones included, over all retries."),
    ("cached_tokens", "cached_tokens", "Prompt tokens that the upstream had in its cache."),
    ("completion_tokens", "completion_tokens", "Tokens of answers, over all retries."),
    ("prefilled_tokens", "prefilled", "Prompt tokens processed in prefill_seconds."),
    ("prefill_seconds", "prefill_s", "Time the upstream took to process prompts."),
    ("decoded_tokens", "decoded", "Tokens generated in decode_seconds: all but the first of each answer."),
    ("decode_seconds", "decode_s", "Time the upstream took to generate tokens."),
    ("draft_tokens", "draft_tokens", "Draft tokens proposed."),
    ("accepted_tokens", "accepted_tokens", "Draft tokens accepted."),
)
"""Sums over finished requests: the metric, the field of `RequestEvent` or `Cost`, and what it is."""


LONGEST_NAME = 100
MOST_NAMES = 50


class Telemetry:
    """Written by the handlers of requests, read by /v1/context and /metrics. Nothing here fails a request.

    What is counted is counted since `started`, in Unix time: guardrail actions in `counters` as `guardrail:action`;
    ended requests by endpoint and outcome, failed ones by error type, and `sums` of tokens and seconds over all
    retries, by the metric's name.
    """

    def __init__(self, settings: ProxySettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.started = time.time()
        self.counters: Counter[str] = Counter()
        self.requests: Counter[tuple[str, RequestOutcome]] = Counter()
        self.errors: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.histograms = [
            prometheus_client.Histogram(
                f"specdash_proxy_{name}",
                f"Time from a request's arrival to its {what}.",
                buckets=BOUNDS_S,
                registry=None,
            )
            for name, what in (("ttft_seconds", "first content"), ("request_duration_seconds", "end"))
        ]
        self.file = EventsFile(events_path(settings.events_file))
        self.active: list[ActiveRequest] = []
        """Requests under way, oldest first."""
        self._clock = clock

    def begin(self, session: ProxySession, event: RequestEvent) -> ActiveRequest:
        """A request arrived and is understood, `event` is what is known of it; every one must be finished."""
        active = ActiveRequest(session, event, self._clock)
        session.model = event.model
        session.requests += 1
        self.active.append(active)
        facts = {"stream": event.stream, "messages": event.messages or 0, "tools": event.tools}
        _LOG.log(*line_text("request", facts, session=session.id, request_id=event.request_id))
        return active

    def sends(self, active: ActiveRequest, body: Mapping[str, Any]) -> None:
        """The chat completions body of a request, as it goes to the upstream."""
        change = prompt_change(active.session.prompts, body)
        if change is not None:
            active.event = msgspec.structs.replace(
                active.event, changed=change.what, changed_at=change.at, known_share=change.known
            )

    def note(self, active: ActiveRequest | None, session: ProxySession, note: GuardrailNote) -> None:
        """A guardrail did something."""
        mark = f"{note.guardrail}:{note.action}"
        self.counters[mark] += 1
        if active is not None and mark not in active.guardrails:
            active.guardrails.append(mark)
        request_id = active.event.request_id if active is not None else ""
        event = GuardrailEvent(time.time(), session.id, note.guardrail, note.action, request_id, note.facts)
        self.file.write(to_json(event))
        _LOG.log(*note_text(note.guardrail, note.action, note.facts, session=session.id, request_id=request_id))

    def finish(
        self,
        active: ActiveRequest,
        *,
        outcome: RequestOutcome,
        error: ApiError | None = None,
        stop_reason: str | None = None,
        estimate: int = 0,
        tool_calls: Sequence[str] = (),
    ) -> None:
        """The request ended; only the first call counts. Call `ProxySession.turn_done` before it.

        `estimate` is the size of its prompt where the upstream did not tell it.
        """
        if active.ended:
            return
        active.sent()
        active.ended = True
        session, cost = active.session, active.cost()
        self.active.remove(active)
        session.last_seen = time.time()
        usage, prompt = cost.usage, cost.usage.prompt or estimate
        event = msgspec.structs.replace(
            active.event,
            outcome=outcome,
            status=error.status if error is not None else 499 if outcome is RequestOutcome.CLIENT_LEFT else 200,
            error_type=error.type if error is not None else None,
            stop_reason=stop_reason,
            duration_s=round(max(0.0, self._clock() - active.arrived), 4),
            held_s=_rounded(active.held_s, 4),
            ttft_s=_rounded(active.ttft_s, 4),
            prefill_s=round(cost.prefill_ms / 1000, 4) if cost.prefill_ms else None,
            decode_s=round(cost.decode_ms / 1000, 4) if cost.decode_ms else None,
            prompt_tokens=prompt or None,
            cached_tokens=usage.cached if usage.prompt else None,
            completion_tokens=usage.completion if prompt + usage.completion else None,
            prefill_rate=_rounded(cost.prefill_rate, 2),
            decode_rate=_rounded(cost.decode_rate, 2),
            draft_tokens=cost.draft,
            accepted_tokens=cost.accepted,
            retries=active.attempt - 1,
            context_window=session.window,
            tool_calls=tuple(name[:LONGEST_NAME] for name in tool_calls[:MOST_NAMES]),
            guardrails=tuple(active.guardrails),
            prompt_estimated=prompt > usage.prompt or None,
        )
        self.requests[event.path, outcome] += 1
        if outcome is RequestOutcome.ERROR:
            self.errors[event.error_type or "unknown"] += 1
        for name, field_name, _ in SUMS:
            if name != "prompt_tokens" or not event.prompt_estimated:
                self.sums[name] += getattr(event if hasattr(event, field_name) else cost, field_name) or 0
        for histogram, seconds in zip(self.histograms, (event.ttft_s, event.duration_s), strict=True):
            if seconds is not None:
                histogram.observe(seconds)
        self.file.write(to_json(event))
        facts = {
            "finish": event.stop_reason or event.outcome,
            "output_tokens": event.completion_tokens,
            "text_len": active.answer.text_chars if active.answer is not None else None,
            "tool_calls": len(tool_calls[:MOST_NAMES]),
            "status": event.status,
            "error": event.error_type,
            "retries": event.retries or None,
            "ttft_s": event.ttft_s,
            "tok_s": event.decode_rate,
        }
        _LOG.log(*line_text("response", facts, session=session.id, request_id=event.request_id))
        tokens, window = session.context_tokens, session.window
        if outcome is RequestOutcome.OK and tokens is not None and window:
            level, left = warning_level(tokens / window), session.turns_remaining(window)
            cuts = {"pruned": session.prunes, "overflows": session.overflows}
            _LOG.log(*context_text(tokens, window, level, left, session.id, **cuts))


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
