"""The operator's endpoints: hold new requests while the backend restarts, let them go on, and say how it stands."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import RequestPhase
from specdash.proxy.http.access import check_admin
from specdash.proxy.http.responses import ApiError, InvalidRequestError, json_response, load_object, read_body

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.proxy.http.app import Proxy

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
        "longest_wait_s": None if gate.longest_wait_s is None else round(gate.longest_wait_s, 3),
        "active": proxy.upstream.in_flight,
        "drained": not proxy.upstream.in_flight,
        "streams": sum(bool(turn.event.stream) for turn in turns),
        "sessions": len({turn.session.id for turn in turns}),
        "oldest_s": round(max(0.0, time.time() - min(turn.event.at for turn in turns)), 3) if turns else None,
    }


async def handle_state(request: Request) -> Response:
    """GET /admin/state."""
    return json_response(state(_allowed(request)))


async def handle_hold(request: Request) -> Response:
    """POST /admin/hold with `reason`, `limit_s`, `wait_s` and `drain_s`, all optional.

    The hold ends by itself after `limit_s`; a request waits in it for at most `wait_s` in all. One asked for again is
    renewed: both limits are replaced, `limit_s` counts from now on, and `wait_s`, when it is not given, stays what it
    is. With `drain_s` the answer comes once no request is upstream any more, or after that many seconds.
    """
    proxy = _allowed(request)
    values = await _json_body(request)
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
    return json_response(state(proxy))


async def handle_resume(request: Request) -> Response:
    """POST /admin/resume. What is known of the upstream is forgotten: it may be another now."""
    proxy = _allowed(request)
    await _json_body(request)
    proxy.window.forget()
    resumed = proxy.gate.resume()
    return json_response({"resumed": resumed, **state(proxy)})


def _allowed(request: Request) -> Proxy:
    proxy: Proxy = request.app.state.proxy
    check_admin(request, proxy.admin_token)
    return proxy


async def _json_body(request: Request) -> dict[str, Any]:
    body = await read_body(request, _LARGEST_BODY)
    values = load_object(body) if body.strip() else {}
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
