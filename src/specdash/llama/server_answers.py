"""What llama-server's endpoints answer, parsed: /health, /props, /slots, /metrics, and a router's /models."""

from __future__ import annotations

import json
import math
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_FLAG
from specdash.core.readings import (
    RESIDENT,
    Counters,
    Health,
    HealthStatus,
    ModelStatus,
    Props,
    RouterModel,
    RouterModels,
    Slot,
    Slots,
)
from specdash.core.speculation import SpecType, parse_chain
from specdash.system.text import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence


# Reading JSON bodies of a llama-server leniently: a field that is missing or of another type is None.


class ParseError(ValueError):
    """The body is not what the endpoint answers. The message names the difference and quotes nothing of the body."""


def load_json(body: bytes | str) -> Any:
    """The JSON value of a body. Raises ParseError for anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ParseError(f"not JSON ({len(body)} bytes)") from None


def load_object(body: bytes | str) -> dict[str, Any]:
    """The JSON object of a body. Raises ParseError for anything else."""
    value = load_json(body)
    if not isinstance(value, dict):
        raise ParseError(f"a JSON {type(value).__name__} where an object was expected")
    return value


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def integer(value: object) -> int | None:
    """A whole number, also one written as `3.0`; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


_MOST_COUNTED = 2**63


def natural(value: object) -> int | None:
    """A whole number from zero; llama-server writes -1 for none."""
    number = integer(value)
    return number if number is not None and 0 <= number < _MOST_COUNTED else None


def fraction(value: object) -> float | None:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value) if 0 <= value <= 1 else None


def flag(value: object) -> bool | None:
    """True or false."""
    return value if isinstance(value, bool) else None


def text(value: object) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def error_message(body: bytes | str) -> str:
    """The message of llama-server's error object on one short line, empty when the body holds none."""
    try:
        error = load_object(body).get("error")
    except ParseError:
        return ""
    message = mapping(error).get("message") if isinstance(error, dict) else error
    return one_line(message) if isinstance(message, str) else ""


def one_line(words: str, limit: int = 200) -> str:
    """The text without control characters, in one line of at most `limit` characters."""
    clean = "".join(character if character.isprintable() else " " for character in words[: 4 * limit])
    clean = " ".join(clean.split())
    return shortened(clean, limit)


_UNAVAILABLE = int(HTTPStatus.SERVICE_UNAVAILABLE)


def is_loading(status: int, body: bytes | str) -> bool:
    """True for the answer that every endpoint gives while the model loads: 503 with a JSON error that says so."""
    if status != _UNAVAILABLE:
        return False
    try:
        answer = load_object(body)
    except ParseError:
        return False
    return "loading" in (error_message(body) or str(answer.get("status", ""))).lower()


def parse_health(status: int, body: bytes | str, latency_s: float | None = None) -> Health:
    """What the server says of its health, given the HTTP status of the answer.

    Raises ParseError for a success that is not llama-server's: something else answers on this port.
    """
    if is_loading(status, body):
        return Health(HealthStatus.LOADING, error_message(body), latency_s, _progress(body))
    if status != HTTPStatus.OK:
        return Health(HealthStatus.ERROR, error_message(body) or f"HTTP {status}", latency_s)
    word = load_object(body).get("status")
    if not isinstance(word, str):
        raise ParseError("a JSON object without a status")
    if word == "error":
        return Health(HealthStatus.ERROR, error_message(body), latency_s)
    # Old builds answered "no slot available" while all slots were busy, which is healthy.
    return Health(HealthStatus.OK, "" if word == "ok" else one_line(word), latency_s)


def _progress(body: bytes | str) -> float | None:
    answer = load_object(body)
    progress = fraction(answer.get("progress"))
    return progress if progress is not None else fraction(mapping(answer.get("error")).get("progress"))


