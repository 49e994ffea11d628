"""GET /slots to `Slots`: slots that never served are stubs, and older builds write some fields differently."""

from __future__ import annotations

from typing import Any

from specdash.core.observations import Slot, Slots
from specdash.llama.bodies import ParseError, flag, integer, load_json, mapping, natural


def parse_slots(body: bytes | str) -> Slots:
    """The slots in the server's order. Raises ParseError when the body is no JSON list of objects."""
    entries = load_json(body)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ParseError("not a JSON list of slots")
    return Slots(tuple(_slot(position, entry) for position, entry in enumerate(entries)))


def _slot(position: int, entry: dict[str, Any]) -> Slot:
    number = integer(entry.get("id"))
    token = _next_token(entry.get("next_token"))
    decoded = token.get("n_decoded", entry.get("n_decoded"))
    remaining = token.get("n_remain", entry.get("n_remain"))
    return Slot(
        id=position if number is None else number,
        is_processing=_is_processing(entry),
        n_ctx=natural(entry.get("n_ctx")),
        speculative=flag(entry.get("speculative")),
        task=natural(entry.get("id_task")),
        n_decoded=natural(decoded),
        n_remain=natural(remaining),
        n_prompt_tokens=natural(entry.get("n_prompt_tokens")),
        n_prompt_tokens_processed=natural(entry.get("n_prompt_tokens_processed")),
        n_prompt_tokens_cache=natural(entry.get("n_prompt_tokens_cache")),
        speculative_types=_speculative_types(mapping(entry.get("params")).get("speculative.types")),
    )


def _next_token(value: object) -> dict[str, Any]:
    """`next_token` is a list of one object in current builds and the object itself in the documentation."""
    if isinstance(value, list):
        value = value[0] if value else None
    return mapping(value)


def _is_processing(entry: dict[str, Any]) -> bool:
    processing = flag(entry.get("is_processing"))
    if processing is not None:
        return processing
    # Builds before is_processing wrote a state number, zero for idle.
    return bool(natural(entry.get("state")))


def _speculative_types(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, str):
        return None
    # The server always writes a leading "none," whatever runs.
    return tuple(name for part in value.split(",") if (name := part.strip()) and name != "none")
