"""What of a reading may be kept: nothing that a prompt, an answer or a tool call could be in, and no secret.

Log lines are kept of the warning and life-cycle classes alone, a few per batch, made anew (see `llama.log_safe`); what
other lines say is in the facts. Lines that no table knows are not kept at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specdash.core.applies import ApplyRecord
from specdash.core.log_facts import LogBatch, LogFact, ServerEvent, TaskFailed
from specdash.core.masking import without_secrets
from specdash.core.observations import Health
from specdash.core.readings import Failure, Reading
from specdash.llama.log_safe import LIFE_CYCLE_CLASSES, safe_error, safe_event, safe_line, safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable

LINES_KEPT: Final = 8
"""Log lines of one batch."""
LINES_LOOKED_AT: Final = 200
"""So many of a batch's last lines are looked at: a storm may bring thousands a second."""
TEXT_KEPT: Final = 300
"""Characters of a message."""


def lighter(reading: Reading[Any]) -> Reading[Any]:
    """The reading without what will not be looked at: cheap, for the way into the queue."""
    value = reading.value
    if isinstance(value, LogBatch) and (len(value.tail) > LINES_LOOKED_AT or value.unrecognised_samples):
        return replace(reading, value=replace(value, tail=value.tail[-LINES_LOOKED_AT:], unrecognised_samples=()))
    return reading


def to_keep(reading: Reading[Any]) -> Reading[Any]:
    """The reading as it may be stored."""
    value, failure = reading.value, reading.failure
    if isinstance(value, LogBatch):
        value = _batch(value)
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
        facts=tuple(map(_fact, batch.facts)),
        warnings=tuple(replace(tally, sample=safe_text(tally.sample)) for tally in batch.warnings),
        tail=_lines(reversed(batch.tail[-LINES_LOOKED_AT:])),
        unrecognised_samples=(),
    )


def _fact(fact: LogFact) -> LogFact:
    if isinstance(fact, ServerEvent):
        return replace(fact, fields=safe_event(fact)) if fact.fields else fact
    if isinstance(fact, TaskFailed):
        return replace(fact, error=safe_error(fact.error))
    return fact


def _lines(newest_first: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for line in newest_first:
        made = safe_line(line.encode("utf-8", "replace"))
        if made is None or made.is_unknown:
            continue
        if made.severity is not None or made.line_class in LIFE_CYCLE_CLASSES:
            kept.append(made.text)
            if len(kept) == LINES_KEPT:
                break
    return tuple(reversed(kept))
