"""Who may ask: clients with the key, and for the admin endpoints only this machine."""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING

from specdash.proxy.errors import ApiError
from specdash.proxy.responses import client_host, header

if TYPE_CHECKING:
    from specdash.proxy.responses import Scope

OPEN: frozenset[tuple[str, str]] = frozenset({("HEAD", "/"), ("GET", "/health"), ("HEAD", "/health")})
"""Endpoints that need no key: probes that tell nothing."""


def check_key(scope: Scope, key: str | None) -> None:
    """Raise `ApiError` 401 unless the request has `key`, as x-api-key or as Bearer; either is enough.

    Without a `key` any request passes, whatever it sends.
    """
    if not key or (scope["method"], scope["path"]) in OPEN:
        return
    wanted = key.encode()
    given = [value for name, value in scope["headers"] if name == b"x-api-key"]
    bearers = [value for name, value in scope["headers"] if name == b"authorization"]
    given += [value[7:].strip() for value in bearers if value[:7].lower() == b"bearer "]
    if not any(hmac.compare_digest(value, wanted) for value in given):
        problem = "invalid" if given else "missing"
        raise ApiError(401, f"{problem} API key: send PROXY_API_KEY as x-api-key or as Authorization: Bearer")


def check_local(scope: Scope) -> None:
    """Raise `ApiError` 403 unless a program on this machine asks; a web page is none, wherever its browser runs."""
    if header(scope, b"origin") is not None:
        raise ApiError(403, "the admin endpoints do not answer web pages")
    if not is_local(client_host(scope)):
        raise ApiError(403, "the admin endpoints answer only on this machine")


def is_local(host: str) -> bool:
    """True for a loopback address, also as IPv6 maps it, and for a Unix socket's empty one."""
    if not host:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
