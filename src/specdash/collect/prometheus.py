"""Asks a Prometheus for what exporters on other machines told it: the newest of all servers, or how it was over a time.

The HTTP API: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from specdash.core.errors import InputError, UnreachableError
from specdash.system.data import dataclass
from specdash.system.http import ask, words
from specdash.system.text import MIB, clean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ASK_S = 10.0
"""How long Prometheus may stay silent; its own limit of a query is two minutes."""
MOST_BYTES = 256 * MIB
"""A thousand servers take some 8 MiB."""
ASK_LONG_S = 30.0
"""The same of a query over a time, which reads far more."""
_REFUSED = (401, 403)
_REFUSALS = {
    "bad_data": "refuses the question (bad_data)",
    "execution": "cannot answer (execution; --query.max-samples is its limit, a shorter time asks for less)",
    "timeout": "took too long over the question (timeout; --query.timeout is its limit, a shorter time takes less)",
}
"""By the API's `errorType`."""


@dataclass(frozen=True, slots=True)
class PrometheusSample:
    """The newest value of one series: its labels, its name as `__name__`."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class PrometheusSeries:
    """One series over a time: its labels, and (Unix time, value) of each step that has one."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


def newest(url: str, query: str, key: str | None) -> list[PrometheusSample]:
    """What an instant query gives. `key` is sent as a bearer token.

    Raises `UnreachableError` where nobody answers, the answer is no Prometheus's, or the question is beyond a limit of
    its; `InputError` where the key is refused.
    """
    rows = _rows(url, "/api/v1/query", {"query": query}, key, ASK_S)
    return [sample for row in rows if (sample := _sample(row)) is not None]


def ranges(url: str, query: str, since: float, until: float, step_s: float, key: str | None) -> list[PrometheusSeries]:
    """What a range query gives, a point for each step from `since` to `until` (Unix times), where there is one. Raises
    as `newest` does."""
    asked = {"query": query, "start": f"{since:.3f}", "end": f"{until:.3f}", "step": f"{step_s:g}"}
    rows = _rows(url, "/api/v1/query_range", asked, key, ASK_LONG_S)
    return [series for row in rows if (series := _series(row)) is not None]


def _rows(url: str, path: str, asked: Mapping[str, str], key: str | None, patience_s: float) -> list[Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        question = f"{path}?{urlencode(asked)}"
        reply = ask(url, question, headers=headers, timeout=patience_s, most_bytes=MOST_BYTES)
    except TimeoutError:
        raise UnreachableError(
            f"Prometheus at {url} does not answer within {patience_s:.0f} s; ask for a shorter time"
        ) from None
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


def _series(row: Any) -> PrometheusSeries | None:
    """None for what is no series; values that are no numbers are left out."""
    try:
        points = ((float(at), float(value)) for at, value in row["values"])
        labels = {str(name): str(text) for name, text in row["metric"].items()}
        return PrometheusSeries(labels, tuple((at, value) for at, value in points if isfinite(value)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
