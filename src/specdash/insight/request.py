"""One finished request: what the server's log or the proxy's events tell of it, for screens, rules and JSON."""

from __future__ import annotations

from collections import deque
from itertools import zip_longest
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import astuple, replace

from specdash.core import log_facts
from specdash.core.proxy_events import DECODE, PREFILL, RequestOutcome, RequestPhase, plausible_rate, speed
from specdash.core.readings import Source
from specdash.system.stats import share

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

    from specdash.core.proxy_events import ActiveView, RequestEvent


# Drafted and accepted tokens, added up: the one sum that every window, slot, request and answer is made of.


class DraftTally(Struct, frozen=True):
    """Draft tokens generated and accepted in `steps` verification steps; None where the steps were not counted.

    `per_position` has the accepted tokens by their position in the draft; empty where that is not known. The rest is
    known of traced steps (`VerificationSteps`) alone: `replays` decoded `replayed` tokens again in `replay_s` seconds.
    `span_s` is the time between neighbouring steps of one task, replays among them, and `span_calls` how many of the
    decode calls that time is of: all but the first of a task, and those without a time stamp.
    """

    drafted: float = 0
    accepted: float = 0
    steps: float | None = 0
    per_position: tuple[float, ...] = ()
    replays: int = 0
    replayed: int = 0
    replay_s: float = 0.0
    span_s: float = 0.0
    span_calls: int = 0

    @staticmethod
    def of_steps(fact: log_facts.VerificationSteps, since_s: float | None = None) -> DraftTally:
        """Traced steps; `since_s` is the time stamp of the task's step before them, None where there is none."""
        begin = since_s if since_s is not None else fact.first_s
        calls = fact.steps + fact.replays - (since_s is None)
        timed = begin is not None and fact.at_s is not None and calls > 0
        span_s = max(0.0, (fact.at_s or 0.0) - (begin or 0.0)) if timed else 0.0
        return DraftTally(
            fact.generated, fact.accepted, fact.steps, (), fact.replays, fact.replayed, fact.replay_s, span_s,
            calls if timed else 0,
        )  # fmt: skip

    def __add__(self, other: DraftTally) -> DraftTally:
        return self._with(other, 1)

    def __sub__(self, other: DraftTally) -> DraftTally:
        return self._with(other, -1)

    def _with(self, other: DraftTally, sign: int) -> DraftTally:
        positions = zip_longest(self.per_position, other.per_position, fillvalue=0)
        traced = (mine + sign * its for mine, its in zip(astuple(self)[4:], astuple(other)[4:], strict=True))
        return DraftTally(
            self.drafted + sign * other.drafted,
            self.accepted + sign * other.accepted,
            None if self.steps is None or other.steps is None else self.steps + sign * other.steps,
            tuple(mine + sign * its for mine, its in positions),
            *traced,
        )

    @property
    def acceptance(self) -> float | None:
        """Acceptance rate 0 to 1; None when nothing was drafted, which is not an acceptance of zero."""
        return min(1.0, max(0.0, self.accepted / self.drafted)) if self.drafted > 0 else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per verification step: 1 + accepted / steps."""
        return 1.0 + self.accepted / self.steps if self.steps else None

    @property
    def acceptance_per_position(self) -> tuple[float, ...] | None:
        """Share of the steps whose draft token at each position was accepted; trailing positions never seen are cut."""
        if not self.per_position or not self.steps or self.steps <= 0:
            return None
        last = max((place for place, count in enumerate(self.per_position) if count), default=-1)
        return tuple(min(1.0, count / self.steps) for count in self.per_position[: last + 1])

    @property
    def calls(self) -> float:
        """Decode calls: steps and replays."""
        return (self.steps or 0) + self.replays

    @property
    def tokens(self) -> float:
        """Tokens that the calls brought: those accepted, and one a call."""
        return self.accepted + self.calls

    @property
    def decode_s(self) -> float | None:
        """The time of all calls; None where the log has no time stamps."""
        return self.span_s * self.calls / self.span_calls if self.span_calls else None


NO_DRAFTS = DraftTally()


class ServedRequest(Struct):
    """One request as reported by `source`; unknown fields are None. Read-only once it is complete.

    Timings come from the lines at the end of the request, and are missing from cancelled and failed ones. `slot` and
    `task` are None where a timing block has lost its header. Times `started_s` and `at_s` (its end, or the last line
    about it) are seconds since the server's start; `began` and `ended` are Unix times, 0 until they are known, and
    `ended_age_s` is how long ago it ended in the picture that shows it.
    """

    slot: int | None = None
    task: int | None = None
    origin: int | None = None
    instance: int = 1
    """Which start of its server it belongs to, counted from the first that the log has."""
    build: str | None = None
    """The build of that start, where the log has it."""
    started_s: float | None = None
    at_s: float | None = None
    prompt_total_tokens: int | None = None
    """Length of the prompt, where known."""
    prompt_cached: int | None = None
    """How many of its tokens the slot held already, where known."""
    processed_tokens: int | None = None
    """How many of its tokens were processed: total less cached."""
    prompt_ms: float | None = None
    decode_tokens: int | None = None
    decode_ms: float | None = None
    total_ms: float | None = None
    draft_generated: int | None = None
    draft_accepted: int | None = None
    mean_accepted_length: float | None = None
    acceptance_per_position: tuple[float, ...] | None = None
    decode_tokens_seen: int | None = None
    """Tokens generated by the last progress line: all that is known of a cancelled request."""
    steps: DraftTally = NO_DRAFTS
    """Verification steps seen (LLAMA_TRACE=1)."""
    truncated: bool | None = None
    slot_tokens: int | None = None
    """How many tokens the slot held at its end: prompt and answer."""
    selected: str | None = None
    """Why it got its slot: `lcp` (shared prefix), `lru` (the one unused longest) or `id`."""
    similarity: float | None = None
    """Share of its prompt that the slot held already, where that is why."""
    kept: float | None = None
    """Share of what the slot held that was its prompt's start, likewise."""
    no_checkpoint: bool = False
    """It was read from its start because no checkpoint was left to go back to."""
    cancelled: bool = False
    error: str | None = None
    finished: bool = False
    """False for a request whose end the log does not tell: still running, or cut short with its server."""
    source: Source = Source.LOG
    """LOG or PROXY_EVENTS. Only the proxy knows the three that follow."""
    session: str | None = None
    proxy_ttft_s: float | None = None
    proxy_rates: tuple[float | None, float | None] = (None, None)
    """Prefill and decode speed, in tokens per second."""
    changed: str | None = None
    """What the proxy says of its prompt: see `core.proxy_events.PromptChange`."""
    changed_at: float | None = None
    known_share: float | None = None
    began: float = 0.0
    ended: float = 0.0
    ended_age_s: float = 0.0

    @property
    def timed(self) -> bool:
        """Whether any of the lines that end a request were seen."""
        return self.prompt_ms is not None or self.decode_ms is not None or self.draft_generated is not None

    @property
    def completed(self) -> bool:
        """Whether it ran to its end: neither cancelled, nor failed, nor cut off."""
        return self.finished and not self.cancelled and self.error is None

    @property
    def prompt_tokens(self) -> int | None:
        """Length of the prompt, cached tokens included: reported, or what the slot held at the end less the answer."""
        processed = self.processed_tokens
        if self.prompt_total_tokens is not None:
            return self.prompt_total_tokens
        if processed is not None and self.prompt_cached is not None:
            return processed + self.prompt_cached
        if self.slot_tokens is not None and self.decode_tokens and not self.truncated:
            # The last token of an answer is not put into the slot any more.
            return max(processed or 0, self.slot_tokens - self.decode_tokens + 1)
        return None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were not processed: after a restored checkpoint less than was held is used."""
        length = self.prompt_tokens
        if self.source is not Source.LOG or length is None or self.processed_tokens is None:
            return self.prompt_cached
        return max(0, length - self.processed_tokens)

    @property
    def cached_share(self) -> float | None:
        """Cached over prompt tokens."""
        length, cached = self.prompt_tokens, self.cached_tokens
        return cached / length if length and cached is not None else None

    @property
    def drafts(self) -> DraftTally:
        """Its draft tokens; nothing where they are not known. Untraced steps are from the printed mean length, which
        has two decimals, replays not counted."""
        if not self.draft_generated or self.draft_accepted is None:
            return NO_DRAFTS
        steps, length = self.steps.steps or 0, self.mean_accepted_length or 0.0
        if not steps and self.draft_accepted and length > 1:
            steps = round(self.draft_accepted / (length - 1))
        positions = tuple(steps * rate for rate in self.acceptance_per_position or ())
        return DraftTally(self.draft_generated, self.draft_accepted, steps, positions)

    @property
    def acceptance(self) -> float | None:
        """Accepted over generated draft tokens."""
        return self.drafts.acceptance if self.draft_generated else None

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens processed per second; None where they are too few to tell."""
        of_log = self.source is Source.LOG
        return speed(self.processed_tokens, self.prompt_ms, PREFILL) if of_log else self.proxy_rates[0]

    @property
    def decode_rate(self) -> float | None:
        """Generated tokens per second; None where they are too few to tell."""
        of_log = self.source is Source.LOG
        return speed(self.decode_steps, self.decode_ms, DECODE) if of_log else self.proxy_rates[1]

    @property
    def decode_steps(self) -> int | None:
        """Tokens that decode made: all but the first, which is the prompt's and from which its time runs."""
        return self.decode_tokens - 1 if self.decode_tokens else None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token as the client had it, else the time that the prompt took."""
        return self.proxy_ttft_s if self.source is not Source.LOG else _seconds(self.prompt_ms)

    @property
    def decode_s(self) -> float | None:
        """From the first generated token to the last: the time of `decode_steps`."""
        return _seconds(self.decode_ms)

    @property
    def duration_s(self) -> float:
        """How long it ran; 0 where that is not known."""
        if self.started_s is not None and self.at_s is not None and self.at_s >= self.started_s:
            return self.at_s - self.started_s
        parts = (self.prompt_ms or 0.0) + (self.decode_ms or 0.0)
        return _seconds(self.total_ms if self.total_ms is not None else parts) or 0.0

    def aged(self, age_s: float) -> ServedRequest:
        """The same, `age_s` seconds after its end."""
        return replace(self, ended_age_s=age_s)

    def date(self, ended: float) -> None:
        """Say when it ended, in Unix time."""
        self.began, self.ended = ended - self.duration_s, ended


def drafts_of(requests: Iterable[ServedRequest]) -> DraftTally:
    """The draft tokens of all of them."""
    # Numbers are added here and made a tally once: thousands of requests are looked at every second.
    drafted = accepted = 0
    for request in requests:
        if request.draft_generated and request.draft_accepted is not None:
            drafted, accepted = drafted + request.draft_generated, accepted + request.draft_accepted
    return DraftTally(drafted, accepted, None)


def of_event(event: RequestEvent) -> ServedRequest:
    """The request of a proxy's event."""
    prompt, cached = event.prompt_tokens, event.cached_tokens
    processed = max(0, prompt - (cached or 0)) if prompt is not None else None
    rates = (
        plausible_rate(event.prefill_rate, processed or 0, PREFILL),
        plausible_rate(event.decode_rate, event.completion_tokens or 0, DECODE),
    )
    return ServedRequest(
        prompt_total_tokens=prompt,
        prompt_cached=cached,
        processed_tokens=processed if cached is not None else None,
        decode_tokens=event.completion_tokens,
        decode_ms=event.decode_s * 1000.0 if event.decode_s is not None else None,
        draft_generated=event.draft_tokens,
        draft_accepted=event.accepted_tokens,
        finished=True,
        source=Source.PROXY_EVENTS,
        session=event.session or None,
        proxy_ttft_s=event.ttft_s if 0.0 < (event.ttft_s or 0.0) < inf else None,
        proxy_rates=rates,
        changed=event.changed,
        changed_at=event.changed_at,
        known_share=event.known_share,
        began=event.at,
        ended=event.at + (event.duration_s or 0.0),
    )


