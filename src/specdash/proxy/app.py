"""The proxy as an ASGI application: its parts, its routes, and how errors leave it.

Routing is one look into a table, so there is no web framework here: each handler speaks ASGI itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from specdash import __version__
from specdash.core.proxy_status import Upstream as State
from specdash.proxy import admin, auth, count_tokens, hosts, metrics, models, passthrough, turn
from specdash.proxy.client_watch import ClientLeftError
from specdash.proxy.context import context_json
from specdash.proxy.errors import ApiError, ProxyStoppingError
from specdash.proxy.gate import Gate
from specdash.proxy.identity import KINDS
from specdash.proxy.responses import OPENAI_PATHS, TaggedSend, new_request_id, send_bytes, send_error, send_json
from specdash.proxy.sessions import SessionStore
from specdash.proxy.telemetry import Telemetry
from specdash.proxy.upstream import Upstream
from specdash.proxy.window import Window

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specdash.proxy.responses import Receive, Scope, Send
    from specdash.proxy.sessions import Session
    from specdash.proxy.settings import ProxySettings

    Handler = Callable[["Proxy", Scope, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger("specdash.proxy")
_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "*, authorization",
    "access-control-max-age": "600",
}
"""What pages of an allowed origin may send."""


class Proxy:
    """Everything one proxy holds. Belongs to one event loop."""

    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self.started = time.time()
        """Unix time."""
        self.leaving = False
        """Every answer that begins from now on is the last of its connection."""
        self.upstream = Upstream(settings)
        self.window = Window(self.upstream, settings)
        self.upstream.on_lost = self.window.forget
        self.gate = Gate()
        self.gate.on_open = self.window.forget
        self.sessions = SessionStore(settings.session_ttl_secs, settings.max_sessions)
        self.telemetry = Telemetry(settings, self.sessions)

    def reconfigure(self, settings: ProxySettings) -> None:
        """Put other settings in force, between two awaits of everybody; running turns keep those they began with."""
        self.settings = settings
        self.upstream.settings = settings
        self.window.settings = settings
        self.sessions.reconfigure(settings.session_ttl_secs, settings.max_sessions)
        self.telemetry.reconfigure(settings)

    async def close(self) -> None:
        """Close what is open."""
        await self.window.close()
        await self.upstream.close()
        self.telemetry.close()


def asgi(proxy: Proxy) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The ASGI application of `proxy`."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["request_id"] = request_id = new_request_id()
        tagged = TaggedSend(send, request_id, lambda: proxy.leaving)
        try:
            hosts.check_host(scope, proxy.settings)
            tagged.origin = hosts.check_origin(scope, proxy.settings)
            if tagged.origin is not None and hosts.is_preflight(scope):
                await send_bytes(tagged, 204, b"", "text/plain", _PREFLIGHT)
                return
            auth.check_key(scope, proxy.settings.api_key)
            await _handler(scope)(proxy, scope, receive, tagged)
        except ClientLeftError:
            return
        except ApiError as error:
            if tagged.started:
                _LOG.error("%s: failed after its answer had begun: %s", request_id, error.message)
            else:
                await send_error(scope, tagged, error, _allowed(scope) if error.status == 405 else None)
        except asyncio.CancelledError:
            # Only the end of the drain cancels a request, and this is the outermost frame of its task.
            if not tagged.started:
                await send_error(scope, tagged, ProxyStoppingError())
        except Exception:  # noqa: BLE001 - a bug must not end the connection without an answer
            _LOG.exception("%s: unexpected error in %s %r", request_id, scope["method"], scope["path"])
            if not tagged.started:
                await send_error(scope, tagged, ApiError(500, "internal error of the proxy; its log says more"))

    return application


async def _messages(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    await turn.handle(proxy, scope, receive, send)


async def _root(_proxy: Proxy, _scope: Scope, _receive: Receive, send: Send) -> None:
    await send_json(send, {"service": "specdash proxy", "version": __version__})


async def _health(proxy: Proxy, _scope: Scope, _receive: Receive, send: Send) -> None:
    """Always 200: the proxy answers. What is behind it is told in words."""
    seen = await proxy.window.check()
    status = "held" if proxy.gate.held else {State.OK: "ok", State.LOADING: "loading"}.get(seen, "degraded")
    await send_json(
        send,
        {
            "status": status,
            "proxy": "ok",
            "upstream": str(seen if seen is not State.UNKNOWN else State.UNREACHABLE),
            "held": proxy.gate.held,
            "context_window": proxy.window.tokens,
            "problems": list(proxy.settings.problems),
        },
    )


async def _context(proxy: Proxy, scope: Scope, _receive: Receive, send: Send) -> None:
    named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_id")
    store = proxy.sessions
    session = _named_session(store, named[0]) if named else store.latest()
    await send_json(send, context_json(session, store, proxy.telemetry, proxy.settings, proxy.window, proxy.gate))


def _named_session(store: SessionStore, name: str) -> Session:
    """The session of our id for it, or of the name its client gave it."""
    for prefix in ("", *KINDS):
        session = store.find(prefix + name)
        if session is not None:
            return session
    raise ApiError(404, f"no such session: {name[:200]}; it may have been idle for too long")


async def _metrics(proxy: Proxy, _scope: Scope, _receive: Receive, send: Send) -> None:
    text = metrics.render(proxy.telemetry, proxy.sessions, proxy.settings, proxy.window, proxy.gate)
    await send_bytes(send, 200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")


_BOTH = ("", "/anthropic")
ROUTES: dict[str, dict[str, Handler]] = {
    **{f"{prefix}/v1/messages": {"POST": _messages} for prefix in _BOTH},
    **{f"{prefix}/v1/messages/count_tokens": {"POST": count_tokens.handle} for prefix in _BOTH},
    **{f"{prefix}/v1/models": {"GET": models.handle_list} for prefix in _BOTH},
    **{path: {"POST": passthrough.handle} for path in OPENAI_PATHS},
    "/": {"GET": _root},
    "/health": {"GET": _health},
    "/v1/context": {"GET": _context},
    "/metrics": {"GET": _metrics},
    "/admin/state": {"GET": admin.handle_state},
    "/admin/hold": {"POST": admin.handle_hold},
    "/admin/resume": {"POST": admin.handle_resume},
}
"""Handlers by path and method."""
_ONE_MODEL: dict[str, Handler] = {"GET": models.handle_one}
_MODEL_PREFIXES = tuple(f"{prefix}/v1/models/" for prefix in _BOTH)


def _methods(path: str) -> dict[str, Handler] | None:
    found = ROUTES.get(path)
    if found is None and path.startswith(_MODEL_PREFIXES):
        return _ONE_MODEL
    return found


def _handler(scope: Scope) -> Handler:
    methods = _methods(scope["path"])
    if methods is None:
        raise ApiError(404, f"no such endpoint: {scope['path'][:200]}")
    method = scope["method"]
    handler = methods.get("GET" if method == "HEAD" else method)
    if handler is None:
        raise ApiError(405, f"{method} is not possible here; use {', '.join(methods)}")
    return handler


def _allowed(scope: Scope) -> dict[str, str]:
    return {"allow": ", ".join(_methods(scope["path"]) or ())}
