"""Readings to JSON-able data and back, without loss, driven by the type hints of the value types.

`decode(encode(reading)) == reading` for every reading. Data of a newer version is read as far as it is known: unknown
fields, facts and events are left out; a reading of an unknown source raises `UnreadableError`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from specdash.core.applies import ApplyRecord
from specdash.core.baselines import Baseline
from specdash.core.log_facts import LogBatch
from specdash.core.observations import Counters, Gpus, Health, Host, ProcessTree, Props, SchedulingDelay, Slots
from specdash.core.proxy_events import ProxyEvent
from specdash.core.proxy_status import ProxyEvents, ProxyStatus
from specdash.core.readings import Failure, FailureKind, Reading, Source, Status
from specdash.core.router import RouterModels
from specdash.core.trials import TrialNote
from specdash.history.records import shape_of
from specdash.history.shapes import Scalar, Shape, UnreadableError

__all__ = ["VALUE_TYPES", "UnreadableError", "decode", "encode", "value_shape"]

VALUE_TYPES: dict[Source, Any] = {
    Source.HEALTH: Health,
    Source.PROPS: Props,
    Source.METRICS: Counters,
    Source.SLOTS: Slots,
    Source.LOG: LogBatch,
    Source.GPU: Gpus,
    Source.HOST: Host,
    Source.PROCESS: ProcessTree,
    Source.PROXY: ProxyStatus,
    Source.PROXY_EVENTS: ProxyEvents,
    Source.APPLIES: tuple[ApplyRecord, ...],
    Source.BASELINES: tuple[Baseline, ...],
    Source.TRIAL: tuple[TrialNote, ...],
    Source.ROUTER: RouterModels,
    Source.SCHEDULING: SchedulingDelay,
}
"""The value type of every source."""
_TYPE_CHECKING_NAMES = (("ProxyEvent", ProxyEvent),)
_NUMBER = Scalar()


@cache
def value_shape(source: Source) -> Shape:
    """How the values of a source are stored."""
    return shape_of(VALUE_TYPES[source], _TYPE_CHECKING_NAMES)


def encode(reading: Reading[Any]) -> dict[str, Any]:
    """A JSON object; NaN and infinities have a form of their own in it."""
    data: dict[str, Any] = {"source": reading.source.value, "at": _NUMBER.to_json(reading.at)}
    if reading.status is not Status.KNOWN:
        data["status"] = reading.status.value
    if reading.value is not None:
        data["value"] = value_shape(reading.source).to_json(reading.value)
    if reading.failure is not None:
        data["failure"] = [reading.failure.kind.value, reading.failure.detail]
    return data


def decode(data: Any) -> Reading[Any]:
    """The reading of `encode`. Raises UnreadableError for what this version does not know, or what is damaged."""
    try:
        source = Source(data["source"])
        failure = data.get("failure")
        return Reading(
            source,
            _NUMBER.from_json(data["at"]),
            Status(data.get("status", Status.KNOWN)),
            value_shape(source).from_json(data["value"]) if "value" in data else None,
            _failure(*failure) if failure is not None else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableError(f"no reading: {error}") from error


def _failure(kind: str, detail: str) -> Failure:
    try:
        return Failure(FailureKind(kind), detail)
    except ValueError:
        return Failure(FailureKind.ERROR, f"{kind}: {detail}" if detail else kind)
