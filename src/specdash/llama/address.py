"""The address of a llama-server as a user may write it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from specdash.core.errors import UsageError

_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f]")


def normalise_url(written: str) -> str:
    """`scheme://host[:port][/prefix]` without a trailing slash or `/v1`; http where no scheme is given.

    Raises UsageError for what cannot be the base address of a server, also when it holds a user name or password.
    """
    address = written.strip()
    if "@" in address.split("://")[-1].split("/")[0]:
        raise UsageError("the server address holds a user name or password; give a key with --api-key-env NAME")
    if not address or _UNPRINTABLE.search(address):
        raise UsageError(f"{written!r} is no server address; write one like http://127.0.0.1:8080")
    if "://" not in address:
        address = f"http://{address}"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"server address: {error}; write one like http://127.0.0.1:8080") from None
    if parts.scheme.lower() not in ("http", "https"):
        raise UsageError(f"{written!r}: the scheme must be http or https, not {parts.scheme!r}")
    if not host or not _is_host(host):
        raise UsageError(f"{written!r} names no host; write an address like http://127.0.0.1:8080")
    if parts.query or parts.fragment:
        raise UsageError(f"{written!r}: a base address has no ? or # part; leave it off")
    shown_host = f"[{host}]" if ":" in host else host
    authority = shown_host if port is None else f"{shown_host}:{port}"
    path = parts.path.rstrip("/")
    path = path.removesuffix("/v1").rstrip("/")
    return f"{parts.scheme.lower()}://{authority}{path}"


def _is_host(host: str) -> bool:
    return not re.search(r"[^\w.:%\-]", host)
