"""The proxy as an ASGI application: its parts, its routes, and how errors leave it.

Routing is one look into a table, so there is no web framework here: each handler speaks ASGI itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from specdash import __version__
from specdash.core.proxy_events import RequestPhase
from specdash.core.proxy_events import UpstreamStatus as State
from specdash.proxy.answer import passthrough, turn
from specdash.proxy.http import endpoints
from specdash.proxy.http.access import check_admin, check_host, check_key, check_origin, is_preflight
from specdash.proxy.http.client import ClientLeftError
from specdash.proxy.http.endpoints import context_json, render
from specdash.proxy.http.responses import (
    OPENAI_PATHS,
    ApiError,
    InvalidRequestError,
    ProxyStoppingError,
    TaggedSend,
    new_request_id,
    read_body,
    send_bytes,
    send_error,
    send_json,
)
from specdash.proxy.sessions import KINDS, SessionStore
from specdash.proxy.telemetry import Telemetry
from specdash.proxy.upstream.upstream import Upstream
from specdash.proxy.upstream.window import ContextWindow, handle_list, handle_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from specdash.proxy.http.responses import Receive, Scope, Send
    from specdash.proxy.sessions import ProxySession
    from specdash.proxy.settings import ProxySettings

    Handler = Callable[["Proxy", Scope, Receive, Send], Awaitable[None]]


# The gate that requests pass before they go upstream: an operator holds it while the backend restarts.

_LOG = logging.getLogger("specdash.proxy")
_RETRY_S = 5
SETTLING_S = 15.0
"""How long after a hold the upstream may still be on its way back."""


class Gate:
    """Open, or held for a reason. A hold that nobody lifts ends by itself: a crashed tool must not block for ever.

    `since` is Unix time; `limit_s` says how long the hold lasts from the latest `hold` on, `wait_s` how long a request
    may wait in it in all; `waiting` counts the requests that wait now.
    """

    def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self.held = False
        self.reason = ""
        self.since: float | None = None
        self.limit_s: float | None = None
        self.wait_s: float | None = None
        self.waiting = 0
        self.met = False
        """Whether somebody has seen the upstream since the latest hold."""
        self.on_open: Callable[[], None] | None = None
        """Called whenever a hold ends, by whatever means, before the waiting go on."""
        self._wall = wall
        self._clock = clock
        self._opened = asyncio.Event()
        self._opened_at: float | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._waits: dict[asyncio.Timeout, tuple[float, float]] = {}

    def hold(self, reason: str, limit_s: float, wait_s: float | None = None) -> None:
        """Let nothing pass until `resume`, or for `limit_s` seconds from now.

        While held, this renews the hold: its reason and limits are replaced, also for the requests that wait already,
        none of which is woken. Without `wait_s` the waits that are allowed now stay so; in a new hold each request then
        has its own.
        """
        self._cancel_expiry()
        renewed = self.held
        if not renewed:
            self.since = self._wall()
            self._opened = asyncio.Event()
        self.wait_s = wait_s if wait_s is not None else self.wait_s
        if not renewed or reason != self.reason:
            _LOG.info("HOLD: new requests wait, for up to %g s: %s", limit_s, reason or "no reason given")
        self.held, self.reason, self.limit_s = True, reason, limit_s
        self._expiry = asyncio.get_running_loop().call_later(limit_s, self._expire)
        for limit, (began, own_s) in self._waits.items():
            if not limit.expired():
                limit.reschedule(self._end_of_wait(began, own_s))

    def resume(self) -> bool:
        """Let everything pass; False when nothing was held."""
        if not self.held:
            return False
        _LOG.info("RESUME: %d waiting requests go on after %.1f s", self.waiting, self.held_s)
        self._open()
        return True

    @property
    def held_s(self) -> float:
        """Seconds since the hold began, 0 without one."""
        return max(0.0, self._wall() - self.since) if self.since is not None else 0.0

    @property
    def settling(self) -> bool:
        """Whether a hold ended so recently that the upstream may not be back yet."""
        return self._opened_at is not None and self._clock() - self._opened_at < SETTLING_S

    async def wait(self, own_s: float) -> None:
        """Return once the gate is open. Raises `ApiError` 529 after the hold's `wait_s`, or after `own_s` without."""
        if not self.held:
            return
        began = asyncio.get_running_loop().time()
        limit = asyncio.timeout_at(self._end_of_wait(began, own_s))
        self.waiting += 1
        try:
            async with limit:
                self._waits[limit] = began, own_s
                while self.held:
                    await self._opened.wait()
        except TimeoutError:
            if self.held:
                said = f" ({self.reason})" if self.reason else ""
                message = f"the proxy is held{said}; nothing was sent upstream"
                raise ApiError(529, message, retry_after=_RETRY_S) from None
        finally:
            self.waiting -= 1
            self._waits.pop(limit, None)

    def _end_of_wait(self, began: float, own_s: float) -> float:
        return began + (self.wait_s if self.wait_s is not None else own_s)

    def _expire(self) -> None:
        _LOG.warning("HOLD: lifted by itself after %g s, nobody resumed it: %s", self.limit_s or 0, self.reason)
        self._open()

    def _open(self) -> None:
        self._cancel_expiry()
        self.held, self.reason, self.since, self.limit_s, self.wait_s = False, "", None, None, None
        self._opened_at = self._clock()
        self.met = False
        if self.on_open is not None:
            self.on_open()
        self._opened.set()

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


