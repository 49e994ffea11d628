"""What several rules ask of a scene: warning classes of late, what the server was started with, what clients got."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.proxy_events import RequestOutcome
from specdash.core.readings import ReadingStatus
from specdash.insight.derive import TOO_BUSY
from specdash.insight.picture import BackendState
from specdash.insight.request import is_error
from specdash.insight.rules.catalogue import UnjudgeableError
from specdash.insight.rules.scene import increase
from specdash.system.text import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.proxy_events import Guardrail, GuardrailAction, GuardrailEvent, RequestEvent
    from specdash.insight.picture import WarningPicture
    from specdash.insight.rules.scene import RuleScene


Fix = tuple[tuple[str, str | None], ...]


def must_see(scene: RuleScene) -> None:
    """Raise `UnjudgeableError` where specdash itself gets no CPU in time: silence then says nothing of a server."""
    if scene.picture.delay is not None and scene.picture.delay.is_starved:
        raise UnjudgeableError(TOO_BUSY)


def warning(scene: RuleScene, name: str) -> WarningPicture | None:
    """A class of which the log has lines."""
    return next((picture for picture in scene.picture.log.warnings if picture.warning == name), None)


def of_late(scene: RuleScene, names: Sequence[str], seconds: float, *, of_this_server: bool) -> list[WarningPicture]:
    """Classes with lines in the last `seconds`; `of_this_server` leaves out those of servers before it."""
    return [
        picture
        for picture in scene.picture.log.warnings
        if picture.warning in names and picture.last_age_s <= seconds and not (of_this_server and picture.is_former)
    ]


def is_gone(scene: RuleScene) -> bool:
    """Whether no server serves now."""
    gone = (BackendState.DOWN, BackendState.STALE, BackendState.LOADING, BackendState.UNKNOWN)
    return scene.picture.backend.state in gone


def touched(found: WarningPicture) -> tuple[tuple[str, str], ...]:
    """Evidence of one class."""
    evidence = [("lines", f"{found.count}"), ("a minute", f"{found.per_minute:.0f}")]
    if found.slots.ids:
        evidence.append(("slots", f"{len(found.slots.ids)}{'+' if found.slots.more else ''}"))
    if found.tasks_touched:
        evidence.append(("tasks", f"{found.tasks_touched}{'+' if found.tasks.more else ''}"))
    return (*evidence, ("sample", found.sample))


def parameter(scene: RuleScene, name: str) -> str | None:
    """A speculation parameter that the server was started with; None where that is not known."""
    return dict(scene.picture.backend.speculation.parameters).get(name)


def flag(scene: RuleScene, *spellings: str) -> str | None:
    """The value of a flag on the server's command line; "" for one without a value, None where there is none."""
    process = scene.picture.backend.process
    words = process.command if process is not None else ()
    for word, after in reversed(list(zip(words, (*words[1:], ""), strict=False))):
        name, equals, value = word.partition("=")
        if name in spellings:
            return value if equals else "" if after.startswith("--") else after
    return None


# What ended and what guardrails did of late: dated events where they can be read, which a first look sees too, else the
# proxy's counts since specdash watches. Each is a lower bound of what happened, so the larger one holds.


class EndedRequests(Struct, frozen=True):
    """Requests that ended. `ended` are their events, newest first, where these can be read."""

    total: int
    errors: int
    left: int
    """Clients that did not wait for the answer."""
    ended: Sequence[RequestEvent] = ()

    def share(self, part: float) -> float:
        """`part` of all; 0 where none ended."""
        return part / self.total if self.total else 0.0


def turns_of(scene: RuleScene, seconds: float) -> EndedRequests:
    """What ended in the last `seconds`."""
    proxy, since = scene.picture.proxy, scene.picture.wall - seconds
    if proxy.events_status is not ReadingStatus.KNOWN:
        total, errors, left = (_counted(scene, name, seconds) for name in ("requests", "errors", "left"))
        return EndedRequests(total, errors, left)
    # They are written as they end, so older ones come after.
    dated = (event for event in proxy.finished if event.at)
    ended = list(takewhile(lambda event: event.at + (event.duration_s or 0.0) >= since, dated))
    left = sum(event.outcome is RequestOutcome.CLIENT_LEFT for event in ended)
    return EndedRequests(len(ended), sum(map(is_error, ended)), left, ended)


class Acts(Struct, frozen=True):
    """What a guardrail did: how often, and its events, newest first, where they can be read."""

    count: int
    events: Sequence[GuardrailEvent]

    @property
    def sessions(self) -> str:
        """How many sessions they belong to."""
        return str(len({event.session for event in self.events}) or UNKNOWN)


def acted(scene: RuleScene, guardrail: Guardrail, action: GuardrailAction, seconds: float) -> Acts:
    """What a guardrail did in the last `seconds`."""
    since, what = scene.picture.wall - seconds, (guardrail, action)
    events = [one for one in scene.picture.proxy.actions if one.at >= since and (one.guardrail, one.action) == what]
    return Acts(max(len(events), _counted(scene, f"{guardrail}:{action}", seconds)), events)


def _counted(scene: RuleScene, name: str, seconds: float) -> int:
    """By how much one of the proxy's own counts grew in the last `seconds`."""
    counts = (sample.guardrails for sample in scene.lately(seconds))
    return int(increase([one.get(name, 0) if one is not None else None for one in counts]) or 0)
