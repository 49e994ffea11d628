"""Derives whether the server really speculates, and why not.

What the slots show now counts most; then drafts that were made; then what the runner found out after the start. Why it
does not comes from the runner's check, the log, or the parameters it was started with, in this order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.masking import flags_of, speculation
from specdash.core.readings import FailureKind, HealthStatus, Source
from specdash.core.records import SEE_LOG, Drafting, unexplained
from specdash.core.speculation import NO_SPECULATION
from specdash.insight.log.counter_log import between
from specdash.insight.picture import DraftingPicture
from specdash.insight.request import NO_DRAFTS
from specdash.llama.start_failures import StartFailure, explain, unspoken

if TYPE_CHECKING:
    from specdash.core.records import StartCheck
    from specdash.insight.state import TargetState

PROBLEM_CLASSES = ("spec_init_failed", "vocab_mismatch", "spec_unsupported", "draft_load_failed")
"""Line classes that say why a server which runs does not speculate."""
_TYPE = "spec-type"


class DraftingEvidence(Struct, frozen=True):
    """What there is to judge by. None is unknown."""

    slots: tuple[bool, ...] | None = None
    """Whether each slot can draft, as /slots says."""
    drafted: int = 0
    """Draft tokens since the server's start."""
    accepted: int | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    """With which speculation parameters it was started."""
    knows_parameters: bool = False
    """Whether these are all, so that a type which is not there was not asked for."""
    problems: tuple[str, ...] = ()
    """Lines of its log that say why it does not speculate."""
    check: StartCheck | None = None
    away: str = ""
    """Why it is unknown now: the server does not answer, or loads its model."""
    hidden: str = ""
    """Why its slots cannot be seen."""
    unseen: str = ""
    """What is missing to see drafts."""

    @property
    def types(self) -> tuple[str, ...] | None:
        """The chain that was asked for, empty for none; None when that is not known."""
        chain = dict(self.parameters).get(_TYPE)
        if chain is not None:
            names = tuple(part.strip() for part in chain.split(",") if part.strip())
            return () if set(names) <= {NO_SPECULATION} else names
        return () if self.knows_parameters else None


def derive(state: TargetState, wall: float) -> DraftingPicture:
    """This part of the picture. The caller holds the state's lock."""
    check = state.target.start_check
    age = max(0.0, wall - check.checked) if check is not None and not check.pending else None
    return replace(judge(seen_of(state)), checked_age_s=age)


def seen_of(state: TargetState) -> DraftingEvidence:
    """What the state has to judge by. The caller holds its lock."""
    slots, log = state.value(Source.SLOTS), state.log
    life = state.counters.life
    done = between(*life) if life is not None else None
    if (done is None or not done.drafted) and log.slot_steps:
        done = sum((slot_steps.drafts for slot_steps in log.slot_steps.values()), NO_DRAFTS)
    parameters, all_known = _parameters(state)
    warnings = (storm.seen for storm in log.storms.newest_first)
    lines = (seen for seen in warnings if seen.warning in PROBLEM_CLASSES and not seen.is_former)
    return DraftingEvidence(
        slots=slots.drafting if slots is not None else None,
        drafted=round(done.drafted) if done is not None else 0,
        accepted=round(done.accepted) if done is not None else None,
        parameters=parameters,
        knows_parameters=all_known,
        problems=tuple(seen.sample for seen in lines),
        check=state.target.start_check,
        away=_away(state),
        hidden=_hidden(state),
        unseen=unseen(state),
    )


