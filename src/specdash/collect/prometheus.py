"""Asks a Prometheus for what exporters on other machines gave it: the newest values of all servers.

The HTTP API: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from msgspec import Struct

from specdash.core.errors import InputError, UnreachableError
from specdash.llama.client import bearer
from specdash.llama.server_answers import mapping
from specdash.system.http import ask
from specdash.system.text import MIB, clean

if TYPE_CHECKING:
    from collections.abc import Mapping

ASK_S = 10.0
"""How long Prometheus may stay silent; its own limit of a query is two minutes."""
MOST_BYTES = 256 * MIB
"""A thousand servers take some 8 MiB."""
_REFUSED = (401, 403)


class PrometheusSample(Struct, frozen=True):
    """The newest value of one series: its labels, its name as `__name__`."""

    labels: Mapping[str, str]
    value: float


def newest(url: str, query: str, key: str | None) -> list[PrometheusSample]:
    """What an instant query gives. `key` is sent as a bearer token.

    Raises `UnreachableError` where nothing answers, what answers is not Prometheus, or the question is beyond a limit
    of it; `InputError` where the key is refused.
    """
    question = f"/api/v1/query?{urlencode({'query': query})}"
    try:
        reply = ask(url, question, headers=bearer(key), timeout=ASK_S, most_bytes=MOST_BYTES)
    except OSError as error:
        raise UnreachableError(f"Prometheus at {url} does not answer: {error}") from None
    if reply.status in _REFUSED:
        refused = "the key" if key else "a question without a key"
        raise InputError(
            f"Prometheus at {url} refuses {refused} (HTTP {reply.status}); name the variable that holds it with "
            "--prometheus-key-env"
        )
    answer = mapping(reply.json)
    if answer.get("status") != "success":
        why = str(answer.get("error", "" if answer else "it sends no JSON"))
        # What answers may repeat what it was sent.
        why = clean(why.replace(key, "***") if key else why, 200)
        raise UnreachableError(f"what answers at {url} is no Prometheus, or fails: HTTP {reply.status}, {why}")
    found = []
    rows = mapping(answer.get("data")).get("result")
    for row in rows if isinstance(rows, list) else ():
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            # What is not a series with a value is left out.
            labels, (_, value) = row["metric"], row["value"]
            found.append(PrometheusSample({str(name): str(text) for name, text in labels.items()}, float(value)))
    return found