def parse_props(body: bytes | str) -> Props:
    """What the server says of itself; every field is optional. Raises ParseError when the body is no JSON object."""
    answer = load_object(body)
    context = natural(mapping(answer.get("default_generation_settings")).get("n_ctx"))
    return Props(
        model_alias=text(answer.get("model_alias")),
        model_path=text(answer.get("model_path")),
        build_info=text(answer.get("build_info")),
        total_slots=natural(answer.get("total_slots")),
        n_ctx=context if context is not None else natural(answer.get("n_ctx")),
        is_sleeping=flag(answer.get("is_sleeping")),
        endpoint_metrics=flag(answer.get("endpoint_metrics")),
        role=text(answer.get("role")),
    )


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
    return bool(flag(entry.get("is_processing")))


def _speculative_types(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, str):
        return None
    # The server always writes a leading "none,".
    return tuple(name for part in value.split(",") if (name := part.strip()) and name != "none")


_STATES = {model_status.value: model_status for model_status in ModelStatus}
_SPEC_TYPE, _DRAFT, _PORT = "llama_spec_type", "spec-draft-model", "port"
_MODEL_SOURCES = frozenset({"llama_model", "model", "model-url", "hf-repo", "docker-repo"})
_NEVER_STARTED = 10
_OLD_EXIT_CODES = frozenset({_NEVER_STARTED, 1})
"""Builds whose rows have no `source` yet say `failed` of models that are merely not loaded, too: with the first of
these codes where there never was a child server, with the other where it was asked to end (llama.cpp #23257)."""


def parse_models(body: bytes | str) -> RouterModels:
    """The models of a router; none for a server that is none. Raises ParseError when the body is no JSON object."""
    return router_models(load_object(body))


def router_models(answer: object) -> RouterModels:
    """The same of the JSON value itself, of any type."""
    data = mapping(answer).get("data")
    rows = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    return RouterModels(tuple(_model(row) for row in rows if isinstance(row.get("status"), dict) and _id(row)))


def _id(row: dict[str, Any]) -> str | None:
    return text(row.get("id"))


def _model(row: dict[str, Any]) -> RouterModel:
    said = mapping(row.get("status"))
    status = _STATES.get(str(said.get("value")), ModelStatus.UNKNOWN)
    values = _values(said.get("args"))
    code = integer(said.get("exit_code"))
    failed = said.get("failed") is True and not (code in _OLD_EXIT_CODES and "source" not in row)
    if failed:
        status = ModelStatus.FAILED
    # A child server gets its port when it is started, and the port stays in the arguments after its end.
    never_started = code == _NEVER_STARTED if said.get("failed") is True else (values or {}).get(_PORT) == "0"
    aliases = row.get("aliases")
    used = natural(row.get("last_used_ms"))
    return RouterModel(
        id=_id(row) or "",
        status=status,
        aliases=tuple(alias for alias in aliases if isinstance(alias, str)) if isinstance(aliases, list) else (),
        last_used=used / 1000.0 if used else None,
        spec_types=_types(values),
        draft_model=values.get(_DRAFT) if values is not None else None,
        port=_port(values) if status in RESIDENT else None,
        failure="its server ended" + (f" with exit code {code}" if code is not None else "") if failed else "",
        has_source=not _MODEL_SOURCES.isdisjoint(values) if values is not None else None,
        never_loaded=status is ModelStatus.UNLOADED and never_started,
        exit_code=code if failed else None,
    )


def _values(arguments: object) -> dict[str, str] | None:
    """The values of the parameters that a child server is started with, by name; None where they are unknown."""
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
        return tuple(spec_type.name for spec_type in _chain_of(values.get(_SPEC_TYPE, "")))
    except InputError:
        return None


def _chain_of(text: str) -> tuple[SpecType, ...]:
    # A server that runs with a type has it.
    return parse_chain(text, _SPEC_TYPE, lambda _: True)


def _port(values: dict[str, str] | None) -> int | None:
    said = (values or {}).get(_PORT, "")
    return int(said) if said.isdecimal() and 0 < int(said[:6]) < 65536 else None


PREFIX = "llamacpp:"