def judge(seen: DraftingEvidence) -> DraftingPicture:
    """The verdict."""
    if seen.away:
        return DraftingPicture(Drafting.UNKNOWN, seen.away)
    check = seen.check if seen.check is not None and not seen.check.pending else None
    if seen.slots is not None and not all(seen.slots):
        return _not_all(seen, seen.slots, check)
    if seen.drafted:
        chain = ",".join(seen.types) + ", " if seen.types else ""
        drafts = "tokens drafted" if seen.accepted is None else f"of {seen.drafted} drafted tokens accepted"
        count = seen.drafted if seen.accepted is None else seen.accepted
        return DraftingPicture(Drafting.YES, f"{chain}{count} {drafts} since its start")
    if check is not None and (seen.slots is None or check.drafting in (Drafting.YES, Drafting.READY)):
        return DraftingPicture(check.drafting, check.because, check.fix)
    if seen.slots is not None:
        why = f"whether they do cannot be seen without {seen.unseen}" if seen.unseen else "no draft seen yet"
        return DraftingPicture(Drafting.READY, f"its slots can draft; {why}")
    failure = explained(seen.problems)
    if failure is not None:
        return DraftingPicture(Drafting.FAILED, failure.because, failure.fix)
    if seen.types == () and seen.knows_parameters and unspoken(dict(seen.parameters)) is None and not seen.hidden:
        return DraftingPicture(Drafting.OFF, "no speculation type is set")
    return DraftingPicture(Drafting.UNKNOWN, seen.hidden or "no slot data yet")


def _not_all(seen: DraftingEvidence, slots: tuple[bool, ...], check: StartCheck | None) -> DraftingPicture:
    """The slots say that none drafts, or not all do."""
    is_off = not any(slots) and seen.types == () and bool(dict(seen.parameters).get(_TYPE))
    failure: StartCheck | StartFailure | None = check if check and check.drafting is Drafting.FAILED else None
    failure = failure or explained(seen.problems) or unspoken(dict(seen.parameters))
    if failure is not None and not is_off:
        return DraftingPicture(Drafting.FAILED, failure.because, failure.fix)
    if seen.types or any(slots):
        return DraftingPicture(Drafting.FAILED, unexplained(sum(slots), len(slots)), SEE_LOG)
    unasked = "its slots do not draft, and no setting asks for it"
    return DraftingPicture(Drafting.OFF, unasked if seen.types is None else "no speculation type is set")


@lru_cache(maxsize=16)
def explained(problems: tuple[str, ...]) -> StartFailure | None:
    """The cause that lines of the log name; None where there are none."""
    return explain(problems, None) if problems else None


def unseen(state: TargetState) -> str:
    """What is missing to see requests and drafts, "" where something shows them: /metrics, the log or the proxy."""
    known, metrics = state.last_known, state.latest.get(Source.METRICS)
    if metrics is None or metrics.value is not None or state.counters.last is not None:
        return ""
    if Source.LOG in known or Source.PROXY_EVENTS in known or metrics.failure is None:
        return ""
    if metrics.failure.kind is FailureKind.DISABLED:
        return "--metrics or the server's log"
    return f"/metrics ({metrics.failure.detail or metrics.failure.kind}) or the server's log"


def _parameters(state: TargetState) -> tuple[tuple[tuple[str, str], ...], bool]:
    """Parameters that the server was started with, and whether they are all: of its record or its command line."""
    target, process = state.target, state.value(Source.PROCESS)
    is_recorded = target.engine is not None or target.pid is not None
    if target.parameters or is_recorded or process is None or not process.command:
        return target.parameters, is_recorded
    return _of_command(process.command), True


@lru_cache(maxsize=8)
def _of_command(command: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return speculation(flags_of(command[1:]))


def _away(state: TargetState) -> str:
    reading = state.latest.get(Source.HEALTH)
    if reading is None:
        return "no answer yet"
    if reading.value is None:
        return "the server does not answer"
    if reading.value.status is HealthStatus.LOADING:
        return "it loads its model"
    slots = state.latest.get(Source.SLOTS)
    if slots is not None and slots.failure is not None and slots.failure.kind is FailureKind.NO_MODEL:
        return "a router, and no model in memory to look at"
    return ""


def _hidden(state: TargetState) -> str:
    props = state.value(Source.PROPS)
    if props is not None and props.is_sleeping:
        return "it sleeps, and looking at its slots would wake it"
    reading = state.latest.get(Source.SLOTS)
    if reading is not None and reading.failure is not None:
        return f"/slots: {reading.failure.detail}"
    return ""
