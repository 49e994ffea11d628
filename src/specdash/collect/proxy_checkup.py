"""Looks once at the proxy and at its events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.collect.proxy import ProxyPoller
from specdash.collect.proxy_log import lines_of
from specdash.core.readings import Failure

if TYPE_CHECKING:
    from specdash.core.target import Target


@dataclass(frozen=True, slots=True)
class ProxyCheck:
    """The proxy: `state` is `ok` or why it does not answer; `events` where they are read, and why they are not."""

    url: str | None
    origin: str
    state: str
    detail: str
    events: str | None
    events_failure: str | None


def check_proxy(target: Target) -> ProxyCheck | None:
    """The findings, None when no proxy is known. Bounded by the poller's deadline."""
    if target.proxy_url is None and target.proxy_log is None:
        return None
    state, detail = asyncio.run(_look(target)) if target.proxy_url is not None else ("--", "its address is not known")
    failure = "no proxy log is known" if target.proxy_log is None else _events_failure(target.proxy_log)
    return ProxyCheck(target.proxy_url, target.proxy_origin, state, detail, target.proxy_log, failure)


async def _look(target: Target) -> tuple[str, str]:
    poller = ProxyPoller(target, lambda _: None)
    try:
        result = await poller.look()
    finally:
        await poller.aclose()
    if isinstance(result, Failure):
        return str(result.kind), result.detail
    version = result.version or "unknown version"
    return "ok", f"{version}, upstream {result.upstream}, {result.session_count} sessions"


def _events_failure(place: str) -> str | None:
    lines = lines_of(place)
    try:
        failure = lines.read(1).failure
        return failure.detail if failure is not None else None
    finally:
        lines.close()
