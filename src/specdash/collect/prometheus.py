"""Asks a Prometheus for what exporters on other machines gave it: the newest values of all servers.

The HTTP API: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from msgspec import Struct

from specdash.core.errors import InputError, UnreachableError
from specdash.system.http import ask, words
from specdash.system.text import MIB, clean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ASK_S = 10.0
"""How long Prometheus may stay silent; its own limit of a query is two minutes."""
MOST_BYTES = 256 * MIB
"""A thousand servers take some 8 MiB."""
_REFUSED = (401, 403)
_REFUSALS = {
    "bad_data": "refuses the question (bad_data)",
    "execution": "cannot answer (execution; --query.max-samples is its limit)",
    "timeout": "took too long over the question (timeout; --query.timeout is its limit)",
}
"""By the API's `errorType`."""


class PrometheusSample(Struct, frozen=True):
    """The newest value of one series: its labels, its name as `__name__`."""

    labels: Mapping[str, str]
    value: float


def newest(url: str, query: str, key: str | None) -> list[PrometheusSample]:
    """What an instant query gives. `key` is sent as a bearer token.

    Raises `UnreachableError` where nobody answers, the answer is no Prometheus's, or the question is beyond a limit of
    its; `InputError` where the key is refused.
    """
    return [sample for row in _rows(url, query, key) if (sample := _sample(row)) is not None]


def _rows(url: str, query: str, key: str | None) -> list[Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        question = f"/api/v1/query?{urlencode({'query': query})}"
        reply = ask(url, question, headers=headers, timeout=ASK_S, most_bytes=MOST_BYTES)
    except TimeoutError:
        raise UnreachableError(f"Prometheus at {url} does not answer within {ASK_S:.0f} s") from None
    except OSError as error:
        raise UnreachableError(f"Prometheus at {url} does not answer: {words(error)}") from None
    if reply.status in _REFUSED:
        raise InputError(
            f"Prometheus at {url} refuses {'the key' if key else 'whoever has no key'} (HTTP {reply.status}); name the "
            "variable that holds it with --prometheus-key-env"
        )
    answer = reply.json
    if isinstance(answer, dict) and answer.get("status") == "success":
        data = answer.get("data")
        rows = data.get("result") if isinstance(data, dict) else None
        return rows if isinstance(rows, list) else []
    if not isinstance(answer, dict):
        raise UnreachableError(f"what answers at {url} is no Prometheus: HTTP {reply.status}, it sends no JSON")
    why = str(answer.get("error", ""))
    # What answers may repeat what it was sent.
    why = clean(why.replace(key, "***") if key else why, 200)
    refusal = _REFUSALS.get(str(answer.get("errorType")))
    if refusal is not None:
        raise UnreachableError(f"Prometheus at {url} {refusal}: {why}")
    raise UnreachableError(f"what answers at {url} is no Prometheus, or fails: HTTP {reply.status}, {why}")


def _sample(row: Any) -> PrometheusSample | None:
    """None for what is no series with a value."""
    try:
        labels, (_, value) = row["metric"], row["value"]
        return PrometheusSample({str(name): str(text) for name, text in labels.items()}, float(value))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
