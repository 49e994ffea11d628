"""textual-serve behind a key: who may see the dashboard in a browser, and from which pages.

textual-serve itself asks nobody anything. Here every request passes `_guard` first: its Host must be loopback's (a web
page whose own name was made to mean 127.0.0.1 has another), its Origin must be this page's own (a browser lets any page
open a websocket to us), and it must bring the cookie that the key was exchanged for.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

from specdash.core.target import is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MOST_PAGES = 8
"""Pages at once; each is a process that watches the server."""
SHUTDOWN_S = 2.0
_SOCKET = "/ws"
_HEADERS = {
    # Its page has a script and styles of its own inside, and names a font of Google's: nothing is fetched from anybody.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class PageServer(Server):
    """Serves what `command` draws on standard output to whoever knows `key`."""

    def __init__(self, command: str, *, title: str, key: str) -> None:
        super().__init__(command, title=title)
        self._key = key
        self._cookie = secrets.token_urlsafe(32)
        self._pages: set[asyncio.Task[Any] | None] = set()

    async def application(self) -> web.Application:
        """What `aiohttp` serves."""
        app = await self._make_app()
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(_add_headers)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Say nothing: the address is said by the command."""

    async def on_shutdown(self, app: web.Application) -> None:  # noqa: ARG002 - textual-serve's own signature
        """End the pages."""
        for task in self._pages:
            if task is not None:
                task.cancel()

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """The page, with addresses as this browser sees them: there may be an ssh tunnel between."""
        seen = copy.copy(self)
        seen.public_url = f"http://{request.host}"
        return await Server.handle_index(seen, request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """One page: a process of its own, for as long as the page is open."""
        if len(self._pages) >= MOST_PAGES:
            raise web.HTTPServiceUnavailable(text=f"{MOST_PAGES} pages are open already; close one")
        task = asyncio.current_task()
        self._pages.add(task)
        try:
            return await super().handle_websocket(request)
        finally:
            self._pages.discard(task)

    @property
    def _guard(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            name = f"specdash_{request.transport.get_extra_info('sockname')[1]}" if request.transport else "specdash"
            refusal = _refusal(request)
            if refusal:
                return web.Response(status=HTTPStatus.FORBIDDEN, text=refusal)
            if request.path == "/" and "key" in request.query:
                if not _is_same(request.query["key"], self._key):
                    return web.Response(status=HTTPStatus.FORBIDDEN, text=_NO_KEY)
                answer = web.Response(status=HTTPStatus.SEE_OTHER, headers={"location": "/"})
                answer.set_cookie(name, self._cookie, httponly=True, samesite="Strict", path="/")
                return answer
            if not _is_same(request.cookies.get(name, ""), self._cookie):
                return web.Response(status=HTTPStatus.FORBIDDEN, text=_NO_KEY)
            return await handler(request)

        return guard


_NO_KEY = "specdash web asks for its key: open the address that it printed, ?key=... included.\n"


def _refusal(request: web.Request) -> str:
    """Why a request is refused whatever key it has, "" where it is not."""
    if request.method != "GET":
        return "only GET\n"
    if not is_loopback(_host(request)):
        return "this name is not this machine's: use 127.0.0.1 or localhost\n"
    origin = request.headers.get("origin")
    if (origin is None and request.path == _SOCKET) or (origin is not None and origin != f"http://{request.host}"):
        return "asked for by another page\n"
    return ""


def _host(request: web.Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _is_same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
