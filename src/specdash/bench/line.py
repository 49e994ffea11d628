"""Connections to the server that is measured: a new one for each question, as the server may be closing an old one."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from specdash.backend.local_http import Reply
from specdash.core.errors import UsageError

if TYPE_CHECKING:
    from specdash.bench.samples import Place

CONNECT_S = 10.0
_MAX_BODY = 16 * 1024 * 1024


def headers_of(place: Place) -> dict[str, str]:
    """Raises `UsageError` for a key that cannot be sent."""
    head = {"Connection": "close", "User-Agent": "specdash"}
    if place.key:
        if not (place.key.isascii() and place.key.isprintable()):
            raise UsageError("the API key holds characters that cannot be part of one")
        head["Authorization"] = f"Bearer {place.key.strip()}"
    return head


def connected(place: Place, silence_s: float) -> http.client.HTTPConnection:
    """A new connection, whose reads wait so long at most. Raises OSError."""
    parts = urlsplit(place.url)
    host = parts.hostname or "127.0.0.1"
    wait = min(CONNECT_S, silence_s)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=wait, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=wait)
    try:
        connection.connect()
        connection.sock.settimeout(silence_s)
    except BaseException:
        connection.close()
        raise
    return connection


def path_of(place: Place, path: str) -> str:
    """Below the prefix that the address may have."""
    return urlsplit(place.url).path.rstrip("/") + path


def of_model(place: Place) -> str:
    """What a router must be told; it loads no model because of it."""
    return "?" + urlencode({"model": place.model, "autoload": "false"}) if place.model else ""


def get(place: Place, path: str, timeout_s: float) -> Reply:
    """The answer, whatever its status. Raises OSError when there is none."""
    with contextlib.closing(connected(place, timeout_s)) as connection:
        try:
            connection.request("GET", path_of(place, path), headers=headers_of(place))
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(_MAX_BODY))
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"no HTTP answer: {type(error).__name__}") from None