def _seconds(ms: float | None) -> float | None:
    return ms / 1000.0 if ms is not None and 0.0 < ms < inf else None


def acceptance(request: RequestEvent | ActiveView) -> float | None:
    """Accepted over drafted tokens."""
    return share(request.accepted_tokens, request.draft_tokens)


def cache_share(request: RequestEvent | ActiveView) -> float | None:
    """The part of the prompt that came from the cache."""
    return share(request.cached_tokens, request.prompt_tokens)


def prefill_progress(request: ActiveView) -> float | None:
    """The part of the prompt that is processed."""
    if request.phase is RequestPhase.PREFILL:
        return share(request.prompt_done, request.prompt_tokens)
    return 1.0 if request.phase in (RequestPhase.DECODE, RequestPhase.DONE) else None


def is_error(request: RequestEvent) -> bool:
    """Whether the client got an error."""
    return request.outcome is RequestOutcome.ERROR


def ended_how(request: RequestEvent) -> str:
    """Stop reason, error type, or that the client left."""
    if request.outcome is RequestOutcome.CLIENT_LEFT:
        return "client left"
    if is_error(request):
        return request.error_type or (f"HTTP {request.status}" if request.status is not None else "error")
    return request.stop_reason or "ok"


# Finished requests as samples: what each shows of speed and acceptance, and when it ran. Bounded; outlives servers.


