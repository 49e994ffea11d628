"""GET /models to `RouterModels`. A server that is no router lists its one model without a state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_FLAG
from specdash.core.router import RESIDENT, ModelStatus, RouterModel, RouterModels
from specdash.core.speculation import parse_chain
from specdash.llama.bodies import integer, load_object, mapping, natural, text

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATES = {one.value: one for one in ModelStatus}
_SPEC_TYPE, _DRAFT, _PORT = "llama_spec_type", "spec-draft-model", "port"


def parse_models(body: bytes | str) -> RouterModels:
    """The models of a router; none for a server that is none. Raises ParseError when the body is no JSON object."""
    return router_models(load_object(body))


def router_models(answer: object) -> RouterModels:
    """The same of the JSON value itself, whatever it is."""
    data = mapping(answer).get("data")
    rows = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    return RouterModels(tuple(_model(row) for row in rows if isinstance(row.get("status"), dict) and _id(row)))


def _id(row: dict[str, Any]) -> str | None:
    return text(row.get("id"))


def _model(row: dict[str, Any]) -> RouterModel:
    said = mapping(row.get("status"))
    status = _STATES.get(str(said.get("value")), ModelStatus.UNKNOWN)
    failure = ""
    if said.get("failed") is True:
        status = ModelStatus.FAILED
        code = integer(said.get("exit_code"))
        failure = "its server ended at the start" + (f" with exit code {code}" if code is not None else "")
    values = _values(said.get("args"))
    aliases = row.get("aliases")
    used = natural(row.get("last_used_ms"))
    return RouterModel(
        id=_id(row) or "",
        status=status,
        aliases=tuple(one for one in aliases if isinstance(one, str)) if isinstance(aliases, list) else (),
        last_used=used / 1000.0 if used else None,
        spec_types=_types(values),
        draft_model=values.get(_DRAFT) if values is not None else None,
        port=_port(values) if status in RESIDENT else None,
        failure=failure,
    )


def _values(arguments: object) -> dict[str, str] | None:
    """The values of the parameters that a child server is started with, by name; None where they are not told."""
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        return None
    return dict(_pairs(arguments))


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        known = BY_FLAG.get(word)
        if known is not None:
            found.append((known[0].name, following))
    return found


def _types(values: dict[str, str] | None) -> tuple[str, ...] | None:
    if values is None:
        return None
    try:
        return tuple(one.name for one in parse_chain(values.get(_SPEC_TYPE, ""), _SPEC_TYPE))
    except InputError:
        return None


def _port(values: dict[str, str] | None) -> int | None:
    said = (values or {}).get(_PORT, "")
    return int(said) if said.isdecimal() and 0 < int(said[:6]) < 65536 else None
