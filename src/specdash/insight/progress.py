"""No progress, and why: one judgement from tokens, decode calls, the log's age, the GPU and the endpoints.

A server that gives no token may be well (a long prompt is read, this machine is too busy to look) or may never give one
again (a step that repeats, a wedge, a kernel that hangs, a dead process). What to do differs, so each has its name.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.readings import FailureKind, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.readings import Reading, Slot, Slots
    from specdash.insight.log.log_view import SlotSteps

NEVER_BLOCKS = 10420
"""Since this build /metrics and /slots answer while the server decodes: where they hang, its inference loop does."""
WEDGED_AFTER_S = 30.0
REPEATED = 20
"""Equal steps in a row that are no accident: a tie between two tokens is broken long before."""
REPEATED_FOR_S = 5.0
ALONE_S = 10.0
"""A slot that moved within so long decodes too, and the decode calls may be its own."""
STARVED_SHARE = 0.5
"""A server that waited for a CPU for so much of the time is slow, and not stuck."""


class Standstill(StrEnum):
    """Why nothing comes."""

    NONE = "none"
    PREFILL = "a long prompt is read"
    STARVED = "specdash gets no CPU in time"
    REPEATS = "one verification step repeats"
    STUCK = "no token comes"
    WEDGED = "the inference loop is stuck"
    LATE = "some endpoints do not answer in time"
    SILENT = "nothing answers"
    STOPPED = "a signal stopped it"
    DEAD = "its process has ended"


class ServerSigns(Struct, frozen=True):
    """What is seen of a server; None is unknown, and seconds are those up to now without a break."""

    health: FailureKind | None = None
    """Why /health did not answer; None where it did."""
    ended: bool = False
    """The process that had the port is gone."""
    stopped: bool = False
    unheard_s: float = 0.0
    """Since anything answered."""
    late_s: float | None = None
    """For how long /metrics or /slots has not answered in time; None where neither is late."""
    hang_s: float | None = None
    """For how long none of those that are served has; None where one does."""
    build: int | None = None
    """Number of its build, 0 where it does not know its own; None before it was asked."""
    log_silent_s: float | None = None
    cpu_starved: bool = False
    """It waited for a CPU for much of the time."""
    starved: bool = False
    """Specdash itself did."""


def of_server(signs: ServerSigns, limits: Mapping[str, float]) -> Standstill:
    """The judgement of a server that says nothing, or not all."""
    if signs.stopped:
        return Standstill.STOPPED
    if signs.ended and signs.health not in (None, FailureKind.TIMEOUT):
        return Standstill.DEAD
    if signs.health is FailureKind.TIMEOUT:
        if signs.starved:
            return Standstill.STARVED
        patience = limits["starved_s" if signs.cpu_starved else "silent_s"]
        return Standstill.SILENT if signs.unheard_s >= patience else Standstill.NONE
    if signs.health is not None or signs.late_s is None:
        return Standstill.NONE
    if signs.starved:
        return Standstill.STARVED
    if is_wedged(signs):
        return Standstill.WEDGED
    return Standstill.LATE if signs.late_s >= limits["busy_s"] else Standstill.NONE


def never_waits(signs: ServerSigns) -> bool:
    """Whether its endpoints answer while it decodes; a build that does not know its number counts as a current one."""
    return signs.build is not None and (signs.build == 0 or signs.build >= NEVER_BLOCKS)


def is_wedged(signs: ServerSigns) -> bool:
    """Whether it lives and will never go on: endpoints that never wait for the inference hang, and the log is
    silent."""
    lasts = min(signs.hang_s or 0.0, signs.log_silent_s if signs.log_silent_s is not None else inf)
    return never_waits(signs) and lasts >= WEDGED_AFTER_S and not (signs.starved or signs.cpu_starved)


class SlotSigns(Struct, frozen=True):
    """What is seen of a slot at work since its counts moved last."""

    prefill: bool
    unmoved_s: float
    calls: float | None = None
    """Decode calls of the server meanwhile; None where /metrics does not tell."""
    restored: int = 0
    """Traced steps of the slot that went back to a checkpoint meanwhile."""
    alone: bool = True
    """No other slot moves, so that the decode calls are its own."""
    speculative: bool = False
    works: bool = False
    """The server keeps CPUs or a GPU busy: a batch may take minutes where a large model runs on CPUs."""


def of_slot(signs: SlotSigns, limits: Mapping[str, float]) -> Standstill:
    """The judgement of a slot."""
    if signs.restored >= REPEATED and signs.unmoved_s >= REPEATED_FOR_S:
        return Standstill.REPEATS
    if signs.prefill:
        late = signs.unmoved_s >= limits["prefill_s"]
        return Standstill.STUCK if late and not signs.works else Standstill.PREFILL
    if signs.unmoved_s < limits["no_token_s"]:
        return Standstill.NONE
    # A few calls may be from before the look at /slots.
    if not signs.calls or (signs.alone and signs.calls < REPEATED):
        return Standstill.STUCK
    if signs.speculative and signs.alone:
        return Standstill.REPEATS
    if signs.unmoved_s < limits["while_others_s"]:
        return Standstill.NONE
    return Standstill.REPEATS if signs.speculative else Standstill.STUCK


class _Standing(Struct):
    """Where a slot stands with its task, since when, and what the server had counted when it got there."""

    counts: tuple[int | None, ...]
    since: float
    calls: float | None
    restored: int


class SlotWatch:
    """When each slot at work moved last."""

    def __init__(self) -> None:
        self._standing: dict[int, _Standing] = {}

    def add(self, at: float, slots: Slots, calls: float | None, steps: Mapping[int, SlotSteps]) -> None:
        """Take in a look at the slots, with the decode calls so far and the traced steps of each slot's task."""
        before, self._standing = self._standing, {}
        for slot in slots.slots:
            if slot.is_processing:
                counts = (slot.task, slot.n_decoded, slot.n_prompt_tokens_processed)
                known = before.get(slot.id)
                if known is None or known.counts != counts:
                    known = _Standing(counts, at, calls, _restored(slot, steps))
                self._standing[slot.id] = known

    def signs(self, now: float, slot: Slot, calls: float | None, steps: Mapping[int, SlotSteps]) -> SlotSigns | None:
        """The signs of a slot at work; None of one that was not seen at work."""
        mine = self._standing.get(slot.id)
        if mine is None:
            return None
        return SlotSigns(
            prefill=not slot.n_decoded,
            unmoved_s=max(0.0, now - mine.since),
            calls=max(0.0, calls - mine.calls) if calls is not None and mine.calls is not None else None,
            restored=_restored(slot, steps) - mine.restored,
            alone=all(other is mine or now - other.since >= ALONE_S for other in self._standing.values()),
            speculative=bool(slot.speculative),
        )


def _restored(slot: Slot, steps: Mapping[int, SlotSteps]) -> int:
    """How many traced steps of the slot's task went back to a checkpoint."""
    live = steps.get(slot.id)
    return live.restored if live is not None and live.task == slot.task else 0


class LateWatch:
    """Since when /metrics and /slots have not answered in time."""

    def __init__(self) -> None:
        self._since: dict[Source, float] = {}
        self._answering: set[Source] = set()

    def add(self, reading: Reading[object]) -> None:
        """Take in a look at any source."""
        source, failure = reading.source, reading.failure
        if source not in (Source.METRICS, Source.SLOTS):
            return
        self._answering = self._answering - {source} | ({source} if reading.value is not None else set())
        if failure is not None and failure.kind is FailureKind.TIMEOUT:
            self._since.setdefault(source, reading.at)
        else:
            self._since.pop(source, None)

    def seconds(self, now: float) -> tuple[float | None, float | None]:
        """For how long one of them is late, and for how long all that are served are."""
        late = self._since.values()
        if not late:
            return None, None
        return now - min(late), None if self._answering else now - max(late)
