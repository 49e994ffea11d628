"""The proxy as an ASGI application: its parts, its routes, and how errors leave it."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route, Router

from specdash.proxy.answer.passthrough import handle_chat
from specdash.proxy.answer.turn import handle_count, handle_messages
from specdash.proxy.gate import Gate, handle_hold, handle_resume, handle_state
from specdash.proxy.http.access import check_admin, check_host, check_key, check_origin
from specdash.proxy.http.responses import OPENAI_PATHS, ApiError, error_response, shown_error
from specdash.proxy.http.status import handle_context, handle_health, handle_metrics, handle_root
from specdash.proxy.sessions import SessionStore
from specdash.proxy.telemetry import Telemetry
from specdash.proxy.upstream.upstream import Upstream
from specdash.proxy.upstream.window import ContextWindow, handle_models

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from specdash.proxy.settings import ProxySettings


class Proxy:
    """Everything one proxy holds. Belongs to one event loop."""

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self.admin_token = settings.admin_token or secrets.token_urlsafe(24)
        """What the admin endpoints ask for."""
        self.leaving = False
        """Every answer that begins from now on is the last of its connection."""
        self.upstream = Upstream(settings)
        self.window = ContextWindow(self.upstream, settings)
        self.upstream.on_lost = self.window.forget
        self.gate = Gate()
        self.sessions = SessionStore()
        self.telemetry = Telemetry(settings)

    def reconfigure(self, settings: ProxySettings) -> None:
        """Put other settings in force; running turns keep those they began with."""
        self.settings = settings
        self.upstream.settings = settings
        self.window.settings = settings


_BOTH = ("", "/anthropic")
ROUTES = [
    # The router looks at one after the other.
    *(Route(f"{prefix}/v1/messages", handle_messages, methods=["POST"]) for prefix in _BOTH),
    *(Route(path, handle_chat, methods=["POST"]) for path in OPENAI_PATHS),
    Route("/", handle_root),
    Route("/health", handle_health),
    Route("/v1/context", handle_context),
    Route("/metrics", handle_metrics),
    Route("/admin/state", handle_state),
    Route("/admin/hold", handle_hold, methods=["POST"]),
    Route("/admin/resume", handle_resume, methods=["POST"]),
    *(Route(f"{prefix}/v1/messages/count_tokens", handle_count, methods=["POST"]) for prefix in _BOTH),
    *(Route(f"{prefix}/v1/models", handle_models) for prefix in _BOTH),
]


def asgi(proxy: Proxy) -> ASGIApp:
    """The ASGI application of `proxy`.

    It checks who asks, puts the request id on every answer, and answers what nothing else has answered.
    """
    router = Router(ROUTES, redirect_slashes=False)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # With an application the router raises what it does not find.
        scope["app"] = app
        request = Request(scope, receive)
        request_id = f"req_{secrets.token_hex(12)}"
        request.state.proxy, request.state.request_id = proxy, request_id
        path, started = request.url.path, False

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(raw=message["headers"])
                headers["request-id"] = request_id
                if proxy.leaving:
                    headers["connection"] = "close"
            await send(message)

        try:
            check_host(request, proxy.settings)
            check_origin(request)
            if path.startswith("/admin/"):
                check_admin(request, proxy.admin_token)
            else:
                check_key(request, proxy.settings.api_key)
            await router(scope, receive, tagged)
        except ClientDisconnect:
            return
        except HTTPException as error:
            if error.status_code == 405:
                known = ", ".join(sorted(set((error.headers or {}).get("Allow", "").split(", ")) - {"HEAD"}))
                found = ApiError(405, f"{request.method} is not possible here; use {known}")
                found.headers["allow"] = known
            else:
                found = ApiError(404, f"no such endpoint: {path[:200]}")
            await error_response(path, request_id, found)(scope, receive, tagged)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a bug must not end the connection unanswered
            if not started:
                shown = shown_error(error, f"{request_id}: {request.method} {path!r}")
                await error_response(path, request_id, shown)(scope, receive, tagged)

    return app
