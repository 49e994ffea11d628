"""Whom a request names: the host it thinks it talks to, and the web page that sent it.

A page of any site can make a browser ask this machine, and by DNS rebinding under the site's own name. The browser
tells both in `Host` and `Origin`. Sources: RFC 9110, 7.2; RFC 9112, 3.2; the Fetch standard, "HTTP extensions".
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from functools import lru_cache
from typing import TYPE_CHECKING

from specdash.proxy.http.responses import ApiError, client_host, header

if TYPE_CHECKING:
    from specdash.proxy.http.responses import Scope
    from specdash.proxy.settings import ProxySettings


# Who may ask: clients with the key, and for the admin endpoints only this machine.

OPEN: frozenset[tuple[str, str]] = frozenset({("HEAD", "/"), ("GET", "/health"), ("HEAD", "/health")})
"""Endpoints that need no key: probes that tell nothing."""


def check_key(scope: Scope, key: str | None) -> None:
    """Raise `ApiError` 401 unless the request has `key`, as x-api-key or as Bearer; either is enough.

    Without a `key` any request passes, whatever it sends.
    """
    if not key or (scope["method"], scope["path"]) in OPEN:
        return
    given = _sent(scope, b"x-api-key")
    if not _is_among(key, given):
        problem = "invalid" if given else "missing"
        raise ApiError(401, f"{problem} API key: send PROXY_API_KEY as x-api-key or as Authorization: Bearer")


_FORWARDED = re.compile(
    rb"forwarded|(?:real|client|connecting|remote|user)[-_]?(?:ip|addr)|x-envoy-|x-original-|cf-|cdn-loop\Z|via\Z"
)
"""Names of headers that a reverse proxy adds: who asked it is not on this machine, or is not known to be."""


def check_admin(scope: Scope, token: str) -> None:
    """Raise `ApiError` unless a program on this machine asks that has `token`, as x-admin-token, x-api-key or Bearer.

    A web page is none, wherever its browser runs; nor is what comes through a reverse proxy.
    """
    if header(scope, b"origin") is not None:
        raise ApiError(403, "the admin endpoints do not answer web pages")
    if not is_local(client_host(scope)):
        raise ApiError(403, "the admin endpoints answer only on this machine")
    if any(_FORWARDED.search(name.lower()) for name, _ in scope["headers"]):
        raise ApiError(403, "the admin endpoints answer nothing that a reverse proxy forwards")
    if not _is_among(token, [*_sent(scope, b"x-admin-token"), *_sent(scope, b"x-api-key")]):
        raise ApiError(
            401,
            "the admin endpoints want the proxy's admin token as x-admin-token: PROXY_ADMIN_TOKEN, or the one in the "
            "file beside its run record; `specdash proxy hold|resume|state` finds it",
        )


def _sent(scope: Scope, name: bytes) -> list[bytes]:
    """Values of a header, and those sent as Bearer."""
    bearers = [value for key, value in scope["headers"] if key == b"authorization"]
    given = [value for key, value in scope["headers"] if key == name]
    return given + [value[7:].strip() for value in bearers if value[:7].lower() == b"bearer "]


def _is_among(wanted: str, given: list[bytes]) -> bool:
    return any(hmac.compare_digest(value, wanted.encode()) for value in given)


@lru_cache(maxsize=256)
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


_AUTHORITY = re.compile(r"(\[[0-9a-z:.%]+\]|[^\s:/@,\[\]]+)(:\d*)?", re.IGNORECASE | re.ASCII)
_PREFLIGHT = b"access-control-request-method"


def check_host(scope: Scope, settings: ProxySettings) -> None:
    """Raise `ApiError` 400 for a request without the one Host of HTTP/1.1, 403 for a host not known here."""
    named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(named) > 1 or (not named and scope["http_version"] != "1.0"):
        raise ApiError(400, f"{'more than one' if named else 'no'} Host header; HTTP/1.1 wants one")
    target = scope.get("authority")
    if target is not None:
        named.append(f"[{target}]" if ":" in target else target)
    local = is_local(_here(scope))
    for authority in named:
        host = host_of(authority)
        if host is None:
            raise ApiError(400, "the Host header is not a host")
        if not _is_known(host, settings.host, settings.allowed_hosts, local=local):
            raise ApiError(403, f"{host[:200]} is no name of this proxy; if it is, add it to PROXY_ALLOWED_HOSTS")


def check_origin(scope: Scope, settings: ProxySettings) -> bytes | None:
    """The allowed origin of the web page that asks, None where no page of others does. Raises `ApiError` 403."""
    found = None
    for name, value in scope["headers"]:
        if name != b"origin":
            continue
        origin = value.decode("latin-1").strip().lower()
        if origin in _listed(settings.allowed_origins):
            found = value
        elif origin.partition("://")[2] != _host_header(scope):
            raise ApiError(403, f"web pages of {origin[:200]} may not ask; PROXY_ALLOWED_ORIGINS lists those that may")
    return found


def is_preflight(scope: Scope) -> bool:
    """True when a browser asks whether a page may send a request."""
    return scope["method"] == "OPTIONS" and any(name == _PREFLIGHT for name, _ in scope["headers"])


def host_of(authority: str) -> str | None:
    """The host of HOST[:PORT] in one spelling, None when it is none: lower case, no last dot, no brackets.

    The port does not matter: a tunnel has another.
    """
    found = _AUTHORITY.fullmatch(authority.strip())
    return found[1].strip("[]").lower().removesuffix(".") if found else None


@lru_cache(maxsize=256)
def _is_known(host: str, listens: str, allowed: str | None, *, local: bool) -> bool:
    """Whether a request may name `host` on a connection to this machine's loopback (`local`) or to another address."""
    if host in {host_of(listens), host_of(f"[{listens}]")} or host in _own_names():
        return True
    if host in {host_of(name) for name in _listed(allowed)}:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # No name stands for an address that is written out: no DNS can have led a browser here.
    return not local or is_local(str(address))


@lru_cache(maxsize=1)
def _own_names() -> frozenset[str]:
    own = socket.gethostname().lower().removesuffix(".")
    short = own.partition(".")[0]
    return frozenset({"localhost", own, short, f"{short}.local"}) - {""}


@lru_cache(maxsize=16)
def _listed(text: str | None) -> frozenset[str]:
    return frozenset(part.strip().rstrip("/").lower() for part in (text or "").split(",")) - {""}


def _here(scope: Scope) -> str:
    """This machine's address of the connection, "" on a Unix socket."""
    server = scope.get("server")
    return str(server[0]) if server and server[1] is not None else ""


def _host_header(scope: Scope) -> str | None:
    return next((value.decode("latin-1").strip().lower() for name, value in scope["headers"] if name == b"host"), None)
