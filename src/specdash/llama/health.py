"""GET /health to `Health`, and the sign by which every endpoint says that the model is still loading."""

from __future__ import annotations

from http import HTTPStatus

from specdash.core.observations import Health, HealthStatus
from specdash.llama.bodies import ParseError, error_message, fraction, load_object, mapping, one_line

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