KEPT = 4096
OWN_WITHIN_S = 120.0
"""A check of the start and the baseline after it take less: later ones with the same task are another server's."""
HELD_S = 0.05
"""A request that the proxy held longer waited for something else than the server."""


class Samples:
    """The latest requests, of the log and of the proxy's events, each in the order in which they ended."""

    def __init__(self) -> None:
        self.logged: deque[ServedRequest] = deque(maxlen=KEPT)
        self.reported: dict[tuple[str, float], ServedRequest] = {}
        """The proxy's reports by request and time of arrival: its file may be read twice."""
        self.version = 0
        """Grows whenever a sample came."""
        self.rebuilt: tuple[ServedRequest, ServedRequest] | None = None
        """The last request of a server and the first of the next one, where that is of another build."""
        self._undated: deque[tuple[float, ServedRequest]] = deque(maxlen=KEPT)

    def add_logged(self, ended: float, request: ServedRequest) -> None:
        """Take in a request of the log that ended at monotonic `ended`."""
        if request.completed and request.timed:
            self._undated.append((ended, request))

    def add_event(self, event: RequestEvent) -> None:
        """Take in a request of the proxy's events."""
        if event.outcome is not RequestOutcome.OK or event.duration_s is None or not event.at:
            return
        if event.retries or (event.held_s or 0.0) > HELD_S:
            return
        key = (event.request_id, event.at)
        if key in self.reported:
            return
        while len(self.reported) >= KEPT:
            del self.reported[next(iter(self.reported))]
        self.reported[key] = of_event(event)
        self.version += 1

    def leave_out(self, tasks: Collection[int], near: float) -> None:
        """Take out requests of the log with these tasks that ended around Unix time `near`: they are no client's."""
        kept = [
            sample
            for sample in self.logged
            if sample.task not in tasks or sample.origin is not None or abs(sample.ended - near) > OWN_WITHIN_S
        ]
        if len(kept) < len(self.logged):
            self.logged = deque(kept, maxlen=KEPT)
            self.version += 1

    def date(self, now: float, wall: float) -> None:
        """Give the requests of the log that came since the last call their Unix times; `now` and `wall` are one moment.

        Soon after they came, so that a clock that is set or a machine that sleeps does not move them.
        """
        while self._undated:
            at, request = self._undated.popleft()
            request.date(at + wall - now)
            before = self.logged[-1] if self.logged else None
            if before is not None and before.build and request.build and before.build != request.build:
                self.rebuilt = (before, request)
            self.logged.append(request)
            self.version += 1


