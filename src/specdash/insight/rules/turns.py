"""What ended and what guardrails did of late, for rules: dated events where they can be read, else the proxy's counts.

An event is dated by the proxy, so that a first look tells of the minutes before it. A count tells of what came since
specdash watches. Each is a lower bound of what happened, so the larger one holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Outcome
from specdash.core.readings import Status
from specdash.insight.proxy_picture import ended_at, is_error
from specdash.insight.rules.scene import increase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.proxy_events import Action, Guardrail, GuardrailEvent, RequestEvent
    from specdash.insight.rules.scene import Scene


@dataclass(frozen=True, slots=True)
class Turns:
    """Requests that ended. `ended` are their events, newest first, where these can be read."""

    total: int = 0
    errors: int = 0
    left: int = 0
    """Clients that did not wait for the answer."""
    ended: tuple[RequestEvent, ...] = ()

    def share(self, part: float) -> float:
        """`part` of all; 0 where none ended."""
        return part / self.total if self.total else 0.0


def turns_of(scene: Scene, seconds: float) -> Turns:
    """What ended in the last `seconds`."""
    return scene.once(("turns", seconds), lambda: _turns_of(scene, seconds))


def _turns_of(scene: Scene, seconds: float) -> Turns:
    proxy = scene.picture.proxy
    if proxy.events_status is Status.KNOWN:
        ended = tuple(_since(proxy.finished, scene.picture.wall - seconds))
        left = sum(one.outcome is Outcome.CLIENT_LEFT for one in ended)
        return Turns(len(ended), sum(is_error(one) for one in ended), left, ended)
    samples = scene.past.since(scene.now - seconds)
    total, errors, left = (
        int(increase([getattr(one, name) for one in samples]) or 0)
        for name in ("proxy_requests", "proxy_errors", "proxy_left")
    )
    return Turns(total, errors, left)


def _since(finished: Iterable[RequestEvent], since: float) -> Iterable[RequestEvent]:
    for one in finished:
        if not one.at:
            continue
        # They are written as they end, so whatever is older comes after.
        if ended_at(one) < since:
            return
        yield one


def acted(scene: Scene, guardrail: Guardrail, action: Action, seconds: float) -> int:
    """How often a guardrail did that in the last `seconds`."""
    counted = scene.past.grown("guardrails", f"{guardrail}:{action}", seconds)
    return max(len(events_of(scene, guardrail, action, seconds)), int(counted))


def events_of(scene: Scene, guardrail: Guardrail, action: Action, seconds: float) -> list[GuardrailEvent]:
    """Its events, newest first; none where they cannot be read."""
    since = scene.picture.wall - seconds
    events = scene.once("actions", lambda: _by_action(scene.picture.proxy.actions)).get((guardrail, action), ())
    return [event for event in events if event.at >= since]


def _by_action(
    events: Iterable[GuardrailEvent],
) -> Mapping[tuple[Guardrail, Action], Sequence[GuardrailEvent]]:
    found: dict[tuple[Guardrail, Action], list[GuardrailEvent]] = {}
    for event in events:
        found.setdefault((event.guardrail, event.action), []).append(event)
    return found


def sessions_of(events: Iterable[GuardrailEvent]) -> int:
    """How many sessions they belong to."""
    return len({event.session for event in events})
