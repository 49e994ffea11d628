"""What llama-server's endpoints answer, parsed: /health, /props, /slots, /metrics, and a router's /models."""

from __future__ import annotations

import contextlib
import json
import math
import re
from http import HTTPStatus
from typing import Any

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
from specdash.core.speculation import parse_chain
from specdash.system.text import shortened

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


MAX_VALUE = 2.0**63
"""No total reaches what does not fit into llama-server's counters."""


def natural(value: object) -> int | None:
    """A whole number from zero; llama-server writes -1 for none."""
    number = integer(value)
    return number if number is not None and 0 <= number < MAX_VALUE else None


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


def is_loading(status: int, body: bytes | str) -> bool:
    """True for the answer that every endpoint gives while the model loads: 503 with a JSON error that says so."""
    if status != HTTPStatus.SERVICE_UNAVAILABLE:
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
        answer = load_object(body)
        progress = fraction(answer.get("progress", mapping(answer.get("error")).get("progress")))
        return Health(HealthStatus.LOADING, error_message(body), latency_s, progress)
    if status != HTTPStatus.OK:
        return Health(HealthStatus.ERROR, error_message(body) or f"HTTP {status}", latency_s)
    word = load_object(body).get("status")
    if not isinstance(word, str):
        raise ParseError("a JSON object without a status")
    if word == "error":
        return Health(HealthStatus.ERROR, error_message(body), latency_s)
    # Old builds answered "no slot available" while all slots were busy, which is healthy.
    return Health(HealthStatus.OK, "" if word == "ok" else one_line(word), latency_s)


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
    # `next_token` is a list of one object in current builds and the object itself in the documentation.
    token = entry.get("next_token")
    token = mapping(token[0] if isinstance(token, list) and token else token)
    types = mapping(entry.get("params")).get("speculative.types")
    return Slot(
        id=position if number is None else number,
        is_processing=bool(flag(entry.get("is_processing"))),
        n_ctx=natural(entry.get("n_ctx")),
        speculative=flag(entry.get("speculative")),
        task=natural(entry.get("id_task")),
        n_decoded=natural(token.get("n_decoded", entry.get("n_decoded"))),
        n_remain=natural(token.get("n_remain", entry.get("n_remain"))),
        n_prompt_tokens=natural(entry.get("n_prompt_tokens")),
        n_prompt_tokens_processed=natural(entry.get("n_prompt_tokens_processed")),
        n_prompt_tokens_cache=natural(entry.get("n_prompt_tokens_cache")),
        # The server always writes a leading "none,".
        speculative_types=tuple(name for part in types.split(",") if (name := part.strip()) not in ("", "none"))
        if isinstance(types, str)
        else None,
    )


_STATES = {model_status.value: model_status for model_status in ModelStatus}
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
    return RouterModels(
        tuple(_model(row) for row in rows if isinstance(row.get("status"), dict) and text(row.get("id")))
    )


def _model(row: dict[str, Any]) -> RouterModel:
    state = mapping(row.get("status"))
    status = _STATES.get(str(state.get("value")), ModelStatus.UNKNOWN)
    values = _values(state.get("args"))
    code = integer(state.get("exit_code"))
    failed = state.get("failed") is True and not (code in _OLD_EXIT_CODES and "source" not in row)
    if failed:
        status = ModelStatus.FAILED
    port = (values or {}).get("port", "")
    # A child server gets its port when it is started, and the port stays in the arguments after its end.
    never_started = code == _NEVER_STARTED if state.get("failed") is True else port == "0"
    aliases = row.get("aliases")
    used = natural(row.get("last_used_ms"))
    types = None
    if values is not None:
        with contextlib.suppress(InputError):
            # A server that runs with a type has it.
            chain = parse_chain(values.get("llama_spec_type", ""), "llama_spec_type", lambda _: True)
            types = tuple(spec_type.name for spec_type in chain)
    return RouterModel(
        id=str(row["id"]),
        status=status,
        aliases=tuple(alias for alias in aliases if isinstance(alias, str)) if isinstance(aliases, list) else (),
        last_used=used / 1000.0 if used else None,
        spec_types=types,
        draft_model=values.get("spec-draft-model") if values is not None else None,
        port=int(port) if status in RESIDENT and port.isdecimal() and 0 < int(port[:6]) < 65536 else None,
        failure="its server ended" + (f" with exit code {code}" if code is not None else "") if failed else "",
        has_source=not _MODEL_SOURCES.isdisjoint(values) if values is not None else None,
        never_loaded=status is ModelStatus.UNLOADED and never_started,
        exit_code=code if failed else None,
    )


def _values(arguments: object) -> dict[str, str] | None:
    """The values of the parameters that a child server is started with, by name; None where they are unknown."""
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        return None
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return {BY_FLAG[word][0].name: following for word, following in pairs if word in BY_FLAG}


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
    "spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "spec_decode_num_drafts_total": "verification_steps",
    "requests_processing": "requests_processing",
    "requests_deferred": "requests_deferred",
    "n_busy_slots_per_decode": "busy_slots_per_decode",
    "prompt_tokens_seconds": "prompt_tokens_per_second",
    "predicted_tokens_seconds": "predicted_tokens_per_second",
}
"""Metric name without the prefix to the field of `Counters`."""

PER_POSITION_METRIC = "spec_decode_num_accepted_tokens_per_pos_total"

MAX_POSITIONS = 4096
"""Draft positions beyond this are not believed; llama-server drafts at most 1024 tokens."""

MAX_UNRECOGNISED = 100

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
        elif name == PER_POSITION_METRIC:
            position, count = _POSITION.search(labels), _number(written)
            if count is None:
                raise ParseError("a count of accepted tokens is no number from zero on")
            if position and int(position[1]) < MAX_POSITIONS:
                # The series are exact integers, so a float may only stand in where the text is none.
                positions[int(position[1])] = int(written) if written.isdecimal() and len(written) < 20 else int(count)
        elif len(unrecognised) < MAX_UNRECOGNISED:
            unrecognised.add(name)
    if not samples:
        raise ParseError(f"no {PREFIX} metric in {len(body)} bytes")
    if len(samples) != len(_LINE.findall(exposition)):
        raise ParseError(f"a {PREFIX} line without a value")
    if not exposition.endswith("\n"):
        raise ParseError("cut off within a line")
    # A label that has never been counted is not printed, so a gap is a count of zero.
    series = tuple(positions.get(position, 0) for position in range(max(positions) + 1)) if positions else None
    known: dict[str, Any] = fields
    return Counters(accepted_per_position=series, unrecognised=tuple(sorted(unrecognised)), **known)


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_VALUE and "_" not in written else None