# The operator's endpoints: hold new requests while the backend restarts, let them go on, and say how it stands.

LONGEST_S = 86400.0
_LARGEST_BODY = 64 << 10
_LONGEST_REASON = 200
_FIELDS = frozenset({"reason", "limit_s", "wait_s", "drain_s"})


def state(proxy: Proxy) -> dict[str, Any]:
    """How it stands. `active` counts requests that are upstream now; `drained` says that there is none.

    `streams` and `sessions` say how many of the turns among them stream, and how many sessions they belong to; the
    oldest of them began `oldest_s` ago.
    """
    gate = proxy.gate
    turns = (
        [request for request in proxy.telemetry.active if request.phase is not RequestPhase.HELD]
        if proxy.upstream.in_flight
        else []
    )
    return {
        "held": gate.held,
        "reason": gate.reason,
        "since": gate.since,
        "held_s": round(gate.held_s, 3),
        "limit_s": gate.limit_s,
        "wait_s": gate.wait_s,
        "waiting": gate.waiting,
        "active": proxy.upstream.in_flight,
        "drained": not proxy.upstream.in_flight,
        "streams": sum(bool(turn.event.stream) for turn in turns),
        "sessions": len({turn.session.id for turn in turns}),
        "oldest_s": round(max(0.0, time.time() - min(turn.event.at for turn in turns)), 3) if turns else None,
    }


async def handle_state(proxy: Proxy, scope: Scope, _receive: Receive, send: Send) -> None:
    """GET /admin/state."""
    check_admin(scope, proxy.admin_token)
    await send_json(send, state(proxy))


