"""What several rules ask of a scene: warning classes of late, what the server was started with, figures in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.insight.liveness import TOO_BUSY
from specdash.insight.picture import BackendState
from specdash.insight.rules.catalogue import UnjudgeableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.insight.picture import WarningPicture
    from specdash.insight.rules.scene import Sample, Scene

Fix = tuple[tuple[str, str | None], ...]
_GONE = (BackendState.DOWN, BackendState.STALE, BackendState.LOADING, BackendState.UNKNOWN)


def must_see(scene: Scene) -> None:
    """Raise `UnjudgeableError` where specdash itself gets no CPU in time: a silence is nobody's then."""
    delay = scene.picture.delay
    if delay is not None and delay.is_starved:
        raise UnjudgeableError(TOO_BUSY)


def warning(scene: Scene, name: str) -> WarningPicture | None:
    """A class of which the log has lines."""
    return next((one for one in scene.picture.log.warnings if one.warning == name), None)


def per_minute(scene: Scene, *names: str) -> float:
    """Lines of these classes in the last minute."""
    return sum(one.per_minute for one in scene.picture.log.warnings if one.warning in names)


def of_late(scene: Scene, names: Sequence[str], seconds: float, *, of_this_server: bool) -> list[WarningPicture]:
    """Classes with lines in the last `seconds`; `of_this_server` leaves out those of servers before it."""
    return [
        one
        for one in scene.picture.log.warnings
        if one.warning in names and one.last_age_s <= seconds and not (of_this_server and one.is_former)
    ]


def is_gone(scene: Scene) -> bool:
    """Whether nobody serves now."""
    return scene.picture.backend.state in _GONE


def touched(found: WarningPicture) -> tuple[tuple[str, str], ...]:
    """Evidence of one class."""
    evidence = [("lines", f"{found.count}"), ("a minute", f"{found.per_minute:.0f}")]
    if found.slots:
        evidence.append(("slots", f"{len(found.slots)}{'+' if found.slots_at_least else ''}"))
    if found.tasks_touched:
        evidence.append(("tasks", f"{found.tasks_touched}{'+' if found.tasks_at_least else ''}"))
    return (*evidence, ("sample", found.sample))


def parameter(scene: Scene, name: str) -> str | None:
    """A speculation parameter that the server was started with; None where that is not known."""
    return dict(scene.picture.backend.speculation.parameters).get(name)


def flag(scene: Scene, *spellings: str) -> str | None:
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


def more_context(scene: Scene) -> Fix:
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


@dataclass(frozen=True, slots=True)
class Growth:
    """How much totals grew, and in how many looks the first of them did."""

    totals: tuple[float, ...]
    times: int


def grown_while_still(
    samples: Sequence[Sample], still: Callable[[Sample], float | None], *grows: Callable[[Sample], float | None]
) -> Growth:
    """How much totals grew since the total `still` moved last; nothing where one is not known or began anew."""
    grown, times = [0.0] * len(grows), 0
    if not samples or grows[0](samples[0]) == grows[0](samples[-1]):
        return Growth(tuple(grown), times)
    after: Sample | None = None
    for before in reversed(samples):
        if after is None or (before.totals is after.totals and before.live is after.live):
            # Samples that share their tables saw nothing move.
            after = before
            continue
        held = still(before)
        gains = [_gain(one(before), one(after)) for one in grows]
        if held is None or held != still(after) or None in gains:
            break
        grown = [total + (gain or 0.0) for total, gain in zip(grown, gains, strict=True)]
        times += bool(gains[0])
        after = before
    return Growth(tuple(grown), times)


def _gain(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None
