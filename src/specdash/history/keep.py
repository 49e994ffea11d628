"""What of a reading may be kept: nothing that a prompt, an answer or a tool call could be in, and no secret.

Log lines are kept of the warning and life-cycle classes alone, a few per batch, made anew (see `llama.log_safe`); what
other lines say is in the facts. Lines that no table knows are not kept at all.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from specdash.core.applies import ApplyRecord
from specdash.core.log_facts import LogBatch, LogFact, ServerEvent, TaskFailed
from specdash.core.masking import without_secrets
from specdash.core.observations import Health
from specdash.core.proxy_events import RequestEvent
from specdash.core.proxy_status import ActiveView, ProxyEvents, ProxyStatus, SessionView
from specdash.core.readings import Failure, FailureKind, Reading
from specdash.llama.log_grammar import DROPPED
from specdash.llama.log_safe import (
    LIFE_CYCLE_CLASSES,
    bare,
    recognise,
    safe_error,
    safe_event,
    safe_line,
    safe_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LINES_KEPT: Final = 8
"""Log lines of one batch."""
LINES_LOOKED_AT: Final = 200
"""So many of a batch's last lines are looked at: a storm may bring thousands a second."""
TEXT_KEPT: Final = 300
"""Characters of a message."""
ROUNDED: Final[Mapping[type, tuple[str, ...]]] = MappingProxyType(
    {
        SessionView: ("last_seen",),
        ActiveView: ("started", "ttft_s", "prefill_rate", "decode_rate"),
        RequestEvent: (
            "at", "duration_s", "held_s", "ttft_s", "prefill_s", "decode_s", "prefill_rate", "decode_rate"
        ),
    }
)  # fmt: skip
"""Fields whose digits beyond the third place are not kept."""
_ROUNDED_FACT: Final = ("at_s", "first_s")
T = TypeVar("T")


def lighter(reading: Reading[Any]) -> Reading[Any]:
    """The reading without what will not be looked at: cheap, for the way into the queue."""
    value = reading.value
    if isinstance(value, LogBatch) and (len(value.tail) > LINES_LOOKED_AT or value.unrecognised_samples):
        return replace(reading, value=replace(value, tail=value.tail[-LINES_LOOKED_AT:], unrecognised_samples=()))
    return reading


def weight(reading: Reading[Any]) -> int:
    """How many values it holds, itself and what it lists: what it costs to keep and to pack."""
    value = reading.value
    if isinstance(value, LogBatch):
        return 1 + len(value.facts)
    if isinstance(value, ProxyStatus):
        return 1 + len(value.sessions) + len(value.active)
    return 1 + len(value.events) if isinstance(value, ProxyEvents) else 1


def fault_words(error: Exception) -> str:
    """A fault of our own in words that may be shown."""
    return f"{type(error).__name__}: {_text(str(error))}"


def unkept(reading: Reading[Any], error: Exception) -> Reading[Any]:
    """What is kept of a reading that could not be: that there was one, and the kind of the fault."""
    return Reading.unknown(reading.source, reading.at, FailureKind.ERROR, f"not recorded: {type(error).__name__}")


def to_keep(reading: Reading[Any]) -> Reading[Any]:
    """The reading as it may be stored."""
    value, failure = reading.value, reading.failure
    if isinstance(value, LogBatch):
        value = _batch(value)
    elif isinstance(value, ProxyStatus):
        value = replace(value, sessions=tuple(map(rounded, value.sessions)), active=tuple(map(rounded, value.active)))
    elif isinstance(value, ProxyEvents):
        value = replace(value, events=tuple(map(rounded, value.events)))
    elif isinstance(value, Health) and value.detail:
        value = replace(value, detail=_text(value.detail))
    elif isinstance(value, tuple) and value and isinstance(value[0], ApplyRecord):
        value = tuple(replace(one, log_lines=tuple(map(safe_text, one.log_lines))) for one in value)
    if failure is not None and failure.detail:
        failure = Failure(failure.kind, _text(failure.detail))
    return Reading(reading.source, reading.at, reading.status, value, failure)


def _text(text: str) -> str:
    return without_secrets(text[:TEXT_KEPT])


def _batch(batch: LogBatch) -> LogBatch:
    return replace(
        batch,
        facts=tuple(rounded(_fact(fact)) for fact in batch.facts),
        warnings=tuple(replace(tally, sample=safe_text(tally.sample)) for tally in batch.warnings),
        tail=_lines(reversed(batch.tail[-LINES_LOOKED_AT:])) if _has_lines(batch) else (),
        unrecognised_samples=(),
        age_s=_to_places(batch.age_s),
    )


def rounded(value: T) -> T:
    """The value with its times and rates to the millisecond, and to a thousandth of a token per second: the digits
    beyond are noise, and most of what a day would weigh."""
    names = ROUNDED.get(type(value))
    if names is None:
        names = _ROUNDED_FACT if hasattr(value, "at_s") else ()
    changes = {}
    for name in names:
        before = getattr(value, name, None)
        if type(before) is float and (after := _to_places(before)) != before:
            changes[name] = after
    return replace(cast("Any", value), **changes) if changes else value


def _to_places(value: float | None) -> float | None:
    return round(value, 3) if value is not None else None


def _has_lines(batch: LogBatch) -> bool:
    """Whether there is a line to keep among those of the batch."""
    events = (fact.name for fact in batch.facts if isinstance(fact, ServerEvent))
    return bool(batch.warnings) or not LIFE_CYCLE_CLASSES.isdisjoint(events)


def _fact(fact: LogFact) -> LogFact:
    if isinstance(fact, ServerEvent):
        return replace(fact, fields=safe_event(fact) if fact.name in LIFE_CYCLE_CLASSES else ())
    if isinstance(fact, TaskFailed):
        return replace(fact, error=safe_error(fact.error))
    return fact


def _lines(newest_first: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for line in newest_first:
        raw = bare(line.encode("utf-8", "replace"))
        known = recognise(raw.translate(None, DROPPED))
        if known.form is None or (known.line_class.severity is None and known.line_class.id not in LIFE_CYCLE_CLASSES):
            continue
        made = safe_line(raw)
        if made is None or made.is_unknown:
            continue
        kept.append(made.text)
        if len(kept) == LINES_KEPT:
            break
    return tuple(reversed(kept))
