"""What several rules ask of a scene: warning classes of late, what the server was started with, figures in words."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.proxy_events import Guardrail, RequestOutcome
from specdash.core.readings import ReadingStatus
from specdash.insight.derive import TOO_BUSY
from specdash.insight.picture import BackendState, ended_at, is_error
from specdash.insight.rules.catalogue import UnjudgeableError
from specdash.insight.rules.scene import increase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdash.core.proxy_events import GuardrailAction, GuardrailEvent, RequestEvent
    from specdash.insight.picture import WarningPicture
    from specdash.insight.request import ServedRequest
    from specdash.insight.rules.scene import PictureSample, RuleScene


Fix = tuple[tuple[str, str | None], ...]
_GONE = (BackendState.DOWN, BackendState.STALE, BackendState.LOADING, BackendState.UNKNOWN)


def must_see(scene: RuleScene) -> None:
    """Raise `UnjudgeableError` where specdash itself gets no CPU in time: silence then says nothing of a server."""
    delay = scene.picture.delay
    if delay is not None and delay.is_starved:
        raise UnjudgeableError(TOO_BUSY)


def warning(scene: RuleScene, name: str) -> WarningPicture | None:
    """A class of which the log has lines."""
    return next((picture for picture in scene.picture.log.warnings if picture.warning == name), None)


def per_minute(scene: RuleScene, *names: str) -> float:
    """Lines of these classes in the last minute."""
    return sum(picture.per_minute for picture in scene.picture.log.warnings if picture.warning in names)


def of_late(scene: RuleScene, names: Sequence[str], seconds: float, *, of_this_server: bool) -> list[WarningPicture]:
    """Classes with lines in the last `seconds`; `of_this_server` leaves out those of servers before it."""
    return [
        picture
        for picture in scene.picture.log.warnings
        if picture.warning in names and picture.last_age_s <= seconds and not (of_this_server and picture.is_former)
    ]


def is_gone(scene: RuleScene) -> bool:
    """Whether no server serves now."""
    return scene.picture.backend.state in _GONE


def touched(found: WarningPicture) -> tuple[tuple[str, str], ...]:
    """Evidence of one class."""
    evidence = [("lines", f"{found.count}"), ("a minute", f"{found.per_minute:.0f}")]
    if found.slots:
        evidence.append(("slots", f"{len(found.slots)}{'+' if found.slots_at_least else ''}"))
    if found.tasks_touched:
        evidence.append(("tasks", f"{found.tasks_touched}{'+' if found.tasks_at_least else ''}"))
    return (*evidence, ("sample", found.sample))


def parameter(scene: RuleScene, name: str) -> str | None:
    """A speculation parameter that the server was started with; None where that is not known."""
    return dict(scene.picture.backend.speculation.parameters).get(name)


def flag(scene: RuleScene, *spellings: str) -> str | None:
    """The value of a flag on the server's command line; "" for one without a value, None where there is none."""
    process = scene.picture.backend.process
    words = process.command if process is not None else ()
    for index in range(len(words) - 1, -1, -1):
        word, equals, value = words[index].partition("=")
        if word in spellings:
            if equals:
                return value
            after = words[index + 1] if index + 1 < len(words) else ""
            return "" if after.startswith("--") else after
    return None


def more_context(scene: RuleScene) -> Fix:
    """Twice the context; nothing where its size is not known."""
    slots = scene.picture.backend.slots or ()
    sizes = [slot.n_ctx for slot in slots if slot.n_ctx]
    given = flag(scene, "-c", "--ctx-size")
    if given is not None and given.isdigit() and int(given):
        total = int(given)
    elif sizes:
        total = max(sizes) if flag(scene, "-kvu", "--kv-unified") is not None else sum(sizes)
    else:
        return ()
    return (("LLAMA_CTX_SIZE", str(2 * total)),)


class CounterGrowth(Struct, frozen=True):
    """How much totals grew, and in how many looks the first of them did."""

    totals: tuple[float, ...]
    times: int


def grown_while_still(
    samples: Sequence[PictureSample],
    still: Callable[[PictureSample], float | None],
    *grows: Callable[[PictureSample], float | None],
) -> CounterGrowth:
    """How much totals grew since the total `still` moved last; nothing where one is unknown or was reset."""
    grown, times = [0.0] * len(grows), 0
    if not samples or grows[0](samples[0]) == grows[0](samples[-1]):
        return CounterGrowth(tuple(grown), times)
    after: PictureSample | None = None
    for before in reversed(samples):
        if after is None or (before.totals is after.totals and before.live is after.live):
            # Samples that share their tables saw nothing move.
            after = before
            continue
        held = still(before)
        gains = [_gain(grow(before), grow(after)) for grow in grows]
        if held is None or held != still(after) or None in gains:
            break
        grown = [total + (gain or 0.0) for total, gain in zip(grown, gains, strict=True)]
        times += bool(gains[0])
        after = before
    return CounterGrowth(tuple(grown), times)


