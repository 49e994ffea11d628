"""Reading a request body without letting it grow past its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.proxy.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def read_body(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], limit: int) -> bytes:
    """The whole body. Raises `ApiError` 413 as soon as it is known to be longer than `limit` bytes."""
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
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"request body is larger than {limit} bytes (PROXY_MAX_BODY_MIB)")