# Whole requests, put together from the facts that the log gives about them one by one.
#
# A request is what one slot does between `processing task` and `stop processing`. Requests of several slots
# interleave; within one slot they follow each other. What a request keeps is bounded by the number of slots, so the
# same assembler serves a live log.


_MAX_ENDED = 256


_COPIED: dict[type[log_facts.LogFact], tuple[tuple[str, str], ...]] = {
    log_facts.PromptStarted: (("prompt_total_tokens", "prompt_tokens"),),
    log_facts.PromptReused: (("prompt_cached", "cached_tokens"),),
    log_facts.PrefillProgress: (),
    log_facts.DecodeProgress: (("decode_tokens_seen", "n_decoded"),),
    log_facts.PromptTiming: (("prompt_ms", "ms"), ("processed_tokens", "tokens")),
    log_facts.DecodeTiming: (("decode_ms", "ms"), ("decode_tokens", "tokens")),
    log_facts.TotalTiming: (("total_ms", "ms"),),
    log_facts.RequestAcceptance: (
        ("draft_generated", "generated"),
        ("draft_accepted", "accepted"),
        ("mean_accepted_length", "mean_accepted_length"),
        ("acceptance_per_position", "per_position"),
    ),
    log_facts.AcceptancePerPosition: (("acceptance_per_position", "rates"),),
}
"""Which fields of a request have which fields of a fact about it, where those are known."""
_ONCE = frozenset({"prompt_ms", "decode_ms", "total_ms", "draft_generated"})
"""Of a line that comes once: what has it already is another request."""