FIELD_OF_METRIC: dict[str, str] = {
    "prompt_tokens_total": "prompt_tokens",
    "prompt_tokens_cached_total": "prompt_tokens_cached",
    "prompt_seconds_total": "prompt_seconds",
    "tokens_predicted_total": "predicted_tokens",
    "tokens_predicted_seconds_total": "predicted_seconds",
    "n_decode_total": "decode_calls",
    "n_tokens_max": "tokens_max",
    "spec_decode_num_draft_tokens_total": "draft_tokens",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
    "spec_decode_num_drafts_total": "verification_steps",
    "spec_decode_num_drafts": "verification_steps",
    "requests_processing": "requests_processing",
    "requests_deferred": "requests_deferred",
    "n_busy_slots_per_decode": "busy_slots_per_decode",
    "prompt_tokens_seconds": "prompt_tokens_per_second",
    "predicted_tokens_seconds": "predicted_tokens_per_second",
}
"""Metric name without the prefix to the field of `Counters`. The text of the pull request that brought the
`spec_decode` names lacks their `_total`, so both are read."""

PER_POSITION_METRICS = frozenset(
    {"spec_decode_num_accepted_tokens_per_pos_total", "spec_decode_num_accepted_tokens_per_pos"}
)

MAX_POSITIONS = 4096
"""Draft positions beyond this are not believed; llama-server drafts at most 1024 tokens."""

MAX_UNRECOGNISED = 100

MAX_VALUE = 2.0**63
"""No total reaches what does not fit into llama-server's counters."""

RATIOS = frozenset({"prompt_tokens_per_second", "predicted_tokens_per_second"})
"""Fields that llama-server divides itself, by zero too; nothing rests on them."""

_SAMPLE = re.compile(
    r'^llamacpp:([A-Za-z0-9_:]++)(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]++([^\s]++)', re.MULTILINE
)
_LINE = re.compile(r"^llamacpp:", re.MULTILINE)
_POSITION = re.compile(r'(?:^|[,\s])position\s*=\s*"(\d{1,6})"', re.ASCII)


def parse_metrics(body: bytes | str) -> Counters:
    """The counters of one scrape, whole: one number in it that cannot be, and none of the others can be relied on.

    Raises ParseError without any `llamacpp:` line; where one of a known metric is no finite number from zero on, or
    contradicts another; and where the last line is cut off.
    """
    exposition = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    fields: dict[str, float | None] = {}
    positions: dict[int, int] = {}
    unrecognised: set[str] = set()
    samples = _SAMPLE.findall(exposition)
    for name, labels, written in samples:
        if (field := FIELD_OF_METRIC.get(name)) is not None:
            value = _number(written)
            if value is None and field not in RATIOS:
                raise ParseError(f"{name} is no number from zero on")
            if fields.setdefault(field, value) != value:
                raise ParseError(f"{name} is there twice, with different values")
        elif name in PER_POSITION_METRICS:
            _count_position(positions, labels, written)
        elif len(unrecognised) < MAX_UNRECOGNISED:
            unrecognised.add(name)
    if not samples:
        raise ParseError(f"no {PREFIX} metric in {len(body)} bytes")
    if len(samples) != len(_LINE.findall(exposition)):
        raise ParseError(f"a {PREFIX} line without a value")
    if not exposition.endswith("\n"):
        raise ParseError("cut off within a line")
    told: dict[str, Any] = fields
    return Counters(accepted_per_position=_series(positions), unrecognised=tuple(sorted(unrecognised)), **told)


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_VALUE and "_" not in written else None


def _count_position(positions: dict[int, int], labels: str, written: str) -> None:
    position = _POSITION.search(labels)
    count = _number(written)
    if count is None:
        raise ParseError("a count of accepted tokens is no number from zero on")
    if position and int(position[1]) < MAX_POSITIONS:
        # The series are exact integers, so a float may only stand in where the text is none.
        positions[int(position[1])] = int(written) if written.isdecimal() and len(written) < 20 else int(count)


def _series(positions: dict[int, int]) -> tuple[int, ...] | None:
    if not positions:
        return None
    # A label that has never been counted is not printed, so a gap is a count of zero.
    return tuple(positions.get(position, 0) for position in range(max(positions) + 1))
