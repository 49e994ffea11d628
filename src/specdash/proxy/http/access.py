"""Whom a request names: the host it thinks it talks to, and the web page that sent it.

A page of any site can make a browser ask this machine, and by DNS rebinding under the site's own name. The browser
names both in `Host` and `Origin`. Sources: RFC 9110, 7.2; RFC 9112, 3.2; the Fetch standard, "HTTP extensions".
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from functools import lru_cache
from typing import TYPE_CHECKING

from specdash.core.target import is_loopback
from specdash.proxy.http.responses import ApiError, client_host

if TYPE_CHECKING:
    from starlette.requests import Request

    from specdash.proxy.settings import ProxySettings


# Who may ask: clients with the key, and for the admin endpoints only this machine.

OPEN: frozenset[tuple[str, str]] = frozenset({("HEAD", "/"), ("GET", "/health"), ("HEAD", "/health")})
"""Endpoints that need no key: probes that tell nothing."""


def check_key(request: Request, key: str | None) -> None:
    """Raise `ApiError` 401 unless the request has `key`, as x-api-key or as Bearer; either is enough.

    Without a `key` any request passes.
    """
    if not key or (request.method, request.url.path) in OPEN:
        return
    given = _sent(request, "x-api-key")
    if not _is_among(key, given):
        problem = "invalid" if given else "missing"
        raise ApiError(401, f"{problem} API key: send PROXY_API_KEY as x-api-key or as Authorization: Bearer")


def check_admin(request: Request, token: str) -> None:
    """Raise `ApiError` unless a program on this machine asks that has `token`, as x-admin-token, x-api-key or Bearer.

    A web page is none, wherever its browser runs; nor is the client that a reverse proxy names in X-Forwarded-For.
    """
    if "origin" in request.headers:
        raise ApiError(403, "the admin endpoints do not answer web pages")
    if not is_local(client_host(request)):
        raise ApiError(403, "the admin endpoints answer only on this machine")
    if not _is_among(token, [*_sent(request, "x-admin-token"), *_sent(request, "x-api-key")]):
        raise ApiError(
            401,
            "the admin endpoints want the proxy's admin token as x-admin-token: PROXY_ADMIN_TOKEN, or the one in the "
            "file beside its run record; `specdash proxy hold|resume|state` finds it",
        )


def _sent(request: Request, name: str) -> list[str]:
    """Values of a header, and those sent as Bearer."""
    bearers = request.headers.getlist("authorization")
    return request.headers.getlist(name) + [value[7:].strip() for value in bearers if value[:7].lower() == "bearer "]


def _is_among(wanted: str, given: list[str]) -> bool:
    return any(hmac.compare_digest(value.encode("latin-1"), wanted.encode()) for value in given)


def is_local(host: str) -> bool:
    """True for a loopback address, also as IPv6 maps it, and for a Unix socket's empty one."""
    return not host or is_loopback(host.removeprefix("::ffff:"))


_AUTHORITY = re.compile(r"(\[[0-9a-z:.%]+\]|[^\s:/@,\[\]]+)(:\d*)?", re.IGNORECASE | re.ASCII)


def check_host(request: Request, settings: ProxySettings) -> None:
    """Raise `ApiError` 400 for a request without exactly one valid Host, 403 for a host not known here."""
    named = request.headers.getlist("host")
    if len(named) != 1:
        raise ApiError(400, f"{'more than one' if named else 'no'} Host header; HTTP/1.1 wants one")
    host = host_of(named[0])
    if host is None:
        raise ApiError(400, "the Host header is not a host")
    here = request.scope.get("server") or ("", None)
    if not _is_known(host, settings.host, settings.allowed_hosts, local=here[1] is None or is_local(str(here[0]))):
        raise ApiError(403, f"{host[:200]} is not a name of this proxy; if it should be, add it to PROXY_ALLOWED_HOSTS")


def check_origin(request: Request) -> None:
    """Raise `ApiError` 403 for a web page of another site."""
    for value in request.headers.getlist("origin"):
        origin = value.strip().lower()
        if origin.partition("://")[2] != request.headers.get("host", "").strip().lower():
            raise ApiError(403, f"web pages of {origin[:200]} may not ask")


def host_of(authority: str) -> str | None:
    """The host of HOST[:PORT] in one spelling, None when it is none: lower case, no last dot, no brackets.

    The port does not matter: a tunnel has another.
    """
    found = _AUTHORITY.fullmatch(authority.strip())
    return found[1].strip("[]").lower().removesuffix(".") if found else None


@lru_cache(maxsize=256)
def _is_known(host: str, listens: str, allowed: str | None, *, local: bool) -> bool:
    """Whether a request may name `host` on a connection to this machine's loopback (`local`) or to another address."""
    own = socket.gethostname().lower().removesuffix(".")
    short = own.partition(".")[0]
    listed = (name.strip().rstrip("/") for name in (allowed or "").split(","))
    if host in {"localhost", own, short, f"{short}.local", *map(host_of, (listens, f"[{listens}]", *listed))}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    # No name stands for an address that is written out: no DNS can have led a browser here.
    return not local or is_local(host)