async def handle_hold(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """POST /admin/hold with `reason`, `limit_s`, `wait_s` and `drain_s`, all optional.

    The hold ends by itself after `limit_s`; a request waits in it for at most `wait_s` in all. Said again, the hold is
    renewed: both limits are replaced, `limit_s` counts from now on, and `wait_s`, when it is not given, stays what it
    is. With `drain_s` the answer comes once no request is upstream any more, or after that many seconds.
    """
    check_admin(scope, proxy.admin_token)
    values = await _json_body(scope, receive)
    reason = values.get("reason", "")
    if not isinstance(reason, str):
        raise InvalidRequestError("reason", "must be a string")
    limit_s = _seconds(values, "limit_s", proxy.settings.hold_limit)
    wait_s = _seconds(
        values, "wait_s", proxy.gate.wait_s if proxy.gate.wait_s is not None else proxy.settings.hold_limit
    )
    drain_s = _seconds(values, "drain_s", 0.0)
    if limit_s <= 0:
        raise InvalidRequestError("limit_s", "must be above 0")
    proxy.gate.hold(" ".join(reason.split())[:_LONGEST_REASON], limit_s, wait_s)
    await proxy.upstream.drained(drain_s)
    await send_json(send, state(proxy))


async def handle_resume(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """POST /admin/resume. What the upstream said before is forgotten: it may be another now."""
    check_admin(scope, proxy.admin_token)
    await _json_body(scope, receive)
    proxy.window.forget()
    resumed = proxy.gate.resume()
    await send_json(send, {"resumed": resumed, **state(proxy)})


async def _json_body(scope: Scope, receive: Receive) -> dict[str, Any]:
    body = await read_body(scope, receive, _LARGEST_BODY)
    if not body.strip():
        return {}
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError("", f"the body is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequestError("", "the body must be a JSON object")
    unknown = sorted(set(values) - _FIELDS)
    if unknown:
        raise ApiError(400, f"unknown field {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}")
    return values


def _seconds(values: dict[str, Any], name: str, default: float) -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequestError(name, "must be a number of seconds")
    if not 0 <= value <= LONGEST_S:
        raise InvalidRequestError(name, f"must be from 0 to {LONGEST_S:g} seconds")
    return float(value)


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
        self.admin_token = settings.admin_token or secrets.token_urlsafe(24)
        """What the admin endpoints ask for."""
        self.started = time.time()
        """Unix time."""
        self.leaving = False
        """Every answer that begins from now on is the last of its connection."""
        self.upstream = Upstream(settings)
        self.window = ContextWindow(self.upstream, settings)
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
        self.telemetry.file.close()


def asgi(proxy: Proxy) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The ASGI application of `proxy`."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["request_id"] = request_id = new_request_id()
        tagged = TaggedSend(send, request_id, lambda: proxy.leaving)
        try:
            check_host(scope, proxy.settings)
            tagged.origin = check_origin(scope, proxy.settings)
            if tagged.origin is not None and is_preflight(scope):
                await send_bytes(tagged, 204, b"", "text/plain", _PREFLIGHT)
                return
            if not scope["path"].startswith("/admin/"):
                check_key(scope, proxy.settings.api_key)
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
    await send_json(send, context_json(proxy, session))


def _named_session(store: SessionStore, name: str) -> ProxySession:
    """The session of our id for it, or of the name its client gave it."""
    for prefix in ("", *KINDS):
        session = store.find(prefix + name)
        if session is not None:
            return session
    raise ApiError(404, f"no such session: {name[:200]}; it may have been idle for too long")


async def _metrics(proxy: Proxy, _scope: Scope, _receive: Receive, send: Send) -> None:
    await send_bytes(send, 200, render(proxy).encode(), "text/plain; version=0.0.4; charset=utf-8")


_BOTH = ("", "/anthropic")
ROUTES: dict[str, dict[str, Handler]] = {
    **{f"{prefix}/v1/messages": {"POST": turn.handle} for prefix in _BOTH},
    **{f"{prefix}/v1/messages/count_tokens": {"POST": endpoints.handle} for prefix in _BOTH},
    **{f"{prefix}/v1/models": {"GET": handle_list} for prefix in _BOTH},
    **{path: {"POST": passthrough.handle} for path in OPENAI_PATHS},
    "/": {"GET": _root},
    "/health": {"GET": _health},
    "/v1/context": {"GET": _context},
    "/metrics": {"GET": _metrics},
    "/admin/state": {"GET": handle_state},
    "/admin/hold": {"POST": handle_hold},
    "/admin/resume": {"POST": handle_resume},
}
"""Handlers by path and method."""
_ONE_MODEL: dict[str, Handler] = {"GET": handle_one}
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
