"""Every source of readings, declared once: what its values are, how long they hold, how the record keeps them; and how
a reading is written as JSON."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import Struct

from specdash.core.changes import ApplyRecord
from specdash.core.log_facts import LogBatch, LogFact
from specdash.core.proxy_events import ProxyEvent, ProxyEvents, ProxyStatus
from specdash.core.readings import (
    Counters,
    Failure,
    FailureKind,
    Gpus,
    Health,
    Host,
    ProcessTree,
    Props,
    Reading,
    ReadingStatus,
    RouterModels,
    SchedulingDelay,
    Slots,
    Source,
)
from specdash.core.records import Baseline, TrialNote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STALE_AFTER_S = 10.0
"""Readings older than this are not fresh: three missed polls at the slowest cadence of a live server."""


class SourceSpec(Struct, frozen=True):
    """What is known of a source before it says anything."""

    value: Any
    """The type of its values."""
    lifetime_s: float | None = STALE_AFTER_S
    """Seconds after which its last known reading is STALE. None where it reports every change, so that the last
    reading holds however old it is."""
    is_still: bool = False
    """Its values seldom change and may be large: the record keeps each value once."""


SOURCES: Mapping[Source, SourceSpec] = {
    Source.HEALTH: SourceSpec(Health),
    Source.PROPS: SourceSpec(Props, 90.0, is_still=True),
    Source.METRICS: SourceSpec(Counters),
    Source.SLOTS: SourceSpec(Slots),
    Source.LOG: SourceSpec(LogBatch, None),
    Source.GPU: SourceSpec(Gpus, 15.0),
    Source.HOST: SourceSpec(Host),
    Source.PROCESS: SourceSpec(ProcessTree),
    Source.PROXY: SourceSpec(ProxyStatus),
    Source.PROXY_EVENTS: SourceSpec(ProxyEvents, None),
    Source.APPLIES: SourceSpec(tuple[ApplyRecord, ...], None, is_still=True),
    Source.BASELINES: SourceSpec(tuple[Baseline, ...], None, is_still=True),
    Source.TRIAL: SourceSpec(tuple[TrialNote, ...], None),
    Source.ROUTER: SourceSpec(RouterModels),
    Source.SCHEDULING: SourceSpec(SchedulingDelay, None),
}


# Readings as JSON and back, without loss. Unknown fields, facts and events of a newer version are left out; an unknown
# source raises `UnreadableError`.

_NAMES = frozenset(kind.__name__ for kind in (*get_args(LogFact), *get_args(ProxyEvent)))
_NOT_READABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class UnreadableError(ValueError):
    """What is stored is damaged, or of a kind that this version does not know."""


def read_value(source: Source, data: Any) -> Any:
    """The value of what `msgspec.to_builtins` made of it. Raises UnreadableError."""
    try:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(data, SOURCES[source].value)
        return msgspec.convert(_of_known_names(data), SOURCES[source].value)
    except _NOT_READABLE as error:
        raise UnreadableError(f"no value of {source}: {error}") from error


def _of_known_names(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _of_known_names(entry) for name, entry in data.items()}
    if isinstance(data, list | tuple):
        return [_of_known_names(e) for e in data if not isinstance(e, dict) or "is" not in e or e["is"] in _NAMES]
    return data


class _Stored(Struct, omit_defaults=True):
    source: Source
    at: float
    status: ReadingStatus = ReadingStatus.KNOWN
    still: str | None = None
    value: Any = None
    failure: list[str] | None = None


def encode(reading: Reading[Any], still: str | None = None) -> dict[str, Any]:
    """A JSON object. `still`: the digest under which the value is stored elsewhere."""
    failure = [reading.failure.kind.value, reading.failure.detail] if reading.failure is not None else None
    value = reading.value if still is None else None
    found: dict[str, Any] = msgspec.to_builtins(
        _Stored(reading.source, reading.at, reading.status, still, value, failure)
    )
    return found


def decode(data: Any, still: Callable[[Source, str], Any] | None = None) -> Reading[Any]:
    """The reading of `encode`; `still` finds a value by its digest, and may raise UnreadableError.

    Raises UnreadableError for what this version does not know, or what is damaged.
    """
    try:
        found = msgspec.convert(data, _Stored)
        value = read_value(found.source, found.value) if found.value is not None else None
        if found.still is not None and still is not None:
            value = still(found.source, found.still)
        failure = _failure(*found.failure) if found.failure is not None else None
    except _NOT_READABLE as error:
        raise UnreadableError(f"no reading: {error}") from error
    return Reading(found.source, found.at, found.status, value, failure)


def _failure(kind: str, detail: str) -> Failure:
    try:
        return Failure(FailureKind(kind), detail)
    except ValueError:
        return Failure(FailureKind.ERROR, f"{kind}: {detail}" if detail else kind)
