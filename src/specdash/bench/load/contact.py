"""Who answers at an address: what is asked of it before anything is measured, and what it says of itself."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.errors import InputError, SpecdashError, UnreachableError
from specdash.core.readings import RESIDENT
from specdash.llama.server_answers import (
    ParseError,
    error_message,
    load_json,
    mapping,
    parse_metrics,
    parse_props,
    parse_slots,
    router_models,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.bench.load.samples import EngineAddress
    from specdash.core.readings import Counters, Slots
    from specdash.llama.client import BlockingClient
    from specdash.system.http import HttpReply

_ANSWER_S = 10.0
_NAMED = 12


class ServerDescription(Struct, frozen=True):
    """A server as it describes itself; what it does not tell is None."""

    url: str
    model: str | None = None
    """The file's name, else its alias."""
    build: str | None = None
    slots: int | None = None
    slot_context: int | None = None
    """Tokens that fit into one slot."""
    speculative: bool | None = None
    speculative_types: tuple[str, ...] | None = None
    """Of the slots' last tasks; None before the first."""
    models: tuple[str, ...] = ()
    """The names it answers to."""
    has_metrics: bool | None = None


def look(place: EngineAddress) -> tuple[EngineAddress, ServerDescription]:
    """The engine, and the place with the model that is to be asked.

    A router needs a model's name unless just one is in memory. Raises `UnreachableError` when no one answers,
    `InputError` for a model that is not there or a key that is not taken, `SpecdashError` for what is no llama-server.
    """
    reply = _asked(place, "/v1/models")
    if reply.status in (401, 403):
        raise InputError(f"{place.url} refuses this API key; name another with --api-key-env")
    if reply.status == 503:
        raise UnreachableError(f"{place.url} is still loading its model; try again when /health says ok")
    if reply.status != 200:
        status = f"HTTP {reply.status} {error_message(reply.body)}".rstrip()
        raise SpecdashError(f"{place.url}/v1/models answers {status}; is this llama-server?")
    try:
        listed = load_json(reply.body)
    except ParseError as error:
        raise SpecdashError(f"{place.url}/v1/models: {error}; is this llama-server?") from None
    place = _with_model(place, listed)
    return place, _described(place, tuple(_names(listed)))


def again(place: EngineAddress, engine: ServerDescription) -> ServerDescription:
    """The same engine after requests: only then its slots tell how they speculate."""
    return replace(engine, **_of_slots(place))


def slots_told(client: BlockingClient) -> Slots | None:
    """What /slots says, None where it says nothing."""
    try:
        reply = client.get("/slots")
        return parse_slots(reply.body) if reply.status == 200 else None
    except (OSError, ParseError):
        return None


def counters_told(client: BlockingClient) -> Counters | None:
    """What /metrics says, None where it says nothing."""
    try:
        reply = client.get("/metrics")
        return parse_metrics(reply.body) if reply.status == 200 else None
    except (OSError, ParseError):
        return None


def _described(place: EngineAddress, models: tuple[str, ...]) -> ServerDescription:
    engine = ServerDescription(place.url, models=models)
    try:
        reply = _asked(place, "/props")
        props = parse_props(reply.body) if reply.status == 200 else None
    except (SpecdashError, ParseError):
        props = None
    if props is not None:
        model = PurePath(props.model_path).name if props.model_path else props.model_alias
        engine = replace(engine, model=model or place.model, build=props.build_info, slots=props.total_slots)
        engine = replace(engine, has_metrics=props.endpoint_metrics)
    elif models:
        engine = replace(engine, model=place.model or PurePath(models[0]).name)
    return replace(engine, **_of_slots(place))


def _of_slots(place: EngineAddress) -> dict[str, Any]:
    slots = slots_told(place.client(_ANSWER_S))
    if slots is None or not slots.slots:
        return {}
    types = {name for slot in slots.slots for name in slot.speculative_types or ()}
    flags = slots.drafting
    return {
        "speculative": None if flags is None else any(flags),
        "speculative_types": tuple(sorted(types)) or None,
        "slot_context": slots.least_context,
    }


def _with_model(place: EngineAddress, listed: object) -> EngineAddress:
    routed = router_models(listed).models
    names = list(_names(listed))
    if place.model is not None:
        base = {PurePath(name).name for name in names}
        if names and place.model not in names and place.model not in base:
            raise InputError(f"no model {place.model!r} at {place.url}; there {_listed(names)}")
        return place
    if not routed:
        return place
    resident = [router_model.id for router_model in routed if router_model.status in RESIDENT]
    if len(resident) == 1:
        return replace(place, model=resident[0])
    raise InputError(f"{place.url} is a router: name one of its models with --model; there {_listed(names)}")


def _names(listed: object) -> Iterable[str]:
    data = mapping(listed).get("data")
    for row in data if isinstance(data, list) else ():
        name, aliases = text(mapping(row).get("id")), mapping(row).get("aliases")
        if name is not None:
            yield name
        listed = aliases if isinstance(aliases, list) else ()
        yield from (alias for alias in listed if isinstance(alias, str) and alias != name)


def _listed(names: list[str]) -> str:
    if not names:
        return "are none"
    shown = ", ".join(PurePath(name).name if name.startswith("/") else name for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{'is' if len(names) == 1 else 'are'} {shown}{more}"


def _asked(place: EngineAddress, path: str) -> HttpReply:
    try:
        return place.client(_ANSWER_S).get(path)
    except OSError as error:
        raise UnreachableError(
            f"{place.url} does not answer ({error}); start the server, or name another one"
        ) from None