def _gain(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None


# What ended and what guardrails did of late, for rules: dated events where they can be read, else the proxy's counts.
#
# An event is dated by the proxy, so that a first look tells of the minutes before it. A count tells of what came
# since specdash watches. Each is a lower bound of what happened, so the larger one holds.


class EndedRequests(Struct, frozen=True):
    """Requests that ended. `ended` are their events, newest first, where these can be read."""

    total: int = 0
    errors: int = 0
    left: int = 0
    """Clients that did not wait for the answer."""
    ended: tuple[RequestEvent, ...] = ()

    def share(self, part: float) -> float:
        """`part` of all; 0 where none ended."""
        return part / self.total if self.total else 0.0


def turns_of(scene: RuleScene, seconds: float) -> EndedRequests:
    """What ended in the last `seconds`."""
    return scene.once(("turns", seconds), lambda: _turns_of(scene, seconds))


def _turns_of(scene: RuleScene, seconds: float) -> EndedRequests:
    proxy = scene.picture.proxy
    if proxy.events_status is ReadingStatus.KNOWN:
        ended = tuple(_since(proxy.finished, scene.picture.wall - seconds))
        left = sum(request_event.outcome is RequestOutcome.CLIENT_LEFT for request_event in ended)
        return EndedRequests(len(ended), sum(is_error(request_event) for request_event in ended), left, ended)
    samples = scene.past.since(scene.now - seconds)
    total, errors, left = (
        int(increase([getattr(sample, name) for sample in samples]) or 0)
        for name in ("proxy_requests", "proxy_errors", "proxy_left")
    )
    return EndedRequests(total, errors, left)


def _since(finished: Iterable[RequestEvent], since: float) -> Iterable[RequestEvent]:
    for request_event in finished:
        if not request_event.at:
            continue
        # They are written as they end, so older ones come after.
        if ended_at(request_event) < since:
            return
        yield request_event


def acted(scene: RuleScene, guardrail: Guardrail, action: GuardrailAction, seconds: float) -> int:
    """How often a guardrail did that in the last `seconds`."""
    counted = scene.past.grown("guardrails", f"{guardrail}:{action}", seconds)
    return max(len(events_of(scene, guardrail, action, seconds)), int(counted))


def events_of(scene: RuleScene, guardrail: Guardrail, action: GuardrailAction, seconds: float) -> list[GuardrailEvent]:
    """Its events, newest first; none where they cannot be read."""
    since = scene.picture.wall - seconds
    events = scene.once("actions", lambda: _by_action(scene.picture.proxy.actions)).get((guardrail, action), ())
    return [event for event in events if event.at >= since]


def _by_action(
    events: Iterable[GuardrailEvent],
) -> Mapping[tuple[Guardrail, GuardrailAction], Sequence[GuardrailEvent]]:
    found: dict[tuple[Guardrail, GuardrailAction], list[GuardrailEvent]] = {}
    for event in events:
        found.setdefault((event.guardrail, event.action), []).append(event)
    return found


def sessions_of(events: Iterable[GuardrailEvent]) -> int:
    """How many sessions they belong to."""
    return len({event.session for event in events})


# What was read again although a cache had held it: by slot, from the log, and by session, from the proxy's events.


LEAST_SHARE = 0.5
"""Less than half of what should have been cached was: a shorter shared start is no loss."""
SAME_LENGTH = 0.9
"""A conversation that goes on has at least this share of its former length; a shorter one was compacted."""
LEAST_SIMILAR = 0.5


class LostCache(Struct, frozen=True):
    """`requests` of the `of` that could have used a cache read again `tokens` that it had held."""

    requests: int = 0
    of: int = 0
    tokens: int = 0
    source: str = "the log"
    conversations: int = 0


def lost_in_slots(scene: RuleScene, seconds: float, least: float) -> LostCache:
    """By slot: requests whose slot was picked because it held the start of their prompt, which was then not used.
    `least` is how many tokens make a loss."""
    could = tokens = requests = 0
    for picture in _finished(scene, seconds):
        held = _held(picture)
        if held is None or held[0] < least:
            continue
        could += 1
        expected, lost = held
        if lost >= max(least, LEAST_SHARE * expected):
            requests, tokens = requests + 1, tokens + int(lost)
    return LostCache(requests, could, tokens)


def takeovers(scene: RuleScene, seconds: float, least: float) -> LostCache:
    """By slot: long prompts that found no slot with their start, took another's, and were read from their start."""
    long = [
        picture for picture in _finished(scene, seconds) if _length(picture) >= least and picture.selected is not None
    ]
    taken = [
        picture
        for picture in long
        if picture.selected == "lru"
        and (picture.processed_tokens or 0) >= max(least, (1 - LEAST_SHARE) * _length(picture))
    ]
    return LostCache(len(taken), len(long), sum(picture.processed_tokens or 0 for picture in taken))


def lost_by_sessions(scene: RuleScene, seconds: float, least: float, *, crowded: bool) -> LostCache:
    """By session: turns that went on from the turn before and found less than half of it cached. `crowded` asks for
    those between which as many other conversations as there are slots had their turn, else for the others."""
    both = scene.once(("lost by sessions", seconds, least), lambda: _lost_by_sessions(scene, seconds, least))
    return both[crowded]


def _lost_by_sessions(scene: RuleScene, seconds: float, least: float) -> tuple[LostCache, LostCache]:
    ended = [
        request_event
        for request_event in reversed(turns_of(scene, seconds).ended)
        if request_event.outcome is RequestOutcome.OK and request_event.session
    ]
    ended.sort(key=ended_at)
    slots = len(scene.picture.backend.slots or ()) or 1
    uptime = scene.picture.backend.uptime_s
    started = scene.picture.wall - uptime if uptime is not None else 0.0
    newest: dict[str, RequestEvent] = {}
    could, requests, tokens = 0, [0, 0], [0, 0]
    for after in ended:
        before = newest.get(after.session)
        newest[after.session] = after
        held = before.prompt_tokens if before is not None else None
        if before is None or held is None or held < least or ended_at(before) < started or not _goes_on(before, after):
            continue
        could += 1
        lost = held - (after.cached_tokens or 0)
        if lost < max(least, LEAST_SHARE * held):
            continue
        crowded = _is_crowded(ended, before, after, slots)
        requests[crowded] += 1
        tokens[crowded] += lost
    words, sessions = "the proxy's events", len(newest)
    alone, among = (LostCache(requests[i], could, tokens[i], words, sessions) for i in (False, True))
    return alone, among


def _goes_on(before: RequestEvent, after: RequestEvent) -> bool:
    """Whether a turn's prompt begins with the one before: longer, of more messages, and not pruned."""
    if before.prompt_tokens is None or after.prompt_tokens is None or after.cached_tokens is None:
        return False
    if after.prompt_tokens < SAME_LENGTH * before.prompt_tokens or after.model != before.model:
        return False
    if after.guardrails and any(mark.startswith(Guardrail.CONTEXT_PRUNE) for mark in after.guardrails):
        return False
    return before.messages is None or after.messages is None or after.messages > before.messages


def _is_crowded(ended: Sequence[RequestEvent], before: RequestEvent, after: RequestEvent, slots: int) -> bool:
    """Whether so many others had a turn in between. `ended` is in the order of their ends."""
    between = set()
    for request_event in islice(ended, bisect_right(ended, ended_at(before), key=ended_at), None):
        if request_event.session != after.session and request_event.at < after.at:
            between.add(request_event.session)
            if len(between) >= slots:
                return True
    return False


def _finished(scene: RuleScene, seconds: float) -> Sequence[ServedRequest]:
    """Requests of this server that ended of late, and whose prompt's cost is known."""
    uptime = scene.picture.backend.uptime_s
    if uptime is not None:
        seconds = min(seconds, uptime)
    requests = scene.picture.log.requests
    return [request for request in requests if request.ended_age_s <= seconds and request.processed_tokens is not None]


def _length(request: ServedRequest) -> int:
    return request.prompt_tokens or request.processed_tokens or 0


def _held(request: ServedRequest) -> tuple[float, float] | None:
    """How many tokens of its prompt the slot held, and how many of them were read again."""
    if request.selected != "lcp" or request.similarity is None or request.similarity < LEAST_SIMILAR:
        return None
    total = _length(request)
    expected = request.similarity * total
    return expected, expected - (total - (request.processed_tokens or 0))
