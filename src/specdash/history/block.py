"""Readings of about a minute as one compressed block, column by column, and back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from specdash.core.readings import Failure, FailureKind, Reading, Source, Status
from specdash.history import fresh
from specdash.history.codec import encode, value_shape
from specdash.history.columns import Columns, DamagedError, Packed
from specdash.history.shapes import LOST, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

STILL_SOURCES: Final = frozenset({Source.PROPS, Source.APPLIES, Source.BASELINES})
"""What seldom changes and may be large: kept once per value, named in blocks by its digest."""
TICKS: Final = 10_000
"""Moments are stored in so many parts of a second."""
_NONE, _NEW, _SAME, _STILL = 0, 1, 2, 3
_DEFLATED: Final = b"\x78"
"""How a plain block begins, and no other one."""


@dataclass(frozen=True, slots=True)
class Still:
    """A value of a still source, as stored."""

    digest: str
    data: str


@dataclass(frozen=True, slots=True)
class Carried:
    """The last reading of a source that may be silent for long: a still value by its digest, or a failure."""

    at: float
    digest: str | None
    failure: Failure | None


def still_of(source: Source, value: Any) -> Still:
    """The value with its digest."""
    data = json.dumps(value_shape(source).to_json(value), separators=(",", ":"), sort_keys=True)
    return Still(hashlib.blake2b(data.encode(), digest_size=12).hexdigest(), data)


def still_value(source: Source, data: str) -> Any:
    """The value of a `Still`. Raises UnreadableError."""
    try:
        return value_shape(source).from_json(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableError(str(error)) from error


def pack(
    readings: Sequence[Reading[Any]],
    stills: Mapping[int, str],
    carried: Mapping[Source, Carried],
) -> bytes:
    """Readings in the order of their time, which is Unix time in seconds.

    `stills` has the digest of the value of every still reading, by its index; `carried` what was last read of
    sources when the block begins.
    """
    columns = Columns()
    if readings:
        base = round(readings[0].at * TICKS)
        columns.put("base", [base])
        columns.put("at", [round(one.at * TICKS) - base for one in readings])
    columns.put("source", [one.source.value for one in readings])
    columns.put("status", [one.status.value for one in readings])
    columns.put("failure", [one.failure.kind.value if one.failure else None for one in readings])
    columns.put("detail", [one.failure.detail for one in readings if one.failure])
    before: dict[Source, Any] = {}
    fresh: dict[Source, list[Any]] = {}
    forms: list[int] = []
    for index, reading in enumerate(readings):
        value = reading.value
        if value is None:
            forms.append(_NONE)
        elif index in stills:
            forms.append(_STILL)
        elif reading.source in before and before[reading.source] == value:
            forms.append(_SAME)
        else:
            forms.append(_NEW)
            before[reading.source] = value
            fresh.setdefault(reading.source, []).append(value)
    columns.put("form", forms)
    columns.put("still", [stills[index] for index in sorted(stills)])
    columns.put("carried", [json.dumps(_carried_data(carried))])
    for source, values in fresh.items():
        value_shape(source).shred(values, columns, source.value)
    return columns.pack()


def pack_plain(readings: Sequence[Reading[Any]], carried: Mapping[Source, Carried]) -> bytes:
    """The same, reading by reading as JSON, for what `pack` cannot pack: several times as large, and hardly able to
    fail. Values of still sources are in it, not beside it."""
    plain = {"readings": list(map(encode, readings)), "points": [], "carried": _carried_data(carried)}
    return fresh.deflate(json.dumps(plain, separators=(",", ":")))


def carried(data: bytes) -> dict[Source, Carried]:
    """What `pack` was told under that name. Raises DamagedError."""
    try:
        if data.startswith(_DEFLATED):
            told = json.loads(fresh.inflate(data))["carried"]
        else:
            (text,) = Packed(data).get("carried") or ["[]"]
            told = json.loads(text)
        known = {source.value: source for source in Source}
        return {
            known[name]: Carried(float(at), digest, _failure(*failure) if failure else None)
            for name, at, digest, failure in told
            if name in known
        }
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DamagedError(str(error)) from error


def carried_on(data: bytes) -> dict[Source, Carried]:
    """What is to be carried into the block that follows this one. Raises DamagedError."""
    found = carried(data)
    for reading in unpack(data, lambda _, digest: digest):
        digest = reading.value if reading.source in STILL_SOURCES and isinstance(reading.value, str) else None
        if digest is not None or reading.failure is not None:
            found[reading.source] = Carried(reading.at, digest, reading.failure)
        else:
            found.pop(reading.source, None)
    return found


def _carried_data(carried: Mapping[Source, Carried]) -> list[Any]:
    return [
        [source.value, one.at, one.digest, [one.failure.kind.value, one.failure.detail] if one.failure else None]
        for source, one in carried.items()
    ]


def unpack(data: bytes, still: Callable[[Source, str], Any]) -> list[Reading[Any]]:
    """The readings of a block; without those of sources and values that this version does not know.

    `still` finds a value by its digest and may raise UnreadableError. Raises DamagedError.
    """
    if data.startswith(_DEFLATED):
        return list(fresh.unpack(data).readings)
    try:
        return list(_unpacked(Packed(data), still))
    except DamagedError:
        raise
    except (ValueError, TypeError, KeyError, StopIteration, RuntimeError, AttributeError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _unpacked(packed: Packed, still: Callable[[Source, str], Any]) -> Iterable[Reading[Any]]:
    def column(name: str) -> list[Any]:
        return packed.get(name) or []

    names, forms = column("source"), column("form")
    known = {source.value: source for source in Source}
    values: dict[str, Any] = {}
    for name in set(names):
        count = sum(1 for one, form in zip(names, forms, strict=True) if one == name and form == _NEW)
        values[name] = iter(_values(known.get(name), count, packed))
    statuses = {status.value: status for status in Status}
    details, digests = iter(column("detail")), iter(column("still"))
    base = (column("base") or [0])[0]
    latest: dict[str, Any] = {}
    rows = zip(column("at"), names, column("status"), column("failure"), forms, strict=True)
    for at, name, status, failure, form in rows:
        reason = _failure(failure, next(details)) if failure is not None else None
        source = known.get(name)
        value = None
        if form == _NEW:
            value = latest[name] = next(values[name])
        elif form == _SAME:
            value = latest[name]
        elif form == _STILL:
            digest = next(digests)
            value = _still(source, digest, still)
        if source is not None and value is not LOST and status in statuses:
            yield Reading(source, (base + at) / TICKS, statuses[status], value, reason)


def _values(source: Source | None, count: int, packed: Packed) -> list[Any]:
    if source is None:
        return [LOST] * count
    try:
        return value_shape(source).gather(count, packed, source.value)
    except UnreadableError:
        return [LOST] * count


def _still(source: Source | None, digest: str, find: Callable[[Source, str], Any]) -> Any:
    if source is None:
        return LOST
    try:
        return find(source, digest)
    except UnreadableError:
        return LOST


def _failure(kind: str, detail: str) -> Failure:
    try:
        return Failure(FailureKind(kind), detail)
    except ValueError:
        return Failure(FailureKind.ERROR, f"{kind}: {detail}")
