"""Reading a request body without letting it grow past its limit, unpacked when it comes packed."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any

from specdash.proxy.errors import ApiError
from specdash.proxy.responses import header

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_GZIP = frozenset({"gzip", "x-gzip"})
_UNPACKED_AT_ONCE = 1 << 20
_MOST_MEMBERS = 16


async def read_body(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], limit: int) -> bytes:
    """The whole body. Raises `ApiError` 413 as soon as it is known to be longer than `limit` bytes, packed or not; 415
    for a packing other than gzip, 400 for one that is damaged."""
    coding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if coding != "identity" and coding not in _GZIP:
        raise ApiError(415, f"Content-Encoding {coding[:40]!r} is not read here; send gzip, or nothing packed")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client closed the connection before the whole body had arrived")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            return await _unpacked(body, limit) if coding in _GZIP and body else body


async def _unpacked(packed: bytes, limit: int) -> bytes:
    """The members of a gzip file, one after the other (RFC 1952, 2.2). Lets others run in between."""
    parts: list[bytes] = []
    size = 0
    for _ in range(_MOST_MEMBERS):
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while not member.eof:
            try:
                part = member.decompress(packed, _UNPACKED_AT_ONCE)
            except zlib.error as error:
                raise ApiError(400, f"the body is not gzip: {error}") from None
            if not (part or member.eof):
                raise ApiError(400, "the body is not whole gzip: it ends too early")
            packed = member.unconsumed_tail
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            await asyncio.sleep(0)
        packed = member.unused_data
        if not packed:
            return b"".join(parts)
    raise ApiError(400, f"the body is gzip of more than {_MOST_MEMBERS} members; pack it as one")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"request body is larger than {limit} bytes (PROXY_MAX_BODY_MIB)")
