"""What was read again although a cache had held it: by slot, from the log, and by session, from the proxy's events."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Guardrail, Outcome
from specdash.insight.proxy_picture import ended_at
from specdash.insight.rules.turns import turns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.proxy_events import RequestEvent
    from specdash.insight.picture import RequestPicture
    from specdash.insight.rules.scene import Scene

LEAST_SHARE = 0.5
"""Less than half of what should have been cached was: a shorter shared start is no loss."""
SAME_LENGTH = 0.9
"""A conversation that goes on has at least this share of its former length; a shorter one was compacted."""
LEAST_SIMILAR = 0.5


@dataclass(frozen=True, slots=True)
class Lost:
    """`requests` of the `of` that could have used a cache read again `tokens` that it had held."""

    requests: int = 0
    of: int = 0
    tokens: int = 0
    source: str = "the log"
    conversations: int = 0


def lost_in_slots(scene: Scene, seconds: float, least: float) -> Lost:
    """By slot: requests whose slot was picked because it held the start of their prompt, which was then not used.
    `least` is how many tokens make a loss."""
    could = tokens = requests = 0
    for one in _finished(scene, seconds):
        held = _held(one)
        if held is None or held[0] < least:
            continue
        could += 1
        expected, lost = held
        if lost >= max(least, LEAST_SHARE * expected):
            requests, tokens = requests + 1, tokens + int(lost)
    return Lost(requests, could, tokens)


def takeovers(scene: Scene, seconds: float, least: float) -> Lost:
    """By slot: long prompts that found no slot with their start, took another's, and were read from their start."""
    long = [one for one in _finished(scene, seconds) if _length(one) >= least and one.selected is not None]
    taken = [
        one
        for one in long
        if one.selected == "lru" and (one.prompt_tokens or 0) >= max(least, (1 - LEAST_SHARE) * _length(one))
    ]
    return Lost(len(taken), len(long), sum(one.prompt_tokens or 0 for one in taken))


def lost_by_sessions(scene: Scene, seconds: float, least: float, *, crowded: bool) -> Lost:
    """By session: turns that went on from the turn before and found less than half of it cached. `crowded` asks for
    those between which as many other conversations as there are slots had their turn, else for the others."""
    ended = [one for one in reversed(turns_of(scene, seconds).ended) if one.outcome is Outcome.OK and one.session]
    ended.sort(key=ended_at)
    slots = len(scene.picture.backend.slots or ()) or 1
    uptime = scene.picture.backend.uptime_s
    started = scene.picture.wall - uptime if uptime is not None else 0.0
    by_session: dict[str, list[RequestEvent]] = {}
    for one in ended:
        by_session.setdefault(one.session, []).append(one)
    could = requests = tokens = 0
    for turns in by_session.values():
        for before, after in pairwise(turns):
            held = before.prompt_tokens
            if held is None or held < least or ended_at(before) < started or not _goes_on(before, after):
                continue
            could += 1
            lost = held - (after.cached_tokens or 0)
            if lost < max(least, LEAST_SHARE * held) or _is_crowded(ended, before, after, slots) is not crowded:
                continue
            requests, tokens = requests + 1, tokens + lost
    return Lost(requests, could, tokens, "the proxy's events", len(by_session))


def _goes_on(before: RequestEvent, after: RequestEvent) -> bool:
    """Whether a turn's prompt begins with the one before: longer, of more messages, and not pruned."""
    if before.prompt_tokens is None or after.prompt_tokens is None or after.cached_tokens is None:
        return False
    if any(mark.startswith(Guardrail.CONTEXT_PRUNE) for mark in after.guardrails or ()):
        return False
    if after.prompt_tokens < SAME_LENGTH * before.prompt_tokens or after.model != before.model:
        return False
    return before.messages is None or after.messages is None or after.messages > before.messages


def _is_crowded(ended: Sequence[RequestEvent], before: RequestEvent, after: RequestEvent, slots: int) -> bool:
    """Whether so many others had a turn in between. `ended` is in the order of their ends."""
    between = set()
    for one in islice(ended, bisect_right(ended, ended_at(before), key=ended_at), None):
        if one.session != after.session and one.at < after.at:
            between.add(one.session)
            if len(between) >= slots:
                return True
    return False


def _finished(scene: Scene, seconds: float) -> Sequence[RequestPicture]:
    """Requests of this server that ended of late, and whose prompt's cost is known."""
    uptime = scene.picture.backend.uptime_s
    if uptime is not None:
        seconds = min(seconds, uptime)
    requests = scene.picture.log.requests
    return [one for one in requests if one.ended_age_s <= seconds and one.prompt_tokens is not None]


def _length(request: RequestPicture) -> int:
    """Length of its prompt: said, or what its slot held at the end less the answer."""
    read = request.prompt_tokens or 0
    if request.prompt_total is not None:
        return request.prompt_total
    if request.prompt_cached is not None:
        return read + request.prompt_cached
    if request.slot_tokens is not None and request.decode_tokens is not None:
        return max(read, request.slot_tokens - request.decode_tokens + 1)
    return read


def _held(request: RequestPicture) -> tuple[float, float] | None:
    """How many tokens of its prompt the slot held, and how many of them were read again."""
    if request.selected != "lcp" or request.similarity is None or request.similarity < LEAST_SIMILAR:
        return None
    total = _length(request)
    expected = request.similarity * total
    return expected, expected - (total - (request.prompt_tokens or 0))