class RequestAssembler:
    """Consumes facts in the order of the log, and gives back requests as they end."""

    def __init__(self, instance: int = 1, port: int | None = None) -> None:
        self._port = port
        self.instance = instance
        """Which start of the server writes now."""
        self._build: str | None = None
        self._open: dict[int | None, ServedRequest] = {}
        """By slot; None for timings that name no slot."""
        self._ended: deque[int | None] = deque(maxlen=_MAX_ENDED)
        self._selections: dict[int, log_facts.SlotSelected] = {}
        """How slots were picked whose tasks have not begun yet."""
        self._done: list[ServedRequest] = []

    def feed(self, facts: Iterable[log_facts.LogFact]) -> list[ServedRequest]:
        """Take facts in; give the requests that ended, in the order in which they did."""
        for fact in facts:
            self._take(fact)
        done, self._done = self._done, []
        return done

    def close(self) -> list[ServedRequest]:
        """End all: give the requests that are still open, those without a known end with `finished` False."""
        for key in list(self._open):
            self._end(key)
        return self.feed(())

    def _take(self, fact: log_facts.LogFact) -> None:
        match fact:
            case log_facts.VerificationSteps():
                self._of(fact).steps += DraftTally.of_steps(fact)
            case log_facts.SlotSelected():
                if (known := self._open.get(fact.slot)) is not None and known.finished:
                    self._end(fact.slot)
                self._selections[fact.slot] = fact
            case log_facts.TaskLaunched():
                self._launched(fact)
            case log_facts.CheckpointEvent(action="full_reprocess") if fact.slot in self._open:
                self._open[fact.slot].no_checkpoint = True
            case log_facts.TaskReleased():
                self._released(fact)
            case log_facts.TaskCancelled():
                self._stopped(fact, None)
            case log_facts.TaskFailed():
                self._stopped(fact, fact.error)
            case log_facts.ServerEvent():
                self._event(fact)
            case _ if (copied := _COPIED.get(type(fact))) is not None:
                self._copy(fact, copied)

    def _launched(self, fact: log_facts.TaskLaunched) -> None:
        self._end(fact.slot)
        request = self._of(fact)
        request.started_s = fact.at_s
        if (selection := self._selections.pop(fact.slot, None)) is not None:
            request.selected, request.similarity, request.kept = selection.how, selection.similarity, selection.kept

    def _released(self, fact: log_facts.TaskReleased) -> None:
        request = self._open.get(fact.slot)
        if request is not None and request.task == fact.task:
            request.at_s, request.truncated, request.slot_tokens = fact.at_s, fact.truncated, fact.n_tokens
            request.finished = True
            # Builds until 2025 print the timings after it.
            if request.timed or request.cancelled or request.error is not None:
                self._end(fact.slot)

    def _event(self, fact: log_facts.ServerEvent) -> None:
        if fact.name == "restarted":
            for key in list(self._open):
                self._end(key)
            self._ended.clear()
            self.instance, self._build = self.instance + 1, None
        elif (build := fact.get("build")) is not None:
            self._build = build if build != "0" else None

    def _copy(self, fact: Any, copied: Sequence[tuple[str, str]]) -> None:
        known = self._open.get(fact.slot)
        first = copied[0][0] if copied else ""
        if known is not None and not isinstance(fact, log_facts.AcceptancePerPosition):
            # So is what has its timings, where the line comes before those.
            is_other = getattr(known, first) is not None if first in _ONCE else known.timed
            if is_other:
                self._end(fact.slot)
        request = self._of(fact)
        for name, key in copied:
            value = getattr(fact, key)
            if value is not None and (name != "prompt_cached" or request.prompt_cached is None):
                setattr(request, name, value)

    def _of(self, fact: Any) -> ServedRequest:
        """The open request that the fact is about; another request of the slot ends with it."""
        request = self._open.get(fact.slot)
        if request is None or request.task != fact.task:
            self._end(fact.slot)
            self._end(None)
            request = ServedRequest(fact.slot, fact.task, self._port, self.instance, self._build)
            self._open[fact.slot] = request
        request.at_s = fact.at_s
        return request

    def _end(self, key: int | None) -> None:
        request = self._open.pop(key, None)
        if request is not None:
            request.finished = request.finished or request.timed
            self._ended.append(request.task)
            self._done.append(request)

    def _stopped(self, fact: log_facts.TaskCancelled | log_facts.TaskFailed, error: str | None) -> None:
        """Mark the request; one that no slot had begun ends here, and one that ended before stays as it was."""
        request = next((known for known in self._open.values() if known.task == fact.task), None)
        if request is None:
            if fact.task in self._ended:
                return
            request = ServedRequest(None, fact.task, self._port, self.instance, self._build, at_s=fact.at_s)
            request.finished = True
            self._end(None)
            self._open[None] = request
        request.error = error or request.error
        # The server cancels what failed, too.
        request.cancelled = request.error is None
        if request.finished:
            self._end(request.slot)
